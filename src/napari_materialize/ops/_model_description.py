"""What a file beside a model says of it: a bioimage.io description, or a folder's metadata.json.

Owns the reading of both into the op's own parameters, and the list of what they contradict. What a
person gives wins over what is read here; a contradiction is told and decides nothing.

A metadata.json carries ``input_voxel_size``, ``output_voxel_size``, ``read_shape``, ``write_shape``
and ``output_channels``. A bioimage.io description is read by `_model_bioimage`.
"""

from __future__ import annotations

import contextlib
import json
import math
import reprlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import ModelError, OpError
from napari_materialize.ops._model_bioimage import read_bioimage
from napari_materialize.ops._model_parameters import AUTO, checked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from napari_materialize.ops._model_ports import Ports

__all__ = ["Said", "describe_model"]

_NAMES = ("rdf.yaml", "model.yaml", "bioimageio.yaml", "rdf.yml", "model.yml")

_BIG = 2**22
"""Bytes of a description beyond which it is none."""

_FAR = 4096
"""Voxels of a halo beyond which it cannot be meant."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a description says, as the op's parameters."""

    name: str = ""
    """The file's name; empty if there is none."""
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sides: tuple[int, ...] | None = None
    """The tile's sides it announces."""
    channels: int | None = None
    """How many channels it says come out."""
    channels_apart: bool = False
    """Whether it normalises each channel by itself."""

    def fill(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the parameters, those that are given before those that are said, and notes."""
        values, notes = dict(given), list(self.notes)
        for key, found in self.values.items():
            value = checked(key, found)
            if key == "constants" and not self._fills("normalise", given):
                continue  # they are another normalisation's
            if self._fills(key, given):
                values[key] = value
            elif values[key] != value:
                notes.append(
                    f"{self.name} says {key}={_text(value)}, but {key}={_text(values[key])} was "
                    "given"
                )
        for key in ("normalise", "after"):
            values[key] = "none" if values[key] == AUTO else values[key]
        return values, tuple(notes)

    def _fills(self, key: str, given: Mapping[str, Any]) -> bool:
        """Whether a parameter is taken from here, since nobody gave it."""
        value = given.get(key)
        return key in self.values and (value is None or (value == AUTO and key != "halo"))

    @contextlib.contextmanager
    def blamed(self, given: Mapping[str, Any]) -> Iterator[None]:
        """Name this file in what is refused on its account.

        Raises
        ------
        ModelError
            For an `OpError` about a parameter that nobody gave.
        """
        try:
            yield
        except OpError as error:
            keys = [key for key in self.values if self._fills(key, given) and key in str(error)]
            if not keys:
                raise
            says = ", ".join(f"{key}={_text(self.values[key])}" for key in keys)
            raise ModelError(
                f"{error}; {self.name} says {says}: mend it, or give description=none"
            ) from error

    def contradictions(self, ports: Ports) -> list[str]:
        """Return what the model itself says otherwise."""
        found = []
        fixed = tuple(axis.fixed for axis in ports.grid)
        if self.sides is not None and len(self.sides) == len(fixed):
            if all(side is None for side in fixed):
                found.append(
                    f"{self.name} says tiles of {_text(self.sides)}, but the model takes any; they "
                    "are as large as they need be"
                )
            elif fixed != self.sides:
                found.append(
                    f"{self.name} says tiles of {_text(self.sides)}, the model {_text(fixed)}"
                )
        if self.channels is not None and self.channels != ports.made:
            found.append(f"{self.name} says {self.channels} channels, the model makes {ports.made}")
        if self.channels_apart and ports.channels > 1:
            found.append(
                f"{self.name} normalises each channel by itself, here all of them are together"
            )
        return found


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def describe_model(
    path: Path | str, description: str = AUTO, output: str | None = None
) -> tuple[Path, Said]:
    """Return the model's file and what is said of it.

    Parameters
    ----------
    path
        An ``.onnx`` file, a folder that holds one, or a description.
    description
        The description's file; ``auto`` for one beside the model, ``none`` to ignore it.
    output
        The output that is used, where somebody named it.

    Raises
    ------
    ModelError
        If the folder holds no model or several, no path is given, or a description that was asked
        for is damaged.
    """
    if not str(path).strip():
        raise ModelError("onnx: model must be a file or a folder, got ''; name the .onnx file")
    path = Path(path).expanduser()
    if path.suffix.lower() in {".yaml", ".yml"}:
        path, description = path.parent, str(path)
    if path.is_dir():
        models = sorted(path.glob("*.onnx"))
        named = [model for model in models if model.name == "model.onnx"] or models
        if len(named) != 1:
            names = ", ".join(model.name for model in models) or "none"
            raise ModelError(
                f"onnx: {path} is a folder, which must hold one .onnx file, has {names}; name the "
                ".onnx file in it"
            )
        path = named[0]
    if description.strip().lower() == "none":
        return path, Said()
    if description.strip().lower() != AUTO:
        return path, _read(Path(description).expanduser(), output, asked=True)
    file = _beside(path)
    return path, _of_another_name(path) if file is None else _read(file, output, asked=False)


def _beside(path: Path) -> Path | None:
    """Return the description that lies beside a model."""
    folder = path.parent
    stem = [f"{path.stem}.{name}" for name in ("rdf.yaml", "model.yaml")]
    for name in (*stem, *_NAMES, "metadata.json"):
        if (folder / name).is_file():
            return folder / name
    return None


def _of_another_name(path: Path) -> Said:
    """Note a description that may be another model's: a person can say that it is this one's."""
    notes = []
    for file in sorted(path.parent.glob("*.model.yaml")):
        values = _read(file, None, asked=False).values
        says = ", ".join(f"{key}={_text(value)}" for key, value in values.items())
        notes.append(
            f"{file.name} lies beside the model under another name and is not used; "
            f"description={file} takes over what it says ({says})"
        )
    return Said(notes=tuple(notes))


def _read(file: Path, output: str | None, *, asked: bool) -> Said:
    """Read a description; one that nobody asked for and that says nothing is left alone."""
    try:
        if file.stat().st_size > _BIG:
            raise ValueError(f"it holds more than {_BIG} bytes")
        text = file.read_text(encoding="utf-8")
        content = json.loads(text) if file.suffix == ".json" else _yaml(text)
        if not isinstance(content, dict):
            raise ValueError("it holds no keys")
        if file.suffix == ".json":
            said = _folder(file.name, content)
        else:
            read = read_bioimage(content, output)
            notes, apart = tuple(read.notes), read.channels_apart
            said = Said(file.name, read.values, notes, read.sides, channels_apart=apart)
        for key, value in said.values.items():
            checked(key, value)
        _check_halo(said.values.get("halo", ()))
        return said
    except (OSError, ValueError, RecursionError) as error:
        nested = isinstance(error, RecursionError)
        reason = "it is nested too deeply" if nested else str(error).partition("\n")[0]
        sentence = f"onnx: the description {file.name} cannot be read: {reason}"
        if asked:
            raise ModelError(f"{sentence}; mend it, or give description=none") from error
        return Said(file.name, notes=(sentence,))


def _yaml(text: str) -> Any:
    import yaml  # type: ignore[import-untyped]  # it ships no types

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from error


def _check_halo(halo: tuple[int, ...]) -> None:
    if max(halo, default=0) > _FAR:
        raise ValueError(f"its halo must be {_FAR} voxels or less, got {_text(halo)}")


def _folder(name: str, content: Mapping[str, Any]) -> Said:
    """Read a metadata.json: voxel sizes, and the shapes that are read and written."""
    values: dict[str, Any] = {}
    notes: list[str] = []
    size = _numbers(content, "input_voxel_size")
    made = _numbers(content, "output_voxel_size")
    read, write = _numbers(content, "read_shape"), _numbers(content, "write_shape")
    known = [row for row in (size, made, read, write) if row is not None]
    if len({len(row) for row in known}) > 1:
        raise ValueError("its voxel sizes and shapes must have as many numbers as each other")
    if size is not None:
        values["input_voxel_size"] = size
    if read is not None and write is not None:
        ratio = [1.0] * len(read)
        if size is not None and made is not None:
            ratio = [b / a for a, b in zip(size, made, strict=True)]
        spare = [(a - b * r) / 2 for a, b, r in zip(read, write, ratio, strict=True)]
        if min(spare) < 0:
            notes.append("write_shape is larger than read_shape")
        else:
            values["halo"] = tuple(math.ceil(v) for v in spare)
    sides = None if read is None else tuple(int(v) for v in read)
    channels = content.get("output_channels")
    count = len(channels) if isinstance(channels, list) else channels
    if count is not None and not isinstance(count, int):
        raise ValueError(
            f"its output_channels must be a number or a list, got {reprlib.repr(count)}"
        )
    return Said(name, values, tuple(notes), sides, count)


def _numbers(content: Mapping[str, Any], key: str) -> tuple[float, ...] | None:
    """Return a list of positive numbers, if there is one of that name."""
    found = content.get(key)
    if found is None:
        return None
    good = isinstance(found, list) and all(
        isinstance(v, int | float) and math.isfinite(v) and v > 0 for v in found
    )
    if not good or not found or ("shape" in key and any(v != int(v) for v in found)):
        kind = "whole positive" if "shape" in key else "positive"
        raise ValueError(f"its {key} must be a list of {kind} numbers, got {reprlib.repr(found)}")
    return tuple(found)
