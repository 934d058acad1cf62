"""The op that runs an ONNX model, and the only importer of onnxruntime.

Owns sessions: one per model and device, shared by every op and thread that asks for the same,
and gone with the last of them. The file itself is read by `_model_file`, axes are matched by
`_model_axes`.

This first form takes models laid out (batch, channel, [z,] y, x) with any size in space and
an output on the same grid, and is told the halo. Everything else is refused with a reason.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import operator
import re
import threading
import weakref
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from napari_materialize.errors import ModelError, OpError
from napari_materialize.ops._axes import crop, one_or_each
from napari_materialize.ops._base import Abandoned, Description, Op, never
from napari_materialize.ops._convert import saturate
from napari_materialize.ops._model_axes import ModelAxes
from napari_materialize.ops._model_file import ModelFile, read_model
from napari_materialize.ops._model_ports import Ports, each_axis, find_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Box, Index

__all__ = ["Onnx"]

_UNIT_RANGE = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
"""Operators whose output lies in 0..1."""

_BATCH_VOXELS = 1 << 18
"""Voxels of planes run in one call: a batch saves calls, but its memory grows with it."""


class _Runtime:
    """A model loaded by onnxruntime on one device. Safe to use from several threads."""

    _all: ClassVar[weakref.WeakValueDictionary[tuple[str, str], _Runtime]] = (
        weakref.WeakValueDictionary()
    )
    _lock: ClassVar = threading.Lock()

    def __init__(self, file: ModelFile, data: bytes, device: str) -> None:
        import onnxruntime  # type: ignore[import-untyped]  # it ships no types

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # slots run in parallel, not the operators of one call
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # block shapes vary
        options.log_severity_level = 4  # every error is also raised
        self.place = f"onnx: {file.path.name}"
        providers = _providers(device)
        # weights in other files are found from the model's path
        model = str(file.path) if file.external else data
        try:
            with contextlib.nullcontext() if device == "cpu" else _quiet_start():
                self.session = onnxruntime.InferenceSession(model, options, providers=providers)
        except Exception as error:
            raise ModelError(
                f"{self.place} cannot be loaded by onnxruntime {onnxruntime.__version__}: "
                f"{_reason(error)}; export it again, for an older opset if it is too new"
            ) from error
        wanted = providers[0] if isinstance(providers[0], str) else providers[0][0]
        if wanted not in self.providers:
            raise ModelError(
                f"onnx: device={device} was asked for, but onnxruntime could not start it and "
                f"would run on {', '.join(self.providers)}; install its CUDA libraries, or give "
                "device=cpu"
            )

    @classmethod
    def of(cls, file: ModelFile, data: bytes, device: str) -> _Runtime:
        """Return the runtime of a model and a device, made once."""
        with cls._lock:
            found = cls._all.get((file.digest, device))
            if found is None:
                found = cls._all[file.digest, device] = cls(file, data, device)
            return found

    @property
    def inputs(self) -> list[Any]:
        """The inputs that must be given, as onnxruntime describes them."""
        return list(self.session.get_inputs())

    @property
    def outputs(self) -> list[Any]:
        """The outputs, as onnxruntime describes them."""
        return list(self.session.get_outputs())

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers that onnxruntime says it uses, first choice first."""
        return tuple(self.session.get_providers())

    def run(self, tile: np.ndarray, source: str, target: str) -> np.ndarray:
        """Run the model on (batch, channel, space...), from one input to one output."""
        try:
            (result,) = self.session.run([target], {source: tile})
        except Exception as error:
            sides = " x ".join(map(str, tile.shape[2:]))
            raise ModelError(
                f"{self.place} fails on a block of {sides} voxels: {_reason(error)}; if it needs "
                "sides that are multiples of a number, give it: multiple=8 or another"
            ) from error
        return np.asarray(result)


def _providers(device: str) -> list[Any]:
    """Return onnxruntime's providers for a device, or refuse one that is not there."""
    import onnxruntime

    if device == "cpu":
        return ["CPUExecutionProvider"]
    name = "CUDAExecutionProvider"
    if name not in onnxruntime.get_available_providers():
        raise ModelError(
            f"onnx: device={device} needs onnxruntime's {name}, this one has "
            f"{', '.join(onnxruntime.get_available_providers())}; install onnxruntime-gpu, or give "
            "device=cpu"
        )
    number = int(device.partition(":")[2] or 0)
    return [(name, {"device_id": number}), "CPUExecutionProvider"]


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Load CUDA's libraries, and keep the page of native log lines about missing ones to ourselves.

    What is missing is said afterwards, in one sentence.
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
        yield
    finally:
        onnxruntime.set_default_logger_severity(2)  # onnxruntime's own default: warnings


def _reason(error: Exception) -> str:
    """Return onnxruntime's reason in one line, without its codes, source files and advice."""
    first = str(error).strip().partition("\n")[0]
    if too_new := re.search(r"Opset (\d+) is under development.* till opset (\d+)", first):
        return f"it is written for opset {too_new[1]}, and opsets up to {too_new[2]} are known"
    first = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", first)
    first = re.sub(r"Non-zero status code .* while running (\w+) node.*Message: ", r"\1: ", first)
    first = re.sub(r"\S+\.(?:cc|h):\d+ (?:\w+ |.*?\) )", "", first)
    return first.rstrip(" .;") or type(error).__name__


@dataclass(frozen=True, slots=True)
class Onnx(Op):
    """An ONNX model, run on blocks with a halo; its output chunks are kept.

    The model's input and output are (batch, channel, [z,] y, x), with any size along the space
    axes, of float32, float16 or float64; voxels are converted to it as they are, unscaled
    (``rescale`` before it scales them). A 2D model runs plane by plane on data with more axes,
    several planes at once where its batch axis is free; a 3D model needs z, y, x. It takes all
    channels of the image, and one where the image has no channel axis. Channels that it makes
    come first (after a leading time axis), one chunk each; a single one adds no axis.

    The model is loaded, and tried on a small block of zeros, when the op is made: one that cannot
    work is refused before anything is created.

    Parameters
    ----------
    model : Path
        The ``.onnx`` file.
    halo : int or tuple of int
        Voxels of context on each side: one number, or one per space axis of the model. Enough
        of them make every block equal a run over the whole level; too few leave seams.
    multiple : int or tuple of int, optional
        Blocks begin and end on multiples of this, counted from voxel 0 of the level: 8 for a
        U-Net that halves its input three times. If left out, the smallest power of two that the
        model runs on, found by trying. A model with strides that runs on any size needs it to
        be told, or its result depends on where blocks begin.
    output, input : str, optional
        Names, where the model has several.
    device : str
        ``cpu``, ``cuda`` or ``cuda:1``. A GPU has not been run by this project's tests.

    Raises
    ------
    ModelError
        If the file is missing, damaged, refers to files outside its folder, cannot be run by
        onnxruntime, has another layout than said above, or the device is not there.
    OpError
        If a parameter is wrong.

    Examples
    --------
    >>> from napari_materialize import samples
    >>> op = Onnx(samples.detector_path(), halo=samples.DETECTOR_HALO)
    >>> from napari_materialize.arrays import Level
    >>> level = op.describe(Level((64, 512, 512), "u1", (32, 64, 64)), "image").level
    >>> level.shape, level.chunks, level.dtype
    ((2, 64, 512, 512), (1, 32, 64, 64), dtype('float32'))
    """

    name = "onnx"
    kept = True

    model: Path = field(metadata={"help": "the .onnx file"})
    extent: int | tuple[int, ...] = field(
        metadata={
            "name": "halo",
            "help": "voxels of context: one number, or one per space axis of the model",
        }
    )
    multiple: int | tuple[int, ...] | None = field(
        default=None,
        metadata={"help": "blocks begin and end on multiples of this; found if not given"},
    )
    output: str | None = field(
        default=None, metadata={"help": "name of the output, where the model has several"}
    )
    input: str | None = field(default=None, metadata={"help": "name of the input"})
    device: str = field(default="cpu", metadata={"help": "cpu, cuda or cuda:1"})
    file: ModelFile = field(init=False, repr=False)
    """What the file says of itself."""
    _runtime: _Runtime = field(init=False, repr=False, compare=False)
    _ports: Ports = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        model: Path | str,
        halo: int | tuple[int, ...],
        *,
        multiple: int | tuple[int, ...] | None = None,
        output: str | None = None,
        input: str | None = None,  # noqa: A002  # the word that users of models know
        device: str = "cpu",
    ) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise OpError(f"onnx: device is cpu, cuda or cuda:1, got {device!r}")
        put = object.__setattr__
        put(self, "extent", one_or_each(halo, _at_least(0, "halo"), "onnx: halo"))
        if multiple is not None:
            multiple = one_or_each(multiple, _at_least(1, "multiple"), "onnx: multiple")
        for key, value in (("output", output), ("input", input), ("device", device)):
            put(self, key, value)
        file, data = read_model(Path(model))
        put(self, "model", file.path)
        put(self, "file", file)
        runtime = _Runtime.of(file, data, device)
        put(self, "_runtime", runtime)
        ports, found = find_ports(runtime, input, output, self.extent, multiple)
        put(self, "_ports", ports)
        put(self, "multiple", found)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parameters: another process loads the model itself."""
        options = {key: getattr(self, key) for key in ("multiple", "output", "input", "device")}
        return partial(type(self), self.model, self.extent, **options), ()

    @property
    def identity(self) -> str | None:
        """The parameters, with the digest of the model's bytes for its path, and no device."""
        parameters = {**self.parameters, "model": self.file.digest}
        del parameters["device"]
        return json.dumps([self.name, parameters], sort_keys=True)

    @property
    def record(self) -> Mapping[str, Any]:
        """The parameters, the model by its file's name and sha256, and what it ran on."""
        model: dict[str, Any] = {"file": self.model.name, "sha256": self.file.sha256}
        if self.file.external:
            model["external"] = dict(self.file.external)
        return {
            "name": self.name,
            "parameters": {**self.parameters, "model": self.model.name},
            "model": model,
            "providers": list(self._runtime.providers),
        }

    @property
    def providers(self) -> tuple[str, ...]:
        """The onnxruntime providers that the model runs on, as onnxruntime reports them."""
        return self._runtime.providers

    def _axes(self, level: Level) -> ModelAxes:
        """Match the axes of ``level`` with the model's."""
        ports = self._ports
        return ModelAxes.of(level, ports.rank, ports.channels, ports.made, self._runtime.place)

    @property
    def _margin(self) -> Index:
        """The halo per space axis of the model."""
        return each_axis(self.extent, self._ports.rank, self._runtime.place, "halo")

    def halo(self, level: Level) -> Index:
        """Return the halo along the axes that the model sees, 0 along others."""
        return self._axes(level).spread(self._margin, 0)

    def align(self, level: Level) -> Index:
        """Return ``multiple`` along the axes that the model sees, 1 along others."""
        assert self.multiple is not None
        return self._axes(level).spread(
            each_axis(self.multiple, self._ports.rank, self._runtime.place, "multiple"), 1
        )

    def inputs(self, box: Box, level: Level) -> Box:
        """The same voxels, of all the channels of the input."""
        return self._axes(level).inputs(box)

    def outputs(self, box: Box, level: Level) -> Box:
        """The same voxels, of all the channels that the model makes."""
        return self._axes(level).outputs(box)

    def describe(self, level: Level, kind: Kind) -> Description:
        """Describe an image in the model's dtype, with its channels first if it makes several.

        Raises
        ------
        OpError
            If the level has fewer space axes than the model.
        ModelError
            If the level has another number of channels than the model takes.
        """
        made = replace(self._axes(level).output(), dtype=self._ports.gives, fill=0)
        mask = self._ports.gives.kind == "b"
        unit = mask or self.file.operator(self._ports.output) in _UNIT_RANGE
        return Description(made, "mask" if mask else "image", (0.0, 1.0) if unit else None)

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Run the model on a block, plane by plane or in batches where it sees fewer axes.

        Raises
        ------
        Abandoned
            If, between two calls of the model, nobody waits any more.
        ModelError
            If the model fails on the block, or makes another shape of it than it did of others.
        """
        axes, ports = self._axes(level), self._ports
        tiles = axes.to_model(block)
        halo = (0, 0, *self._margin)
        inner = tuple(size - 2 * n for size, n in zip(tiles.shape, halo, strict=True))[2:]
        made = np.empty((len(tiles), ports.made, *inner), ports.gives)
        step = max(1, _BATCH_VOXELS // max(1, math.prod(tiles.shape[2:]))) if ports.batched else 1
        for first in range(0, len(tiles), step):
            if abandoned():
                raise Abandoned
            tile = np.ascontiguousarray(saturate(tiles[first : first + step], ports.takes))
            result = self._runtime.run(tile, ports.input, ports.output)
            if result.shape != (len(tile), ports.made, *tile.shape[2:]):
                raise ModelError(
                    f"{self._runtime.place}: made {result.shape} of {tile.shape}, must keep the "
                    "voxels; if it needs sides that are multiples of a number, give it: multiple=8"
                )
            made[first : first + step] = crop(result, halo)
        return axes.from_model(made, block.shape)


def _at_least(least: int, key: str) -> Callable[[Any], int]:
    """Return a check of one whole number of voxels."""

    def check(value: Any) -> int:
        try:
            number = least - 1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = least - 1
        if number < least:
            raise OpError(f"onnx: {key} must be a whole number, {least} or more, got {value!r}")
        return number

    return check
