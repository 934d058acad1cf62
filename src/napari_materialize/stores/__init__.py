"""Where bytes go: a folder, a bucket, a dictionary in memory, or anything with a method ``put``.

Owns paths inside a store, whole-file writes and the reading of a target as a person wrote it.
It knows no format and no chunk (`layout` names things), compresses nothing (`codecs`), knows no
credentials (`objects`) and does not decide whether a target may be written to (the job does).
"""

from __future__ import annotations

from napari_materialize.stores._directory import DirectoryStore
from napari_materialize.stores._lock import BEAT
from napari_materialize.stores._memory import MemoryStore
from napari_materialize.stores._objects import ObjectStore
from napari_materialize.stores._open import open_store
from napari_materialize.stores._places import (
    LOCK,
    AppendStore,
    KeptStore,
    MeasuredStore,
    ReadableStore,
    TakenStore,
    WritableStore,
)
from napari_materialize.stores._volume import Volume

__all__ = [
    "BEAT",
    "LOCK",
    "AppendStore",
    "DirectoryStore",
    "KeptStore",
    "MeasuredStore",
    "MemoryStore",
    "ObjectStore",
    "ReadableStore",
    "TakenStore",
    "Volume",
    "WritableStore",
    "open_store",
]
