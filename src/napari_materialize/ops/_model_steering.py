"""Which operators of a graph follow the size of the tile, or branch on its voxels.

Owns the walk that tells a size used as a shape (a Resize to the size of a skip, a Reshape) from one
that decides voxels: a branch on the height, a division by it, a Resize whose places it decides.
What such a model makes of tiles of several sizes is compared in `_model_sizes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from napari_materialize.ops._model_graph import place_rule

if TYPE_CHECKING:
    from napari_materialize.ops._model_graph import Graph, Node

__all__ = ["steering"]

_SIZES = frozenset({"Shape", "Size"})
"""Operators that make numbers of a tensor's shape."""

_CONTROL = {"If": 1, "Loop": 2}
"""Operators with graphs of their own, and how many of their first inputs decide what is run."""

_SHAPED = frozenset(
    {
        *("Reshape", "Expand", "Resize", "Upsample", "Slice", "Tile", "Split", "Squeeze"),
        *("Unsqueeze", "Gather", "GatherND", "GatherElements", "TopK", "OneHot", "CenterCropPad"),
        *("MaxUnpool", "Trilu", "CumSum", "Flatten", "Transpose"),
    }
)
"""Operators whose inputs behind the first say where values lie, and change none."""


def steering(graph: Graph, source: str) -> tuple[str, ...]:
    """Return the operators that follow the tile's size or branch on its voxels, each once.

    Examples
    --------
    >>> from napari_materialize.ops._model_graph import Graph, Node
    >>> size = Node("Shape", "", ("in",), ("s",))
    >>> resize = Node("Resize", "", ("a", "", "", "s"), ("b",))
    >>> steering(Graph((size, resize)), "in")
    ()
    >>> branch = Node("If", "", ("s",), ("b",), nested=True)
    >>> steering(Graph((size, branch)), "in")
    ('If',)
    """
    sizes: set[str] = set()
    voxels = {source}
    found: list[str] = []
    for node in graph.nodes:
        if node.operator in _SIZES:
            if not set(node.inputs) <= set(graph.shapes):  # a stored tensor has one shape
                sizes.update(node.outputs)
            continue
        if _follows(node, sizes, voxels):
            found.append(node.operator)
        found += filter(None, [place_rule(node)])
        if voxels.intersection(node.inputs):
            voxels.update(node.outputs)
        if node.operator == "ConstantOfShape":
            continue  # the same value, whatever the size
        first = node.inputs[:1] if node.operator in _SHAPED else node.inputs
        if sizes.intersection(first):
            sizes.update(node.outputs)
    found += [node.operator for node in graph.inner if _hidden(node, sizes)]
    return tuple(dict.fromkeys(found))


def _follows(node: Node, sizes: set[str], voxels: set[str]) -> bool:
    """Whether an operator of the main graph makes other voxels of another size, or branches."""
    if node.nested:
        control = node.inputs[: _CONTROL.get(node.operator, len(node.inputs))]
        return bool((sizes | voxels).intersection(control))
    if node.operator in _SHAPED:
        return False
    both = voxels.intersection(node.inputs)
    return bool(both and (sizes - voxels).intersection(node.inputs))


def _hidden(node: Node, sizes: set[str]) -> bool:
    """Whether an operator inside of another may follow the size: who feeds it is not looked at."""
    return (
        node.operator in _SIZES
        or node.operator in _CONTROL
        or node.nested
        or bool(sizes.intersection(node.inputs))
    )
