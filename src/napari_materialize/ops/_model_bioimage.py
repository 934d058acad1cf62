"""What a bioimage.io description says of a model, in the op's own parameters.

Owns the reading of axes, halo and steps before and after the model, and the sentences about steps
that the op has not. Where the file lies, and what wins over it, is `_model_description`'s business.

Rules: the model specification of bioimage.io, versions 0.3 to 0.5 (axes, preprocessing, halo). All
its ways of normalising are ``(v - shift) / scale``. One whose numbers are taken from the voxels
makes the same of ``v`` and of ``a v + b`` with ``a > 0``, so fixed ones before it fall away.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Bioimage", "read_bioimage"]

_AFTER = {"sigmoid": "sigmoid", "softmax": "softmax"}

_NOTHING = "ensure_dtype"
"""A step that the op does by itself."""


class _Undone(Exception):
    """A step cannot be done by the op; says why, if there is more to say than that."""


@dataclass(slots=True)
class Bioimage:
    """What was read."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sides: tuple[int, ...] | None = None
    """The tile's sides, where they are fixed."""
    channels_apart: bool = False
    """Whether each channel is normalised by itself."""
    fixed: tuple[float, float] | None = None
    """The shift and the scale of the steps so far, where both are written down."""


def read_bioimage(content: Mapping[str, Any], output: str | None = None) -> Bioimage:
    """Read a description; of several outputs the one called ``output``, else the first.

    Raises
    ------
    ValueError
        If it describes no model of one image, or not as the specification has it.
    """
    given, *more = _mappings(content, "inputs")
    if more:
        raise ValueError(f"it has {1 + len(more)} inputs, and this op runs models of one image")
    outputs = _mappings(content, "outputs")
    named = [port for port in outputs if output in {port.get("name"), port.get("id")}]
    made = (named if output else outputs or named)[:1] or outputs[:1]
    letters = _letters(given, "input")
    read = Bioimage({"layout": "".join(letters)}, sides=_sides(given, letters))
    halo = _halo(made[0])
    if halo is not None:
        read.values["halo"] = halo
    for step in _steps(given, "preprocessing"):
        _preprocess(step, read)
    after = _after(_steps(made[0], "postprocessing"), read.notes)
    if after:
        read.values["after"] = "+".join(after)
    return read


def _mappings(content: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = content.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(v, dict) for v in found):
        raise ValueError(
            f"its {key} must be a list of one or more descriptions, got {reprlib.repr(found)}"
        )
    return found


def _letters(port: Mapping[str, Any], what: str) -> list[str]:
    """Return the axes as letters: a text in 0.3 and 0.4, a list of objects in 0.5."""
    axes = port.get("axes")
    if isinstance(axes, str):
        letters = list(axes)
    elif isinstance(axes, list) and all(isinstance(axis, dict) for axis in axes):
        short = {"batch": "b", "channel": "c", "time": "t"}
        letters = [short.get(axis.get("type"), str(axis.get("id"))) for axis in axes]
    else:
        raise ValueError(
            f"the axes of its {what} must be a text or a list, got {reprlib.repr(axes)}"
        )
    if len(set(letters)) < len(letters) or not {"y", "x"} <= set(letters) <= set("bczyx"):
        raise ValueError(
            f"the axes of its {what} must be among b, c, z, y, x, each once, y and x among them, "
            f"got {', '.join(letters)}"
        )
    return letters


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
    halo = port.get("halo")
    if halo is None and not isinstance(port.get("axes"), str):
        _letters(port, "output")
        halo = [axis.get("halo", 0) for axis in port["axes"]]
        halo = halo if any(halo) else None
    if not isinstance(halo, list):
        return None
    letters = _letters(port, "output")
    if len(halo) != len(letters) or not all(isinstance(v, int) and v >= 0 for v in halo):
        raise ValueError(
            f"its halo must be a whole number for each of the axes {''.join(letters)}, got "
            f"{reprlib.repr(halo)}"
        )
    each = dict(zip(letters, halo, strict=True))
    return tuple(each[letter] for letter in "zyx" if letter in each)


type _Step = tuple[str, Mapping[str, Any]]


def _steps(port: Mapping[str, Any], key: str) -> list[_Step]:
    """Return the steps' names and options."""
    found = port.get(key) or []
    steps: list[_Step] = []
    for step in found if isinstance(found, list) else [found]:
        options = (step.get("kwargs") or {}) if isinstance(step, dict) else None
        if not isinstance(step, dict) or not isinstance(options, dict):
            raise ValueError(
                f"a step of its {key} must have a name and kwargs, got {reprlib.repr(step)}"
            )
        steps.append((str(step.get("name") or step.get("id")), options))
    return steps


def _preprocess(step: _Step, read: Bioimage) -> None:
    """Take over one step of preprocessing, or note that it is not done."""
    name, options = step
    if name == _NOTHING:
        return
    try:
        measured = _measured(name, options)
        if measured is not None:
            # what was fixed before it changes nothing
            read.values["normalise"] = measured
            read.values.pop("constants", None)
            read.fixed = None
            read.channels_apart = _leaves_channels(options.get("axes"))
            return
        shift, scale = _fixed(name, options)
        if read.fixed is None and "normalise" in read.values:
            raise _Undone(f"after {read.values['normalise']}")
        first, one = read.fixed or (0.0, 1.0)
        read.fixed = shift, scale = first + shift * one, one * scale
        linear = name == "scale_linear"
        read.values["normalise"] = "minmax" if linear else "zscore"
        read.values["constants"] = (shift, shift + scale if linear else scale)
    except _Undone as why:
        said = f" ({why})" if str(why) else ""
        read.notes.append(
            f"its preprocessing {name}{said} is not done here; do it before, with an op"
        )


def _measured(name: str, options: Mapping[str, Any]) -> str | None:
    """Return the normalisation whose numbers are taken from the voxels; None for other steps."""
    if name == "zero_mean_unit_variance" and options.get("mode") != "fixed":
        return None if "mean" in options else "zscore"
    if name != "scale_range":
        return None
    low = _one(options.get("min_percentile", 0), "min_percentile")
    high = _one(options.get("max_percentile", 100), "max_percentile")
    if not 0 <= low < high <= 100:
        raise _Undone(f"percentiles {low:g} and {high:g}")
    return f"percentile:{low!r},{high!r}"


def _fixed(name: str, options: Mapping[str, Any]) -> tuple[float, float]:
    """Return the shift and the scale of a step that has them written down."""
    if name in {"zero_mean_unit_variance", "fixed_zero_mean_unit_variance"}:
        shift, scale = _one(options.get("mean"), "mean"), _one(options.get("std"), "std")
    elif name == "scale_linear":
        gain, offset = (
            _one(options.get("gain", 1), "gain"),
            _one(options.get("offset", 0), "offset"),
        )
        if gain == 0:
            raise _Undone("gain 0")
        shift, scale = (0.0 - offset) / gain, 1 / gain
    else:
        raise _Undone
    if scale <= 0:
        raise _Undone(f"a scale of {scale:g}")
    return shift, scale


def _one(value: Any, key: str) -> float:
    """Return a number, or what all the numbers of a list are."""
    each = value if isinstance(value, list) else [value]
    if not each or not all(isinstance(v, int | float) and math.isfinite(v) for v in each):
        raise _Undone(f"{key} {reprlib.repr(value)}")
    if len(set(each)) > 1:
        raise _Undone(f"{key} of each channel")
    return float(each[0])


def _leaves_channels(axes: Any) -> bool:
    """Whether a step is done for each channel by itself: the axes it names have no channel."""
    named = list(axes) if isinstance(axes, str | list) else []
    return bool(named) and not {"c", "channel"} & set(map(str, named))


def _after(steps: list[_Step], notes: list[str]) -> list[str]:
    """Return the steps after the model, up to the first that the op has not."""
    done = []
    for number, (name, options) in enumerate(steps):
        if name == _NOTHING:
            continue
        try:
            if name not in {*_AFTER, "binarize"}:
                raise _Undone
            if name == "binarize":
                done.append(f"above:{_one(options.get('threshold', 0.5), 'threshold')!r}")
            else:
                done.append(_AFTER[name])
        except _Undone as why:
            said = f" ({why})" if str(why) else ""
            rest = [each for each, _ in steps[number + 1 :] if each != _NOTHING]
            more = f", nor what follows it ({', '.join(rest)})" if rest else ""
            notes.append(f"its postprocessing {name}{said} is not done here{more}")
            break
    return done
