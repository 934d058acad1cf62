"""What a job wrote, as an array that is read from its store when numpy asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from napari_materialize.recipe import open_view

if TYPE_CHECKING:
    from napari_materialize.engine import Engine
    from napari_materialize.reader import LazyRead
    from napari_materialize.session import Job

__all__ = ["result_of"]


def result_of(job: Job, engine: Engine) -> LazyRead | None:
    """Return exactly the box that a job wrote, read by ``engine``; None if it wrote nothing."""
    resolved = job.resolved
    if job.receipt is None or resolved is None or resolved.plan is None or not resolved.target:
        return None
    plan = resolved.plan
    array = engine.array(open_view(resolved.target), 0)
    return array.lazy[plan.box.relative_to(plan.offset).slices]
