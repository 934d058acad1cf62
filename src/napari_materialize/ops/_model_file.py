"""An ONNX file as bytes: its digest, the files it refers to, the last operator of each output.

Reads the few protobuf fields that must be known before anybody else opens the file, and
nothing else; it neither checks nor runs the model (`onnx`).

Rules: onnx.proto of ONNX 1.x; the protobuf wire format, https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from napari_materialize.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARTS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external"},
}
"""Which fields of which message hold messages that lead to tensors kept in other files."""

_NODE_OUTPUT, _NODE_OPERATOR = 2, 4
_ENTRY_KEY, _ENTRY_VALUE = 1, 2


@dataclass(frozen=True, slots=True)
class ModelFile:
    """What an ONNX file says of itself as a file."""

    path: Path
    """Where it lies, absolute."""

    sha256: str
    """Digest of the file."""

    external: tuple[tuple[str, str], ...]
    """The files with weights that it refers to: (name inside its folder, digest)."""

    operators: tuple[tuple[str, str], ...]
    """The operators of the main graph: (name of an output, type)."""

    @property
    def digest(self) -> str:
        """One digest of all the model's bytes: the file's own where it is the only one."""
        if not self.external:
            return self.sha256
        every = [self.sha256, *(f"{name}\0{digest}" for name, digest in self.external)]
        return hashlib.sha256("\n".join(every).encode()).hexdigest()

    def operator(self, output: str) -> str | None:
        """Return the type of the operator that makes ``output``, if the main graph has one."""
        return dict(self.operators).get(output)


def read_model(path: Path) -> tuple[ModelFile, bytes]:
    """Read an ONNX file.

    Returns
    -------
    ModelFile, bytes
        What it is, and the file itself (without the files it refers to).

    Raises
    ------
    ModelError
        If the file is missing, is not an ONNX model, or refers to a file that is missing or
        outside its folder.
    """
    path = path.expanduser().absolute()
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ModelError(f"onnx: {path} is no file, but a device or a pipe; name an .onnx file")
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"onnx: there is no model file {path}; check the path") from None
    except IsADirectoryError:
        raise ModelError(f"onnx: {path} is a folder; name the .onnx file in it") from None
    except OSError as error:
        raise ModelError(f"onnx: {path} cannot be read: {error.strerror or error}") from error
    try:
        locations, operators = _scan(data)
    except (ValueError, IndexError):
        raise ModelError(
            f"onnx: {path.name} is not an ONNX model, or is damaged ({len(data)} bytes); "
            "fetch or export it again"
        ) from None
    external = tuple((name, _digest(_inside(path, name))) for name in sorted(locations))
    return ModelFile(path, hashlib.sha256(data).hexdigest(), external, tuple(operators)), data


def _digest(path: Path) -> str:
    """Return the sha256 of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _inside(path: Path, name: str) -> Path:
    """Return the file of weights ``name`` of a model, or refuse one outside its folder."""
    parts = (PurePosixPath(name), PureWindowsPath(name))
    found = (path.parent / name).resolve()
    roots = (path.parent.resolve(), path.resolve().parent)  # a model may itself be a link
    if any(part.is_absolute() or part.drive for part in parts) or not any(
        found.is_relative_to(root) for root in roots
    ):
        raise ModelError(
            f"onnx: {path.name} keeps weights outside its folder, in {name!r}, which is refused; "
            "export it again with its weights beside it"
        )
    if not found.is_file():
        raise ModelError(
            f"onnx: {path.name} keeps weights in {name!r}, which is not in its folder; put that "
            "file beside it"
        )
    return found


def _scan(data: bytes) -> tuple[set[str], list[tuple[str, str]]]:
    """Return the names of files of weights, and (output, type) of the main graph's operators."""
    locations: set[str] = set()
    operators: list[tuple[str, str]] = []
    graphs = 0
    todo = [("model", memoryview(data), 0)]
    while todo:  # a list, not a recursion: a file cannot exhaust the stack
        kind, message, depth = todo.pop()
        texts: dict[int, list[str]] = {}
        for number, value in _fields(message):
            if (part := _PARTS.get(kind, {}).get(number)) is not None:
                graphs += part == "graph"
                todo.append((part, value, depth + 1))
            elif kind in {"node", "external"} and number in {1, 2, 4}:
                texts.setdefault(number, []).append(bytes(value).decode())
        if kind == "external" and texts.get(_ENTRY_KEY) == ["location"]:
            locations.update(texts.get(_ENTRY_VALUE, ()))
        elif kind == "node" and depth == 2:
            made_by = "".join(texts.get(_NODE_OPERATOR, ()))
            operators += [(output, made_by) for output in texts.get(_NODE_OUTPUT, ())]
    if not graphs:
        raise ValueError("no graph")
    return locations, operators


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Walk the fields of a protobuf message that hold bytes, and skip over the others."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        wire = key & 7
        if wire == 0:
            _, place = _varint(message, place)
        elif wire == 2:
            size, place = _varint(message, place)
            if place + size > len(message):
                raise ValueError("truncated")
            yield key >> 3, message[place : place + size]
            place += size
        elif wire in {1, 5}:
            place += 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")


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
