"""How a command ends: the exit code, one sentence for a person, one JSON line for a program.

Owns the exit codes and the way an exception becomes a sentence. What went wrong is said where it
is noticed, in the exception's own text.
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

import click

from napari_materialize.errors import InputError, MaterializeError, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "DONE",
    "FAILED",
    "PARTLY_FAILED",
    "PROGRAM",
    "REFUSED",
    "Report",
    "complain",
    "conclude",
    "debug_option",
    "json_option",
    "print_json",
    "printable",
    "say",
    "show",
    "stopped_by",
    "table",
]

PROGRAM = "napari-materialize"

DONE, FAILED, REFUSED, PARTLY_FAILED = 0, 1, 2, 3
"""Exit codes: done; failed; bad input and nothing created; done with failed chunks."""

type Report = dict[str, Any]
"""What a command has to tell a program, as JSON values."""

debug_option = click.option("--debug", is_flag=True, help="Show the traceback of an error too.")

json_option = click.option("--json", is_flag=True, help="End standard output with one JSON object.")


def stopped_by(signal_number: int) -> int:
    """Return the exit code of a program that a signal stopped, as shells have it.

    Examples
    --------
    >>> stopped_by(signal.SIGINT), stopped_by(signal.SIGTERM)
    (130, 143)
    """
    return 128 + signal_number


def conclude(
    work: Callable[[Report], int], *, as_json: bool = False, debug: bool = False
) -> NoReturn:
    """Do the work of a command and end with its exit code, whatever happens.

    Parameters
    ----------
    work : callable
        Is handed an empty report to fill in, and returns the exit code.
    as_json : bool
        Whether the last line of standard output is the report.
    debug : bool
        Whether an error's traceback is shown before its sentence.

    Raises
    ------
    click.exceptions.Exit
        Always, with the code.
    """
    report: Report = {}
    try:
        code = work(report)
    except BrokenPipeError:
        raise  # whoever read our output has enough of it: click ends the program quietly
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is is told
        if debug:
            traceback.print_exception(error)
        code, status, sentence = _judge(error)
        complain(sentence)
        report |= {"status": status, "error": sentence}
    if as_json:
        print_json(report)
    raise click.exceptions.Exit(code)


def _judge(error: BaseException) -> tuple[int, str, str]:
    """Return the exit code, the status and the sentence for what was raised."""
    if isinstance(error, InputError):
        return REFUSED, "refused", _one_line(str(error))
    if isinstance(error, KeyboardInterrupt):
        number = error.args[0] if error.args else signal.SIGINT
        return stopped_by(number), "aborted", "stopped at once"
    if isinstance(error, MaterializeError):
        return FAILED, "failed", _one_line(str(error))
    sentence = f"unexpected error, {named(error)}; --debug shows where"
    return FAILED, "failed", _one_line(sentence)


def printable(text: str) -> str:
    r"""Return text with what cannot be printed (in a file's name, say) written out.

    Examples
    --------
    >>> printable("a\nb\x1b[1m.zarr")
    'a\\nb\\x1b[1m.zarr'
    """
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _one_line(text: str) -> str:
    r"""Return text on one line that can be printed.

    Examples
    --------
    >>> _one_line("no\n such \x1b[1m file")
    'no such \\x1b[1m file'
    """
    return printable(" ".join(text.split()))


def complain(sentence: str) -> None:
    """Write one line to standard error, after the program's name."""
    click.echo(f"{PROGRAM}: {_one_line(sentence)}", err=True)


def say(text: str, *, err: bool = False) -> None:
    """Write a line to standard output, or to standard error, as far as its encoding goes."""
    # there is no stream where it was closed before the program began
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err)


def show(lines: Iterable[str]) -> None:
    """Write a listing to standard output, with what cannot be printed written out."""
    for line in lines:
        say(printable(line))


def print_json(report: Report) -> None:
    """Write the report as one line of ASCII."""
    click.echo(json.dumps(report, allow_nan=False))


def table(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Return lines with their columns aligned.

    Examples
    --------
    >>> table([("a", "1"), ("long", "22")])
    ['a     1', 'long  22']
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        indent
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
