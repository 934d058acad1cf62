"""The command line: ``napari-materialize run``, ``info``, ``ops``, ``demo``.

Owns what a person types and reads in a terminal. Each command is a module that reads its
arguments, calls what is below, and ends in `outcome`, where exit codes and sentences are made.
It computes nothing and decides nothing about images. What is heavy is imported inside the
commands: ``--help`` has to be there at once.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

YOUNG = 50_000
"""Objects that are made before those that nothing uses are looked for; a start makes 35,000."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; ``sys.argv`` if none is given, as the program that this process is.

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
    if arguments is not None:
        from napari_materialize.cli.app import call

        return call(arguments)
    return _program()


def _program() -> int:
    """Run the command line that this process was started with.

    What is imported stays to the end: looking through it for garbage, while it is loaded and once
    more when Python ends, takes a tenth of the time of a job of a few hundred chunks.
    """
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])

    from napari_materialize.cli.app import call

    try:
        return call(sys.argv[1:])
    finally:
        gc.freeze()
