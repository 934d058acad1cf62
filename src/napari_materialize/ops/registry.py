"""Ops by name: the built-in ones and those of other packages, made from text or JSON values.

Owns the names, the entry point group ``napari_materialize.ops`` and the reading of one value as
a parameter's type. It does not split ``name:key=value,key=value`` (`recipe`), and holds no
op that only Python can make (`Function`).
"""

from __future__ import annotations

import dataclasses
import math
import operator
import types
import typing
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.errors import OpError, named
from napari_materialize.ops._base import Op

if TYPE_CHECKING:
    import importlib.metadata
    from collections.abc import Callable, Mapping

__all__ = ["Parameter", "available", "create", "describe_parameters"]

ENTRY_POINTS = "napari_materialize.ops"
"""The group in which another package names its ops: ``name = "package.module:OpClass"``."""

_BUILT_IN = {
    "threshold": "point.Threshold",
    "rescale": "point.Rescale",
    "gaussian": "filters.Gaussian",
    "median": "filters.Median",
    "invert": "point.Invert",
    "cast": "point.Cast",
    "select": "channel.Select",
    "argmax": "channel.Argmax",
    "onnx": "onnx.Onnx",
}
"""The ops of this package, each imported when it is named: a job uses few of them, or none."""

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an op, as a form or a listing shows it."""

    name: str
    """The keyword."""

    type: Any
    """A Python type: ``float``, ``float | tuple[float, ...]``, ``str | None``, ``pathlib.Path``."""

    default: Any
    """What it is if left out; None where it is required."""

    required: bool
    """Whether it must be given."""

    help: str
    """One line."""


def available() -> dict[str, type[Op]]:
    """Return every op that text can name, the built-in ones first.

    Other packages' ops are imported here. One that cannot be used is left out with a warning,
    and a built-in name cannot be taken.

    Examples
    --------
    >>> list(available())[:3]
    ['threshold', 'rescale', 'gaussian']
    """
    found = {name: _built_in(name) for name in _BUILT_IN}
    for entry in _entries():
        if entry.name in found:
            warnings.warn(
                f"op {entry.name} of {entry.value} is left out: the name is taken", stacklevel=2
            )
        elif (op := _load(entry)) is not None:
            found[entry.name] = op
    return found


def _built_in(name: str) -> type[Op]:
    """Import an op of this package."""
    module, _, own = _BUILT_IN[name].partition(".")
    op: type[Op] = getattr(import_module(f"napari_materialize.ops.{module}"), own)
    return op


def _entries() -> list[importlib.metadata.EntryPoint]:
    """Return the entry points of other packages, in the order of their names."""
    import importlib.metadata  # brings email, socket and zip files along: a third of numpy's time

    return sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda e: e.name)


def _load(entry: importlib.metadata.EntryPoint) -> type[Op] | None:
    """Import another package's op; a warning and None if that fails."""
    try:
        op = entry.load()
    except Exception as error:  # noqa: BLE001  # whatever another package does, ours still works
        reason = named(error)
    else:
        if isinstance(op, type) and issubclass(op, Op) and dataclasses.is_dataclass(op):
            return op
        reason = "it is not an Op that is a dataclass"
    warnings.warn(f"op {entry.name} of {entry.value} is left out: {reason}", stacklevel=3)
    return None


def describe_parameters(op_type: type[Op]) -> tuple[Parameter, ...]:
    """Return the parameters of an op, in the order in which they are declared.

    Examples
    --------
    >>> [(p.name, p.required) for p in describe_parameters(available()["rescale"])]
    [('low', True), ('high', True), ('dtype', False)]
    """
    hints = typing.get_type_hints(op_type)
    found = []
    for each in dataclasses.fields(op_type):  # type: ignore[arg-type]  # ops are dataclasses
        if each.init:
            default, required = _default(each)
            line = each.metadata.get("help", "")
            keyword = each.metadata.get("name", each.name)
            found.append(Parameter(keyword, hints[each.name], default, required, line))
    return tuple(found)


def _default(field: dataclasses.Field[Any]) -> tuple[Any, bool]:
    """Return a field's default and whether it has none."""
    if field.default is not dataclasses.MISSING:
        return field.default, False
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory(), False
    return None, True


def create(name: str, parameters: Mapping[str, Any]) -> Op:
    """Make an op from its name and its parameters.

    Parameters
    ----------
    name : str
        One of `available`.
    parameters : mapping
        Python or JSON values, or text: ``"1.5"``, ``"1,2,2"``, ``"true"``, ``"float32"``,
        ``"none"``.

    Raises
    ------
    OpError
        If the name or a parameter is unknown, a parameter is missing, or a value is wrong.
    ModelError
        If an op's model file cannot be used.

    Examples
    --------
    >>> create("gaussian", {"sigma": "0,1.5,1.5"})
    Gaussian(sigma=(0.0, 1.5, 1.5), dtype=None)
    """
    op_type = _built_in(name) if name in _BUILT_IN else _find(name)
    known = {each.name: each for each in describe_parameters(op_type)}
    for given in parameters:
        if given not in known:
            raise OpError(
                f"op {name}: has no parameter {given!r}{_closest(given, known)}; it takes "
                f"{', '.join(known) or 'none'}"
            )
    for each in known.values():
        if each.required and each.name not in parameters:
            raise OpError(
                f"op {name}: needs {each.name} ({each.help}), which is missing; give "
                f"{each.name}=..."
            )
    values = {
        key: _coerce(value, known[key].type, f"op {name}: {key}")
        for key, value in parameters.items()
    }
    return op_type(**values)


def _find(name: str) -> type[Op]:
    """Return another package's op, importing no other one."""
    names = [*_BUILT_IN]
    for entry in _entries():
        if entry.name == name and (op := _load(entry)) is not None:
            return op
        names.append(entry.name)
    raise OpError(
        f"op: no op is called {name!r}{_closest(name, names)}; known are {', '.join(names)}"
    )


def _closest(word: str, known: Any) -> str:
    """Return ", did you mean ...?" where a known word is near."""
    import difflib  # for what is mistyped alone

    near = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {near[0]!r}?" if near else ""


def _coerce(value: Any, hint: Any, place: str) -> Any:
    """Read a value as a parameter's type: the first member of a union that takes it."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    members = typing.get_args(hint) if union else (hint,)
    for member in sorted(members, key=_eagerness):
        try:
            return _read(value, member)
        except (TypeError, ValueError, OverflowError):
            continue
    names = " or ".join(_type_name(member) for member in members)
    raise OpError(f"{place}: must be {names}, got {value!r}; correct it")


def _eagerness(member: Any) -> int:
    """Order the members of a union: None before numbers before text, whole before other numbers."""
    order = [types.NoneType, bool, int, float, tuple, Path, str]
    kind = typing.get_origin(member) or member
    return order.index(kind) if kind in order else len(order)


def _read(value: Any, member: Any) -> Any:
    """Read a value as one plain type, or raise ValueError or TypeError."""
    if typing.get_origin(member) is tuple:
        items = value.split(",") if isinstance(value, str) else value
        return tuple(_read(item, typing.get_args(member)[0]) for item in items)
    read = _READERS.get(member)
    return read(value) if read else _only(value, member)


def _read_none(value: Any) -> None:
    if value is not None and str(value).strip().lower() not in {"", "none"}:
        raise ValueError


def _read_bool(value: Any) -> bool:
    if isinstance(value, str) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    return bool(_only(value, bool))


def _read_int(value: Any) -> int:
    return int(value) if isinstance(value, str) else operator.index(_not_bool(value))


def _read_float(value: Any) -> float:
    number = float(_not_bool(value))
    if not math.isfinite(number):  # a record in JSON could not say it
        raise ValueError(f"{value!r} is not finite")
    return number


def _read_path(value: Any) -> Path:
    if isinstance(value, str) and not value.strip():
        raise ValueError  # which pathlib takes for the current folder
    return value if isinstance(value, Path) else Path(_only(value, str))


def _read_text(value: Any) -> str:
    if isinstance(value, np.dtype | type):  # uint8 as numpy has it
        return str(np.dtype(value).name)
    return str(_only(value, str))


_READERS: dict[Any, Callable[[Any], Any]] = {
    types.NoneType: _read_none,
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    Path: _read_path,
    str: _read_text,
}


def _only(value: Any, kind: Any) -> Any:
    """Return a value that is of a type already; any value where the type cannot be told."""
    if not isinstance(kind, type) or isinstance(value, kind):
        return value
    raise TypeError


def _not_bool(value: Any) -> Any:
    """Return a value that is no bool: True is not the number 1."""
    if isinstance(value, bool):
        raise TypeError
    return value


def _type_name(member: Any) -> str:
    """Say a type in words."""
    if typing.get_origin(member) is tuple:
        return f"several ({_type_name(typing.get_args(member)[0])}), separated by commas"
    words = {
        types.NoneType: "none",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        Path: "a path",
    }
    return words.get(member, getattr(member, "__name__", str(member)))
