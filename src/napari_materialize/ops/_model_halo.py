"""Which halo a model is run with: what was given, measured or described, and what cannot work.

Owns the choice and its refusals. What was measured is `_model_findings`' business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from napari_materialize.errors import OpError
from napari_materialize.ops._model_grid import AxisGrid, Tiling
from napari_materialize.ops._model_record import in_words

if TYPE_CHECKING:
    from napari_materialize.geometry import Index
    from napari_materialize.ops._model_findings import Findings

__all__ = ["check_halo", "check_tile", "choose_halo"]

_LOOSE_HALO = 32
"""Context of the tiles of a model that no context makes exact, where nobody gave one."""


def check_tile(place: str, tile: Index, grids: tuple[AxisGrid, ...]) -> None:
    """Refuse a tile whose sides the model does not take.

    Raises
    ------
    OpError
        Naming the nearest one that it takes.
    """
    for side, axis in zip(tile, grids, strict=True):
        if axis.side(side) != side:
            raise OpError(
                f"{place}: takes sides of {axis.side(side)} voxels, not of {side}, as "
                f"tile={in_words(tile)} wants; give what it takes"
            )


def check_halo(
    place: str, margin: Index, grids: tuple[AxisGrid, ...], tiles: tuple[int | None, ...]
) -> None:
    """Refuse a halo that covers less than the model cuts off, or that fills the whole tile.

    Raises
    ------
    OpError
        Naming the axis' numbers and what to give.
    """
    for halo, axis, tile in zip(margin, grids, tiles, strict=True):
        if halo < axis.least:
            raise OpError(
                f"{place}: returns {axis.lost} voxels less than it takes, so that halo must be "
                f"at least {axis.least}, got {halo}; give that, or halo=auto"
            )
        if tile is not None and Tiling.of(axis, halo, tile, 1) is None:
            raise OpError(
                f"{place}: a halo of {halo} leaves nothing of tiles of {tile} voxels; give a "
                "smaller halo, or a model that takes larger tiles"
            )


def choose_halo(
    found: Findings, grids: tuple[AxisGrid, ...], said: Index | None
) -> tuple[Index, str | None]:
    """Return the halo to run with, and what a person should know about it.

    Parameters
    ----------
    found
        What was measured.
    grids
        The model's space axes, with the stride that was measured.
    said
        What a description says, where nobody asked for a measured halo.
    """
    least = tuple(max(h, axis.least) for h, axis in zip(found.context.halo, grids, strict=True))
    if found.context.tile_dependent:
        loose = (axis.stride * -(-max(_LOOSE_HALO, axis.least) // axis.stride) for axis in grids)
        return tuple(
            min(halo, max(axis.least, axis.fixed // 4)) if axis.fixed else halo
            for halo, axis in zip(loose, grids, strict=True)
        ), None
    if said is None:
        return least, None
    note = None
    if any(a < b for a, b in zip(said, least, strict=True)):
        note = (
            f"its description says halo={in_words(said)}, but {found.sentence}, and that is taken"
        )
    return tuple(map(max, said, least)), note
