"""Writing a box of a view to a store: the loop, its progress, its end, and the receipt.

Each chunk is claimed as background work, put together, encoded, stored, and let go. At most
``concurrency`` chunks are asked for at a time, and no more than as many again wait to be written.
The engine owns the threads; this room owns what happens to a chunk between being there and being
stored, and the record of what made the result. What is asked for is decided in `plan`.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from napari_materialize.buffers import expect_traffic, give_back
from napari_materialize.errors import ChunkError, OptionError, StoreError
from napari_materialize.job._again import recorded_jobs, recorded_view
from napari_materialize.job._keeper import Keeper
from napari_materialize.job._mend import mend
from napari_materialize.job._opening import Opening, open_target, refuse_target
from napari_materialize.job._receipt import Failure, Materialized
from napari_materialize.job._record import Record
from napari_materialize.job._run import Run
from napari_materialize.job._service import ChunkService
from napari_materialize.job._todo import Todo
from napari_materialize.job._verdict import Verdict, verify_result
from napari_materialize.plan import Options, Plan, Where, make_plan
from napari_materialize.recipe import changed_source
from napari_materialize.stores import TakenStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.journal import Journal
    from napari_materialize.view import View

__all__ = [
    "ChunkService",
    "Failure",
    "Materialized",
    "Verdict",
    "Where",
    "carry_out",
    "materialize",
    "mend",
    "planned",
    "recorded_jobs",
    "recorded_view",
    "refuse_target",
    "verify_result",
]


def materialize(service: ChunkService, view: View, where: Where, **options: Any) -> Materialized:
    """Compute a box of a view and write it; see `Engine.materialize`."""
    return carry_out(service, planned(view, where, options))


def planned(view: View, where: Where, options: Mapping[str, Any]) -> Plan:
    """Decide what options come to, or refuse, one that does not exist too; nothing is created."""
    known = [each.name for each in fields(Options)]
    for name in options:
        if name not in known:
            raise OptionError(
                f"option {name!r}: there is none of that name; known are {', '.join(known)}"
            )
    return make_plan(view, where, Options(**options))


def carry_out(service: ChunkService, plan: Plan) -> Materialized:
    """Do what is planned."""
    record = Record(plan)
    refuse_target(plan)
    expect_traffic()
    taken = plan.store if isinstance(plan.store, TakenStore) else None
    if taken is not None:
        taken.begin(fresh=plan.options.existing == "error")
    run: Run | None = None
    opening = Opening()
    try:
        opening = open_target(plan)
        todo = _todo(plan, opening)
        keeper = Keeper(plan, opening.journal, stale=opening.stale, shared=bool(opening.earlier))
        for position, ledger in (opening.ledgers or {}).items():
            keeper.found(position, ledger)
        run = Run(service, plan, todo, keeper)
        if run.seen is not None:
            for seen in opening.extremes:
                run.seen.merge(seen)
        record.put_first(opening.earlier)
        if not todo.fresh:
            service.forget_failures(plan.view)
        return _write(service, plan, run, record, keeper)
    finally:
        give_back()  # the memory of blocks; who is still computing has its own
        over = partial(_leave, taken, opening.journal)
        if run is None:
            over()
        else:
            run.when_quiet(over)


def _todo(plan: Plan, opening: Opening) -> Todo:
    settled = None
    if opening.ledgers is not None:
        settled = {position: each.settled for position, each in opening.ledgers.items()}
    return Todo(plan, settled, shared=bool(opening.earlier))


def _leave(taken: TakenStore | None, journal: Journal | None) -> None:
    """Let others write there."""
    try:
        if journal is not None:
            # a full disk, or a folder that is gone, is the end that was told already
            with suppress(StoreError):
                journal.flush()
    finally:
        if taken is not None:
            taken.end()


def _write(
    service: ChunkService, plan: Plan, run: Run, record: Record, keeper: Keeper
) -> Materialized:
    began = time.perf_counter()
    try:
        with ExitStack() as stack:
            # of a job that goes on, only some chunks are asked for: nobody can count uses
            for each in plan.levels if run.asks_for_all else ():
                stack.enter_context(service.working_on(plan.view, each.level, each.box))
            run.go()
        if (reason := changed_source(plan.view)) is not None:
            raise ChunkError(f"the source changed in mid-job, so the result is not whole: {reason}")
    except BaseException as error:
        done = run.receipt(time.perf_counter() - began)
        if isinstance(error, ChunkError):
            error.receipt = done
        status = "aborted" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            record.put_end(status, done, run.seen, keeper.sums)
        except OSError as second:
            error.add_note(f"the record of this end could not be written either: {second}")
        raise
    done = run.receipt(time.perf_counter() - began)
    status = "aborted" if done.aborted else "incomplete" if done.failed else "complete"
    record.put_end(status, done, run.seen, keeper.sums)
    if status == "complete" and keeper.journal is not None:
        keeper.journal.remove()
    return done
