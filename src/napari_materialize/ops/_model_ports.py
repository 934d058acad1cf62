"""What a model takes and makes: its declaration checked, and tried on small blocks of zeros.

Owns what is found out by asking a model and by running it: layouts, channels, which sides it
takes, where its output voxels lie. How much context it needs is `_model_context`'s business. It
knows no level (`_model_axes`) and no runtime: it is handed one that declares and runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

import numpy as np

from napari_materialize.errors import ModelError, OpError
from napari_materialize.ops._model_grid import AxisGrid
from napari_materialize.ops._model_layout import Layout, check_letters, guess_layout, match_output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from napari_materialize.geometry import Index
    from napari_materialize.ops._model_graph import Strides

_TAKES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    **{
        f"tensor({kind}{bits})": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32)
    },
}
"""Input types, and the dtypes that voxels are converted to."""

_GIVES = _TAKES | {
    "tensor(bool)": "bool",
    **{f"tensor({kind}64)": f"{kind}64" for kind in ("int", "uint")},
}
"""Output types, and the dtypes that voxels come out in."""

_TIMES = (1, 2, 4, 8, 16, 32, 64, 3, 5, 6, 7)
"""Multiples of what the graph says on which a model's sides are tried."""

_TRIAL = 9
"""Least side of the block a model is tried on. It is an odd multiple of the step, so that a model
that halves its input, and was not said to, fails before anything is created."""

MOST_TILE = 2**28
"""Voxels of a fixed tile."""

MOST_CHANNELS = 4096
MOST_RATIO = 64
"""Output voxels per input voxel along an axis."""


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
    layout: Layout
    """The input's axes."""
    layout_out: Layout
    """The output's axes."""

    channels: int
    """Channels taken."""

    made: int
    """Channels made."""

    takes: np.dtype
    gives: np.dtype

    batch: int | None
    """How many planes fit in one call: None for any number."""

    grid: tuple[AxisGrid, ...]
    """Per space axis, in the image's order."""

    @property
    def rank(self) -> int:
        """Space axes."""
        return self.layout.rank

    def with_strides(self, strides: Index) -> Ports:
        """Return the same with other strides."""
        rows = zip(self.grid, strides, strict=True)
        return replace(self, grid=tuple(replace(axis, stride=stride) for axis, stride in rows))

    def run(self, runner: Runner, tile: np.ndarray) -> np.ndarray:
        """Run the model on (batch, channel, space...) in its dtype, and return the same axes.

        Raises
        ------
        ModelError
            If it fails, or makes another shape than it made of the trial.
        """
        count = len(tile)
        if self.batch is not None and count < self.batch:  # a fixed batch is filled up
            tile = np.concatenate([tile, np.repeat(tile[-1:], self.batch - count, axis=0)])
        given = np.ascontiguousarray(self.layout.to_model(tile))
        result = runner.run(given, self.input, self.output)
        sides = zip(self.grid, tile.shape[2:], strict=True)
        wanted = (len(tile), self.made, *(axis.made(side) for axis, side in sides))
        if result.ndim == len(self.layout_out.letters):
            found = self.layout_out.from_model(result)
            if found.shape == wanted:
                return found[:count]
        raise ModelError(
            f"{runner.place}: made {result.shape} of {given.shape}, must make "
            f"{' x '.join(map(str, wanted))} (batch, channel, space) as of other sides; if it "
            "needs sides that are multiples of a number, give it: multiple=8"
        )


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


def pick_ports(runner: Runner, source: str | None, target: str | None) -> tuple[Port, Port]:
    """Choose a model's input and output, and check that they hold numbers of an image.

    Raises
    ------
    ModelError
        If there are several and nobody chose, or they are of another type.
    """
    place = runner.place
    if len(runner.inputs) > 1:
        names = ", ".join(port.name for port in runner.inputs)
        raise ModelError(
            f"{place}: must need one input, needs {names}; this op runs models of one image"
        )
    takes = _pick(runner.inputs, source, "input", place)
    gives = _pick(runner.outputs, target, "output", place)
    for port, known in ((takes, _TAKES), (gives, _GIVES)):
        if port.type not in known:
            raise ModelError(
                f"{place}: {port.name} is {port.type}, and an image is one of "
                f"{', '.join(known.values())}; export it with such numbers"
            )
    return takes, gives


def _pick(ports: Sequence[Port], name: str | None, what: str, place: str) -> Port:
    """Return the port called ``name``, or the only one."""
    if not ports:
        raise ModelError(
            f"{place}: has no {what}, and a model of one image has one; export it again"
        )
    names = ", ".join(port.name for port in ports)
    if name is None and len(ports) == 1:
        return ports[0]
    for port in ports:
        if port.name == name:
            return port
    if name is None:
        raise ModelError(f"{place}: has the {what}s {names}; choose one with {what}=NAME")
    raise ModelError(f"{place}: has no {what} {name!r}, it has {names}; choose one of them")


def find_ports(
    runner: Runner,
    ports: tuple[Port, Port],
    strides: Strides,
    layout: str | None = None,
    multiple: int | tuple[int, ...] | None = None,
) -> Ports:
    """Find a model's layouts and its grid by trying it.

    Parameters
    ----------
    runner, ports
        The model, and what `pick_ports` chose.
    strides
        What the graph says.
    layout : str, optional
        Of the input, as in ``bcyx``; guessed if left out.
    multiple : int or tuple of int, optional
        The stride; if None what the graph says, or the smallest multiple of it that runs.

    Raises
    ------
    ModelError
        If the model cannot be run as one of an image, naming the rule and what was found.
    OpError
        If ``layout`` or ``multiple`` does not fit.
    """
    takes, gives = ports
    named = _layout(takes, strides, layout, runner.place)
    rank = named.rank
    sure = strides.certain and strides.stride is not None and len(strides.stride) == rank
    trial = _Trial(runner, ports, named, strides.stride if sure else None)
    said = strides.stride if strides.stride and len(strides.stride) == rank else (1,) * rank
    given = None if multiple is None else each_axis(multiple, rank, runner.place, "multiple")
    far = max(strides.reach or (0,))
    refusal: ModelError | None = None
    for steps, rest, channels in trial.guesses(given or said, given is not None, strides.channels):
        for least in dict.fromkeys((_TRIAL, 64, 2 * far + 1)):
            try:
                found = trial.fit(steps, rest, channels, least)
            except ModelError as error:
                refusal = refusal or error
                continue
            return replace(found, gives=np.dtype(_GIVES[gives.type]))
    assert refusal is not None
    raise refusal


def _layout(port: Port, strides: Strides, layout: str | None, place: str) -> Layout:
    """Return the input's layout, as it is given or guessed."""
    if layout is None:
        return guess_layout(port.shape, strides.rank, place, port.name)
    letters = check_letters(layout)
    if len(letters) != len(port.shape):
        raise OpError(
            f"{place}: layout names each of the {len(port.shape)} axes of {port.name}, "
            f"{tuple(port.shape)}, got {layout!r}"
        )
    return Layout(letters)


@dataclass(frozen=True, slots=True)
class _Trial:
    """One model, tried on zeros."""

    runner: Runner
    ports: tuple[Port, Port]
    layout: Layout
    strides: Index | None = None
    """What the graph says for sure."""

    def _declared(self, letter: str) -> int | None:
        """Return the fixed size of an axis of the input; 1 where it has none."""
        if letter not in self.layout.letters:
            return 1
        size = self.ports[0].shape[self.layout.letters.index(letter)]
        return size if isinstance(size, int) and size > 0 else None

    @property
    def fixed(self) -> tuple[int | None, ...]:
        """The fixed sides."""
        return tuple(self._declared(letter) for letter in self.layout.space)

    def guesses(
        self, steps: Index, told: bool, said: int | None
    ) -> Iterator[tuple[Index, int, int]]:
        """Walk what is tried: strides, what is added to them, channels (``said`` by the graph)."""
        known = self._declared("c")
        few = (1, 3, 2, 4) if said is None or said < 1 else dict.fromkeys((said, 1, 3, 2, 4))
        for channels in few if known is None else (known,):
            for times in (1,) if told else _TIMES:
                yield tuple(times * step for step in steps), 0, channels
            # a net without padding takes sides such as 16 n + 12
            for rest in range(1, min(max(steps), 64)):
                yield steps, rest, channels

    def fit(self, steps: Index, rest: int, channels: int, least: int) -> Ports:
        """Run the model twice, the second time on longer sides, and see what comes out."""
        sides = [
            (step * (-(-least // step) | 1) + 2 * n * step + rest if fixed is None else fixed)
            for n, (step, fixed) in enumerate(zip(steps, self.fixed, strict=True))
        ]
        batch = self._declared("b")
        if math.prod(sides) > MOST_TILE or channels > MOST_CHANNELS:
            raise ModelError(
                f"{self.runner.place}: takes tiles of {' x '.join(map(str, sides))} voxels with "
                f"{channels} channels, at most {MOST_TILE} voxels and {MOST_CHANNELS} channels are "
                "handed to a model; export it for smaller ones"
            )
        first = (batch or 1, channels, *sides)
        runs = [(first, self._run(first))]
        free = batch is None
        if any(fixed is None for fixed in self.fixed):
            longer = tuple(
                side + (2 * n + 1) * step if fixed is None else fixed
                for n, (side, step, fixed) in enumerate(zip(sides, steps, self.fixed, strict=True))
            )
            shape = (2 if free else first[0], channels, *longer)
            try:
                runs.append((shape, self._run(shape)))
            except ModelError:
                if not free:
                    raise
                free = False  # it says that any batch will do, and means one
                shape = (1, *shape[1:])
                runs.append((shape, self._run(shape)))
        made = match_output(self.layout, runs, free)
        if made is None:
            raise ModelError(self._unfit(runs))
        found = self._ports(made, runs, steps, rest, None if free else first[0])
        if len(runs) > 1:
            # two sides fit many rules: a model that makes 1.5 voxels of one rounds each of them
            third = [
                axis.side(side + 1) for axis, side in zip(found.grid, runs[1][0][2:], strict=True)
            ]
            found.run(self.runner, np.zeros((1, channels, *third), found.takes))
        return found

    def _run(self, shape: Index) -> Index:
        """Return the shape that the model makes of zeros."""
        takes, gives = self.ports
        given = self.layout.to_model(np.zeros(shape, _TAKES[takes.type]))
        return tuple(self.runner.run(given, takes.name, gives.name).shape)

    def _unfit(self, runs: Sequence[tuple[Index, Index]]) -> str:
        made = " and ".join(
            f"{after} of {tuple(self.layout.to_model(np.empty(before, '?')).shape)}"
            for before, after in runs
        )
        return (
            f"{self.runner.place}: its output {self.ports[1].name} must be an image of the same "
            f"space axes as the input ({self.layout.letters}), but it makes {made}; give layout= "
            "if the input's axes are others, or choose another output"
        )

    def _ports(
        self,
        layout: Layout,
        runs: Sequence[tuple[Index, Index]],
        steps: Index,
        rest: int,
        batch: int | None,
    ) -> Ports:
        grid = tuple(
            _axis(
                [(t[2 + k], layout.sides(m)[k]) for t, m in runs],
                step,
                rest,
                fixed,
                None if self.strides is None else self.strides[k],
            )
            for k, (step, fixed) in enumerate(zip(steps, self.fixed, strict=True))
        )
        taken, made = runs[0]
        channels = layout.size(made, "c")
        wide = any(not Fraction(1, MOST_RATIO) <= axis.ratio <= MOST_RATIO for axis in grid)
        if channels > MOST_CHANNELS or wide:
            raise ModelError(
                f"{self.runner.place}: makes {made} of {taken}, at most {MOST_CHANNELS} channels "
                f"and {MOST_RATIO} voxels per voxel are taken; choose another output"
            )
        takes, gives = self.ports
        dtype = np.dtype(_TAKES[takes.type])
        return Ports(
            takes.name,
            gives.name,
            self.layout,
            layout,
            taken[1],
            channels,
            dtype,
            dtype,
            batch,
            grid,
        )


def _axis(
    runs: list[tuple[int, int]], step: int, rest: int, fixed: int | None, stride: int | None
) -> AxisGrid:
    """Fit ``made = ratio * side - lost`` to one axis of what came out.

    ``stride`` is the graph's, if that is sure: one plane of five is a fifth or the middle one.

    Raises
    ------
    ModelError
        If no such rule fits the sides on the grid.
    """
    (side, made), (longer, more) = runs[0], runs[-1]
    if fixed is not None or longer == side:
        ratio = Fraction(made, side)
        if ratio.denominator != 1 and ratio.numerator != 1:
            ratio = Fraction(max(1, round(made / side)))  # the rest was cut off
        if stride is not None and stride % ratio.denominator:
            ratio = Fraction(1)
    else:
        ratio = Fraction(more - made, longer - side)
    lost = ratio * side - made
    if lost.denominator != 1:
        lost = Fraction(math.floor(lost))
    return AxisGrid(math.lcm(step, ratio.denominator), rest, ratio, int(lost), fixed)
