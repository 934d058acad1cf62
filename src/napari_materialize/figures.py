"""What an engine is doing, in numbers that JSON can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from napari_materialize.cache import ChunkState, Pool
from napari_materialize.demand import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.dispatch import Dispatch

__all__ = ["Snapshot", "figures", "snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counts of one moment, taken under the engine's lock and sorted without it."""

    jobs: Mapping[tuple[Phase, int, int], int]
    """By phase, class and level."""

    dropped: Mapping[tuple[int, int], int]
    """By class and level."""

    states: Mapping[ChunkState, int]
    bytes: Mapping[str, int]
    """By pool."""

    plain: Mapping[str, int]


def snapshot(dispatch: Dispatch) -> Snapshot:
    """Take the counts of a moment."""
    queue, cache = dispatch.queue, dispatch.cache
    return Snapshot(
        queue.counts(),
        dict(queue.dropped),
        cache.counts(),
        {pool.name.lower(): cache.bytes(pool) for pool in Pool},
        {"hits": dispatch.hits, "misses": dispatch.misses, "evictions": cache.evictions},
    )


def figures(taken: Snapshot) -> dict[str, Any]:
    """Return what waits, runs, was dropped, found and is held."""
    running = {k: n for k, n in taken.jobs.items() if k[0] is Phase.RUNNING}
    waiting = {k: n for k, n in taken.jobs.items() if k[0] is not Phase.RUNNING}
    dropped = {(Phase.WAITING, *place): n for place, n in taken.dropped.items()}
    return {
        "waiting": _by_class(waiting),
        "running": _by_class(running),
        "dropped": _by_class(dropped),
        **taken.plain,
        "states": {state.value: n for state, n in taken.states.items()},
        "bytes": dict(taken.bytes),
    }


def _by_class(counts: dict[tuple[Phase, int, int], int]) -> dict[str, dict[int, int]]:
    """Sum counts into ``{"client": {level: n}, "background": {level: n}}``."""
    table: dict[str, dict[int, int]] = {"client": {}, "background": {}}
    for (_, which, level), count in counts.items():
        row = table["background" if which else "client"]
        row[level] = row.get(level, 0) + count
    return table
