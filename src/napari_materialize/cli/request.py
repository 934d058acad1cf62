"""What a person asks of ``run``: each option's text read into what a job takes, or refused.

Owns the meaning of the command line's own spellings. The words they share with Python (ops, boxes,
compressions) are read in `recipe` and `codecs`; whether they fit the image is the plan's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from napari_materialize.errors import BoxError, LevelError, OpError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.arrays import Level
    from napari_materialize.blocks import Boundary
    from napari_materialize.geometry import Box
    from napari_materialize.ops import Op
    from napari_materialize.view import View

__all__ = ["Request", "whole_number"]


def whole_number(option: str, text: str, least: int) -> int:
    """Return the number that ``text`` is.

    Raises
    ------
    OptionError
        If it is none, or below ``least``.

    Examples
    --------
    >>> whole_number("--slots", "4", 1)
    4
    """
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise OptionError(f"{option}: a whole number, {least} or more, got {text!r}; correct it")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of ``run``, as they were typed."""

    source: str
    out: str
    op: Sequence[str] | None = None
    level: Sequence[str] | None = None
    box: str | None = None
    box_level: str | None = None
    world_box: str | None = None
    extent: str = "level"
    format: str = "zarr2"
    compression: str = "gzip"
    shards: str | None = None
    pyramid: str = "0"
    keep_empty: bool = False
    existing: str = "error"
    on_error: str = "raise"
    select: str | None = None
    boundary: str = "edge"
    slots: str | None = None
    threads: str | None = None
    dask: str | None = None

    def check_built(self) -> None:
        """Refuse options that exist and are not built yet; those that a plan refuses are not here.

        Raises
        ------
        OptionError
            If one of them is given.
        """
        if self.dask is not None:
            raise OptionError(
                f"--dask: is not built yet (see the roadmap), got {self.dask!r}; leave it out"
            )

    @property
    def slot_count(self) -> int | None:
        """Computations at a time, or None for the engine's own number."""
        return None if self.slots is None else whole_number("--slots", self.slots, 1)

    def view(self) -> View:
        """Open the source through the ops.

        Raises
        ------
        InputError
            If the source, an op or the selection cannot be used.
        """
        from napari_materialize.recipe import open_view, parse_op

        chain = [parse_op(text) for text in self.op or ()]
        view = open_view(self.source, boundary=cast("Boundary", self.boundary))
        if self.select is not None:
            chain.insert(0, _selection(self.select, view.levels[0]))
        return view.then(chain)

    def options(self, view: View) -> dict[str, Any]:
        """Return the options of `Engine.materialize`.

        Raises
        ------
        InputError
            If an option's text cannot be read.
        """
        box_level = _level_number("--box-level", self.box_level or "0")
        return {
            "levels": self._levels(view),
            "box": self._box(view, box_level),
            "box_level": box_level,
            "extent": self.extent,
            "format": self.format,
            "compression": self.compression,
            "shards": None if self.shards is None else _shards(self.shards),
            "pyramid": self._pyramid(),
            "skip_empty": not self.keep_empty,
            "existing": self.existing,
            "on_error": self.on_error,
            "concurrency": None
            if self.threads is None
            else whole_number("--threads", self.threads, 1),
        }

    def _levels(self, view: View) -> list[int]:
        """Return the levels to write: all, unless told, or the coarser ones are to be derived."""
        if self.level:
            return [_level_number("--level", text) for text in self.level]
        return [0] if self._pyramid() else list(range(len(view.levels)))

    def _pyramid(self) -> int | str:
        text = self.pyramid.strip().lower()
        return text if text == "auto" else whole_number("--pyramid", text, 0)

    def _box(self, view: View, box_level: int) -> Box | None:
        from napari_materialize.recipe import parse_box, parse_world_box

        if self.box is not None and self.world_box is not None:
            raise BoxError(
                "--box and --world-box: one of them says what to write, got both; leave one out"
            )
        if self.world_box is None and self.box is None and self.box_level is not None:
            raise BoxError(
                f"--box-level {self.box_level}: says which level --box counts voxels of, and there "
                "is no --box; give one, or --level for the level to write"
            )
        if self.world_box is None:
            return None if self.box is None else parse_box(self.box)
        level = view.level(box_level)
        box = level.box_from_world(*parse_world_box(self.world_box))
        if box.is_empty:
            low, high = level.world_corners(type(box).whole(level.shape))
            raise BoxError(
                f"world box {self.world_box}: must hold at least one voxel of the image, which "
                f"spans {_corner(low)} to {_corner(high)}; give a box that overlaps it"
            )
        return box


def _corner(position: Sequence[float]) -> str:
    return ",".join(f"{value:g}" for value in position)


def _shards(text: str) -> tuple[int, ...]:
    return tuple(whole_number("--shards", number, 1) for number in text.split(","))


def _level_number(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise LevelError(
            f"{option}: a whole number from 0 on, 0 is the finest, got {text!r}; correct it"
        ) from None


def _selection(text: str, level: Level) -> Op:
    """Return the op that ``c=0`` asks for."""
    from napari_materialize.ops import create

    name, equals, position = text.partition("=")
    if not equals:
        raise OpError(f"--select {text}: an axis and a place are expected, as in c=0; correct it")
    channel = [axis.name for axis in level.axes if axis.type == "channel"]
    if name.strip() not in channel:
        has = f"its channel axis is {channel[0]}" if channel else "it has none"
        raise OpError(
            f"--select {text}: only along the image's channel axis can a place be selected, and "
            f"{has}, got {name.strip()!r}; use --box along other axes"
        )
    return create("select", {"channel": position.strip()})
