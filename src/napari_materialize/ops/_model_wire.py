"""The protobuf messages of an ONNX file, as far as they must be known before it is opened.

Owns the wire format and the numbers of the fields. What is found there is judged by `_model_file`
and understood by `_model_graph`.

Rules: onnx.proto of ONNX 1.x; the protobuf wire format,
https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from napari_materialize.ops._model_graph import Graph, Node

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["INT64", "Found", "pieces", "scan"]

_PARTS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 11: "input", 15: "sparse"},
    "input": {2: "type"},
    "type": {1: "numbers"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external"},
}
"""Which fields of which message hold messages that lead to tensors and operators."""

_FEW = 16
"""Values of a tensor that are read: the scales of a Resize, a shape."""

INT64 = 7
"""The number of a tensor's type in the file."""

_FORMATS = {1: "<f", INT64: "<q", 11: "<d"}


@dataclass(slots=True)
class Found:
    """What a file says."""

    locations: set[str] = field(default_factory=set)
    """Files of weights that it refers to."""

    domains: set[str] = field(default_factory=set)
    """Domains of its operators, in every graph."""

    inner: list[Node] = field(default_factory=list)
    """The operators of all other graphs: of branches, loops and functions."""

    own: set[str] = field(default_factory=set)
    """Domains of the functions that the file itself defines."""

    nodes: list[Node] = field(default_factory=list)
    """The operators of the main graph, in order."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    numbers: dict[str, tuple[float, ...]] = field(default_factory=dict)
    kinds: set[int] = field(default_factory=set)
    """Numbers of the types of its stored tensors and of its inputs."""

    opset: int = 0
    """The version of ONNX's own operators."""

    def graph(self) -> Graph:
        """Return the main graph."""
        nodes, inner = tuple(self.nodes), tuple(self.inner)
        kinds = frozenset(self.kinds)
        return Graph(nodes, self.shapes, self.numbers, self.opset, kinds, inner)


def scan(data: bytes) -> Found:
    """Walk a file.

    Raises
    ------
    ValueError, IndexError
        If it is not an ONNX model.
    """
    found = Found()
    graphs = 0
    todo = [("model", memoryview(data), 0)]
    main: list[memoryview] = []
    inner: list[memoryview] = []
    while todo:  # a list, not a recursion: a file cannot exhaust the stack
        kind, message, depth = todo.pop()
        texts: dict[int, list[str]] = {}
        for number, value in _fields(message):
            if not isinstance(value, memoryview):
                continue
            if (part := _PARTS.get(kind, {}).get(number)) is not None:
                graphs += part == "graph"
                if part == "node":
                    (main if kind == "graph" and depth == 1 else inner).append(value)
                todo.append((part, value, depth + 1))
            elif _is_text(kind, number):
                texts.setdefault(number, []).append(bytes(value).decode())
        _keep(found, kind, message, texts)
    if not graphs:
        raise ValueError("no graph")
    found.opset = _opset(memoryview(data))
    found.nodes = [_node(found, message) for message in main]
    found.inner = [_node(Found(), message) for message in inner]  # names of their own
    return found


def _keep(found: Found, kind: str, message: memoryview, texts: dict[int, list[str]]) -> None:
    """Remember what a message says, of those that say something."""
    if kind == "external" and texts.get(1) == ["location"]:
        found.locations.update(texts.get(2, ()))
    elif kind == "node":
        found.domains.add("".join(texts.get(7, ())))
    elif kind == "function":
        found.own.add("".join(texts.get(10, ())))
    elif kind == "tensor":
        _keep_tensor(found, message, None)
    elif kind == "numbers":
        found.kinds.update(n for part, n in _fields(message) if part == 1 and isinstance(n, int))


def _is_text(kind: str, number: int) -> bool:
    wanted = {"node": {7}, "function": {10}, "external": {1, 2}}
    return number in wanted.get(kind, ())


def _opset(model: memoryview) -> int:
    """Return the version of ONNX's own operators that a model says."""
    found = 0
    for field_number, value in _fields(model):
        if field_number != 8 or not isinstance(value, memoryview):
            continue
        said = dict(_fields(value))
        domain, version = said.get(1, b""), said.get(2)
        if domain in (b"", b"ai.onnx") and isinstance(version, int):
            found = max(found, version)
    return found


def _node(found: Found, message: memoryview) -> Node:
    texts: dict[int, list[str]] = {1: [], 2: [], 4: [], 7: []}
    attributes: dict[str, Any] = {}
    tensor: memoryview | None = None
    nested = False
    for number, value in _fields(message):
        if not isinstance(value, memoryview):
            continue
        if number in texts:
            texts[number].append(bytes(value).decode())
        elif number == 5:
            name, content, inner = _attribute(value)
            nested |= any(part in {6, 11} for part, _ in _fields(value))
            attributes[name] = content
            tensor = inner if name == "value" else tensor
    names = tuple(texts[1]), tuple(texts[2])
    node = Node("".join(texts[4]), "".join(texts[7]), *names, attributes, nested)
    if node.operator == "Constant" and node.outputs and tensor is not None:
        _keep_tensor(found, tensor, node.outputs[0])
    return node


def _attribute(message: memoryview) -> tuple[str, Any, memoryview | None]:
    """Return an attribute's name, its whole numbers or its text, and its tensor."""
    name, tensor = "", None
    content: int | str | None = None
    several: list[int] = []
    for number, value in _fields(message):
        if number == 1 and isinstance(value, memoryview):
            name = bytes(value).decode()
        elif number == 3 and isinstance(value, int):
            content = _signed(value)
        elif number == 4 and isinstance(value, memoryview):
            content = bytes(value).decode("latin-1")
        elif number == 5 and isinstance(value, memoryview):
            tensor = value
        elif number == 8:
            several += _integers(value)
    return name, several or content, tensor


def _keep_tensor(found: Found, message: memoryview, called: str | None) -> None:
    """Remember a stored tensor's shape, and its values where they are few."""
    shape: list[int] = []
    values: list[float] = []
    raw, dtype, name = memoryview(b""), 0, ""
    for number, value in _fields(message):
        if number == 1:
            shape += _integers(value)
        elif number == 2 and isinstance(value, int):
            dtype = value
        elif number == 8 and isinstance(value, memoryview):
            name = bytes(value).decode()
        elif number == 9 and isinstance(value, memoryview):
            raw = value
        elif number == 4 and isinstance(value, memoryview) and len(value) <= 4 * _FEW:
            values += [v for (v,) in struct.iter_unpack("<f", value)]
        elif number == 7 and isinstance(value, memoryview) and len(value) <= 10 * _FEW:
            values += _integers(value)
    name = called or name
    found.shapes[name] = tuple(shape)
    found.kinds.add(dtype)
    form = _FORMATS.get(dtype)
    if form and len(raw) <= _FEW * struct.calcsize(form):
        values += [v for (v,) in struct.iter_unpack(form, raw)]
    if 0 < len(values) <= _FEW:
        found.numbers[name] = tuple(values)


def _integers(value: int | memoryview) -> list[int]:
    """Read one whole number, or several that are packed."""
    if isinstance(value, int):
        return [_signed(value)]
    numbers, place = [], 0
    while place < len(value):
        number, place = _varint(value, place)
        numbers.append(_signed(number))
    return numbers


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Walk the fields of a protobuf message that hold bytes or whole numbers; skip the others."""
    for number, value, _ in pieces(message):
        if value is not None:
            yield number, value


def pieces(message: memoryview) -> Iterator[tuple[int, int | memoryview | None, memoryview]]:
    """Walk all fields of a message: number, value, and the field as it stands in the file.

    The value is bytes or a whole number; None for numbers of 4 and of 8 bytes.

    Raises
    ------
    ValueError, IndexError
        If it is no protobuf message.
    """
    place = 0
    while place < len(message):
        first = place
        key, place = _varint(message, place)
        wire = key & 7
        value: int | memoryview | None = None
        if wire == 0:
            value, place = _varint(message, place)
        elif wire == 2:
            size, place = _varint(message, place)
            if place + size > len(message):
                raise ValueError("truncated")
            value = message[place : place + size]
            place += size
        elif wire in {1, 5}:
            place += 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        yield key >> 3, value, message[first:place]


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """Read a variable-length integer: its value and the place behind it."""
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("integer too long")
