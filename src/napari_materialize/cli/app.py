"""The program: its commands put together, and what is said of a line that cannot be read.

Owns what `main` calls. What a command does and how it ends is its own module's and `outcome`'s.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import TYPE_CHECKING

import click

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

__all__ = ["app", "call"]


class _Commands(click.Group):
    """The commands, listed in the order in which a person meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Commands, invoke_without_command=True)
@click.option("--version", is_flag=True, help="Show the version and exit.")
@click.pass_context
def app(context: click.Context, version: bool) -> None:
    """Browse a computation as if it were a stored image, and keep a box of it as OME-Zarr."""
    if version:
        say(f"{PROGRAM} {napari_materialize.__version__}")
        raise click.exceptions.Exit(DONE)
    if context.invoked_subcommand is None:
        say(context.get_help())
        raise click.exceptions.Exit(DONE)


for command in (run, info, verify, rerun, list_ops, check_model, demo):
    app.add_command(command)


def call(arguments: Sequence[str]) -> int:
    """Run a command line, without the program's name; return the exit code."""
    with _warnings_on_one_line():
        try:
            code = app.main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
        except click.ClickException as error:
            sentence = _usage(error)
            complain(sentence)
            if "--json" in arguments:
                print_json({"status": "refused", "error": sentence})
            return REFUSED
    return int(code or DONE)


_NEAR = re.compile(r"\.? \(?Did you mean(?: one of:)? (.+)\?\)?$")
"""What click says of a word that is nearly known, behind a sentence of its own."""


def _usage(error: click.ClickException) -> str:
    """Say what is wrong with a line, and where to look."""
    context = getattr(error, "ctx", None)
    place = context.command_path if context is not None else PROGRAM
    message = _NEAR.sub(r", did you mean \1?", error.format_message()).rstrip(" .")
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
