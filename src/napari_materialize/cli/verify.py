"""``verify``: whether a result is what it says, and mending what is not.

Owns the command and its listing. What is compared is `job`'s.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from napari_materialize.cli.outcome import (
    DONE,
    FAILED,
    Debug,
    Json,
    Report,
    complain,
    conclude,
    say,
)
from napari_materialize.cli.rerun import Models, Store, record_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from napari_materialize.job import Verdict

__all__ = ["verify"]

SHOWN = 20
"""Files that are named to a person; a program gets all of them."""

Repair = Annotated[
    bool,
    typer.Option("--repair", help="Make what is damaged, missing or unfinished, from the record."),
]


def verify(
    store: Store,
    repair: Repair = False,
    model: Models = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare the result STORE with its record: its documents, and every file of voxels."""
    conclude(partial(_verify, store, repair, model or (), json), as_json=json, debug=debug)


def _verify(store: str, repair: bool, models: Sequence[str], as_json: bool, report: Report) -> int:
    from napari_materialize.job import verify_result

    record = record_of(store)
    found = verify_result(store, record)
    _tell(found, as_json, report)
    if found.is_whole or not repair:
        return DONE if found.is_whole else FAILED
    _repair(store, record, models, found)
    found = verify_result(store, record_of(store))
    _tell(found, as_json, report)
    return DONE if found.is_whole else FAILED


def _tell(found: Verdict, as_json: bool, report: Report) -> None:
    report |= {
        "status": "complete" if found.is_whole else "damaged",
        "verified": found.verified,
        "documents": list(found.documents),
        "damaged": list(found.damaged),
        "unfinished": found.unfinished,
    }
    for sentence in found.documents[:SHOWN]:
        complain(sentence)
    for path in found.damaged[:SHOWN]:
        complain(f"{path}: not what was written")
    if len(found.damaged) > SHOWN:
        complain(f"and {len(found.damaged) - SHOWN} files more; --json lists all")
    line = f"{found.verified} files as they were written, {len(found.damaged)} damaged or missing"
    if found.unfinished:
        line += f", {found.unfinished} unfinished"
    say(line, err=as_json)


def _repair(store: str, record: Mapping[str, Any], models: Sequence[str], found: Verdict) -> None:
    from napari_materialize.cli.watch import materialize_watched
    from napari_materialize.engine import Engine
    from napari_materialize.errors import OptionError
    from napari_materialize.job import recorded_jobs, recorded_view
    from napari_materialize.plan import Options, make_plan

    if found.elsewhere:
        raise OptionError(
            "verify --repair: makes what the last job wrote, and what is damaged another job wrote "
            "before it; run that box again with --existing add"
        )
    view = recorded_view(record, models)
    options = {**recorded_jobs(record)[-1], "existing": "resume"}
    with Engine(None, nice=0) as engine:
        materialize_watched(engine, make_plan(view, store, Options(**options)), options)
