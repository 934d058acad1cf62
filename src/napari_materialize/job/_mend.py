"""Making again what is damaged in a result, box by box, from what its record says.

The last box is gone on with, as any job is. Those that were added before it are made here, before
it: their damaged files alone, without a journal and without a word in the record, since what is
made is what the record says already. A file that several boxes have a part in is made anew by each
of them in turn, as it once came to be.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from napari_materialize.job._keeper import Keeper
from napari_materialize.job._run import Run
from napari_materialize.job._todo import Todo
from napari_materialize.stores import KeptStore

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from napari_materialize.job._receipt import Materialized
    from napari_materialize.job._service import ChunkService
    from napari_materialize.plan import Plan

__all__ = ["mend"]


def mend(
    service: ChunkService, plans: Sequence[Plan], damaged: Collection[str]
) -> list[Materialized]:
    """Make damaged files again, those of each box after the other.

    Parameters
    ----------
    service : ChunkService
        Computes what is needed.
    plans : sequence of Plan
        Of the jobs that wrote the boxes of one store, in order, with ``on_error="collect"``.
    damaged : collection of str
        Paths in the store; what is there under them is removed first.

    Raises
    ------
    TargetError
        If another job writes there.
    StoreError
        If what is damaged cannot be removed.
    """
    done: list[Materialized] = []
    if not plans or not damaged:
        return done
    store, run = plans[0].store, None
    assert isinstance(store, KeptStore)
    store.begin(fresh=False)
    try:
        for path in damaged:
            store.delete(path)
        for plan in plans:
            settled = _settled(plan, damaged)
            if all(good.all() for good in settled.values()):
                continue
            began = time.perf_counter()
            service.forget_failures(plan.view)
            plan = replace(plan, store=store)  # noqa: PLW2901 - which is taken
            run = Run(service, plan, Todo(plan, settled, shared=True), Keeper(plan, shared=True))
            run.go()
            done.append(run.receipt(time.perf_counter() - began))
            if done[-1].aborted:
                break
        return done
    finally:
        if run is None:
            store.end()
        else:
            run.when_quiet(store.end)


def _settled(plan: Plan, damaged: Collection[str]) -> dict[int, np.ndarray]:
    """Return which files of a box are as they should be, by the position of their array."""
    settled = {}
    for each in plan.written:
        files = plan.files(each)
        good = np.ones(files.shape, bool)
        for place in np.ndindex(*files.shape):
            file = tuple(int(at) + low for at, low in zip(place, files.start, strict=True))
            good[place] = plan.layout.chunk_key(each.position, file) not in damaged
        settled[each.position] = good
    return settled
