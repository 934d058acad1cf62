"""What an ONNX graph says of its strides and its reach, read from the operators and nothing else.

Owns two estimates per space axis, both in voxels of the input: the *stride*, on whose multiples
tiles have to begin for the model to see the same as in one large run, and the *reach*, how far
away a voxel may lie to change an output voxel. Both are starting points: `_model_context` measures.
It reads no file (`_model_file`) and runs nothing.

Source: the arithmetic of receptive fields, as in Araujo, Norris, Sim, "Computing receptive fields
of convolutional neural networks", Distill 2019; operators as in ONNX's Operators.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Graph", "Node", "Strides"]

_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "QLinearConv", "FusedConv"})
_WINDOWS = _POOLS | _CONVOLUTIONS | {"ConvTranspose", "MaxUnpool"}
_SHAPES = frozenset({"Shape", "Size", "Constant", "ConstantOfShape", "NonZero", "Range"})
"""Operators whose output is no image, whatever goes in."""

_WHOLE = frozenset(
    {
        *("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "InstanceNormalization"),
        *("GroupNormalization", "MeanVarianceNormalization", "Attention", "MultiHeadAttention"),
        *("MatMul", "Flatten", "LSTM", "GRU", "RNN", "Einsum"),
    }
)
"""Operators that may look at the whole of what they are given, wherever it lies."""

_PRODUCTS = frozenset({"MatMul", "Einsum"})
"""Operators that compare every place with every other where both inputs come of the image."""

_ATTENTIONS = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})
"""Operators that do so by themselves."""

_PERHAPS = frozenset(
    {
        *("Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "CumSum", "TopK"),
        *("LpNormalization", "GridSample", "NonMaxSuppression", "Bernoulli", "Multinomial"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    }
)
"""Operators that mostly look along the channels, or are rare, and may not be what they seem."""

_CORNERS = frozenset({"align_corners", "tf_crop_and_resize"})
"""Ways in which a Resize takes its places from the sides of what it is given and makes
(https://onnx.ai/onnx/operators/onnx__Resize.html), and not from its factor alone."""

_SYMMETRIC = "half_pixel_symmetric"
"""One that does so where the factor does not fit the sides: by a rounding error elsewhere, which
decides where the nearest of two voxels is taken."""

MOST = 4096
"""Voxels of stride or reach beyond which an estimate is of no use."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator."""

    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Whole numbers, lists of them, texts; None for others."""

    nested: bool = False
    """Whether it has a graph of its own, as If and Loop have."""


@dataclass(frozen=True, slots=True)
class Strides:
    """What the operators between an input and an output say."""

    rank: int | None
    """Space axes of the convolutions and pools, where there are any."""

    stride: tuple[int, ...] | None
    """Per space axis; None if nothing is known."""

    reach: tuple[int, ...] | None
    """Per space axis; None if nothing is known."""

    whole: tuple[str, ...]
    """Operators that may look at the whole tile, each once."""

    channels: int | None = None
    """Channels that the first convolution takes, where there is one."""

    certain: bool = True
    """Whether the thread from input to output was followed all the way, through known operators."""

    compared: Fraction | None = None
    """Voxels of the input per place, where each place is compared with every other, as attention
    does: what that takes grows with the square of the tile. None where none is."""


@dataclass(slots=True)
class _State:
    """What is known of one tensor: voxels of the input per voxel of it, and how far it looks."""

    step: list[Fraction]
    reach: list[Fraction]


@dataclass(frozen=True, slots=True)
class Graph:
    """The operators of a model, and the tensors stored with it as far as they are small."""

    nodes: tuple[Node, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of the stored tensors."""
    numbers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Values of the stored tensors that hold only a few."""

    opset: int = 0
    """The version of ONNX's own operators."""

    kinds: frozenset[int] = frozenset()
    """ONNX's numbers of the types of the stored tensors and of the inputs."""

    inner: tuple[Node, ...] = ()
    """The operators of all other graphs: of branches, loops and functions."""

    def operator(self, output: str) -> str | None:
        """Return the type of the operator that makes ``output``, if the main graph has one."""
        for node in self.nodes:
            if output in node.outputs:
                return node.operator
        return None

    def window_rank(self) -> int | None:
        """Return the number of space axes of the graph's convolutions and pools, if they agree."""
        ranks = {len(w) for node in self.nodes if (w := self.window(node)) is not None}
        return ranks.pop() if len(ranks) == 1 else None

    def _step_rank(self) -> int | None:
        """Return the number of space axes that the operators which change the grid have."""
        for node in self.nodes:
            if node.operator in {"DepthToSpace", "SpaceToDepth"}:
                return 2
            if node.operator in {"Resize", "Upsample"}:
                counts = [
                    len(self.numbers[name]) for name in node.inputs[1:] if name in self.numbers
                ]
                if counts and counts[-1] in {4, 5}:  # batch and channel too
                    return counts[-1] - 2
        return None

    def strides(self, source: str, target: str) -> Strides:
        """Walk from one input to one output.

        Examples
        --------
        >>> conv = Node("Conv", "", ("in", "w"), ("a",), {"strides": [2, 2]})
        >>> found = Graph((conv,), {"w": (1, 1, 3, 3)}).strides("in", "a")
        >>> found.rank, found.stride, found.reach, found.whole
        (2, (2, 2), (1, 1), ())
        """
        rank = self.window_rank() or self._step_rank()
        whole = tuple(dict.fromkeys(name for node in self.nodes if (name := _sees_all(node))))
        if rank is None:
            found = self._compares_all(source)
            return Strides(None, None, None, whole, certain=False, compared=found)
        states = {source: _State([Fraction(1)] * rank, [Fraction(0)] * rank)}
        channels: int | None = None
        compared: Fraction | None = None
        stride, certain = [1] * rank, not any(n.operator in _PERHAPS for n in self.nodes)
        for node in self.nodes:
            known = [states[name] for name in node.inputs if name in states]
            if not known and node.operator in _WINDOWS and node.inputs[0] not in self.shapes:
                # behind an operator with a graph of its own the thread is lost, and taken up here
                known = [_State([Fraction(1)] * rank, [Fraction(0)] * rank)]
                certain = False
            if not known or node.operator in _SHAPES:
                continue
            channels = channels or self._taken(node)
            if _compares(node, len(known)):
                voxels = math.prod(known[0].step, start=Fraction(1))
                compared = voxels if compared is None else min(compared, voxels)
            reach = [max(axis) for axis in zip(*(state.reach for state in known), strict=True)]
            made = self._through(node, _State(list(known[0].step), reach), rank)
            for axis, step in enumerate(made.step):
                stride[axis] = math.lcm(stride[axis], step.numerator)
            states.update(dict.fromkeys(node.outputs, made))
        if max(stride) > MOST:
            return Strides(rank, None, None, whole, channels, certain=False, compared=compared)
        last = [states[target]] if target in states else list(states.values())
        far = tuple(
            min(MOST, math.ceil(max(state.reach[axis] for state in last))) for axis in range(rank)
        )
        certain = certain and target in states
        return Strides(rank, tuple(stride), far, whole, channels, certain, compared)

    def _compares_all(self, source: str) -> Fraction | None:
        """Return 1 if any place may be compared with every other; nothing is known of the grid."""
        reached = {source}
        for node in self.nodes:
            count = sum(name in reached for name in node.inputs)
            if count and _compares(node, count):
                return Fraction(1)
            if count and node.operator not in _SHAPES:
                reached.update(node.outputs)
        return None

    def window(self, node: Node) -> list[int] | None:
        """Return the sides of the window that an operator moves over its input."""
        if node.operator not in _WINDOWS:
            return None
        given = node.attributes.get("kernel_shape")
        if given:
            return list(given)
        weights = self.shapes.get(node.inputs[1]) if len(node.inputs) > 1 else None
        return list(weights[2:]) if weights and len(weights) > 2 else None

    def _taken(self, node: Node) -> int | None:
        """Return the channels that a convolution takes."""
        weights = self.shapes.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if node.operator != "Conv" or not weights or len(weights) < 3:
            return None
        return weights[1] * int(node.attributes.get("group") or 1)

    def _through(self, node: Node, state: _State, rank: int) -> _State:
        """Return what is known behind an operator."""
        window = self.window(node)
        if window is not None and len(window) == rank:
            return self._slide(node, state, window)
        factors = self._enlarged(node, rank)
        if factors is not None:
            step = [s / f for s, f in zip(state.step, factors, strict=True)]
            # linear interpolation looks one voxel of its input further
            wide = [r + s for r, s in zip(state.reach, state.step, strict=True)]
            return _State(step, wide)
        return state

    def _slide(self, node: Node, state: _State, window: list[int]) -> _State:
        rank = len(window)
        strides = node.attributes.get("strides") or [1] * rank
        spread = node.attributes.get("dilations") or [1] * rank
        rows = list(zip(state.step, state.reach, window, strides, spread, strict=True))
        if node.operator in {"ConvTranspose", "MaxUnpool"}:
            step = [s / n for s, _, _, n, _ in rows]
            reach = [r + Fraction((k - 1) * d, 2 * n) * s + s / 2 for s, r, k, n, d in rows]
            return _State(step, reach)
        reach = [r + Fraction((k - 1) * d, 2) * s for s, r, k, _, d in rows]
        return _State([s * n for s, _, _, n, _ in rows], reach)

    def _enlarged(self, node: Node, rank: int) -> list[Fraction] | None:
        """Return by how much an operator refines the grid, where it says so."""
        if node.operator in {"DepthToSpace", "SpaceToDepth"}:
            size = Fraction(int(node.attributes.get("blocksize", 1)))
            return [size if node.operator == "DepthToSpace" else 1 / size] * rank
        if node.operator in {"Resize", "Upsample"}:
            for name in node.inputs[1:]:
                scales: Sequence[float] = self.numbers.get(name, ())
                if len(scales) > rank:  # one for each axis, batch and channel too
                    tail = scales[1:-1] if scales[-1] == 1 != scales[1] else scales[-rank:]
                    if len(tail) == rank and all(value > 0 for value in tail):
                        return [Fraction(value).limit_denominator(64) for value in tail]
        return None


def _compares(node: Node, known: int) -> bool:
    """Whether an operator, ``known`` of whose inputs come of the image, compares all its places."""
    return node.operator in _ATTENTIONS or (node.operator in _PRODUCTS and known > 1)


def place_rule(node: Node) -> str | None:
    """Return the name of a Resize whose places follow from the tile's size; None for others."""
    rule = node.attributes.get("coordinate_transformation_mode")
    if node.operator != "Resize" or rule not in {*_CORNERS, _SYMMETRIC}:
        return None
    return None if rule == _SYMMETRIC and _blends(node) else f"Resize with {rule}"


def _blends(node: Node) -> bool:
    """Whether a Resize mixes voxels, and does not take the nearest one."""
    return bool(node.attributes.get("mode", "nearest") != "nearest")


def _sees_all(node: Node) -> str | None:
    """Return what to call an operator that may look at the whole tile; None for others.

    Between aligned corners a Resize takes steps of ``(n - 1) / (m - 1)`` voxels for ``n`` voxels in
    and ``m`` out, so what it mixes is of another place in each tile.
    """
    kind = node.operator
    if kind == "Resize" and _blends(node):
        return place_rule(node)
    return kind if kind in _WHOLE or kind.startswith("Reduce") else None
