"""Which operators of ONNX have which rule of what they need, and when.

Owns the reading of an operator's attributes: its window, stride and padding, its axis, its factors.
An operator that is not here, or not in a way that follows from the file alone, has no rule and
needs everything. The rules' arithmetic is `_model_rules`' business.

Rules: ONNX's Operators.md.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from napari_materialize.ops._model_rules import Image, Larger, Rule, Side, Transposed, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from napari_materialize.ops._model_graph import Graph, Node

__all__ = ["Case", "rule_for"]

_EACH_VOXEL = frozenset(
    {
        *("Abs", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "Cos", "Dropout", "Elu"),
        *("Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu"),
        *("Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign"),
        *("Sin", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu"),
    }
)
_SEVERAL = frozenset(
    {
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max"),
        *("Mean", "Min", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"),
    }
)
_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_ALONG = frozenset({"ArgMax", "ArgMin", "Hardmax", "LogSoftmax", "Softmax"})
_PLACES = frozenset({"asymmetric", "half_pixel", "pytorch_half_pixel"})
"""Where a Resize looks, as far as that follows from its factor and not from the size."""

SOFTMAX_ALONG_ONE = 13
"""The opset from which on softmax is along one axis; before, along all behind it."""


class Case(NamedTuple):
    """An operator, and what is known of what goes in."""

    node: Node
    graph: Graph
    images: Mapping[str, Image]
    """The tensors before it that are images."""
    shapes: Mapping[str, tuple[int, ...]]
    """The sizes of tensors that are no images, as far as they are known."""

    @property
    def image(self) -> Image | None:
        """The first thing that goes in, if it is an image."""
        return self.images.get(self.node.inputs[0])


def rule_for(case: Case) -> Rule | None:
    """Return the rule of one operator, or None if it has none."""
    node = case.node
    make = _MAKERS.get(node.operator) if node.domain in {"", "ai.onnx"} else None
    if make is None or any(node.outputs[1:]) or not node.inputs:
        return None
    rule = make(case)
    others = (name for place, name in enumerate(node.inputs) if rule and place not in rule.images)
    return None if any(name in case.images for name in others) else rule


def _each_voxel(case: Case) -> Rule | None:
    image = case.image
    if image is None or any(name in case.images for name in case.node.inputs[1:]):
        return None
    return Rule((0,), image)


def _several(case: Case) -> Rule | None:
    """Return the rule where images have equal axes, and others are the same at every voxel."""
    places = tuple(i for i, name in enumerate(case.node.inputs) if name in case.images)
    kinds = {case.images[case.node.inputs[i]] for i in places}
    if len(kinds) != 1:
        return None
    image = kinds.pop()
    for name in case.node.inputs:
        if name in case.images:
            continue
        shape = case.shapes.get(name)
        if shape is None or len(shape) > len(image.axes):
            return None
        axes = image.axes[len(image.axes) - len(shape) :]
        if any(axis is not None and size != 1 for axis, size in zip(axes, shape, strict=True)):
            return None
    return Rule(places, image)


def _joined(case: Case) -> Rule | None:
    kinds = {case.images.get(name) for name in case.node.inputs}
    image, axis = kinds.pop(), case.node.attributes.get("axis")
    if kinds or image is None or not _is_free(image, axis):
        return None
    return Rule(tuple(range(len(case.node.inputs))), image)


def _is_free(image: Image, axis: object) -> bool:
    """Whether an axis is no space axis."""
    rank = len(image.axes)
    return isinstance(axis, int) and -rank <= axis < rank and image.axes[axis] is None


def _along(case: Case) -> Rule | None:
    """Return the rule of an operator along one axis, if that is no space axis."""
    image, reduces = case.image, case.node.operator.startswith("Arg")
    axis = case.node.attributes.get("axis", 0 if reduces else -1)
    if image is None or not _is_free(image, axis):
        return None
    if not reduces:
        return Rule((0,), image) if case.graph.opset >= SOFTMAX_ALONG_ONE else None
    if case.node.attributes.get("keepdims", 1):
        return Rule((0,), image)
    axes = list(image.axes)
    del axes[axis]
    return Rule((0,), image._replace(axes=tuple(axes)))


def _turned(case: Case) -> Rule | None:
    image = case.image
    if image is None:
        return None
    order = case.node.attributes.get("perm") or list(range(len(image.axes)))[::-1]
    return Rule((0,), image._replace(axes=tuple(image.axes[axis] for axis in order)))


def _squeezed(case: Case) -> Rule | None:
    image = case.image
    given = case.node.attributes.get("axes") or (
        case.graph.numbers.get(case.node.inputs[1]) if len(case.node.inputs) > 1 else None
    )
    if image is None or not given:
        return None
    axes, adds = list(image.axes), case.node.operator == "Unsqueeze"
    rank = len(axes) + len(given) * adds
    places = sorted(int(axis) % rank for axis in given)
    if adds:
        for place in places:
            axes.insert(place, None)
    elif any(axes[place] is not None for place in places):
        return None
    else:
        axes = [axis for place, axis in enumerate(axes) if place not in places]
    return Rule((0,), image._replace(axes=tuple(axes)))


def _window(case: Case) -> Rule | None:
    image, window = _windowed(case)
    if image is None or window is None or case.node.attributes.get("ceil_mode"):
        return None
    rank, many = len(window), case.node.attributes
    strides = many.get("strides") or [1] * rank
    spread = many.get("dilations") or [1] * rank
    pads = _own_pads(
        case.node, [(k - 1) * d + 1 for k, d in zip(window, spread, strict=True)], strides
    )
    if pads is None:
        return None
    sides = [
        Side((k - 1) * d + 1, s, *pad)
        for k, d, s, pad in zip(window, spread, strides, pads, strict=True)
    ]
    ratio = _ratios(image, [Fraction(1, s) for s in strides])
    weights = case.graph.shapes.get(case.node.inputs[1], ()) if case.node.operator == "Conv" else ()
    # what is gathered for each output voxel costs about as much as eight channels of them
    weight = Fraction(math.prod(weights[1:]) * (weights[0] + 8)) if weights else Fraction(0)
    return Window((0,), image._replace(ratio=ratio), weight, _ordered(image, sides))


def _transposed(case: Case) -> Rule | None:
    image, window = _windowed(case)
    many = case.node.attributes
    if image is None or window is None or many.get("output_shape"):
        return None
    rank = len(window)
    strides = many.get("strides") or [1] * rank
    spread = many.get("dilations") or [1] * rank
    more = many.get("output_padding") or [0] * rank
    wide = [(k - 1) * d + 1 for k, d in zip(window, spread, strict=True)]
    pads = _own_pads(case.node, wide, [2] * rank)
    if pads is None or any(k < s for k, s in zip(wide, strides, strict=True)):
        return None
    sides = [Side(k, s, *pad, m) for k, s, pad, m in zip(wide, strides, pads, more, strict=True)]
    ratio = _ratios(image, [Fraction(s) for s in strides])
    weights = case.graph.shapes.get(case.node.inputs[1], ())
    weight = Fraction(math.prod(weights), math.prod(strides))
    return Transposed((0,), image._replace(ratio=ratio), weight, _ordered(image, sides))


def _padded(case: Case) -> Rule | None:
    image = case.image
    if image is None or len(case.node.inputs) < 2 or any(case.node.inputs[3:]):
        return None
    pads = [int(value) for value in case.graph.numbers.get(case.node.inputs[1], ())]
    rank = len(image.axes)
    if len(pads) != 2 * rank or min(pads) < 0 or case.node.attributes.get("mode") == "wrap":
        return None
    pairs = list(zip(pads[:rank], pads[rank:], strict=True))
    free = [pair for pair, axis in zip(pairs, image.axes, strict=True) if axis is None]
    if any(map(any, free)):
        return None
    sides = {
        axis: Side(1, 1, *pair)
        for pair, axis in zip(pairs, image.axes, strict=True)
        if axis is not None
    }
    return Window((0,), image, Fraction(0), tuple(sides[axis] for axis in sorted(sides)))


def _larger(case: Case) -> Rule | None:
    image, many = case.image, case.node.attributes
    if image is None:
        return None
    if case.node.operator == "DepthToSpace":
        found = [1, 1, *[float(many.get("blocksize", 1))] * (len(image.axes) - 2)]
    else:
        names = case.node.inputs  # the newer Resize has regions before its factors
        found = list(case.graph.numbers.get(names[min(2, len(names) - 1)], ()))
        where = many.get("coordinate_transformation_mode", "half_pixel")
        odd = any(names[3:]) or many.get("axes") or many.get("antialias")
        if odd or where not in _PLACES or many.get("mode") == "cubic":
            return None
    factors = dict(zip(image.axes, found, strict=False))
    free = [f for axis, f in zip(image.axes, found, strict=False) if axis is None]
    if len(found) != len(image.axes) or any(f != 1 for f in free):
        return None
    each = [factors[axis] for axis in range(len(image.ratio))]
    if any(f != int(f) or f < 1 for f in each):
        return None
    whole = tuple(map(int, each))
    ratio = tuple(r * f for r, f in zip(image.ratio, whole, strict=True))
    return Larger((0,), image._replace(ratio=ratio), Fraction(0), whole)


def _windowed(case: Case) -> tuple[Image | None, list[int] | None]:
    """Return the image that a window is moved over, and the window, if both are plain."""
    image, window = case.image, case.graph.window(case.node)
    lead = None if image is None else image.axes[:2]
    plain = lead == (None, None) and image is not None and None not in image.axes[2:]
    if not plain or window is None or image is None or len(window) != len(image.axes) - 2:
        return None, None
    return image, window


def _own_pads(node: Node, wide: list[int], strides: list[int]) -> list[tuple[int, int]] | None:
    """Return an operator's padding, per axis; None where it depends on the size."""
    rank, how = len(wide), node.attributes.get("auto_pad", "NOTSET")
    if how in {"NOTSET", ""}:
        pads = node.attributes.get("pads") or [0] * (2 * rank)
        return None if min(pads) < 0 else list(zip(pads[:rank], pads[rank:], strict=True))
    if how == "VALID":
        return [(0, 0)] * rank
    if any(stride != 1 for stride in strides):
        return None
    halves = [((k - 1) // 2, k // 2) for k in wide]
    return halves if how == "SAME_UPPER" else [(high, low) for low, high in halves]


def _ratios(image: Image, factors: list[Fraction]) -> tuple[Fraction, ...]:
    each = dict(zip(image.axes[2:], factors, strict=True))
    return tuple(ratio * each[axis] for axis, ratio in enumerate(image.ratio))


def _ordered(image: Image, sides: list[Side]) -> tuple[Side, ...]:
    """Return windows in the image's order of axes."""
    each = dict(zip(image.axes[2:], sides, strict=True))
    return tuple(each[axis] for axis in range(len(sides)))


_MAKERS: dict[str, Callable[[Case], Rule | None]] = {
    **dict.fromkeys(_EACH_VOXEL, _each_voxel),
    **dict.fromkeys(_SEVERAL, _several),
    **dict.fromkeys(_POOLS, _window),
    **dict.fromkeys(_ALONG, _along),
    **dict.fromkeys(("Resize", "Upsample", "DepthToSpace"), _larger),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _squeezed),
    "Concat": _joined,
    "Conv": _window,
    "ConvTranspose": _transposed,
    "Pad": _padded,
    "Transpose": _turned,
}
