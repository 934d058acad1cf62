"""Reading results back with software that did not write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import zarr

if TYPE_CHECKING:
    from napari_materialize import MemoryStore


def opened(store: MemoryStore, path: str = "0") -> Any:
    """Open an array of a memory store with zarr, which did not write it."""
    data = {key: zarr.core.buffer.cpu.Buffer.from_bytes(v) for key, v in store.files.items()}
    return zarr.open_group(zarr.storage.MemoryStore(data), mode="r")[path]


def record(store: MemoryStore) -> dict[str, Any]:
    """Return what a store says made it."""
    files = store.files
    if ".zattrs" in files:
        return json.loads(files[".zattrs"])["napari_materialize"]
    return json.loads(files["zarr.json"])["attributes"]["napari_materialize"]
