"""Whether a result is what its record says, without its source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import InputError, SourceError, TargetError
from napari_materialize.job._verify import summed
from napari_materialize.journal import FileState, Ledger, Sums, is_journal, read_journal
from napari_materialize.layout import layout_for
from napari_materialize.sources import open_source
from napari_materialize.stores import KeptStore, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.geometry import Index
    from napari_materialize.layout import Layout

__all__ = ["Verdict", "verify_result"]

MOST_BYTES = 64 * 2**20
"""Bytes of the largest document that is read."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found of a result."""

    verified: int
    """Files of voxels that are as they were written."""

    documents: tuple[str, ...]
    """What is wrong with its documents, a sentence each."""

    damaged: tuple[str, ...]
    """Paths of files that are changed, lost, or not to be there."""

    unfinished: int
    """Files that were never made, or failed."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.documents or self.damaged or self.unfinished)


def verify_result(where: str, record: Mapping[str, Any]) -> Verdict:
    """Compare a result's documents with the standard, and its files with the record.

    Raises
    ------
    TargetError
        If a job is writing there, or it cannot be listed.
    InputError
        If the record says too little.
    """
    store = open_store(where)
    if not isinstance(store, KeptStore):
        raise TargetError(f"{where}: cannot be listed, and so not verified; give a folder or URL")
    if (holder := store.holder()) is not None:
        raise TargetError(f"{where}: a job is writing there ({holder}); wait for it")
    layout = layout_for(str(record.get("format")))
    sizes = dict(store.listing())
    documents = _documents(where, sizes, store)
    jobs = [record, *reversed(_earlier(record))]
    verified, damaged = 0, []
    seen: list[set[str]] = []
    for job in jobs:
        each = _files(store, layout, job, sizes, seen)
        verified += each[0]
        damaged += each[1]
    unfinished = _unfinished(store, record)
    if unfinished == 0 and any(is_journal(path) for path in sizes):
        documents.append(
            "a journal is left: the job was killed as it ended, and its documents may be old; "
            "write them again with --repair, or go on with the job"
        )
    return Verdict(verified, tuple(documents), tuple(damaged), unfinished)


def _earlier(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    earlier = record.get("earlier", [])
    if not isinstance(earlier, list) or not all(isinstance(each, dict) for each in earlier):
        raise InputError(f"record: earlier jobs are a list of objects, got {str(earlier)[:80]}")
    return earlier


def _documents(where: str, sizes: Mapping[str, int], store: KeptStore) -> list[str]:
    found = []
    try:
        source = open_source(where)
        found += list(source.notices)
    except SourceError as error:
        found.append(str(error))
    for path, size in sizes.items():
        if path.rpartition("/")[2] in (".zattrs", ".zarray", ".zgroup", ".zmetadata", "zarr.json"):
            if not 0 <= size <= MOST_BYTES:
                found.append(f"{path}: a file of at most {MOST_BYTES} bytes is expected")
                continue
            try:
                json.loads(store.get(path) or b"")
            except (ValueError, RecursionError) as error:
                found.append(f"{path}: not JSON ({error})")
    return found


def _files(
    store: KeptStore,
    layout: Layout,
    job: Mapping[str, Any],
    sizes: Mapping[str, int],
    later: list[set[str]],
) -> tuple[int, list[str]]:
    """Return how many files of a job are right, and the paths of those that are not."""
    right, wrong = 0, []
    checks = job.get("checks")
    mine: set[str] = set()
    for position, value in enumerate(checks if isinstance(checks, list) else []):
        try:
            said = Sums.parse(value)
        except ValueError as error:
            raise InputError(f"record: its checks cannot be read ({error})") from error
        ledger, found = summed(store, layout.chunk_key, position, said.files, sizes)
        odd: set[Index] = set()
        for group in found.differing_groups(said):
            odd.update(group)
            paths = [layout.chunk_key(position, file) for file in group]
            # what a later job wrote as well is what that one says, and of its neighbours that share
            # a sum with it nobody knows
            if not any(path in written for written in later for path in paths):
                wrong += paths
        right += sum(file not in odd for file, _, _ in ledger.walk(FileState.WRITTEN))
        mine |= {
            layout.chunk_key(position, file)
            for state in FileState
            for file, _, _ in ledger.walk(state)
        }
    later.append(mine)
    return right, wrong


def _unfinished(store: KeptStore, record: Mapping[str, Any]) -> int:
    """Return how many files a journal, if there is one, does not know as done."""
    checks = record.get("checks")
    boxes = [Sums.parse(each).files for each in checks] if isinstance(checks, list) else []
    found = read_journal(store, boxes)
    if found is None:
        return 0 if record.get("status") == "complete" else 1
    ledgers: list[Ledger] = list(found.ledgers.values())
    return sum(int((~each.settled).sum()) for each in ledgers) if ledgers else 1
