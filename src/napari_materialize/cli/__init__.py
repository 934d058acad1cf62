"""The command line: ``napari-materialize run``, ``info``, ``ops``, ``demo``.

Owns what a person types and reads in a terminal. Each command is a module that reads its
arguments, calls what is below, and ends in `outcome`, where exit codes and sentences are made.
It computes nothing and decides nothing about images. What is heavy is imported inside the
commands: ``--help`` has to be there at once.
"""

from napari_materialize.cli.app import main

__all__ = ["main"]
