"""The program: its commands put together, and what is said of a line that cannot be read.

Owns the entry point. What a command does and how it ends is its own module's and `outcome`'s.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import TYPE_CHECKING, Annotated

import typer

import napari_materialize
from napari_materialize.cli.check_model import check_model
from napari_materialize.cli.demo import demo
from napari_materialize.cli.info import info
from napari_materialize.cli.ops import list_ops
from napari_materialize.cli.outcome import DONE, PROGRAM, REFUSED, complain, print_json, say
from napari_materialize.cli.rerun import rerun
from napari_materialize.cli.run import run
from napari_materialize.cli.verify import verify
from napari_materialize.errors import NotedWarning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["app", "main"]

# Help without rich's panels: it costs half as much to show, and copies well.
app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
app.command("run")(run)
app.command("info")(info)
app.command("verify")(verify)
app.command("rerun")(rerun)
app.command("ops")(list_ops)
app.command("check-model")(check_model)
app.command("demo")(demo)


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Browse a computation as if it were a stored image, and keep a box of it as OME-Zarr."""
    if version:
        say(f"{PROGRAM} {napari_materialize.__version__}")
        raise typer.Exit(DONE)
    if context.invoked_subcommand is None:
        say(context.get_help())
        raise typer.Exit(DONE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; ``sys.argv`` if none is given.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name.

    Returns
    -------
    int
        The exit code: 0 done, 1 failed, 2 bad input and nothing created, 3 done with failed
        chunks, 130 stopped.

    Examples
    --------
    >>> main(["--version"])
    napari-materialize ...
    0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = typer.main.get_command(app)
    with _warnings_on_one_line():
        try:
            code = command.main(args=given, prog_name=PROGRAM, standalone_mode=False)
        except typer.TyperException as error:
            sentence = _usage(error)
            complain(sentence)
            if "--json" in given:
                print_json({"status": "refused", "error": sentence})
            return REFUSED
    return int(code or DONE)


def _usage(error: typer.TyperException) -> str:
    """Say what is wrong with a line, and where to look."""
    context = getattr(error, "ctx", None)
    place = context.command_path if context is not None else PROGRAM
    message = error.format_message().rstrip(" .")
    return f"{message[:1].lower()}{message[1:]}; {place} --help says how it is called"


@contextlib.contextmanager
def _warnings_on_one_line() -> Iterator[None]:
    """Show a warning as a person reads it: without the file and the line of code it came from.

    What the commands tell as an op's notes is not told twice.
    """

    def show(message: Warning | str, *_: object, **__: object) -> None:
        complain(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotedWarning)
        warnings.showwarning = show
        yield
