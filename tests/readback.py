"""Reading results back with software that did not write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorstore
import zarr

if TYPE_CHECKING:
    from napari_materialize import MemoryStore

DRIVERS = {"zarr2": "zarr", "zarr3": "zarr3", "n5": "n5"}


def opened(store: MemoryStore, path: str = "0") -> Any:
    """Open an array of a memory store with zarr, which did not write it."""
    data = {key: zarr.core.buffer.cpu.Buffer.from_bytes(v) for key, v in store.files.items()}
    return zarr.open_group(zarr.storage.MemoryStore(data), mode="r")[path]


def document(store: MemoryStore) -> dict[str, Any]:
    """Return the attributes of a store's group."""
    files = store.files
    for name in (".zattrs", "attributes.json"):
        if name in files:
            return json.loads(files[name])
    return json.loads(files["zarr.json"])["attributes"]


def record(store: MemoryStore) -> dict[str, Any]:
    """Return what a store says made it."""
    return document(store)["napari_materialize"]


def format_of(store: MemoryStore) -> str:
    """Return the format of a store, by its files."""
    known = {".zgroup": "zarr2", "zarr.json": "zarr3", "attributes.json": "n5"}
    return next(known[name] for name in store.files if name in known)


def in_tensorstore(store: MemoryStore, level: int = 0) -> Any:
    """Open a level of a memory store with tensorstore, axes as N5 has them."""
    context = tensorstore.Context()
    files = tensorstore.KvStore.open("memory://", context=context).result()
    for path, data in store.files.items():
        files.write(path, data).result()
    stored = format_of(store)
    path = f"s{level}/" if stored == "n5" else f"{level}/"
    spec = {"driver": DRIVERS[stored], "kvstore": {"driver": "memory", "path": path}}
    return tensorstore.open(spec, read=True, context=context).result()


def with_tensorstore(store: MemoryStore, level: int = 0) -> np.ndarray:
    """Read a level of a memory store with tensorstore, axes in C order."""
    voxels = in_tensorstore(store, level).read().result()
    return np.transpose(voxels) if format_of(store) == "n5" else voxels
