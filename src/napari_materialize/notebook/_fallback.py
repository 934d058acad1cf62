"""What a panel is where widgets do not run: a picture and a table, in HTML and as a PNG.

Owns what nbconvert, a site that shows notebooks, and a notebook that was saved show of it.
"""

from __future__ import annotations

import base64
import threading
import time
from html import escape
from typing import TYPE_CHECKING, Any

from napari_materialize.notebook._camera import first_look, fitted
from napari_materialize.notebook._painter import Request, paint
from napari_materialize.notebook._sight import Sight
from napari_materialize.notebook._state import state_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.engine import Engine
    from napari_materialize.notebook._camera import Look
    from napari_materialize.session import Session
    from napari_materialize.view import View

__all__ = ["bundle", "still"]

SECONDS = 2.0
"""How long a cell waits for the picture; then it shows what is there."""


def still(views: Sequence[View], engine: Engine, look: Look | None = None) -> bytes | None:
    """Return a picture of views as a PNG, of what is there after two seconds at most.

    Parameters
    ----------
    views : sequence of View
        The lowest first.
    engine : Engine
        Who computes.
    look : Look, optional
        Where to look; at all of the middle plane if left out.
    """
    if not views:
        return None
    news = threading.Event()
    look = fitted(views[-1], first_look(views[-1])) if look is None else look
    sights = tuple(Sight(view, engine, news.set) for view in views)
    end = time.monotonic() + SECONDS
    try:
        for sight in sights:
            sight.aim(look)
        while not all(sight.held.settled for sight in sights):
            left = end - time.monotonic()
            if left <= 0 or not news.wait(left):
                break
            news.clear()
            for sight in sights:
                sight.claim()
        picture = paint(Request(sights, look, None, 0))
    finally:
        for sight in sights:
            sight.held.release_all()
    return None if picture is None else picture.png


def bundle(session: Session, picture: bytes | None) -> dict[str, Any]:
    """Return the picture and the table by MIME type."""
    state = state_of(session)
    rows = {"source": state["name"]}
    view = session.resolved.view
    if view is not None:
        rows["ops"] = ", ".join(op.name for op in view.ops) or "none"
        rows["dtype, kind"] = f"{view.levels[0].dtype}, {view.kind}"
    rows |= {f"level {number}": text for number, text in enumerate(state["levels"])}
    rows |= {"box": state["cost"], "will write": session.resolved.target or ""}
    if state["job"]["text"]:
        rows |= {"job": state["job"]["text"], "written": state["job"]["target"]}
    shown = {name: text for name, text in rows.items() if text}
    table = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in shown.items())
    html, found = f"<table>{table}</table>", {}
    if picture is not None:
        encoded = base64.b64encode(picture).decode()
        alt = escape(f"a slice of {state['name']}")
        html = f'<img alt="{alt}" src="data:image/png;base64,{encoded}"/>{html}'
        found["image/png"] = encoded
    text = "\n".join(f"{name}: {value}" for name, value in shown.items())
    return {"text/html": f"<div>{html}</div>", "text/plain": f"Panel\n{text}", **found}
