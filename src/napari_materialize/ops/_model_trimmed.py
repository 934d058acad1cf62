"""A model as its tiles run it: without the margin that nobody keeps, where that is the same.

Owns the trial: the trimmed model is run on one tile beside the model as it came, and used only if
every voxel that is kept agrees. What is cut off is `_model_trim`'s business.
"""

from __future__ import annotations

import hashlib
import math
import threading
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from napari_materialize.errors import ModelError
from napari_materialize.ops._model_rewrite import rewrite
from napari_materialize.ops._model_session import Runtime
from napari_materialize.ops._model_trim import effort, trim

if TYPE_CHECKING:
    from napari_materialize.geometry import Index
    from napari_materialize.ops._model_file import ModelFile
    from napari_materialize.ops._model_grid import AxisGrid
    from napari_materialize.ops._model_ports import Ports
    from napari_materialize.ops._model_rules import Crop
    from napari_materialize.ops._model_trim import Layer, Trim

__all__ = ["Trimmed", "Wanted", "trimmed"]

WORTH = 0.95
"""Share of the work that a trimmed model may have at most, to be worth a second session."""

MOST_BYTES = 2**28
"""Bytes of a model of which there may be two in memory: as it came, and trimmed."""

MOST_VOXELS = 2**24
"""Voxels of the tile that is tried."""

SEED = 2025

ROUNDING = 64
"""Rounding errors of the output's dtype, at its height, that count as agreement."""


@dataclass(frozen=True)
class Trimmed:
    """A model that makes of a tile only what is kept of it."""

    runtime: Runtime
    ports: Ports
    """Its output has lost the halo."""
    layers: tuple[Layer, ...]

    def effort(self, sides: Index) -> float:
        """Return a tile's work in voxels of the model as it came."""
        return effort(list(self.layers), sides)


_known: weakref.WeakValueDictionary[tuple[object, ...], Trimmed] = weakref.WeakValueDictionary()
_without: set[tuple[object, ...]] = set()
"""What cannot be trimmed: the rewriting or the trial failed, or it is not worth it."""
_lock = threading.Lock()


class Wanted(NamedTuple):
    """What a session is made for."""

    file: ModelFile
    device: str
    threads: int


def trimmed(wanted: Wanted, runtime: Runtime, ports: Ports, halo: Index) -> Trimmed | None:
    """Return a model trimmed by its halo, made and tried once; None where that is not possible.

    Parameters
    ----------
    wanted
        The file, the device, the threads in one call.
    runtime, ports
        The model as it came.
    halo
        Voxels of context per space axis.
    """
    digest, device, threads = wanted.file.digest, wanted.device, wanted.threads
    key = (digest, ports.input, ports.output, ports.grid, halo, device, threads)
    with _lock:  # tried once, however many ask
        if key in _without:
            return None
        found = _known.get(key)
        if found is None:
            found = _make(wanted, runtime, ports, halo)
            if found is None:
                _without.add(key)
            else:
                _known[key] = found
        return found


def _make(wanted: Wanted, runtime: Runtime, ports: Ports, halo: Index) -> Trimmed | None:
    grid = tuple(map(_narrowed, ports.grid, halo))
    rows = list(zip(ports.grid, grid, strict=True))
    crop = tuple(
        (new.first - old.first, new.lost - new.first - old.lost + old.first) for old, new in rows
    )
    if min(map(min, crop)) < 0 or not any(map(any, crop)):
        return None
    layouts = (ports.layout, ports.layout_out)
    found = trim(wanted.file.graph, (ports.input, ports.output), layouts, crop)
    sides = _sides(ports.grid, halo)
    if found is None or math.prod(sides) > MOST_VOXELS:
        return None
    if effort(found.layers, sides) > WORTH * math.prod(sides):
        return None
    data = _data(wanted.file)
    if data is None:
        return None
    try:
        changed = rewrite(data, found, ports.output)
        other = Runtime.of(wanted.file, changed, wanted.device, wanted.threads, _name(found))
        narrow = replace(ports, output=found.output, grid=grid)
        same = _agrees((runtime, ports), (other, narrow), sides, crop)
    except ModelError:  # onnxruntime does not take it: the model as it came will do
        return None
    return Trimmed(other, narrow, tuple(found.layers)) if same else None


def _narrowed(grid: AxisGrid, halo: int) -> AxisGrid:
    """Return an axis whose output has lost the halo, whatever it lost before."""
    return replace(grid, lost=max(grid.lost, 2 * math.floor(halo * grid.ratio)))


def _sides(grid: tuple[AxisGrid, ...], halo: Index) -> Index:
    """Return the sides of a tile of which a little is kept."""
    rows = zip(grid, halo, strict=True)
    return tuple(axis.side(2 * far + max(16, 2 * axis.stride)) for axis, far in rows)


def _data(file: ModelFile) -> bytes | None:
    """Return the file's bytes again; None if they are others now, or too many."""
    try:
        if file.path.stat().st_size > MOST_BYTES:
            return None
        data = file.path.read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == file.sha256 else None


def _name(found: Trim) -> str:
    """Return a name for what was cut."""
    parts = (found.output, sorted(found.pads.items()), sorted(found.cuts.items()))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _agrees(
    whole: tuple[Runtime, Ports], narrow: tuple[Runtime, Ports], sides: Index, crop: Crop
) -> bool:
    """Run both on one tile, and return whether all that is kept is the same."""
    runtime, ports = whole
    noise = np.random.default_rng(SEED).random((1, ports.channels, *sides), np.float32)
    integer = ports.takes.kind in "iu"
    noise = noise * np.iinfo(ports.takes).max if integer else noise
    tile = noise.astype(ports.takes)
    before, after = ports.run(runtime, tile), narrow[1].run(narrow[0], tile)
    kept = [
        slice(low, made - high) for (low, high), made in zip(crop, before.shape[2:], strict=True)
    ]
    before = before[(slice(None), slice(None), *kept)]
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    if before.dtype.kind != "f":
        return bool((before == after).all())
    height = float(np.nan_to_num(before).astype(np.float64).max() - np.nan_to_num(before).min())
    allowed = ROUNDING * float(np.finfo(before.dtype).eps) * height
    return bool(np.allclose(before, after, rtol=0, atol=allowed, equal_nan=True))
