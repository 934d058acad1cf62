"""The notebook panel: a session in a Jupyter notebook, the third face of one model.

Owns the widget and what it shows. It needs the extra ``notebook`` (anywidget), which is imported
when a panel is made. What the user asks for is `napari_materialize.session`'s, which chunks a
picture takes `napari_materialize.looking`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from napari_materialize.errors import OptionError

if TYPE_CHECKING:
    from napari_materialize.notebook._panel import Panel, panel

__all__ = ["Panel", "panel"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from napari_materialize.notebook import _panel
    except ModuleNotFoundError as error:
        if error.name not in ("anywidget", "ipywidgets"):
            raise
        raise OptionError(
            f"panel: the notebook panel needs {error.name}, which is not installed; run: "
            'pip install "napari-materialize[notebook]"'
        ) from error
    return getattr(_panel, name)
