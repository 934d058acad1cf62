"""Every exception this package raises on purpose, and what any exception is called in a sentence.

The tree::

    MaterializeError
    ├── InputError (ValueError)          bad input, refused before anything is created
    │   ├── SourceError                  a source that is missing, unreadable or not an image
    │   ├── OpError                      an unknown op, a wrong parameter, an op that does not fit
    │   ├── ModelError                   a model file that cannot be used
    │   ├── LevelError (IndexError)      a level that does not exist
    │   ├── BoxError                     a box that is empty, inverted, outside, or of a wrong rank
    │   ├── TargetError (FileExistsError)   a target that cannot be written to
    │   └── OptionError                  an option with a value it cannot have
    ├── ChunkError (RuntimeError)        a chunk could not be computed, read, encoded or stored
    ├── DamagedChunk (ValueError)        a stored chunk is not what its array says
    ├── StoreError (OSError)             a store could not write or read a file
    │   └── AccessError                  the server refuses it: whether it is there is not known
    ├── TransitionError (RuntimeError)   a chunk's state was asked to change in a way it cannot
    ├── EngineClosed (RuntimeError)      asked of an engine that is closed
    └── ClaimReleased (RuntimeError)     the result of a claim that was given up

and one warning, which is no error: NotedWarning (UserWarning).

A message to a person says the place, the rule, the value found, and what to do.
This module does not decide how a message is shown: the adapter that shows it does.
"""

from __future__ import annotations

__all__ = [
    "AccessError",
    "BoxError",
    "ChunkError",
    "ClaimReleased",
    "DamagedChunk",
    "EngineClosed",
    "InputError",
    "LevelError",
    "MaterializeError",
    "ModelError",
    "NotedWarning",
    "OpError",
    "OptionError",
    "SourceError",
    "StoreError",
    "TargetError",
    "TransitionError",
    "named",
    "reason_of",
]


class MaterializeError(Exception):
    """The root of every exception this package raises on purpose."""


class InputError(MaterializeError, ValueError):
    """Bad input: refused before anything is created."""


class SourceError(InputError):
    """A source that is missing, unreadable, or not an image this package reads."""


class OpError(InputError):
    """An unknown op, a wrong parameter, or an op that does not fit its input."""


class ModelError(InputError):
    """A model file that cannot be used."""


class LevelError(InputError, IndexError):
    """A level that the view does not have."""


class BoxError(InputError):
    """A box that is empty, inverted, outside the level, or of a wrong rank."""


class TargetError(InputError, FileExistsError):
    """A target that cannot be written to: not empty, a file, or the source itself."""


class OptionError(InputError):
    """An option with a value it cannot have."""


class ChunkError(MaterializeError, RuntimeError):
    """A chunk could not be computed, read, encoded or stored; the cause is attached."""

    receipt: object = None
    """What a job that this error ended had done until then, a `Materialized`; else None."""


class DamagedChunk(MaterializeError, ValueError):
    """A stored chunk is not what its array says: cut off, of another size, or never that."""


class StoreError(MaterializeError, OSError):
    """A store could not write or read a file: the message names it and why, `errno` is kept."""


class AccessError(StoreError):
    """A server refuses an object: whether it is there is unknown, so it is no missing one."""


class TransitionError(MaterializeError, RuntimeError):
    """A chunk's state was asked to change in a way the table of transitions forbids."""


class EngineClosed(MaterializeError, RuntimeError):
    """Something was asked of an engine that is closed, or it was closed meanwhile."""


class ClaimReleased(MaterializeError, RuntimeError):
    """The result was asked of a claim that was already given up."""


class NotedWarning(UserWarning):
    """A warning of what is among an op's ``notes`` too: who shows those need not show it."""


def named(error: BaseException) -> str:
    """Return an exception's type and what it says, in one piece of a sentence.

    An error that cannot say anything (an op may raise its own) must not become a second one.

    Examples
    --------
    >>> named(ValueError("no film")), named(MemoryError())
    ('ValueError: no film', 'MemoryError')
    """
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001 - whatever it does when it is asked
        text = f"(its text could not be made: {type(second).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def reason_of(error: BaseException) -> str:
    """Return why something failed: in the words of ours and of the system's, else `named`.

    Examples
    --------
    >>> reason_of(OpError("op: there is none")), reason_of(KeyError("x"))
    ('op: there is none', "KeyError: 'x'")
    """
    said = isinstance(error, (MaterializeError, OSError))
    return (str(error) if said else "") or named(error)
