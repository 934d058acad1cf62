"""``run``: compute a box of a source through ops, and store it as OME-Zarr.

Owns the command's arguments and what it tells afterwards. Their texts are read in `request`, the
job is watched over in `watch`.
"""

from __future__ import annotations

import signal
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from napari_materialize.cli.outcome import (
    DONE,
    PARTLY_FAILED,
    Report,
    complain,
    conclude,
    debug_option,
    json_option,
    printable,
    say,
    stopped_by,
)
from napari_materialize.cli.request import Request
from napari_materialize.cli.space import tell_estimate, warn_if_tight
from napari_materialize.errors import ChunkError, MaterializeError, StoreError, TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from napari_materialize.job import Materialized
    from napari_materialize.plan import Plan
    from napari_materialize.stores import WritableStore
    from napari_materialize.view import View

__all__ = [
    "boundary_option",
    "notes_of",
    "ops_option",
    "out_argument",
    "receipt",
    "run",
    "slots_option",
    "source_argument",
    "tell_notes",
]

SHOWN_FAILURES = 5
"""Failed chunks that are named to a person; a program gets all of them."""


source_argument = click.argument(
    "source", metavar="SOURCE", help="The image: a path or file:// URL."
)
out_argument = click.argument("out", metavar="OUT", help="The folder to write, not there yet.")
ops_option = click.option(
    "--op",
    metavar="SPEC",
    multiple=True,
    help="An op, name:key=value,key=value; may be repeated, runs in order.",
)
boundary_option = click.option(
    "--boundary",
    metavar="edge|zeros",
    default="edge",
    help="What ops see past the volume's edge. [edge]",
)
slots_option = click.option(
    "--slots", metavar="N", help="Computations at a time. [the cores and one]"
)


@click.command()
@source_argument
@out_argument
@ops_option
@click.option(
    "--level",
    metavar="N",
    multiple=True,
    help="A level to write, 0 is the finest; may be repeated. [all]",
)
@click.option(
    "--box",
    metavar="lo:hi",
    help="Voxels, such as 0,64,64:32,192,192, along the last axes. [whole]",
)
@click.option("--box-level", metavar="N", help="The level whose voxels the box counts. [0]")
@click.option("--world-box", metavar="lo:hi", help="The box in world units, such as -10,0:5,5.5.")
@click.option(
    "--extent",
    metavar="level|box",
    default="level",
    help="Arrays of the level's shape, or of exactly the box. [level]",
)
@click.option(
    "--format",
    metavar="zarr2|zarr3|n5",
    default="zarr2",
    help="OME-Zarr 0.4 or 0.5, or N5. [zarr2]",
)
@click.option(
    "--compression",
    metavar="NAME[:LEVEL]",
    default="gzip",
    help="gzip, zstd, blosc or none. [gzip:6]",
)
@click.option("--shards", metavar="N,N,...", help="Chunks in a shard along the last axes; zarr3.")
@click.option(
    "--pyramid",
    metavar="N|auto",
    default="0",
    help="Coarser levels derived from the written one. [0]",
)
@click.option("--keep-empty", is_flag=True, help="Write chunks of nothing but the fill value too.")
@click.option(
    "--existing",
    metavar="error|resume|add|overwrite",
    default="error",
    help="A store that is there: refuse it, go on, add another box, begin anew. [error]",
)
@click.option(
    "--on-error",
    metavar="raise|collect",
    default="raise",
    help="At a failing chunk: stop, or go on. [raise]",
)
@click.option("--select", metavar="c=N", help="One place along the channel axis, before the ops.")
@boundary_option
@slots_option
@click.option("--threads", metavar="N", help="Chunks asked for at a time. [the slots]")
@click.option("--dask", metavar="ADDRESS", help="A dask scheduler to work on; not built yet.")
@click.option(
    "--estimate",
    is_flag=True,
    help="Say how long it would take and how large it would be; no job.",
)
@json_option
@debug_option
def run(*, estimate: bool, json: bool, debug: bool, **asked: Any) -> None:
    """Compute a box of SOURCE and store it in OUT as OME-Zarr."""
    # what is left are the request's fields
    work = partial(_run, Request(**asked), only_estimate=estimate, as_json=json)
    conclude(work, as_json=json, debug=debug)


def _run(asked: Request, report: Report, *, only_estimate: bool, as_json: bool) -> int:
    """Do the job; everything that can be refused is refused before the engine is made."""
    asked.check_built()
    slots = asked.slot_count
    view = asked.view()
    tell_notices(view)
    report["notes"] = tell_notes(view)
    options = asked.options(view)
    plan = _plan(view, asked.out, options)
    report |= {
        "target": getattr(plan.store, "location", None),
        "format": asked.format,
        "levels": [each.level for each in plan.levels],
        "box": [list(plan.levels[0].box.start), list(plan.levels[0].box.stop)],
    }

    from napari_materialize.cli.watch import materialize_watched
    from napari_materialize.engine import Engine

    with Engine(slots, nice=0) as engine:
        if only_estimate:
            return tell_estimate(engine, plan, as_json, report)
        warn_if_tight(engine, plan)
        try:
            done, signal_number = materialize_watched(engine, plan, options)
        except (MaterializeError, KeyboardInterrupt) as error:
            if isinstance(error, StoreError) and _nothing_made(plan.store):
                raise TargetError(f"target: {error}; choose another folder") from error
            if isinstance(error, ChunkError) and error.receipt is not None:
                report |= _counts(error.receipt)
            raise
    report |= {"status": "aborted" if done.aborted else "complete", **_counts(done)}
    say(receipt(done, report["target"]), err=as_json)
    if done.aborted:
        return stopped_by(signal_number or signal.SIGINT)
    _tell_failures(done)
    return PARTLY_FAILED if done.failed else DONE


def tell_notices(view: View) -> None:
    """Say what is odd about a source, for a person who will not look at it with ``info``."""
    for notice in getattr(view.source, "notices", ()):
        complain(f"notice: {notice}")


def tell_notes(view: View) -> list[str]:
    """Say what a person should know of the ops before they run, a line each; return the lines.

    What was found out of a model, that is: a device that is not there, a halo too small, what its
    description contradicts.
    """
    found = notes_of(view)
    for note in found:
        complain(f"note: {note}")
    return found


def notes_of(view: View) -> list[str]:
    """Return what a view's ops have to say, each sentence once."""
    return list(dict.fromkeys(note for op in view.ops for note in getattr(op, "notes", ())))


def _plan(view: View, out: str, options: Mapping[str, Any]) -> Plan:
    """Decide what will be written; a target that cannot be looked at is bad input too."""
    from napari_materialize.plan import Options, make_plan

    try:
        return make_plan(view, out, Options(**options))
    except StoreError as error:
        raise TargetError(f"target: {error}; choose another folder") from error
    except OSError as error:
        if isinstance(error, TargetError):
            raise
        reason = error.strerror or type(error).__name__
        raise TargetError(f"target {out}: {reason}; choose another folder") from error


def _nothing_made(store: WritableStore) -> bool:
    """Return whether a job could not write its first file, as far as the target tells."""
    is_empty: Callable[[], bool] | None = getattr(store, "is_empty", None)
    try:
        return is_empty is not None and is_empty()
    except (MaterializeError, OSError):  # it does not: the job's own error is what is told
        return False


def _counts(done: Any) -> dict[str, Any]:
    return {**asdict(done), "seconds": round(done.seconds, 3)}


def receipt(done: Materialized, target: str) -> str:
    """Return what was done, in one line."""
    pieces = [f"{done.written} of {done.chunks} chunks written"]
    if done.found:
        pieces.append(f"{done.found} found done")
    if done.skipped:
        pieces.append(f"{done.skipped} empty ones left out")
    if done.failed:
        pieces.append(f"{done.failed} failed")
    how = "aborted, " if done.aborted else ""
    pace = (done.written + done.skipped + done.failed) / done.seconds if done.seconds else 0.0
    return (
        f"{how}{', '.join(pieces)}, {_size(done.bytes)} in {done.seconds:.1f} s "
        f"({pace:.0f} chunks/s): {printable(target)}"
    )


def _size(count: int) -> str:
    """Return a number of bytes as people read it.

    Examples
    --------
    >>> _size(0), _size(9071), _size(1_270_301), _size(4 * 10**12)
    ('0 bytes', '9.1 kB', '1.3 MB', '4000.0 GB')
    """
    for power, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= power:
            return f"{count / power:.1f} {unit}"
    return f"{count} bytes"


def _tell_failures(done: Materialized) -> None:
    for failure in done.failures[:SHOWN_FAILURES]:
        complain(failure.reason)
    more = done.failed - min(len(done.failures), SHOWN_FAILURES)
    if more > 0:
        listed = "all" if len(done.failures) == done.failed else f"{len(done.failures)} of them"
        complain(f"and {more} chunks more failed; --json lists {listed}")
