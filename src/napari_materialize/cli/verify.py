"""``verify``: whether a result is what it says, and mending what is not.

Owns the command and its listing. What is compared is `job`'s.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from napari_materialize.cli.outcome import (
    DONE,
    FAILED,
    Report,
    complain,
    conclude,
    debug_option,
    json_option,
    say,
    stopped_by,
)
from napari_materialize.cli.rerun import models_option, record_of, store_argument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from napari_materialize.job import Materialized, Verdict

__all__ = ["verify"]

SHOWN = 20
"""Files that are named to a person; a program gets all of them."""


@click.command()
@store_argument
@click.option(
    "--repair",
    is_flag=True,
    help="Make what is damaged, missing or unfinished, from the record.",
)
@models_option
@json_option
@debug_option
def verify(store: str, repair: bool, model: Sequence[str], json: bool, debug: bool) -> None:
    """Compare the result STORE with its record: its documents, and every file of voxels."""
    conclude(partial(_verify, store, repair, model, json), as_json=json, debug=debug)


def _verify(store: str, repair: bool, models: Sequence[str], as_json: bool, report: Report) -> int:
    from napari_materialize.job import verify_result

    record = record_of(store)
    found = verify_result(store, record)
    _tell(found, as_json, report)
    if found.is_whole or not repair:
        return DONE if found.is_whole else FAILED
    stopped = None
    while not found.is_whole and stopped is None:
        before = len(found.damaged) + found.unfinished
        failures, stopped = _repair(store, record, models, found)
        found = verify_result(store, record_of(store))
        # a coarser chunk may wait for a finer one of another box, which is there by now
        if len(found.damaged) + found.unfinished in (0, before):
            break
    for reason in failures[:SHOWN]:
        complain(reason)
    report["failures"] = failures
    _tell(found, as_json, report)
    if stopped is not None:
        return stopped_by(stopped)
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


def _repair(
    store: str, record: Mapping[str, Any], models: Sequence[str], found: Verdict
) -> tuple[list[str], int | None]:
    """Make what is wrong, box by box; return why chunks failed, and the signal that stopped it."""
    from napari_materialize.cli.watch import watched
    from napari_materialize.engine import Engine
    from napari_materialize.job import carry_out, mend, recorded_jobs, recorded_view
    from napari_materialize.plan import Options, make_plan

    view, damaged = recorded_view(record, models), set(found.damaged)
    plans = [
        make_plan(view, store, Options(**options, existing="resume", on_error="collect"))
        for options in recorded_jobs(record)
    ]

    def work(told: Mapping[str, Any]) -> list[Materialized]:
        told_plans = [replace(each, options=replace(each.options, **told)) for each in plans]
        done = mend(engine, told_plans[:-1], damaged)
        if not any(each.aborted for each in done):
            done.append(carry_out(engine, told_plans[-1]))
        return done

    with Engine(None, nice=0) as engine:
        done, number = watched(plans[-1], work)
    failures = [each.reason for receipt in done for each in receipt.failures]
    return failures, (number or signal.SIGINT) if done[-1].aborted else None
