"""From what the user asked for to what will happen: a pure function to a frozen state.

Owns every sentence that says why a job cannot run yet. It opens nothing (`_intent` did), starts
nothing and remembers nothing; of the disk it looks only at whether the target is free.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from napari_materialize.errors import BoxError, InputError, LevelError, TargetError
from napari_materialize.geometry import Box
from napari_materialize.plan import LevelPlan, Options, make_plan, plan_levels
from napari_materialize.session._intent import Chain, Intent, follow
from napari_materialize.stores import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.arrays import Level
    from napari_materialize.view import View

__all__ = ["FIELDS", "Corners", "Resolved", "resolve"]

FIELDS = ("source", "ops", "level", "box", "output", "target")
"""What can stand in the way, in the order in which a person mends it."""

type Corners = tuple[tuple[float, ...], tuple[float, ...]]
"""The lowest and the highest corner of a box in the world, at its outer faces."""

_SUFFIXES = {"n5": ".n5"}
"""What a made up name ends with, where that is not `_SUFFIX`."""

_SUFFIX = ".ome.zarr"

_LONGEST = 160
"""Bytes of a name that is made up: a disk takes 255, and a person has to read it."""


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """What follows from an `Intent`: the view, the box to be written, what is missing."""

    intent: Intent
    """What was asked for."""

    chain: Chain
    """The source and the ops."""

    problems: Mapping[str, str] = field(default_factory=dict)
    """What stands in the way: a sentence for each of `FIELDS` that has something wrong."""

    plan: LevelPlan | None = None
    """What will be written: ``box`` in voxels of ``level``, ``chunks``, ``nbytes``."""

    plans: tuple[LevelPlan, ...] = ()
    """The same for every level that is computed, `plan` first."""

    corners: Corners | None = None
    """The written box in the world, along the view's axes."""

    source_corners: Corners | None = None
    """The same along the source's axes; an axis that the view lacks is taken whole."""

    target: str | None = None
    """The folder that will be written."""

    options: Options | None = None
    """What the job will be told."""

    @property
    def view(self) -> View | None:
        """The source through the ops, or None if there is none."""
        return self.chain.view

    @property
    def source_level(self) -> Level | None:
        """The source's finest level."""
        return None if self.chain.base is None else self.chain.base.levels[0]

    @property
    def level(self) -> Level | None:
        """The chosen level of the view."""
        view, number = self.view, self.intent.level
        return view.levels[number] if view and 0 <= number < len(view.levels) else None

    @property
    def source_box(self) -> Box | None:
        """The box asked for, not rounded: finest voxels along all axes of the source."""
        intent, base = self.intent, self.chain.base
        if base is None or not 0 <= intent.box_level < len(base.levels):
            return None
        if intent.box is None:
            return Box.whole(base.levels[0].shape)
        counted = base.levels[intent.box_level]
        names = [axis.name for axis in counted.axes]
        given = intent.box_axes or names[-intent.box.ndim :]
        rows = dict(zip(given, zip(intent.box.start, intent.box.stop, strict=True), strict=False))
        spans = [rows.get(name, (0, size)) for name, size in zip(names, counted.shape, strict=True)]
        box = Box(tuple(low for low, _ in spans), tuple(high for _, high in spans))
        return base.levels[0].box_from(box, counted)

    @property
    def name(self) -> str:
        """What the source is called on the screen."""
        return self.intent.name or (self.chain.base.name if self.chain.base else "")

    @property
    def blocked(self) -> str | None:
        """Why it cannot run yet, in one sentence, or None if it can."""
        return next((self.problems[name] for name in FIELDS if name in self.problems), None)


def resolve(intent: Intent, chain: Chain | None = None) -> Resolved:
    """Decide what will happen.

    Parameters
    ----------
    intent : Intent
        What was asked for.
    chain : Chain, optional
        What `follow` made of it; made here if left out.

    Examples
    --------
    >>> import numpy as np
    >>> asked = Intent(np.zeros((100, 100), "u1"), ops=("invert",), box=Box((0, 0), (9, 9)))
    >>> state = resolve(asked)
    >>> state.plan.box, state.plan.nbytes, state.blocked
    (Box(start=(0, 0), stop=(100, 100)), 10000, 'target: choose a folder for the result')
    """
    chain = follow(intent) if chain is None else chain
    problems: dict[str, str] = {}
    if chain.source_problem is not None:
        problems["source"] = chain.source_problem
    first = next((text for text in chain.op_problems if text is not None), None)
    if first is not None:
        problems["ops"] = first
    target = _target(intent, chain)
    if chain.view is None:
        return Resolved(intent, chain, problems, target=target)
    try:
        options = _options(intent, chain.view)
        plans = plan_levels(chain.view, options)
    except InputError as error:
        problems["level" if isinstance(error, LevelError) else "box"] = str(error)
        return Resolved(intent, chain, problems, target=target)
    problems |= _output_problems(chain.view, options, target)
    plan = plans[0]
    corners = chain.view.levels[plan.level].world_corners(plan.box)
    on_source = _source_corners(chain, chain.view.levels[plan.level], corners)
    return Resolved(
        intent, chain, problems, plan, tuple(plans), corners, on_source, target, options
    )


def _options(intent: Intent, view: View) -> Options:
    computed: int | tuple[int, ...] = intent.level
    if intent.coarser == "computed" and 0 <= intent.level < len(view.levels):
        computed = tuple(range(intent.level, len(view.levels)))
    return Options(
        levels=computed,
        pyramid="auto" if intent.coarser == "derived" else 0,
        box=_view_box(intent, view),
        box_level=intent.box_level,
        extent=intent.extent,
        format=intent.format,
        compression=intent.compression,
        skip_empty=intent.skip_empty,
    )


def _view_box(intent: Intent, view: View) -> Box | None:
    """Return the box along all axes of the view, matched by their names."""
    box, names = intent.box, intent.box_axes
    if box is None or names is None:
        return box
    if len(names) != box.ndim:
        raise BoxError(f"box: one name per axis, got {names} for {box.start} to {box.stop}")
    level = view.level(intent.box_level)
    if not set(names) & {axis.name for axis in level.axes}:
        return box
    spans = dict(zip(names, zip(box.start, box.stop, strict=True), strict=True))
    rows = [
        spans.get(axis.name, (0, size)) for axis, size in zip(level.axes, level.shape, strict=True)
    ]
    return Box(tuple(low for low, _ in rows), tuple(high for _, high in rows))


def _source_corners(chain: Chain, level: Level, corners: Corners) -> Corners | None:
    if chain.base is None:
        return None
    source = chain.base.levels[0]
    low, high = (list(corner) for corner in source.world_corners(Box.whole(source.shape)))
    places = {axis.name: place for place, axis in enumerate(level.axes)}
    for place, axis in enumerate(source.axes):
        if axis.name in places:
            low[place] = corners[0][places[axis.name]]
            high[place] = corners[1][places[axis.name]]
    return tuple(low), tuple(high)


def _output_problems(view: View, options: Options, target: str | None) -> dict[str, str]:
    try:
        make_plan(view, MemoryStore(), options)
    except InputError as error:
        return {"output": str(error)}
    if target is None:
        return {"target": "target: choose a folder for the result"}
    parent = Path(target).parent
    if not Path(target).is_absolute():
        return {
            "target": f"target {target!r}: must be a whole path, which begins at the top; choose "
            "a folder"
        }
    if not os.path.isdir(parent):  # noqa: PTH112  (Path's own raises where a name is too long)
        return {
            "target": f"target {target}: must be a new folder in one that exists, and {parent} "
            "does not; choose another"
        }
    try:
        make_plan(view, target, options)
    except InputError as error:
        return {"target" if isinstance(error, TargetError) else "output": str(error)}
    return {}


def _target(intent: Intent, chain: Chain) -> str | None:
    """Return the folder to write: the one that was named, or a free one in ``folder``."""
    if intent.target is not None or intent.folder is None or chain.base is None:
        return intent.target
    words = [intent.name or chain.base.name, *(_op_name(op) for op in intent.ops)]
    words[0] = re.sub(r"(\.ome)?\.(zarr|n5)$", "", words[0])
    stem = "-".join(filter(None, (re.sub(r"[^\w.]+", "-", word).strip("-.") for word in words)))
    stem = stem.encode(errors="ignore")[:_LONGEST].decode(errors="ignore").rstrip("-.") or "result"
    suffix = _SUFFIXES.get(intent.format, _SUFFIX)
    path, number = Path(intent.folder, stem + suffix), 1
    while os.path.exists(path):  # noqa: PTH110  (Path's own raises where a name is too long)
        number += 1
        path = Path(intent.folder, f"{stem}-{number}{suffix}")
    return str(path)


def _op_name(choice: object) -> str:
    if isinstance(choice, tuple):
        return str(choice[0])
    return choice.partition(":")[0] if isinstance(choice, str) else str(getattr(choice, "name", ""))
