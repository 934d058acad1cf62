"""The engine that those who look share when none is given. Owns its beginning and its end."""

from __future__ import annotations

import threading

from napari_materialize.engine import Engine

__all__ = ["Lease"]


class Lease:
    """The use of an engine: a given one, or the one that live layers and panels share, by count."""

    _lock = threading.Lock()
    _shared: Engine | None = None
    _users = 0

    def __init__(self, engine: Engine | None) -> None:
        self._ended = engine is not None
        if engine is not None:
            self.engine = engine
            return
        with Lease._lock:
            if Lease._shared is None or Lease._shared.closed:
                Lease._shared, Lease._users = Engine(), 0
            Lease._users += 1
            self.engine = Lease._shared

    def end(self) -> None:
        """Give the engine back; the last to do so ends it. Doing it twice does nothing."""
        with Lease._lock:
            if self._ended:
                return
            self._ended = True
            if self.engine is not Lease._shared:
                return
            Lease._users -= 1
            over = Lease._users == 0
            if over:
                Lease._shared = None
        if over:
            self.engine.close()
