"""An ONNX file written again with its margins cut off.

Owns the bytes: which fields of the file stay, which are replaced, which are added. What is cut is
decided by `_model_trim`. Weights are copied as they are.

Rules: onnx.proto of ONNX 1.x; the protobuf wire format,
https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

from napari_materialize.ops._model_wire import INT64, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from napari_materialize.ops._model_trim import Cut, Trim

__all__ = ["rewrite"]

_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_TENSOR, _GRAPH_OUTPUT, _GRAPH_SHAPES = 1, 5, 12, 13
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_ATTRIBUTE = 1, 2, 3, 4, 5
_TO_THE_END = 2**63 - 1


def rewrite(data: bytes, trim: Trim, target: str) -> bytes:
    """Return a model's file with what `Trim` says changed, and one output.

    Parameters
    ----------
    data
        The file.
    trim
        What is cut off.
    target
        The name of the output in the file.
    """
    whole = bytearray()
    for number, value, raw in pieces(memoryview(data)):
        if number == _MODEL_GRAPH and isinstance(value, memoryview):
            whole += _bytes(_MODEL_GRAPH, _graph(value, trim, target))
        else:
            whole += raw
    return bytes(whole)


def _graph(message: memoryview, trim: Trim, target: str) -> bytes:
    made, places, last = bytearray(), itertools.count(), 0
    for number, value, raw in pieces(message):
        if number == _GRAPH_SHAPES or not isinstance(value, memoryview):
            continue  # the sizes of tensors inside are others now
        if number == _GRAPH_NODE:
            place = next(places)
            last = place + 1
            made += b"".join(map(_cut, trim.cuts.get(place, ())))
            if place in trim.live:
                node, tensors = _node(value, place, trim)
                made += _bytes(_GRAPH_NODE, node) + tensors
        elif number == _GRAPH_OUTPUT:
            if _name(value) == target:
                made += _bytes(_GRAPH_OUTPUT, _output(value, trim.output))
        else:
            made += raw
    return bytes(made + b"".join(map(_cut, trim.cuts.get(last, ()))))


def _node(message: memoryview, place: int, trim: Trim) -> tuple[bytes, bytes]:
    """Return an operator with other inputs and padding, and the tensors that it needs for that."""
    pads, inputs = trim.pads.get(place), dict(trim.inputs.get(place, {}))
    tensors = b""
    if pads is not None and _text(message, _NODE_OPERATOR) == "Pad":
        name = f"{_text(message, _NODE_OUTPUT)}__pads"
        inputs[1], tensors, pads = name, _tensor(name, pads), None
    node, number_of = bytearray(), itertools.count()
    for number, value, raw in pieces(message):
        if number == _NODE_INPUT:
            other = inputs.get(next(number_of))
            node += raw if other is None else _bytes(_NODE_INPUT, other.encode())
        elif (
            pads is not None
            and number == _NODE_ATTRIBUTE
            and isinstance(value, memoryview)
            and _name(value) in {"pads", "auto_pad"}
        ):
            continue
        else:
            node += raw
    if pads is not None:
        node += _bytes(_NODE_ATTRIBUTE, _numbers("pads", pads))
    return bytes(node), tensors


def _cut(cut: Cut) -> bytes:
    """Return a Slice and the tensors that say what it cuts, as fields of the graph."""
    said: Mapping[str, Sequence[int]] = {
        "starts": cut.low,
        "ends": [-high if high else _TO_THE_END for high in cut.high],
        "axes": cut.axes,
    }
    tensors = {f"{cut.made}__{key}": values for key, values in said.items()}
    node = _bytes(_NODE_OPERATOR, b"Slice") + _bytes(_NODE_OUTPUT, cut.made.encode())
    node += _bytes(_NODE_NAME, cut.made.encode())
    for name in (cut.source, *tensors):
        node += _bytes(_NODE_INPUT, name.encode())
    return _bytes(_GRAPH_NODE, node) + b"".join(map(_tensor, tensors, tensors.values()))


def _tensor(name: str, values: Sequence[int]) -> bytes:
    """Return a list of whole numbers as a stored tensor of the graph."""
    tensor = _number(1, len(values)) + _number(2, INT64) + _bytes(8, name.encode())
    return _bytes(_GRAPH_TENSOR, tensor + _bytes(9, struct.pack(f"<{len(values)}q", *values)))


def _numbers(name: str, values: Sequence[int]) -> bytes:
    """Return an attribute that is a list of whole numbers (type 7)."""
    listed = b"".join(_number(8, value) for value in values)
    return _bytes(1, name.encode()) + listed + _number(20, 7)


def _output(message: memoryview, name: str) -> bytes:
    """Return an output's description under another name, with as many axes of any size."""
    made = _bytes(1, name.encode())
    for kind in _inside(message, 2):
        for tensor in _inside(kind, 1):
            typed = b"".join(bytes(raw) for number, _, raw in pieces(tensor) if number == 1)
            for shape in _inside(tensor, 2):
                typed += _bytes(2, b"".join(_bytes(1, b"") for _ in _inside(shape, 1)))
            made += _bytes(2, _bytes(1, typed))
    return made


def _inside(message: memoryview, wanted: int) -> Iterator[memoryview]:
    for number, value, _ in pieces(message):
        if number == wanted and isinstance(value, memoryview):
            yield value


def _name(message: memoryview) -> str:
    return _text(message, 1)


def _text(message: memoryview, wanted: int) -> str:
    return next((bytes(value).decode() for value in _inside(message, wanted)), "")


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*made, value))
