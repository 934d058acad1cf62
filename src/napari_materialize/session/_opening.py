"""Ops that look at their image before they run, opened in a thread while the person goes on.

A model measures the context it needs, which takes seconds. Owns that thread, and that only what was
asked for last is taken: of several changes meanwhile the ones between are not opened at all.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from napari_materialize.errors import named
from napari_materialize.ops import Op, available
from napari_materialize.session._intent import Chain, Intent, OpChoice, follow

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Opening", "looks_first"]

BUSY = "op {}: it is looking at the image, which takes a while; go on, or remove it"


def looks_first(choice: OpChoice) -> bool:
    """Whether an op looks at its image when it is put in a view, and so may take long.

    >>> looks_first("gaussian:sigma=1"), looks_first(("onnx", {})), looks_first("no such op")
    (False, True, False)
    """
    if isinstance(choice, Op):
        return type(choice).settle is not Op.settle
    kind = available().get(_name(choice))
    return kind is not None and kind.settle is not Op.settle


class Opening:
    """One chain is opened at a time. Asked in one thread; ``tell`` is called in another.

    Parameters
    ----------
    tell : callable
        Called when what was asked for last can be taken.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._asked: tuple[Intent, Chain] | None = None
        self._next: tuple[Intent, Chain] | None = None
        self._busy = False
        self._found: Chain | None = None

    def begin(self, intent: Intent, previous: Chain) -> Chain:
        """Begin to open what an intent asks for; return what there is until then."""
        with self._lock:
            self._asked = self._next = (intent, previous)
            self._found = None
            if not self._busy:
                self._busy = True
                threading.Thread(
                    target=self._work, name="napari-materialize opening", daemon=True
                ).start()
        alone = follow(replace(intent, ops=()), previous)
        busy = (BUSY.format(_name(one)) if looks_first(one) else None for one in intent.ops)
        made = (None,) * len(intent.ops)
        return Chain(intent, alone.base, alone.source_problem, made, tuple(busy))

    def drop(self) -> None:
        """Want nothing any more; what is being looked at is looked at to its end, for nobody."""
        with self._lock:
            self._asked = self._next = self._found = None

    def take(self) -> Chain | None:
        """Return what was asked for last, once it is there."""
        with self._lock:
            found, self._found = self._found, None
            return found

    def _work(self) -> None:
        while True:
            with self._lock:
                work, self._next = self._next, None
                if work is None:
                    self._busy = False
                    return
            chain = _follow(*work)
            with self._lock:
                wanted = self._asked is work
                if wanted:
                    self._found = chain
            if wanted:
                self._tell()


def _follow(intent: Intent, previous: Chain) -> Chain:
    try:
        return follow(intent, previous)
    except Exception as error:  # noqa: BLE001 - in a thread nobody else would hear of it
        nothing = (None,) * len(intent.ops)
        return Chain(intent, None, f"source: {named(error)}", nothing, nothing)


def _name(choice: OpChoice) -> str:
    if isinstance(choice, Op):
        return choice.name
    return choice.partition(":")[0] if isinstance(choice, str) else choice[0]
