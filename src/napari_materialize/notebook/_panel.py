"""The panel as a widget of Jupyter: what Python code sees of it, and its way to the browser.

Owns the comm. What the panel does is `_desk`'s, what it looks like is in ``panel.js``.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any, Self

import anywidget

from napari_materialize.errors import OptionError
from napari_materialize.notebook import _cells
from napari_materialize.notebook._desk import Desk
from napari_materialize.notebook._fallback import bundle, still
from napari_materialize.notebook._mirror import Mirror
from napari_materialize.notebook._result import result_of
from napari_materialize.recipe import open_view

if TYPE_CHECKING:
    from napari_materialize.engine import Engine
    from napari_materialize.geometry import Box
    from napari_materialize.reader import LazyRead
    from napari_materialize.session import Job, Session
    from napari_materialize.view import View

__all__ = ["Panel", "panel"]

_HERE = files("napari_materialize.notebook")


class Panel(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]  # untyped where it is absent
    """A slice of a view, a box on it, and the job that writes it. Made by `panel`.

    Close it, or run its cell again, to cancel its job and give up all it holds. It may be used
    from the kernel's main thread; see the guide for what goes on while a cell runs.
    """

    _esm = (_HERE / "panel.js").read_text(encoding="utf-8")
    _css = (_HERE / "panel.css").read_text(encoding="utf-8")

    def __init__(self, view: View, engine: Engine | None = None, viewer: Any = None) -> None:
        super().__init__()
        self._desk = Desk(view, engine, self._post)
        self._mirror = None if viewer is None else Mirror(viewer, self._desk)
        _route_as_the_front_end_asks(self.comm)
        self.on_msg(self._on_message)
        _cells.here(self)

    # ------------------------------------------------------------------ what Python code sees

    @property
    def session(self) -> Session:
        """What the panel shows and does, for looking at; change it by `change`."""
        return self._desk.session

    @property
    def engine(self) -> Engine:
        """Who computes."""
        return self._desk.session.engine

    @property
    def view(self) -> View | None:
        """What is looked at and written; None where the ops do not fit."""
        return self._desk.session.resolved.view

    @property
    def box(self) -> Box | None:
        """The box that is drawn, in finest voxels along all axes of the source; None for all.

        One that is given may have the last axes alone; the others are taken whole.
        What is written may be larger, rounded out to whole chunks: ``panel.session.resolved.plan``.
        """
        resolved = self._desk.session.resolved
        return None if resolved.intent.box is None else resolved.source_box

    @box.setter
    def box(self, box: Box | None) -> None:
        self._desk.take_box(box)

    @property
    def job(self) -> Job:
        """The job under way, or the last one: its state, progress and receipt."""
        return self._desk.session.job

    @property
    def result(self) -> LazyRead | None:
        """What the last job wrote, read from its store when numpy asks; None if there is nothing.

        Exactly the box that was written, in voxels of its level, with all axes of the view. The
        panel's engine reads it: copy it, as numpy does, to have it after the panel is closed.
        """
        return result_of(self._desk.session.job, self.engine)

    def change(self, **fields: Any) -> None:
        """Change what is asked for: fields of `napari_materialize.session.Intent`.

        >>> import numpy as np
        >>> shown = panel(np.zeros((64, 64), "u1"), ops=["invert"])
        >>> shown.change(format="zarr3", compression="zstd:3")
        >>> shown.close()
        """
        self._desk.change(**fields)

    def run(self) -> None:
        """Start the job; it goes on when the cell is over.

        Raises
        ------
        InputError
            If something stands in the way.
        """
        self._desk.run()

    def cancel(self) -> None:
        """Stop the job, if one runs; what was written stays."""
        self._desk.session.cancel()

    def wait(self, timeout: float | None = None) -> Job:
        """Wait until no job runs. Interrupting the kernel meanwhile cancels the job.

        Parameters
        ----------
        timeout : float, optional
            Seconds; for ever if left out.

        Raises
        ------
        TimeoutError
            If the job still runs then; it goes on.
        """
        try:
            over = self._desk.ended.wait(timeout)
        except KeyboardInterrupt:
            self.cancel()
            raise
        if not over:
            raise TimeoutError("the panel's job is still running; wait again, or cancel it")
        return self.job

    def close(self) -> None:
        """Cancel the job, give up every claim, end the panel's threads, and leave the page."""
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None
        self._desk.close()
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------------ the browser

    def _on_message(self, _: Any, content: Any, __: Any) -> None:
        self._desk.receive(content)

    def _post(self, message: dict[str, Any], buffers: list[bytes]) -> None:
        if self.comm is not None:
            self.send(message, buffers)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the widget, and a picture and a table for where widgets do not run."""
        found = bundle(self._desk.session, self._desk.still(still))
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, **found}, metadata


def _route_as_the_front_end_asks(comm: Any) -> None:
    """Let a front end have its messages handled while a cell runs.

    JupyterLab sends a widget's messages to a thread of the kernel beside the one that runs cells
    (a subshell). ipykernel 7.4 answers to the thread that spoke last instead, which for a widget
    that was made in a cell is the one that is busy. Older kernels have nothing to turn off.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, default: default


def panel(
    view_or_source: Any,
    ops: Any = (),
    engine: Engine | None = None,
    *,
    viewer: Any = None,
    **described: Any,
) -> Panel:
    """Show a view in a notebook: look at it, draw a box, run, watch, and get the result.

    Parameters
    ----------
    view_or_source : View, path, URL, array, list of arrays, or napari layer
        What to look at; what is no view is opened as `open_view` does, text such as ``view:smooth``
        as one of ``engine.views``.
    ops : op or sequence of ops
        What is done to it, as `open_view` takes them.
    engine : Engine, optional
        Who computes. If left out, one that all panels of the kernel share.
    viewer : napari.Viewer, optional
        A viewer of the same kernel that mirrors the box and the results.
    **described
        What the source does not say: ``scale``, ``units`` and others, as `open_view` takes them.

    Returns
    -------
    Panel
        Shown by being a cell's last line, or by ``display``.

    Raises
    ------
    InputError
        If the source cannot be opened or an op does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import napari_materialize as nm
    >>> with nm.panel(np.zeros((64, 64), "u1"), ops=["gaussian:sigma=1"]) as shown:
    ...     shown.box = nm.Box((0, 0), (32, 32))
    ...     shown.session.resolved.plan.nbytes
    4096
    """
    if engine is not None and engine.closed:
        raise OptionError("engine: it is closed; make a new one, or leave it out")
    views = None if engine is None else engine.views
    return Panel(open_view(view_or_source, ops, views=views, **described), engine, viewer)
