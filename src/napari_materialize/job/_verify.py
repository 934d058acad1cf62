"""Whether what is stored is what a journal, or a finished result's sums, say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from napari_materialize.errors import MaterializeError
from napari_materialize.journal import FileState, Ledger, Sums, checksum
from napari_materialize.stores import KeptStore, ObjectStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.geometry import Box
    from napari_materialize.plan import Plan

__all__ = ["summed", "verified", "verified_by_sums"]


def verified(
    plan: Plan, ledgers: Mapping[int, Ledger], sizes: Mapping[str, int]
) -> dict[int, Ledger]:
    """Return what a journal says, but for what is not so: files that are lost or damaged are open.

    Each file's size is compared, and its checksum where reading it costs little: not in a bucket.

    Parameters
    ----------
    plan : Plan
        Of the job that goes on.
    ledgers : mapping of int to Ledger
        What the journal says, by position; changed in place.
    sizes : mapping of str to int
        What is there, by path.
    """
    store = plan.store
    assert isinstance(store, KeptStore)
    remote = isinstance(store, ObjectStore)
    for position, ledger in ledgers.items():
        for file, size, crc in list(ledger.walk(FileState.WRITTEN)):
            path = plan.layout.chunk_key(position, file)
            if sizes.get(path) != size or not (remote or _crc(store, path) == crc):
                ledger.note(file, FileState.OPEN)
        for file, _, _ in list(ledger.walk(FileState.EMPTY)):
            if plan.layout.chunk_key(position, file) in sizes:
                ledger.note(file, FileState.OPEN)
    return dict(ledgers)


def verified_by_sums(plan: Plan, checks: object, sizes: Mapping[str, int]) -> dict[int, Ledger]:
    """Return what is stored of a finished result; files of groups whose sums differ are open."""
    store = plan.store
    assert isinstance(store, KeptStore)
    known = checks if isinstance(checks, list) else []
    ledgers = {}
    for level in plan.written:
        files = plan.files(level)
        ledger, found = summed(store, plan.layout.chunk_key, level.position, files, sizes)
        try:
            said = Sums.parse(known[level.position])
        except (IndexError, ValueError):
            said = None
        if said is None or said.files != files:
            ledger = Ledger(files)  # nothing is known of it
        else:
            for file in found.differing(said):
                ledger.note(file, FileState.OPEN)
        ledgers[level.position] = ledger
    return ledgers


def summed(
    store: KeptStore, key: Any, position: int, files: Box, sizes: Mapping[str, int]
) -> tuple[Ledger, Sums]:
    """Return the state and the sums of files as they are there; those that are not are empty."""
    ledger, sums = Ledger(files), Sums(files)
    ledger.states[...] = FileState.EMPTY
    for file in _places(files):
        path = key(position, file)
        if path in sizes:
            size = max(sizes[path], 0)
            # a link, or what else is no file, is not followed: it is damage, whatever it leads to
            crc = _crc(store, path) if sizes[path] >= 0 else None
            ledger.note(file, FileState.WRITTEN, size, crc if crc is not None else 0)
            sums.add(file, size, crc if crc is not None else -1 & 0xFFFFFFFF)
    return ledger, sums


def _places(files: Box) -> Any:
    import numpy as np

    for place in np.ndindex(*files.shape):
        yield tuple(int(at) + low for at, low in zip(place, files.start, strict=True))


def _crc(store: KeptStore, path: str) -> int | None:
    """Return the checksum of a file; None if it cannot be read: then it is damaged."""
    try:
        data = store.get(path)
    except MaterializeError:
        return None
    return None if data is None else checksum(data)
