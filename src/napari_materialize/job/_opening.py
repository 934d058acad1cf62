"""What a job finds where it is to write, and what follows: begin, go on, add, overwrite, or refuse.

Asked twice: before anything is touched, and again once nobody else can write there. Owns the
sentences that say what differs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import TargetError
from napari_materialize.job._record import job_key, summary
from napari_materialize.job._verify import verified, verified_by_sums
from napari_materialize.journal import (
    Found,
    Journal,
    Ledger,
    is_journal,
    parse_extremes,
    read_journal,
)
from napari_materialize.layout import is_result_path, read_record
from napari_materialize.recipe import unread
from napari_materialize.stores import KeptStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.journal import Seen
    from napari_materialize.plan import Plan

__all__ = ["Opening", "open_target", "refuse_target"]


@dataclass
class Opening:
    """What a job begins with."""

    journal: Journal | None = None
    """None for a store that nobody can come back to."""

    ledgers: dict[int, Ledger] | None = None
    """What was done before, and is still so, by position; None if nothing was."""

    earlier: list[Mapping[str, Any]] = field(default_factory=list)
    """What other jobs wrote into the same arrays."""

    extremes: list[Seen] = field(default_factory=list)
    """What was seen of the values, by them and by what is gone on with."""

    stale: bool = False
    """Whether files may be there that are not to be."""


@dataclass
class _Seen:
    empty: bool
    record: Mapping[str, Any] | None = None
    found: Found | None = None


def refuse_target(plan: Plan) -> None:
    """Refuse what cannot be gone on with; nothing is touched.

    Raises
    ------
    TargetError
        One sentence that names what differs.
    """
    if plan.options.existing != "error" and isinstance(plan.store, KeptStore):
        _decide(plan, plan.store, _look(plan.store))


def open_target(plan: Plan) -> Opening:
    """Make a store ready for a job that has taken it; what is there and stays is verified.

    Raises
    ------
    TargetError
        As `refuse_target`: something else may be there by now.
    StoreError
        If it cannot be read or written.
    """
    store = plan.store
    if not isinstance(store, KeptStore):
        return Opening()
    seen = _look(store)
    what = _decide(plan, store, seen)
    if what == "resume":
        return _resume(plan, store, seen)
    for _ in store.listing(sweep=True):  # what a killed process was writing
        pass
    opening = Opening(Journal(store), stale=what == "add")
    if what == "add" and seen.record is not None:
        opening.earlier = [*_earlier(seen.record), summary(seen.record)]
        opening.extremes = _extremes([seen.record.get("extremes")])
    _begin(plan, opening, clears=what == "overwrite")
    if what == "overwrite":
        _clear(store, opening)
    return opening


def _begin(plan: Plan, opening: Opening, *, clears: bool = False) -> None:
    assert opening.journal is not None
    header = {
        "job": job_key(plan),
        "earlier": opening.earlier,
        "extremes": opening.extremes,
        "clears": clears,
    }
    opening.journal.begin(header, opening.ledgers)


def _look(store: KeptStore) -> _Seen:
    if store.is_empty():
        return _Seen(empty=True)
    return _Seen(False, read_record(store.get), read_journal(store))


def _decide(plan: Plan, store: KeptStore, seen: _Seen) -> str:
    existing, name = plan.options.existing, store.location or type(store).__name__
    if seen.empty or existing == "error":
        return "fresh"
    if seen.record is None and seen.found is None:
        raise TargetError(
            f"target {name}: holds something that this project did not write, and existing="
            f"{existing} is for what it wrote; choose another place"
        )
    if existing == "overwrite":
        _refuse_foreign(store, name)
        return "overwrite"
    begun = _begun(seen)
    key = job_key(plan, begun)
    same = begun is None or not (differs := differing(begun, key))
    if existing == "resume" or (same and seen.found is not None):
        if not same:
            raise TargetError(
                f"target {name}: holds another job, so existing=resume cannot go on with it: "
                f"{differs[0]}; ask for the same, or choose another place"
            )
        _refuse_links(store, name)
        return "resume"
    if seen.found is not None and seen.found.cleared:
        raise TargetError(
            f"target {name}: a job for another box is unfinished there; go on with that one first "
            "(existing=resume with its box), or choose another place"
        )
    if reason := _unaddable(seen.record, job_key(plan, seen.record)):
        raise TargetError(
            f"target {name}: another box can only be added to a result of the same view, written "
            f"the same way: {reason}; ask for the same, or choose another place"
        )
    _refuse_links(store, name)
    return "add"


def _begun(seen: _Seen) -> Mapping[str, Any] | None:
    """Return what the last job there was to do; None if it did not come to say so."""
    if seen.found is not None:
        job = seen.found.key.get("job")
        return job if isinstance(job, dict) else None
    return seen.record


_NAMES = {
    "levels": "the levels and boxes",
    "skip_empty": "skip_empty",
    "attributes": "the attributes",
}


def differing(before: Mapping[str, Any], now: Mapping[str, Any], *skip: str) -> list[str]:
    """Return in what one job's description differs from another's, a clause each."""
    clauses = []
    for name, value in now.items():
        old = before.get(name)
        if name in skip or old == value:
            continue
        if name == "view" and isinstance(old, dict) and old.get("identity") == value["identity"]:
            continue  # what a model ran on, say, is told and does not matter
        if name == "view":
            clauses.append(_view_differs(old if isinstance(old, dict) else {}, value))
        else:
            clauses.append(f"{_NAMES.get(name, name)} there: {_short(old)}, here: {_short(value)}")
    return clauses


def _view_differs(old: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    for name in ("source", "ops", "boundary"):
        if old.get(name) != now[name] and name != "source":
            return f"{name} there: {_short(old.get(name))}, here: {_short(now[name])}"
        if name == "source":
            before, here = (each.get(name) or {} for each in (old, now))
            if before.get("location") != here.get("location"):
                return (
                    f"source there: {_short(before.get('location'))}, here: "
                    f"{_short(here.get('location'))}"
                )
    if new := unread(now) - unread(old):
        return f"chunk {min(new)} of its source could be read then, and cannot be now"
    return "the view is another one: its source or a model has other content"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _unaddable(record: Mapping[str, Any] | None, key: Mapping[str, Any]) -> str | None:
    if record is None:
        return "it has no record of what is there"
    clauses = differing(record, key, "levels")
    if clauses:
        return clauses[0]
    numbers = [_numbers(job.get("levels")) for job in (record, key)]
    return None if numbers[0] == numbers[1] else f"levels there: {numbers[0]}, here: {numbers[1]}"


def _numbers(levels: object) -> list[object]:
    """Return the numbers of levels that a description lists, as far as it does."""
    return [each.get("level") for each in _mappings(levels)]


def _refuse_foreign(store: KeptStore, name: str) -> None:
    """Refuse a folder with anything in it that no result has: it would be deleted."""
    for path, size in store.listing():
        if size < 0 or not (is_result_path(path) or is_journal(path)):
            what = "no file" if size < 0 else "not of this project"
            raise TargetError(
                f"target {name}: existing=overwrite removes what this project wrote, and "
                f"{path!r} is {what}; move it away, or choose another place"
            )


def _refuse_links(store: KeptStore, name: str) -> None:
    """Refuse a folder with links in it: what is written must not leave it."""
    for path, size in store.listing():
        if size < 0:
            raise TargetError(
                f"target {name}: {path!r} is a link or no file, and what is written must stay "
                "inside; remove it, or choose another place"
            )


def _clear(store: KeptStore, opening: Opening) -> None:
    """Remove what was there: first what says that it is an image, so that nobody reads half."""
    paths = [path for path, _ in store.listing(sweep=True) if not is_journal(path)]
    documents = [path for path in paths if not path.rpartition("/")[2].isdecimal()]
    documents.sort(key=lambda path: path.count("/"))
    for path in (*documents, *(path for path in paths if path.rpartition("/")[2].isdecimal())):
        store.delete(path)
    store.tidy()
    assert opening.journal is not None
    opening.journal.cleared()


def _resume(plan: Plan, store: KeptStore, seen: _Seen) -> Opening:
    files = [plan.files(each) for each in plan.written]
    found = read_journal(store, files)
    sizes = dict(store.listing(sweep=True))
    if found is not None:
        header = found.key
        opening = Opening(Journal(store, found.batches), stale=True)
        opening.earlier = _mappings(header.get("earlier"))
        before = header.get("extremes")
        opening.extremes = [
            *_extremes(before if isinstance(before, list) else []),
            *found.extremes,
        ]
        if not found.cleared:
            _clear(store, opening)
            return opening
        opening.ledgers = verified(plan, found.ledgers, sizes)
        if not isinstance(header.get("job"), dict):
            _begin(plan, opening)
        return opening
    assert seen.record is not None
    opening = Opening(Journal(store), stale=True, earlier=_earlier(seen.record))
    opening.extremes = _extremes([seen.record.get("extremes")])
    opening.ledgers = verified_by_sums(plan, seen.record.get("checks"), sizes)
    _begin(plan, opening)
    return opening


def _earlier(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return _mappings(record.get("earlier"))


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _extremes(values: list[Any]) -> list[Seen]:
    """Return what records and headers say of the values that were seen, as far as it is that."""
    found = []
    for value in values:
        with contextlib.suppress(TypeError, ValueError, LookupError, OverflowError):
            found.append(parse_extremes(value))
    return found
