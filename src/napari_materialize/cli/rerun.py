"""``rerun``: make a result once more, from its record alone.

Owns the command. What a record says is read in `job`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from napari_materialize.cli.outcome import (
    DONE,
    PARTLY_FAILED,
    Report,
    conclude,
    debug_option,
    json_option,
    say,
)
from napari_materialize.cli.record import own_record
from napari_materialize.cli.run import _counts, out_argument, receipt, slots_option, tell_notes
from napari_materialize.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["models_option", "record_of", "rerun", "store_argument"]

store_argument = click.argument("store", metavar="STORE", help="A result of this project.")
models_option = click.option(
    "--model",
    metavar="PATH",
    multiple=True,
    help="A model's file or folder, where one was used; may be repeated.",
)


@click.command()
@store_argument
@out_argument
@models_option
@slots_option
@json_option
@debug_option
def rerun(  # noqa: PLR0917 - click hands them over by name
    store: str, out: str, model: Sequence[str], slots: str | None, json: bool, debug: bool
) -> None:
    """Make the result STORE once more, in OUT, from its record alone: the same bytes."""
    conclude(partial(_rerun, store, out, model, slots), as_json=json, debug=debug)


def record_of(store: str) -> Mapping[str, Any]:
    """Return the record of a result.

    Raises
    ------
    SourceError
        If there is none.
    """
    record = own_record(store)
    if record is None:
        raise SourceError(
            f"{store}: a result of this project, with its record, is needed, and there is none; "
            "check the path"
        )
    return record


def _rerun(store: str, out: str, models: Sequence[str], slots: str | None, report: Report) -> int:
    from napari_materialize.cli.request import whole_number
    from napari_materialize.cli.watch import materialize_watched
    from napari_materialize.engine import Engine
    from napari_materialize.job import recorded_jobs, recorded_view
    from napari_materialize.plan import Options, make_plan

    record = record_of(store)
    view, jobs = recorded_view(record, models), recorded_jobs(record)
    report["notes"] = tell_notes(view)
    number = None if slots is None else whole_number("--slots", slots, 1)
    failed = 0
    with Engine(number, nice=0) as engine:
        for at, options in enumerate(jobs):
            options["existing"] = "add" if at else "error"
            plan = make_plan(view, out, Options(**options))
            done, stopped = materialize_watched(engine, plan, options)
            failed += done.failed
            target = getattr(plan.store, "location", None)
            report |= {"target": target, "status": "aborted" if done.aborted else "complete"}
            report |= _counts(done)
            say(receipt(done, str(target)), err=True)
            if done.aborted:
                from napari_materialize.cli.outcome import stopped_by

                return stopped_by(stopped or 2)
    return PARTLY_FAILED if failed else DONE
