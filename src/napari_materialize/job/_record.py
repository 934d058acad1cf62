"""The documents of a result, with the record of what made it and how far it is."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import MaterializeError, StoreError, named
from napari_materialize.recipe import view_record
from napari_materialize.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.job._extremes import Extremes
    from napari_materialize.job._receipt import Materialized
    from napari_materialize.journal import Sums
    from napari_materialize.plan import Plan

__all__ = ["Record", "job_key", "summary"]

type Windows = tuple[tuple[float, float], ...]

_LIBRARIES = ("numpy", "scipy", "zarr", "onnxruntime")
"""What had a hand in the voxels, if it was loaded."""


def _versions() -> dict[str, str]:
    """Return the versions of the libraries that are loaded.

    One that another thread is about to load has none yet, and no hand in any voxel.
    """
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
    return {name: version for name, version in found.items() if version is not None}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def job_key(plan: Plan, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what has to be the same for one job to go on with another's result, as JSON has it.

    Where there is such a result its record, ``before``, says what was left out of the source.
    """
    options = plan.options
    key = {
        "view": view_record(plan.view, None if before is None else before.get("view")),
        "kind": plan.view.kind,
        "levels": [
            {"level": each.level, "box": [list(each.box.start), list(each.box.stop)]}
            for each in plan.levels
        ],
        "pyramid": _pyramid(plan),
        "extent": options.extent,
        "format": options.format,
        "compression": str(plan.compression),
        "shards": None if plan.shards is None else list(plan.shards),
        "skip_empty": bool(options.skip_empty),
        "attributes": dict(plan.document.attributes),
    }
    return dict(json.loads(json.dumps(key)))


def summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a record when another job writes into the same arrays."""
    names = ("version", "box", "box_level", "levels", "status", "started", "ended", "counts")
    return {name: record[name] for name in (*names, "checks") if name in record}


class Record:
    """Writes the metadata of a job: at its start, and once more at its end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._started = _now()
        self._key = job_key(plan)
        self._earlier: list[Mapping[str, Any]] = []
        # made before anything is: a plan whose documents cannot be written is refused with nothing
        # touched
        self._first = self._documents({"status": "running", "started": self._started})

    def put_first(self, earlier: list[Mapping[str, Any]]) -> None:
        """Write the metadata of a job that begins; ``earlier``: jobs that wrote here before."""
        self._earlier = earlier
        if earlier:
            self._first = self._documents({"status": "running", "started": self._started})
        self._put(self._first)

    def put_end(
        self, status: str, done: Materialized, seen: Extremes | None, sums: Mapping[int, Sums]
    ) -> None:
        """Write it once more, with how the job ended and the values that were seen."""
        names = ("chunks", "written", "skipped", "failed", "bytes")
        counts = {name: getattr(done, name) for name in names}
        end: dict[str, Any] = {
            "status": status,
            "started": self._started,
            "ended": _now(),
            "counts": counts,
        }
        if seen is not None:
            end["extremes"] = seen.seen
        end["checks"] = [each.record() for _, each in sorted(sums.items())]
        self._put(self._documents(end, None if seen is None else seen.windows))

    def _put(self, documents: Mapping[str, bytes]) -> None:
        for path, data in documents.items():
            try:
                self._plan.store.put(path, data)
            except MaterializeError:  # names the file
                raise
            except Exception as error:
                failure = StoreError(
                    f"writing {path} failed, and a result needs its metadata: "
                    f"{named(error)}; mend the store and run the job again"
                )
                failure.errno = getattr(error, "errno", None)
                raise failure from error

    def _documents(
        self, state: Mapping[str, Any], windows: Windows | None = None
    ) -> dict[str, bytes]:
        plan, box = self._plan, self._plan.options.box
        record = {
            "version": __version__,
            "libraries": _versions(),
            **self._key,
            "view": view_record(plan.view),  # a model's constants are known later
            "box": None if box is None else [list(box.start), list(box.stop)],
            "box_level": plan.options.box_level,
            **state,
        }
        if self._earlier:
            record["earlier"] = self._earlier
        return plan.layout.documents(replace(plan.document, record=record, windows=windows))


def _pyramid(plan: Plan) -> dict[str, Any] | None:
    """Return how the coarser levels came to be: derived from a written one, or each viewed."""
    if plan.coarser:
        return {
            "made": "derived",
            "method": plan.coarser[0].method,
            "factors": [list(each.factors) for each in plan.coarser],
        }
    return {"made": "viewed"} if len(plan.levels) > 1 else None
