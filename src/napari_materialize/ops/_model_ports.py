"""What a model takes and makes: its declaration checked, and tried on a block of zeros.

Owns the layout that the op supports. It knows no level (`_model_axes`) and no runtime: it is
handed one that declares and runs (`onnx`).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from napari_materialize.errors import ModelError, OpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.geometry import Index

_TAKES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64"}
"""Input types, and the dtypes that voxels are converted to."""

_GIVES = _TAKES | {
    "tensor(bool)": "bool",
    **{
        f"tensor({kind}{bits})": f"{kind}{bits}"
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
}
"""Output types, and the dtypes that voxels come out in."""

_MULTIPLES = (1, 2, 4, 8, 16, 32, 64)
"""Multiples that a model's sides are tried on where nobody says."""

_TRIAL = 9
"""Least side of the block a model is tried on. It is an odd multiple of the step, so that a model
that halves its input, and was not said to, fails before anything is created."""


class Port(Protocol):
    """An input or output as a model declares it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def shape(self) -> Sequence[int | str | None]:
        """Its axes: a number where the size is fixed."""

    @property
    def type(self) -> str:
        """As in ``tensor(float)``."""


class Runner(Protocol):
    """A loaded model."""

    place: str
    """What a message calls it."""

    @property
    def inputs(self) -> Sequence[Port]:
        """The inputs that must be given."""

    @property
    def outputs(self) -> Sequence[Port]:
        """The outputs."""

    def run(self, tile: np.ndarray, source: str, target: str) -> np.ndarray:
        """Run it from one input to one output."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The input and the output that are used, as declared and as the trial found them."""

    input: str
    output: str

    rank: int
    """Space axes."""

    channels: int
    """Channels taken."""

    made: int
    """Channels made."""

    takes: np.dtype
    gives: np.dtype

    batched: bool
    """Whether several planes fit in one call."""


def each_axis(value: int | tuple[int, ...], rank: int, place: str, key: str) -> Index:
    """Return one number per space axis of a model from one number or one for each.

    Raises
    ------
    OpError
        If there are several, but not as many as the model has space axes.
    """
    each = value if isinstance(value, tuple) else (value,) * rank
    if len(each) != rank:
        raise OpError(
            f"{place}: {key} is one number, or one for each of the model's {rank} space axes, got "
            f"{len(each)} in {each}"
        )
    return each


def find_ports(
    runner: Runner,
    source: str | None,
    target: str | None,
    halo: int | tuple[int, ...],
    multiple: int | tuple[int, ...] | None,
) -> tuple[Ports, int | tuple[int, ...]]:
    """Choose a model's input and output, and check that they have the layout that is supported.

    Returns
    -------
    Ports
        What is used of the model.
    int or tuple of int
        ``multiple``; if it was None, the smallest power of two up to 64 that the model runs on.

    Raises
    ------
    ModelError
        If they have not, naming the rule and what was found.
    OpError
        If ``halo`` or ``multiple`` has the wrong number of entries.
    """
    place = runner.place
    if len(runner.inputs) > 1:
        names = ", ".join(port.name for port in runner.inputs)
        raise ModelError(
            f"{place}: must need one input, needs {names}; this op runs models of one image"
        )
    takes = _pick(runner.inputs, source, "input", place)
    gives = _pick(runner.outputs, target, "output", place)
    channels, rank, batched = _check_input(takes, place)
    for port, known in ((takes, _TAKES), (gives, _GIVES)):
        if port.type not in known:
            raise ModelError(
                f"{place}: {port.name} is {port.type}, and only {', '.join(known.values())} are "
                "supported there yet"
            )
    dtype = np.dtype(_TAKES[takes.type])
    margin = each_axis(halo, rank, place, "halo")
    used = (takes.name, gives.name)
    refusal: ModelError | None = None
    for found in _MULTIPLES if multiple is None else (multiple,):
        steps = each_axis(found, rank, place, "multiple")
        try:
            result = _try(runner, used, channels, dtype, margin=margin, steps=steps)
        except ModelError as error:
            refusal = refusal or error
            continue
        return Ports(*used, rank, channels, result.shape[1], dtype, result.dtype, batched), found
    assert refusal is not None
    raise refusal


def _pick(ports: Sequence[Port], name: str | None, what: str, place: str) -> Port:
    """Return the port called ``name``, or the only one."""
    names = ", ".join(port.name for port in ports) or "none"
    if name is None and len(ports) == 1:
        return ports[0]
    for port in ports:
        if port.name == name:
            return port
    if name is None:
        raise ModelError(f"{place}: has the {what}s {names}; choose one with {what}=NAME")
    raise ModelError(f"{place}: has no {what} {name!r}, it has {names}; choose one of them")


def _check_input(port: Port, place: str) -> tuple[int, int, bool]:
    """Return channels, space axes, and whether the batch is free, or refuse the layout."""
    shape = tuple(port.shape)
    if len(shape) not in {4, 5}:
        raise ModelError(
            f"{place}: input must be (batch, channel, y, x) or (batch, channel, z, y, x), has "
            f"{len(shape)} axes, {shape}; other layouts are not supported yet"
        )
    batch, channels, *sides = shape
    if not isinstance(channels, int) or any(isinstance(side, int) for side in sides):
        raise ModelError(
            f"{place}: input must have a known number of channels on its second axis and free "
            f"sizes after it, has {shape}; fixed sizes and channels that come last are not "
            "supported yet, so export it with free sizes"
        )
    if isinstance(batch, int) and batch != 1:
        raise ModelError(
            f"{place}: the batch axis must be free or 1, is {batch}; other batches are not "
            "supported yet, so export it with a free one"
        )
    return channels, len(sides), not isinstance(batch, int)


def _try(
    runner: Runner,
    names: tuple[str, str],
    channels: int,
    dtype: np.dtype,
    *,
    margin: Index,
    steps: Index,
) -> np.ndarray:
    """Run the model on zeros, to learn what its declaration may leave open."""
    small = tuple(_odd_multiple(_TRIAL, step) for step in steps)
    real = tuple(_odd_multiple(2 * n + 1, step) for n, step in zip(margin, steps, strict=True))
    sides = small
    try:
        result = runner.run(np.zeros((1, channels, *small), dtype), *names)
    except ModelError:  # some models need more voxels than the small block has
        if all(map(operator.ge, small, real)):
            raise
        sides = tuple(map(max, small, real))
        result = runner.run(np.zeros((1, channels, *sides), dtype), *names)
    if result.ndim != len(sides) + 2 or result.shape[0] != 1 or result.shape[2:] != sides:
        raise ModelError(
            f"{runner.place}: {names[1]} must be (batch, channel, space) on the input's own "
            f"voxels, but {result.shape} is made of {(1, channels, *sides)}; another grid or "
            "layout is not supported yet"
        )
    return result


def _odd_multiple(least: int, step: int) -> int:
    """Return the smallest odd multiple of ``step`` that is not below ``least``."""
    return step * (-(-least // step) | 1)
