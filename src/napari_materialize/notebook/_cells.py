"""Which cell of a notebook made which panel, so that running the cell again ends it.

Owns that table, and the one hook that is set in IPython. Where there is no IPython, or the front
end does not name its cells, nothing is known and a panel ends with `Panel.close` alone.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Closing", "Table", "here"]


class Closing(Protocol):
    """What a cell made."""

    def close(self) -> None:
        """End it."""


class Table:
    """What each cell made the last time it ran.

    Examples
    --------
    >>> class Made:
    ...     def close(self):
    ...         print("closed")
    >>> table, made = Table(), Made()
    >>> table.add("cell 1", made)
    >>> table.begin("cell 2"), table.begin("cell 1")
    closed
    (None, None)
    """

    def __init__(self) -> None:
        self._made: dict[str, list[weakref.ref[Closing]]] = {}

    def add(self, cell: str, made: Closing) -> None:
        """Take note that a cell made something."""
        self._made.setdefault(cell, []).append(weakref.ref(made))

    def begin(self, cell: str | None, deleted: Iterable[str] = ()) -> None:
        """A cell is about to run: what it made before ends, and what deleted cells made."""
        for name in [cell, *deleted]:
            for made in self._made.pop(name, []) if name is not None else ():
                if (alive := made()) is not None:
                    alive.close()


class _Hook:
    """Tells the table when a cell of IPython's shell begins."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.table = Table()
        self.cell = _cell(shell)
        shell.events.register("pre_run_cell", self._begin)

    def _begin(self, info: Any) -> None:
        self.cell = getattr(info, "cell_id", None) or _cell(self.shell)
        deleted = _metadata(self.shell).get("deletedCells", ())
        self.table.begin(self.cell, deleted if isinstance(deleted, list) else ())


_hooks: weakref.WeakKeyDictionary[Any, _Hook] = weakref.WeakKeyDictionary()


def here(made: Closing) -> None:
    """Take note that the cell that runs made something."""
    if "IPython" not in sys.modules:
        return
    shell = sys.modules["IPython"].get_ipython()
    if shell is None:
        return
    hook = _hooks.get(shell)
    if hook is None:
        hook = _hooks[shell] = _Hook(shell)
    if hook.cell is not None:
        hook.table.add(hook.cell, made)


def _metadata(shell: Any) -> dict[str, Any]:
    """Return what a front end says of the request that runs."""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    metadata = parent.get("metadata", {}) if isinstance(parent, dict) else {}
    return metadata if isinstance(metadata, dict) else {}


def _cell(shell: Any) -> str | None:
    cell = _metadata(shell).get("cellId")
    return cell if isinstance(cell, str) else None
