"""``ops``: the ops that text can name, with their parameters.

Owns the listing. The ops and the meaning of their parameters are the registry's.
"""

from __future__ import annotations

import types
import typing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from napari_materialize.cli.outcome import (
    DONE,
    Report,
    conclude,
    debug_option,
    json_option,
    say,
    table,
)

if TYPE_CHECKING:
    from napari_materialize.ops import Op

__all__ = ["list_ops"]

_WORDS: dict[Any, str] = {
    bool: "true|false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
}


@click.command("ops")
@json_option
@debug_option
def list_ops(json: bool, debug: bool) -> None:
    """List the ops, those of other packages too, with their parameters."""
    conclude(partial(_list, json), as_json=json, debug=debug)


def _list(as_json: bool, report: Report) -> int:
    from napari_materialize.ops import available

    report["ops"] = [_describe(name, op) for name, op in available().items()]
    if not as_json:
        say("\n\n".join("\n".join(_lines(op)) for op in report["ops"]))
    return DONE


def _describe(name: str, op: type[Op]) -> dict[str, Any]:
    from napari_materialize.ops import describe_parameters

    summary = (op.__doc__ or "").strip().partition("\n")[0].replace("`", "")
    parameters = [
        {
            "name": each.name,
            "type": _type_words(each.type),
            "required": each.required,
            "default": each.default
            if isinstance(each.default, bool | int | float | str | None)
            else str(each.default),
            "help": each.help,
        }
        for each in describe_parameters(op)
    ]
    return {"name": name, "summary": summary, "parameters": parameters}


def _type_words(hint: Any) -> str:
    """Say how a value is written.

    Examples
    --------
    >>> _type_words(float | tuple[float, ...]), _type_words(str | None), _type_words(int | float)
    ('number or numbers', 'text', 'number')
    """
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    members = [*typing.get_args(hint)] if union else [hint]
    if types.NoneType in members:
        members.remove(types.NoneType)
    if int in members and float in members:
        members.remove(int)
    return " or ".join(map(_word, members))


def _word(member: Any) -> str:
    if typing.get_origin(member) is tuple:
        return f"{_word(typing.get_args(member)[0])}s"
    return _WORDS.get(member, getattr(member, "__name__", str(member)))


def _lines(op: dict[str, Any]) -> list[str]:
    rows = [(each["name"], each["type"], _default(each), each["help"]) for each in op["parameters"]]
    return [f"{op['name']}: {op['summary']}", *(table(rows, indent="    ") if rows else [])]


def _default(parameter: dict[str, Any]) -> str:
    if parameter["required"]:
        return "required"
    return "optional" if parameter["default"] is None else f"[{parameter['default']}]"
