"""The documents of a result, with the record of what made it and how far it is."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from napari_materialize.recipe import view_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.job._receipt import Materialized
    from napari_materialize.plan import Plan

__all__ = ["Record"]

type Windows = tuple[tuple[float, float], ...]

_LIBRARIES = ("numpy", "scipy", "zarr", "onnxruntime")
"""What had a hand in the voxels, if it was loaded."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Record:
    """Writes the metadata of a job: at its start, and once more at its end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._started = _now()
        # made before anything is: a plan whose documents cannot be written is refused with nothing
        # touched
        self._first = self._documents({"status": "running", "started": self._started})

    def put_first(self) -> None:
        """Write the metadata of a job that begins."""
        self._put(self._first)

    def put_end(self, status: str, done: Materialized, windows: Windows | None) -> None:
        """Write it once more, with how the job ended and the values that were seen."""
        names = ("chunks", "written", "skipped", "failed", "bytes")
        counts = {name: getattr(done, name) for name in names}
        end = {"status": status, "started": self._started, "ended": _now(), "counts": counts}
        self._put(self._documents(end, windows))

    def _put(self, documents: Mapping[str, bytes]) -> None:
        for path, data in documents.items():
            self._plan.store.put(path, data)

    def _documents(
        self, state: Mapping[str, Any], windows: Windows | None = None
    ) -> dict[str, bytes]:
        plan, options = self._plan, self._plan.options
        record = {
            "version": version("napari-materialize"),
            "libraries": {
                name: sys.modules[name].__version__ for name in _LIBRARIES if name in sys.modules
            },
            "view": view_record(plan.view),
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
            **state,
        }
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
