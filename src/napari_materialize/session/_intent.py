"""What the user asked for, and the view it leads to. Opening happens here; deciding does not.

`follow` is the dear step: it opens the source, makes the ops and fits them together. What did not
change since the last time is taken over, so that typing a number opens no file again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from napari_materialize.errors import InputError, named
from napari_materialize.ops import Op, create
from napari_materialize.recipe import names_view, open_view, parse_op
from napari_materialize.view import View

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from napari_materialize.blocks import Boundary
    from napari_materialize.geometry import Box
    from napari_materialize.plan import Extent

__all__ = ["Chain", "Intent", "OpChoice", "follow", "outdated"]

type Coarser = Literal["none", "computed", "derived"]

type OpChoice = Op | str | tuple[str, Mapping[str, Any]]
"""An op, its text, or its name with parameters that may be wrong still."""


@dataclass(frozen=True, slots=True, eq=False)
class Intent:
    """What the user asked for, right or wrong; see `resolve` for what follows from it."""

    source: Any = None
    """Anything `napari_materialize.open_view` takes; None for none yet."""

    name: str = ""
    """What the source is called on the screen; its own name if left out."""

    affine: tuple[tuple[float, ...], ...] | None = None
    """What a viewer does to the source's world beyond scale and translation (rotation, shear): a
    homogeneous matrix over the source's axes. Nothing is computed with it here; a result is shown
    through it."""

    ops: tuple[OpChoice, ...] = ()
    """In order."""

    views: Mapping[str, View] | None = None
    """An engine's views by name, for a source such as ``view:smooth``."""

    boundary: Boundary = "edge"
    """What lies past the volume's edge."""

    level: int = 0
    """Which level is written."""

    coarser: Coarser = "none"
    """Whether coarser levels are written along with it: ``computed``, as the view has them, or
    ``derived`` from it by halving."""

    box: Box | None = None
    """Voxels of level ``box_level``; None for the whole level."""

    box_level: int = 0
    """Which level's voxels ``box`` counts."""

    box_axes: tuple[str, ...] | None = None
    """The names of the box's axes. Axes of the view that it lacks are taken whole, and those the
    view lacks do not count. None: the last axes of the view."""

    extent: Extent = "level"
    """Arrays of the whole level, or of exactly the box."""

    format: str = "zarr2"
    """``zarr2``, ``zarr3`` or ``n5``."""

    compression: str | None = "gzip:6"
    """As `napari_materialize.plan.Options` takes it."""

    skip_empty: bool = True
    """Whether chunks of nothing but the fill value are left out."""

    folder: str | None = None
    """Where a new folder is made if ``target`` is None."""

    target: str | None = None
    """The folder to write; None for a free name in ``folder``, made of the source and the ops."""


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The source and the ops, opened and fitted, or the sentences why they could not be."""

    intent: Intent
    """What it was made of."""

    base: View | None
    """The source alone."""

    source_problem: str | None
    """Why there is no base."""

    made: tuple[Op | None, ...] = ()
    """The ops, in order; None where one could not be made."""

    op_problems: tuple[str | None, ...] = ()
    """Why an op could not be made, or does not fit what comes before it; one entry per op."""

    view: View | None = None
    """The source through all ops."""


def follow(intent: Intent, previous: Chain | None = None) -> Chain:
    """Open the source and make the ops, taking over what did not change since ``previous``.

    Examples
    --------
    >>> import numpy as np
    >>> chain = follow(Intent(np.zeros((8, 8)), ops=(("gaussian", {"sigma": "x"}), "invert")))
    >>> chain.base.levels[0].shape, chain.view, chain.op_problems[0][:18]
    ((8, 8), None, 'op gaussian: sigma')
    """
    base, problem = _base(intent, previous)
    if base is None:
        return Chain(intent, None, problem, op_problems=(None,) * len(intent.ops))
    made, problems = _ops(intent.ops, previous)
    ready = [op for op in made if op is not None]
    if len(ready) < len(made):
        return Chain(intent, base, None, made, problems)
    try:
        view = base.then(ready)
    except Exception as error:  # noqa: BLE001 - another package's op may raise anything: said, not raised
        return Chain(intent, base, None, made, _misfit(base, ready, error))
    return Chain(intent, base, None, made, problems, view)


def outdated(chain: Chain) -> bool:
    """Whether a chain's source holds other voxels than when it was opened, as far as that is told.

    An array in memory is edited where it is, a folder is written anew; neither says so.

    Examples
    --------
    >>> import numpy as np
    >>> data = np.zeros((8, 8))
    >>> chain = follow(Intent(data))
    >>> outdated(chain), data.fill(1), outdated(chain)
    (False, None, True)
    """
    current = None if chain.base is None else getattr(chain.base.source, "current", None)
    if chain.base is None or current is None or isinstance(chain.intent.source, View):
        return False  # a view was opened by somebody else
    try:
        return bool(current() != chain.base.source.identity)
    except InputError:
        return True  # opening it again says why


def _base(intent: Intent, previous: Chain | None) -> tuple[View | None, str | None]:
    if intent.source is None:
        return None, "source: choose a layer or a path"
    asked = (intent.source, intent.boundary)
    named = names_view(intent.source)  # another view may have the name by now
    if previous is not None and previous.base is not None and not named:
        before = previous.intent
        if before.source is asked[0] and before.boundary == asked[1]:
            return previous.base, None
    try:
        return open_view(intent.source, boundary=intent.boundary, views=intent.views), None
    except InputError as error:
        return None, str(error)


def _ops(
    choices: Sequence[OpChoice], previous: Chain | None
) -> tuple[tuple[Op | None, ...], tuple[str | None, ...]]:
    known = [] if previous is None else list(zip(previous.intent.ops, previous.made, strict=False))
    made: list[Op | None] = []
    problems: list[str | None] = []
    for choice in choices:
        op = next((op for spec, op in known if op is not None and spec == choice), None)
        problem = None
        if op is None:
            try:
                op = _make(choice)
            except Exception as error:  # noqa: BLE001 - another package's op may raise anything: said, not raised
                problem = _sentence(error)
        made.append(op)
        problems.append(problem)
    return tuple(made), tuple(problems)


def _make(choice: OpChoice) -> Op:
    if isinstance(choice, Op):
        return choice
    return parse_op(choice) if isinstance(choice, str) else create(choice[0], choice[1])


def _misfit(base: View, ops: Sequence[Op], error: Exception) -> tuple[str | None, ...]:
    """Find the first op that does not fit what comes before it."""
    for count in range(1, len(ops)):
        try:
            base.then(ops[:count])
        except Exception as earlier:  # noqa: BLE001 - as in `follow`
            return _at(count - 1, len(ops), earlier)
    return _at(len(ops) - 1, len(ops), error)


def _at(position: int, count: int, error: Exception) -> tuple[str | None, ...]:
    return tuple(_sentence(error) if n == position else None for n in range(count))


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else named(error)
