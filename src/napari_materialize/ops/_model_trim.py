"""A model's graph without the margin that nobody keeps.

A tile is run with a halo, and the halo's output is thrown away. Most of a network's layers need not
make it: behind the last convolution of reach 8 only the voxels that are kept are wanted, before it
8 more on each side, and so on back to the input. So the margin of each tensor is cut off as early
as the layers behind it allow, mostly by taking a convolution's own padding away, which costs
nothing. What is kept is the same, voxel by voxel.

Owns which tensor is cut by how much. What an operator needs is `_model_rules`' business, the file
that comes of it `_model_rewrite`'s, and whether it is true is tried by `_model_trimmed`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from napari_materialize.ops._model_operators import Case, rule_for
from napari_materialize.ops._model_rules import Crop, Image

if TYPE_CHECKING:
    from napari_materialize.geometry import Index
    from napari_materialize.ops._model_graph import Graph, Node
    from napari_materialize.ops._model_layout import Layout
    from napari_materialize.ops._model_rules import Rule

__all__ = ["Cut", "Layer", "Trim", "effort", "trim"]

OLDEST = 11
"""The opset from which on Slice and Pad take what they need as tensors."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor of which voxels are cut off, under a name of its own."""

    source: str
    made: str
    axes: tuple[int, ...]
    """Of the tensor."""
    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """One convolution's share in the work."""

    weight: Fraction
    """Multiplications per voxel that it makes."""
    ratio: tuple[Fraction, ...]
    """Voxels that it makes per voxel of the tile, per space axis."""
    cut: Index
    """Voxels along each axis that it need not make."""


@dataclass(slots=True)
class Trim:
    """What is changed of a graph."""

    output: str
    """The name of its output."""

    live: frozenset[int] = frozenset()
    """The operators, by their places, that the output is made of."""

    pads: dict[int, list[int]] = field(default_factory=dict)
    """The padding of operators, low sides first, in the tensor's order of axes."""

    inputs: dict[int, dict[int, str]] = field(default_factory=dict)
    """Other inputs of operators, by their places."""

    cuts: dict[int, list[Cut]] = field(default_factory=dict)
    """What is cut off in front of an operator; behind all of them at the number of operators."""

    layers: list[Layer] = field(default_factory=list)


def trim(
    graph: Graph,
    ports: tuple[str, str],
    layouts: tuple[Layout, Layout],
    crop: Crop,
) -> Trim | None:
    """Cut ``crop`` off a graph's output, and off everything before it what is not needed for that.

    Parameters
    ----------
    graph
        The operators.
    ports, layouts
        The names and the axes of the input and the output.
    crop
        Output voxels that nobody keeps, per space axis of the image.

    Returns
    -------
    Trim or None
        None where nothing can be said: operators with graphs of their own, an old opset, an
        output that is not followed back to the input.
    """
    source, target = ports
    live = _live(graph, target)
    if graph.opset < OLDEST or any(graph.nodes[place].nested for place in live):
        return None
    letters = layouts[0].letters
    axes = tuple(layouts[0].space.index(a) if a in layouts[0].space else None for a in letters)
    images = {source: Image(axes, (Fraction(1),) * len(crop))}
    rules = _rules(graph, live, images)
    if target not in images or len(images[target].axes) != len(layouts[1].letters):
        return None
    walk = _Walk(graph, live, images, rules, ((0, 0),) * len(crop))
    walk.ask(target, crop)
    return walk.cut(source, target, crop)


def effort(layers: list[Layer], sides: Index) -> float:
    """Return a tile's work in voxels of a tile of which nothing is cut off.

    Examples
    --------
    >>> one = Fraction(1)
    >>> effort([Layer(one, (one, one), (4, 4)), Layer(one, (one, one), (8, 8))], (20, 20))
    200.0
    """
    done = whole = 0.0
    for layer in layers:
        rows = zip(layer.ratio, sides, layer.cut, strict=True)
        done += float(layer.weight) * math.prod(max(1.0, float(r) * s - c) for r, s, c in rows)
        whole += float(layer.weight * math.prod(layer.ratio))
    return done / whole if whole else float(math.prod(sides))


def _live(graph: Graph, target: str) -> list[int]:
    """Return the places of the operators that an output is made of, in order."""
    wanted, live = {target}, []
    for place in reversed(range(len(graph.nodes))):
        node = graph.nodes[place]
        if wanted.intersection(node.outputs):
            wanted.update(filter(None, node.inputs))
            live.append(place)
    return live[::-1]


def _rules(graph: Graph, live: list[int], images: dict[str, Image]) -> dict[int, Rule]:
    """Return the rules of operators; add the images that they make."""
    rules: dict[int, Rule] = {}
    shapes = dict(graph.shapes)
    for place in live:
        node = graph.nodes[place]
        if node.operator == "Constant" and {"value_float", "value_int"} & set(node.attributes):
            shapes.setdefault(node.outputs[0], ())
        if node.operator == "Identity" and node.inputs[0] in shapes:
            shapes[node.outputs[0]] = shapes[node.inputs[0]]
        rule = rule_for(Case(node, graph, images, shapes))
        if rule is not None:
            rules[place] = rule
            images[node.outputs[0]] = rule.made
    return rules


@dataclass(slots=True)
class _Walk:
    """Back from the output, asking what is needed; then forth again, cutting it off."""

    graph: Graph
    live: list[int]
    images: dict[str, Image]
    rules: dict[int, Rule]
    none: Crop
    needed: dict[str, Crop] = field(default_factory=dict)
    """What may be cut off a tensor: the least of what each operator behind it says."""
    names: dict[tuple[str, Crop], str] = field(default_factory=dict)
    """Tensors that were cut already."""

    def ask(self, target: str, crop: Crop) -> None:
        """Find what may be cut off each tensor."""
        self.needed[target] = crop
        for place in reversed(self.live):
            node, rule = self.graph.nodes[place], self.rules.get(place)
            if rule is None:
                for name in node.inputs:
                    self._limit(name, self.none)
                continue
            crop = rule.needs(self.needed[node.outputs[0]])
            for number in rule.images:
                self._limit(node.inputs[number], crop)

    def _limit(self, name: str, crop: Crop) -> None:
        before = self.needed.get(name, crop)
        self.needed[name] = tuple(
            (min(a, c), min(b, d)) for (a, b), (c, d) in zip(before, crop, strict=True)
        )

    def cut(self, source: str, target: str, crop: Crop) -> Trim:
        """Cut it off."""
        made = Trim(target, frozenset(self.live))
        have = {source: self.none}
        for place in self.live:
            node, rule = self.graph.nodes[place], self.rules.get(place)
            if rule is None:
                made.layers += self._unknown(node)
                continue
            wanted = self.needed[node.outputs[0]]
            crop_in, given = rule.needs(wanted), rule.gives(wanted)
            for number in rule.images:
                name = node.inputs[number]
                other = self._cut_one(made, place, name, have[name], crop_in)
                if other != name:
                    made.inputs.setdefault(place, {})[number] = other
            pads = rule.pads(wanted)
            if pads is not None and any(map(any, wanted)):
                made.pads[place] = _in_order(rule.made.axes, pads, node.operator == "Pad")
            have[node.outputs[0]] = given
            if rule.weight:
                cut = tuple(low + high for low, high in given)
                made.layers.append(Layer(rule.weight, rule.made.ratio, cut))
        made.output = self._cut_one(made, len(self.graph.nodes), target, have[target], crop)
        return made

    def _unknown(self, node: Node) -> list[Layer]:
        """Return the work of a convolution that has no rule."""
        weights = self.graph.shapes.get(node.inputs[1], ()) if len(node.inputs) > 1 else ()
        if node.operator not in {"Conv", "ConvTranspose"} or not weights:
            return []
        rank = len(self.none)
        return [Layer(Fraction(math.prod(weights)), (Fraction(1),) * rank, (0,) * rank)]

    def _cut_one(self, made: Trim, place: int, name: str, have: Crop, wanted: Crop) -> str:
        """Cut a tensor in front of an operator, where less is cut off it than could be."""
        if have == wanted:
            return name
        key = (name, wanted)
        if key not in self.names:
            self.names[key] = f"{name}__trimmed_{len(self.names)}"
            axes = self.images[name].axes
            places = [i for i, axis in enumerate(axes) if axis is not None]
            order = [axis for axis in axes if axis is not None]
            low = tuple(wanted[axis][0] - have[axis][0] for axis in order)
            high = tuple(wanted[axis][1] - have[axis][1] for axis in order)
            cut = Cut(name, self.names[key], tuple(places), low, high)
            made.cuts.setdefault(place, []).append(cut)
        return self.names[key]


def _in_order(axes: tuple[int | None, ...], pads: Crop, every: bool) -> list[int]:
    """Return padding in a tensor's order of axes: low sides, then high ones."""
    pairs = [(0, 0) if axis is None else pads[axis] for axis in axes if every or axis is not None]
    return [low for low, _ in pairs] + [high for _, high in pairs]
