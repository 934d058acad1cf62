"""What was measured of a model, once: on which voxels, and where it is remembered.

Owns the sample that a model is measured on (real voxels from the middle of the source, and noise
of the same range, since real voxels may be flat just there), the sentence that says what was found,
and the memory of it: in the process, and in a file per model in the user's cache folder. What is
compared, and how, is `_model_context`'s business.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.geometry import Box
from napari_materialize.ops._model_axes import ModelAxes
from napari_materialize.ops._model_context import Context, measure
from napari_materialize.ops._model_scale import Constants, Normalisation
from napari_materialize.ops._model_sizes import size_difference
from napari_materialize.ops._model_steering import steering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.geometry import Index
    from napari_materialize.ops._base import Voxels
    from napari_materialize.ops._model_op import ModelOp

__all__ = ["Findings", "findings"]

FOLDER_VARIABLE = "NAPARI_MATERIALIZE_CACHE"
"""Environment variable: the folder of remembered measurements; empty for none."""

VERSION = 6
"""Of the way in which contexts are measured."""

SEED = 2024


@dataclass(frozen=True, slots=True)
class Findings:
    """What was measured of a model, and on what."""

    context: Context
    on: str
    """``the source`` or ``noise``."""
    whole: tuple[str, ...] = ()
    """Operators of the graph that may look at the whole tile."""
    steering: tuple[str, ...] = ()
    """Operators of the graph that may follow the tile's size, or branch on its voxels."""
    sizes: tuple[Index, Index] | None = None
    """Sides of the smallest and of the largest tile that were compared on their account."""

    @property
    def doubt(self) -> str | None:
        """What cannot be known of a model that follows its tile; None of others."""
        if not self.steering or self.context.tile_dependent:
            return None
        what = (
            f"its graph may follow the size or the voxels of its tile ({', '.join(self.steering)})"
        )
        if self.sizes is None:
            return f"{what}, and no two sizes could be compared"
        least, most = (" x ".join(map(str, sides)) for sides in self.sizes)
        return (
            f"{what}: tiles of {least} to {most} voxels agree inside their halos, and what it "
            "does with others is not known"
        )

    @property
    def sentence(self) -> str:
        """What was found, in a clause."""
        context = self.context
        halo = ", ".join(map(str, dict.fromkeys(context.halo)))
        if context.tile_dependent:
            names = dict.fromkeys((*self.whole, *self.steering))
            because = f" (it has {', '.join(names)})" if names else ""
            if not context.residual:
                return "its tiles are too small to find out how much context it needs"
            return (
                f"its output depends on the whole tile{because}: with {halo} voxels of context two "
                f"tiles still differ by {context.residual:.2g} of {context.height:.2g}"
            )
        return (
            f"a halo of {halo} was measured, from which on tiles differ by {context.residual:.2g}"
        )

    @property
    def record(self) -> dict[str, Any]:
        """The same as JSON."""
        record = {**asdict(self.context), "on": self.on}
        return record if self.sizes is None else {**record, "sizes": self.sizes}


_known: dict[str, Findings] = {}
_lock = threading.Lock()


def findings(op: ModelOp, voxels: Voxels | None) -> Findings:
    """Return what is known of a model; measured if nothing is.

    Parameters
    ----------
    op : ModelOp
        The model, loaded and tried.
    voxels : Voxels or None
        What the op is to run on; noise only if None.
    """
    with _lock:  # a model is measured once, however many ask
        key = _key(op, voxels)
        found = _known.get(key) or _read(key)
        if found is None:
            found = _measure(op, voxels)
            _write(key, found)
        _known[key] = found
        return found


def _key(op: ModelOp, voxels: Voxels | None) -> str:
    """Return a name for what decides the result: the model's bytes and how it is run.

    Voxels that are handed on as they are decide too: 0 to 255 may saturate what 0 to 1 does not,
    and a model that makes the same of everything needs no context.
    """
    parts = [VERSION, op.file.digest, op.input, op.output, op.ports.layout.letters]
    parts += [op.normalise, [axis.stride for axis in op.ports.grid]]
    if voxels is not None and op.normalise == "none":
        parts.append(voxels.levels[0].dtype.str)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _measure(op: ModelOp, voxels: Voxels | None) -> Findings:
    ports = op.ports
    strides = op.file.graph.strides(ports.input, ports.output)
    follows = steering(op.file.graph, ports.input)
    run, sample = partial(ports.run, op._runtime), partial(_sample, op, voxels)
    context = measure(
        run,
        sample,
        ports.grid,
        strides.reach,
        told=op.told_multiple,
        whole=bool(strides.whole),
        branches=bool(follows),
        sure=strides.certain and not strides.whole,
        compared=strides.compared,
    )
    compared = None
    if follows and not context.tile_dependent:
        grid = ports.with_strides(context.stride).grid
        compared = size_difference(run, sample, grid, context.halo, context.residual)
        if compared is not None and compared.residual:
            context = replace(context, residual=compared.residual, tile_dependent=True)
    sizes = None if compared is None else (compared.least, compared.most)
    on = "noise" if voxels is None else "the source"
    return Findings(context, on, strides.whole, follows, sizes)


def _sample(op: ModelOp, voxels: Voxels | None, sides: Index) -> Sequence[np.ndarray]:
    """Return voxels to measure on: noise, and real ones if there are any."""
    ports = op.ports
    generator = np.random.default_rng(SEED)
    shape = (1, ports.channels, *sides)
    scaling = Normalisation.parse(op.normalise)
    if voxels is None:
        noise = generator.random(shape, np.float32)
        if scaling.kind == "zscore":
            noise = (noise - 0.5) * np.float32(np.sqrt(12))
        return [
            Constants(0.0, 1.0).apply(noise, ports.takes)
            if ports.takes.kind == "f"
            else (noise * np.iinfo(ports.takes).max).astype(ports.takes)
        ]
    real = np.nan_to_num(_real(op, voxels, sides))  # NaN would agree with NaN anywhere
    if op.constants is not None:
        constants = Constants(*scaling.given(op.constants))
    elif scaling.measured:
        constants = scaling.measure(_Array(voxels, real), 0)
    else:
        constants = Constants(*scaling.of_dtype(voxels.levels[0].dtype))
    low, high = float(real.min()), float(real.max())
    noise = low + (max(high, low + 1e-3 * (abs(low) + 1)) - low) * generator.random(
        shape, np.float32
    )
    return [constants.apply(real, ports.takes), constants.apply(noise, ports.takes)]


@dataclass(frozen=True, slots=True)
class _Array:
    """A sample that constants are taken from instead of the whole level: enough to measure on."""

    of: Voxels
    values: np.ndarray

    @property
    def levels(self) -> Any:
        from napari_materialize.arrays import Axis, Level

        axes = tuple(Axis(f"a{i}") for i in range(self.values.ndim))
        return (Level(self.values.shape, self.values.dtype, self.values.shape, axes),)

    @property
    def kind(self) -> Any:
        return self.of.kind

    def look(self, level: int, box: Box) -> np.ndarray:
        return self.values[box.slices]


def _real(op: ModelOp, voxels: Voxels, sides: Index) -> np.ndarray:
    """Return voxels from the middle of the finest level, mirrored where it is smaller."""
    level = voxels.levels[0]
    axes = ModelAxes.of(level, op.ports.rank, op.ports.channels, 1, f"onnx: {op.model.name}")
    start, stop = [], []
    wanted = dict(zip(axes.space, sides, strict=True))
    for axis, size in enumerate(level.shape):
        side = size if axis == axes.channel else min(size, wanted.get(axis, 1))
        start.append((size - side) // 2)
        stop.append((size - side) // 2 + side)
    block = np.asarray(voxels.look(0, Box(tuple(start), tuple(stop))))
    tile = axes.to_model(block)[:1]
    missing = [(0, want - have) for want, have in zip(sides, tile.shape[2:], strict=True)]
    return np.pad(tile, [(0, 0), (0, 0), *missing], mode="symmetric")


def _folder() -> Path | None:
    """Return the user's folder for what can be found out again."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given is not None:
        return Path(given) if given else None
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "napari-materialize" / "models" if base else None


def _read(key: str) -> Findings | None:
    """Return what was remembered; a file that cannot be read or understood is as good as none."""
    folder = _folder()
    if folder is None:
        return None
    try:
        said = json.loads((folder / f"{key}.json").read_text())
        context = Context(
            tuple(map(int, said["halo"])),
            tuple(map(int, said["stride"])),
            float(said["residual"]),
            float(said["height"]),
            bool(said["tile_dependent"]),
        )
        whole, follows = (tuple(map(str, said[key])) for key in ("whole", "steering"))
        sizes = said.get("sizes")
        pair = None if sizes is None else (tuple(map(int, sizes[0])), tuple(map(int, sizes[1])))
        return Findings(context, str(said["on"]), whole, follows, pair)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _write(key: str, found: Findings) -> None:
    """Remember a measurement; where it cannot be written it is made again next time."""
    folder = _folder()
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        partial_file = folder / f"{key}.{os.getpid()}.part"
        names = {"whole": found.whole, "steering": found.steering}
        partial_file.write_text(json.dumps({**found.record, **names}))
        partial_file.replace(folder / f"{key}.json")
