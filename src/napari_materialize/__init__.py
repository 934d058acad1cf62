"""Browse a computation as if it were a stored image, and keep a box of it as OME-Zarr.

The names below are loaded when they are first used: importing the package loads no GUI, no
onnxruntime, no dask, and little else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from napari_materialize.version import __version__

if TYPE_CHECKING:
    from napari_materialize import errors, ops
    from napari_materialize._napari.live import add_view
    from napari_materialize.claims import ChunkClaim
    from napari_materialize.engine import Engine
    from napari_materialize.geometry import Box
    from napari_materialize.job import Failure, Materialized
    from napari_materialize.notebook import panel
    from napari_materialize.once import materialize
    from napari_materialize.recipe import open_view
    from napari_materialize.stores import DirectoryStore, MemoryStore, WritableStore
    from napari_materialize.view import View

_HOME = {
    "Box": "geometry",
    "ChunkClaim": "claims",
    "DirectoryStore": "stores",
    "Engine": "engine",
    "Failure": "job",
    "Materialized": "job",
    "MemoryStore": "stores",
    "View": "view",
    "WritableStore": "stores",
    "add_view": "_napari.live",
    "materialize": "once",
    "open_view": "recipe",
    "panel": "notebook",
}

__all__ = [
    "Box",
    "ChunkClaim",
    "DirectoryStore",
    "Engine",
    "Failure",
    "Materialized",
    "MemoryStore",
    "View",
    "WritableStore",
    "__version__",
    "add_view",
    "errors",
    "materialize",
    "open_view",
    "ops",
    "panel",
]


def __getattr__(name: str) -> Any:
    if name in ("errors", "ops"):
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
