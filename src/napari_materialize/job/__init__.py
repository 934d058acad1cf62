"""Writing a box of a view to a store: the loop, its progress, its end, and the receipt.

Each chunk is claimed as background work, put together, encoded, stored, and let go. At most
``concurrency`` chunks are asked for at a time, and no more than as many again wait to be written.
The engine owns the threads; this room owns what happens to a chunk between being there and being
stored, and the record of what made the result. What is asked for is decided in `plan`.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import ChunkError, OptionError
from napari_materialize.job._receipt import Failure, Materialized
from napari_materialize.job._record import Record
from napari_materialize.job._run import Run
from napari_materialize.job._service import ChunkService
from napari_materialize.plan import Options, Plan, Where, make_plan
from napari_materialize.recipe import changed_source
from napari_materialize.stores import TakenStore

if TYPE_CHECKING:
    from napari_materialize.view import View

__all__ = ["ChunkService", "Failure", "Materialized", "Where", "carry_out", "materialize"]


def materialize(service: ChunkService, view: View, where: Where, **options: Any) -> Materialized:
    """Compute a box of a view and write it; see `Engine.materialize`."""
    known = [each.name for each in fields(Options)]
    for name in options:
        if name not in known:
            raise OptionError(
                f"option {name!r}: there is none of that name; known are {', '.join(known)}"
            )
    return carry_out(service, make_plan(view, where, Options(**options)))


def carry_out(service: ChunkService, plan: Plan) -> Materialized:
    """Do what is planned."""
    began = time.perf_counter()
    run, record = Run(service, plan), Record(plan)
    taken = plan.store if isinstance(plan.store, TakenStore) else None
    if taken is not None:
        taken.begin()
    try:
        record.put_first()
        return _write(service, plan, run, record, began)
    finally:
        if taken is not None:
            taken.end()


def _write(
    service: ChunkService, plan: Plan, run: Run, record: Record, began: float
) -> Materialized:
    try:
        with ExitStack() as stack:
            for each in plan.levels:
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
            record.put_end(status, done, run.windows)
        except OSError as second:
            error.add_note(f"the record of this end could not be written either: {second}")
        raise
    done = run.receipt(time.perf_counter() - began)
    record.put_end("aborted" if done.aborted else "complete", done, run.windows)
    return done
