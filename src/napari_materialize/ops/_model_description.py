"""What a file beside a model says of it: a bioimage.io description, or a folder's metadata.json.

Owns the reading of both into the op's own parameters, and the list of what they contradict. What a
person gives wins over what is read here; a contradiction is told and decides nothing.

Rules: the model specification of bioimage.io, versions 0.3 to 0.5 (axes, preprocessing, halo);
metadata.json of folders that carry ``input_voxel_size``, ``output_voxel_size``, ``read_shape``,
``write_shape`` and ``output_channels``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import ModelError
from napari_materialize.ops._model_parameters import AUTO, checked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.ops._model_ports import Ports

__all__ = ["Said", "describe_model"]

_NAMES = ("rdf.yaml", "model.yaml", "bioimageio.yaml", "rdf.yml", "model.yml")

_BIG = 2**22
"""Bytes of a description beyond which it is none."""

_NORMALISE = {"zero_mean_unit_variance": "zscore", "scale_range": "percentile"}

_AFTER = {"sigmoid": "sigmoid", "softmax": "softmax"}


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

    def fill(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the parameters, those that are given before those that are said, and notes."""
        values, notes = dict(given), list(self.notes)
        for key, found in self.values.items():
            value = checked(key, found)
            if values.get(key) is None or (values[key] == AUTO and key != "halo"):
                values[key] = value
            elif values[key] != value:
                notes.append(
                    f"{self.name} says {key}={_text(value)}, but {key}={_text(values[key])} was "
                    "given"
                )
        for key in ("normalise", "after"):
            values[key] = "none" if values[key] == AUTO else values[key]
        return values, tuple(notes)

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
        return found


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def describe_model(path: Path | str, description: str = AUTO) -> tuple[Path, Said]:
    """Return the model's file and what is said of it.

    Parameters
    ----------
    path
        An ``.onnx`` file, a folder that holds one, or a description.
    description
        The description's file; ``auto`` for one beside the model, ``none`` to ignore it.

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
        return path, _read(Path(description).expanduser(), asked=True)
    file = _beside(path)
    return path, _of_another_name(path) if file is None else _read(file, asked=False)


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
        values = _read(file, asked=False).values
        says = ", ".join(f"{key}={_text(value)}" for key, value in values.items())
        notes.append(
            f"{file.name} lies beside the model under another name and is not used; "
            f"description={file} takes over what it says ({says})"
        )
    return Said(notes=tuple(notes))


def _read(file: Path, *, asked: bool) -> Said:
    """Read a description; one that nobody asked for and that says nothing is left alone."""
    try:
        if file.stat().st_size > _BIG:
            raise ValueError(f"it holds more than {_BIG} bytes")
        text = file.read_text(encoding="utf-8")
        content = json.loads(text) if file.suffix == ".json" else _yaml(text)
        if not isinstance(content, dict):
            raise ValueError("it holds no keys")
        said = _folder(content) if file.suffix == ".json" else _bioimage(content)
        return Said(file.name, *said)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
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


type _Parts = tuple[dict[str, Any], tuple[str, ...], tuple[int, ...] | None, int | None]


def _folder(content: Mapping[str, Any]) -> _Parts:
    """Read a metadata.json: voxel sizes, and the shapes that are read and written."""
    values: dict[str, Any] = {}
    notes: list[str] = []
    size = content.get("input_voxel_size")
    if size is not None:
        values["input_voxel_size"] = tuple(float(v) for v in size)
    read, write = content.get("read_shape"), content.get("write_shape")
    if read is not None and write is not None:
        grown = [int(a) for a in read], [int(a) for a in write]
        ratio = [1.0] * len(grown[0])
        if size is not None and content.get("output_voxel_size") is not None:
            made = [float(v) for v in content["output_voxel_size"]]
            ratio = [b / a for a, b in zip(values["input_voxel_size"], made, strict=True)]
        spare = [(a - b * r) / 2 for a, b, r in zip(*grown, ratio, strict=True)]
        if min(spare) < 0:
            notes.append("write_shape is larger than read_shape")
        else:
            values["halo"] = tuple(int(-(-v // 1)) for v in spare)
    sides = None if read is None else tuple(int(v) for v in read)
    channels = content.get("output_channels")
    count = len(channels) if isinstance(channels, list) else channels
    return values, tuple(notes), sides, None if count is None else int(count)


def _bioimage(content: Mapping[str, Any]) -> _Parts:
    """Read a bioimage.io description: axes, preprocessing, halo, postprocessing."""
    (given, *more), (made, *_) = content["inputs"], content["outputs"]
    if more:
        raise ValueError(f"it has {1 + len(more)} inputs, and this op runs models of one image")
    values: dict[str, Any] = {}
    notes: list[str] = []
    letters = _letters(given["axes"])
    values["layout"] = "".join(letters)
    sides = _sides(given, letters)
    halo = _halo(made)
    if halo is not None:
        values["halo"] = halo
    for step in given.get("preprocessing") or []:
        _preprocess(step, values, notes)
    steps = []
    for step in made.get("postprocessing") or []:
        name, _ = _step(step)
        if name in _AFTER:
            steps.append(_AFTER[name])
        elif name == "binarize":
            steps.append(f"threshold:{float(_step(step)[1].get('threshold', 0.5)):g}")
        elif name != "ensure_dtype":
            notes.append(f"its postprocessing {name} is not done here")
    if steps:
        values["after"] = "+".join(steps)
    return values, tuple(notes), sides, None


def _letters(axes: Any) -> list[str]:
    """Return the axes as letters: a text in 0.3 and 0.4, a list of objects in 0.5."""
    if isinstance(axes, str):
        return list(axes)
    short = {"batch": "b", "channel": "c"}
    return [short.get(axis["type"], axis.get("id", "")) for axis in axes]


def _sides(port: Mapping[str, Any], letters: list[str]) -> tuple[int, ...] | None:
    """Return the fixed sides that are announced, if they are fixed."""
    shape = port.get("shape")
    if shape is None and not isinstance(port["axes"], str):
        shape = [axis.get("size") for axis in port["axes"]]
    if not isinstance(shape, list):
        return None
    each = dict(zip(letters, shape, strict=False))
    sides = [each[letter] for letter in "zyx" if letter in each]
    return tuple(sides) if all(isinstance(side, int) for side in sides) else None


def _halo(port: Mapping[str, Any]) -> tuple[int, ...] | None:
    letters = _letters(port["axes"])
    halo = port.get("halo")
    if halo is None and not isinstance(port["axes"], str):
        halo = [axis.get("halo", 0) for axis in port["axes"]]
        halo = halo if any(halo) else None
    if not isinstance(halo, list):
        return None
    each = dict(zip(letters, halo, strict=True))
    return tuple(int(each[letter]) for letter in "zyx" if letter in each)


def _step(step: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    return str(step.get("name") or step.get("id")), step.get("kwargs") or {}


def _preprocess(step: Mapping[str, Any], values: dict[str, Any], notes: list[str]) -> None:
    """Take over one step of preprocessing, or note that it is not done."""
    name, options = _step(step)
    if name == "ensure_dtype":
        return
    if name in _NORMALISE and "normalise" not in values:
        if name == "scale_range":
            low = float(options.get("min_percentile", 0))
            values["normalise"] = (
                f"percentile:{low:g},{float(options.get('max_percentile', 100)):g}"
            )
        else:
            values["normalise"] = "zscore"
        if options.get("mode") == "fixed" or "mean" in options:
            mean, deviation = options["mean"], options["std"]
            values["constants"] = tuple(
                float(v[0] if isinstance(v, list) else v) for v in (mean, deviation)
            )
        return
    if name == "fixed_zero_mean_unit_variance" and "normalise" not in values:
        values["normalise"] = "zscore"
        values["constants"] = (float(options["mean"]), float(options["std"]))
        return
    if name == "scale_linear" and "normalise" not in values:
        gain, offset = (
            float(v[0] if isinstance(v, list) else v)
            for v in (options.get("gain", 1.0), options.get("offset", 0.0))
        )
        values["normalise"] = "minmax"
        values["constants"] = (-offset / gain, (1 - offset) / gain)
        return
    notes.append(f"its preprocessing {name} is not done here; do it before, with an op")
