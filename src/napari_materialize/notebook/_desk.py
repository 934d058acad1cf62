"""What a panel does, without a browser: messages in, messages out.

Owns the wiring between a session, the painter and whoever displays the panel, and what ends with
it. A front end may hand messages over in any thread (JupyterLab does so in a thread of its own
while a cell runs, others in the main thread between cells), and chunks and jobs tell in theirs: so
one lock guards the session, and nothing is waited for under it.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psygnal import EmitLoopError

from napari_materialize.errors import BoxError, MaterializeError, OptionError, reason_of
from napari_materialize.geometry import Box
from napari_materialize.looking import Lease
from napari_materialize.notebook._camera import first_look, planes, turned
from napari_materialize.notebook._painter import Painter, Request
from napari_materialize.notebook._sight import Sight
from napari_materialize.notebook._state import box_asked, fields_asked, job_state, state_of
from napari_materialize.session import JobState, Session
from napari_materialize.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from napari_materialize.engine import Engine
    from napari_materialize.notebook._camera import Look
    from napari_materialize.notebook._painter import Picture
    from napari_materialize.ops import Op
    from napari_materialize.session import Job, Progress

    type Send = Callable[[dict[str, Any], list[bytes]], None]

__all__ = ["Desk"]

_log = logging.getLogger(__name__)

MOST_FAILURES = 20
"""Failures that are shown."""


class Desk:
    """One panel's session and pictures.

    Parameters
    ----------
    view : View
        What is looked at and written.
    engine : Engine, optional
        Who computes; one that panels and live layers share if left out.
    send : callable
        Takes a message and its buffers to all displays; called in any thread.
    """

    def __init__(self, view: View, engine: Engine | None, send: Send) -> None:
        self._send = send
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        self._lease = Lease(engine)
        self.session = Session(self._lease.engine)
        self.painter = Painter(self._deliver)
        self.ended = threading.Event()
        """Set while no job runs."""
        self.ended.set()
        self.displays: set[str] = set()
        self.closed = False
        self._sights: dict[str, Sight] = {}
        self._show = ""
        self._window: tuple[float, float] | None = None
        self._look: Look | None = None
        self._moved_by: tuple[str, int] = ("", 0)
        self._mark = 0
        self.session.changed.connect(self._on_changed)
        self.session.progress.connect(self._on_progress)
        self.session.finished.connect(self._on_finished)
        base, ops = _taken_apart(view)
        self.session.change(
            source=base, ops=ops, boundary=view.boundary, name=view.name, folder=str(Path.cwd())
        )

    # ------------------------------------------------------------------ what is asked

    def receive(self, message: Mapping[str, Any]) -> None:
        """Do what a display asks; what cannot be done is said to it."""
        kind = message.get("kind")
        handler = getattr(self, f"_do_{kind}", None)
        try:
            if handler is None:
                raise OptionError(f"panel: there is no message {kind!r}; reload the page")
            if not self.closed:
                handler(message)
        except Exception as error:  # noqa: BLE001 - whatever it is, the person who asked is told
            cause = error.__cause__ if isinstance(error, EmitLoopError) else error
            known = isinstance(cause, (MaterializeError, OSError))
            if not known:
                _log.error("the panel could not do %r", dict(message), exc_info=True)
            self.tell_state()
            self._tell({"kind": "said", "text": reason_of(cause or error)})

    def change(self, **fields: Any) -> None:
        """Change fields of the session's intent."""
        with self._lock:
            self.session.change(**fields)

    def run(self) -> None:
        """Start the job."""
        with self._lock:
            self.ended.clear()
            try:
                self.session.run()
            except BaseException:
                if self.session.job.state is not JobState.RUNNING:
                    self.ended.set()
                raise

    def take_box(self, box: Box | None) -> None:
        """Take a box, in finest voxels of the source along its last axes; None for all of it."""
        if box is not None and not isinstance(box, Box):
            raise BoxError(
                f"box: a Box is expected, as in Box((0, 0), (64, 64)), got {box!r}; give one"
            )
        level = self.session.resolved.source_level
        if level is None:
            return
        if box is not None and box.ndim > level.ndim:
            raise BoxError(
                f"box: at most {level.ndim} axes, as the source has, got {box.ndim}; leave out the "
                "first"
            )
        names = None if box is None else tuple(axis.name for axis in level.axes)[-box.ndim :]
        self.change(box=box, box_level=0, box_axes=names)

    def still(self, make: Callable[..., bytes | None]) -> bytes | None:
        """Return a picture of what is shown, made by ``make(views, engine, look)``."""
        with self._lock:
            views, look = [view for _, view in self._seen()], self._look
        return make(views, self._lease.engine, look if look and look.zoom > 0 else None)

    def close(self) -> None:
        """Cancel the job, give up every claim, end the threads. Doing it twice does nothing."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
        self.painter.stop()
        self.session.close()  # waits for the job's thread, which may be about to take the lock
        self.ended.set()
        self._lease.end()

    # ------------------------------------------------------------------ displays

    def _do_hello(self, message: Mapping[str, Any]) -> None:
        """A display is there, and knows its size."""
        with self._lock:
            self.displays.add(str(message.get("display")))
            self._turn({"size": message.get("size", (480, 640))})
        self.tell_state()
        self._paint()

    def _do_bye(self, message: Mapping[str, Any]) -> None:
        """A display is gone; with the last one goes all that is held to be looked at."""
        with self._lock:
            self.displays.discard(str(message.get("display")))
            if not self.displays:
                self.painter.stop()
                self._sights = {}

    def _do_look(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            self._turn(message)
            self._moved_by = (str(message.get("display")), int(message.get("turn", 0)))
        self.tell_look()
        self._paint()

    def _do_show(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            if message.get("show") not in self._shows():
                raise OptionError(f"panel: cannot show {message.get('show')!r}; reload the page")
            self._show, self._window = str(message["show"]), None
        self.tell_look()
        self._paint()

    def _do_window(self, message: Mapping[str, Any]) -> None:
        try:
            given = message.get("window")
            window = None if given is None else (float(given[0]), float(given[1]))
        except (TypeError, ValueError, IndexError) as error:
            raise OptionError(f"contrast: two numbers, got {message.get('window')!r}") from error
        with self._lock:
            self._window = window
        self._paint()

    def _do_retry(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            for sight in self._sights.values():
                sight.retry()
        self._paint()

    # ------------------------------------------------------------------ the session

    def _do_box(self, message: Mapping[str, Any]) -> None:
        level = self.session.resolved.source_level
        if level is not None:
            self.take_box(box_asked(level, message.get("box")))

    def _do_change(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            fields = fields_asked(self.session.resolved, message.get("fields", {}))
            self.session.change(**fields)

    def _do_run(self, message: Mapping[str, Any]) -> None:
        self.run()

    def _do_cancel(self, message: Mapping[str, Any]) -> None:
        self.session.cancel()

    def _on_changed(self, _: object) -> None:
        self._sync_look()
        self.tell_state()
        if self.displays:
            self._paint()

    def _on_progress(self, progress: Progress) -> None:
        """Pass on; in the job's thread."""
        with self._lock:
            self._tell({"kind": "job", "job": job_state(self.session.job)})

    def _on_finished(self, job: Job) -> None:
        """Take note; in the job's thread."""
        with self._lock:
            try:
                self.session.refresh()
            finally:  # whatever somebody who listens does, whoever waits for the end is not kept
                self.ended.set()

    # ------------------------------------------------------------------ looking

    def _shows(self) -> list[str]:
        """Return what can be shown: the computed view, the source, or one over the other."""
        state = self.session.resolved
        if state.view is None or state.chain.base is None:
            return ["source"] if state.chain.base is not None else []
        base, view = state.chain.base, state.view
        shows = ["computed", "source"] if view.ops != base.ops else ["computed"]
        over = view.kind != "image" and base.kind == "image"
        return ["both", *shows] if over and base.levels[0].shape == view.levels[0].shape else shows

    def _seen(self) -> list[tuple[str, View]]:
        """Return the views that are shown, the lowest first."""
        chain, show = self.session.resolved.chain, self._show
        seen = [("source", chain.base)] if show in ("source", "both") else []
        seen += [("computed", chain.view)] if show in ("computed", "both") else []
        return [(name, view) for name, view in seen if view is not None]

    def _sync_look(self) -> None:
        """Look at what there is now: a new source or other ops may have other axes."""
        with self._lock:
            shows = self._shows()
            if self._show not in shows:
                self._show = shows[0] if shows else ""
            seen = self._seen()
            if seen:
                self._look = first_look(seen[-1][1], self._look)

    def _turn(self, asked: Mapping[str, Any]) -> None:
        self._sync_look()
        seen = self._seen()
        if self._look is not None and seen:
            self._look = turned(seen[-1][1], self._look, asked)

    def _paint(self) -> None:
        """Ask for a picture of what is looked at now."""
        with self._lock:
            if self.closed or not self.displays or self._look is None:
                return
            sights = {}
            for name, view in self._seen():
                sight = self._sights.get(name)
                if sight is None or sight.view is not view:
                    sight = Sight(view, self._lease.engine, self.painter.news)
                sights[name] = sight
            if not sights:
                return
            self._sights = sights
            self._mark += 1
            self.painter.ask(Request(tuple(sights.values()), self._look, self._window, self._mark))

    # ------------------------------------------------------------------ telling

    def _deliver(self, picture: Picture) -> None:
        """Send a picture; in the painter's thread."""
        message = {
            "kind": "picture",
            "mark": picture.mark,
            "rect": picture.rect,
            "level": picture.level,
            "complete": picture.complete,
            "settled": picture.settled,
            "limits": picture.limits,
            "failures": picture.failures[:MOST_FAILURES],
        }
        self._tell(message, [picture.png])

    def tell_state(self) -> None:
        """Tell every display all there is to know but the picture.

        What is known is sent under the lock, too: nobody is told what was over what is.
        """
        with self._lock:
            self._tell({"kind": "state", **state_of(self.session), **self._look_state()})

    def tell_look(self) -> None:
        """Tell every display where one of them looks."""
        with self._lock:
            self._tell({"kind": "look", **self._look_state()})

    def _look_state(self) -> dict[str, Any]:
        look, seen = self._look, self._seen()
        return {
            "look": None
            if look is None
            else {
                "plane": look.plane,
                "at": dict(look.at),
                "centre": look.centre,
                "zoom": look.zoom,
                "size": look.size,
            },
            "planes": planes(seen[-1][1]) if seen else [],
            "moved_by": self._moved_by,
            "show": self._show,
            "shows": self._shows(),
            "window": self._window,
        }

    def _tell(self, message: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        if not self.closed:
            with self._sending:  # a kernel numbers its messages without a lock
                self._send(message, buffers or [])


def _taken_apart(view: View) -> tuple[View, tuple[Op, ...]]:
    """Return a view's source and its ops, if together they are that view to an engine too."""
    base = View.of(view.source, boundary=view.boundary)
    apart = base.then(view.ops)
    same = apart.identity == view.identity
    return (base, view.ops) if same else (view, ())
