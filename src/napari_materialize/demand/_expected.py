"""The clients that are about to claim something, as they say. Owns their count, and their ends."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Expected"]


class Expected:
    """Who is expected.

    Parameters
    ----------
    patience : int
        Times in a row that somebody may say so before background work goes on.
    """

    def __init__(self, patience: int) -> None:
        self.on_gone: Callable[[], None] | None = None
        """Called when a client that was expected is garbage: more may start now. In any thread, at
        any moment, inside whatever that thread does and with the locks it holds."""
        self._patience = patience
        self._clients: set[weakref.ref[object]] = set()
        self._announced = 0

    def note(self, client: object, *, soon: bool) -> None:
        """Take note that a client is about to claim something, or not any more."""
        if not self._clients:
            self._announced = 0
        if soon:
            self._announced += 1
            self._clients.add(weakref.ref(client, self._forget))
        else:
            self._clients.discard(weakref.ref(client))

    def most(self, usual: int) -> int:
        """Return how many background jobs may run at a time where it is ``usual`` otherwise."""
        if not self._clients:
            return usual
        return 0 if self._announced < self._patience else 1

    def _forget(self, client: weakref.ref[object]) -> None:
        self._clients.discard(client)
        if self.on_gone is not None and not self._clients:
            self.on_gone()
