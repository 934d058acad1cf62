"""Whether a target may be written to, said before anything is created."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from napari_materialize.errors import TargetError
from napari_materialize.layout import read_record
from napari_materialize.stores import KeptStore, ReadableStore, TakenStore, WritableStore

if TYPE_CHECKING:
    from napari_materialize.view import View

__all__ = ["check_target"]


def check_target(view: View, store: WritableStore, existing: str) -> None:
    """Refuse a target that is the source, lies in it or around it, or is not as it has to be."""
    location = store.location if isinstance(store, ReadableStore) else None
    # an image of several stored arrays has a place for each of them
    places = view.source.record.get("locations") or [view.source.location]
    for place in places:
        target, source = _local(location), _container(_local(place))
        if _in_one_bucket(location, place) or (
            target is not None
            and source is not None
            and (target == source or source in target.parents or target in source.parents)
        ):
            raise TargetError(
                f"target {location}: must lie apart from the source {place}; choose another folder"
            )
    if existing != "error":
        if not isinstance(store, KeptStore):
            raise TargetError(
                f"target {type(store).__name__}: existing {existing!r} needs a store that can be "
                "read, listed and taken, and this one is only written to; give a folder or a URL"
            )
    elif isinstance(store, ReadableStore) and not store.is_empty():
        name = location or type(store).__name__
        holder = store.holder() if isinstance(store, TakenStore) else None
        if holder is not None:
            raise TargetError(
                f"target {name}: another job writes there ({holder}); wait for it, or choose "
                "another folder"
            )
        raise TargetError(
            f"target {name}: must be empty or not there yet, and holds {_content(store)}; choose "
            "another folder"
        )


def _content(store: ReadableStore) -> str:
    record = read_record(store.get)
    if record is None:
        return "something"
    if record.get("status") == "complete":
        return "a result (existing=overwrite replaces it, add puts another box into it)"
    return "an unfinished result (existing=resume goes on with it, overwrite replaces it)"


def _in_one_bucket(target: str | None, source: str | None) -> bool:
    """Whether of two URLs one is the other or lies in it."""
    if target is None or source is None or "://" not in target or "://" not in source:
        return False
    return f"{target}/".startswith(f"{source}/") or f"{source}/".startswith(f"{target}/")


def _container(source: Path | None) -> Path | None:
    """Return the outermost zarr hierarchy that a source lies in: that is somebody's image."""
    while source is not None and any(
        (source.parent / name).is_file() for name in (".zgroup", ".zattrs", "zarr.json")
    ):
        source = source.parent
    return source


def _local(location: str | None) -> Path | None:
    """Return a source's real path, or None if it is not a local one."""
    if location is None:
        return None
    parts = urlsplit(location)
    if parts.scheme == "file":
        location = unquote(parts.path)
    elif parts.netloc and parts.scheme:
        return None
    return Path(os.path.realpath(location))
