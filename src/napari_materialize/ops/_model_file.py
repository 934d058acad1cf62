"""An ONNX file as bytes: its digest, the files it refers to, its operators.

Reads the few protobuf fields that must be known before anybody else opens the file, and
nothing else; it neither checks nor runs the model (`onnx`). A file may come from anybody: what
refers to other folders, needs code of its own, or announces absurd sizes is refused here.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from napari_materialize.errors import ModelError
from napari_materialize.ops._model_wire import scan

if TYPE_CHECKING:
    from napari_materialize.ops._model_graph import Graph
    from napari_materialize.ops._model_wire import Found

_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"})
"""Operators that onnxruntime has itself. Others need a library of the model's own."""

MOST_BYTES = 2**33
"""Bytes of an ONNX file, weights in other files apart: a protobuf message holds 2 GiB."""

MOST_VALUES = 2**36
"""Values of one stored tensor."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """What an ONNX file says of itself as a file."""

    path: Path
    """Where it lies, absolute."""

    sha256: str
    """Digest of the file."""

    external: tuple[tuple[str, str], ...]
    """The files with weights that it refers to: (name inside its folder, digest)."""

    graph: Graph = field(repr=False, compare=False)
    """The operators of the main graph."""

    @property
    def digest(self) -> str:
        """One digest of all the model's bytes: the file's own where it is the only one."""
        if not self.external:
            return self.sha256
        every = [self.sha256, *(f"{name}\0{digest}" for name, digest in self.external)]
        return hashlib.sha256("\n".join(every).encode()).hexdigest()


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
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            raise ModelError(
                f"onnx: {path} holds {path.stat().st_size} bytes, at most {MOST_BYTES} are read; "
                "an ONNX file keeps larger weights in files beside it"
            )
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"onnx: there is no model file {path}; check the path") from None
    except IsADirectoryError:
        raise ModelError(f"onnx: {path} is a folder; name the .onnx file in it") from None
    except OSError as error:
        raise ModelError(f"onnx: {path} cannot be read: {error.strerror or error}") from error
    try:
        found = scan(data)
    except (ValueError, IndexError, struct.error):
        raise ModelError(
            f"onnx: {path.name} is not an ONNX model, or is damaged ({len(data)} bytes); "
            "fetch or export it again"
        ) from None
    _check(path.name, found)
    external = tuple((name, _digest(_inside(path, name))) for name in sorted(found.locations))
    return ModelFile(path, hashlib.sha256(data).hexdigest(), external, found.graph()), data


def _check(name: str, found: Found) -> None:
    """Refuse what no model of an image needs."""
    foreign = sorted(found.domains - _DOMAINS - found.own)
    if foreign:
        raise ModelError(
            f"onnx: {name} uses operators of {', '.join(map(repr, foreign))}, which need a library "
            "of code that comes with the model, and none is loaded; export it with ONNX's own "
            "operators"
        )
    for tensor, shape in found.shapes.items():
        if any(side < 0 for side in shape) or math.prod(shape) > MOST_VALUES:
            raise ModelError(
                f"onnx: {name} announces a tensor {tensor!r} of {' x '.join(map(str, shape))} "
                f"values, at most {MOST_VALUES} are taken; fetch or export it again"
            )


def _digest(path: Path) -> str:
    """Return the sha256 of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _inside(path: Path, name: str) -> Path:
    """Return the file of weights ``name`` of a model, or refuse one outside its folder."""
    parts = (PurePosixPath(name), PureWindowsPath(name))
    if not name.isprintable():
        raise ModelError(
            f"onnx: {path.name} keeps weights in {name!r}, which is no name of a file; export it "
            "again with its weights beside it"
        )
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
