"""What a job would take, found out in a thread while the person goes on.

Owns that thread, and which question an answer belongs to: one that was asked before the last change
is dropped. What is measured, and how, is `estimate`'s.
"""

from __future__ import annotations

import threading
from dataclasses import fields
from typing import TYPE_CHECKING

from napari_materialize.errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari_materialize.engine import Engine
    from napari_materialize.estimate import Estimate
    from napari_materialize.session._resolve import Resolved

__all__ = ["Estimating"]


class Estimating:
    """One estimate at a time. Asked and dropped in one thread; ``tell`` is called in another.

    Parameters
    ----------
    tell : callable
        Called when there is an answer to the last question.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._cancel: threading.Event | None = None
        self._asked: Resolved | None = None
        self._answer: Estimate | None = None
        self._problem: str | None = None

    @property
    def answer(self) -> Estimate | None:
        """What was found, or None if nothing is known yet."""
        with self._lock:
            return self._answer

    @property
    def problem(self) -> str | None:
        """Why nothing was found, in a sentence; None if it was, or nobody knows yet."""
        with self._lock:
            return self._problem

    def ask(self, engine: Engine, state: Resolved) -> None:
        """Begin to find out, unless it is under way, or known."""
        with self._lock:
            if self._asked is state:
                return
        self.drop()
        cancel = threading.Event()
        with self._lock:
            self._asked, self._cancel = state, cancel
        threading.Thread(
            target=self._work,
            args=(engine, state, cancel),
            name="napari-materialize estimate",
            daemon=True,
        ).start()

    def drop(self) -> None:
        """Forget what was asked and what was found; chunks under way are given up."""
        with self._lock:
            cancel, self._cancel = self._cancel, None
            self._asked = self._answer = self._problem = None
        if cancel is not None:
            cancel.set()

    def _work(self, engine: Engine, state: Resolved, cancel: threading.Event) -> None:
        view, options, target = state.view, state.options, state.target
        if view is None or options is None or target is None:
            raise AssertionError("something was estimated without a view, options or a target")
        asked = {each.name: getattr(options, each.name) for each in fields(options)}
        answer, problem = None, None
        try:
            answer = engine.estimate(view, target, **{**asked, "cancel": cancel})
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told and not raised
            problem = reason_of(error)
        with self._lock:
            if cancel.is_set() or self._cancel is not cancel:
                return
            self._answer, self._problem = answer, problem
        self._tell()
