"""Numbers as people read them: sizes, bytes, times. Owns words, decides nothing.

Nothing here is specific to one face: the napari widget and the notebook panel say the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from napari_materialize.quantities import bytes_text, count_text, seconds_text
from napari_materialize.session import JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.arrays import Axis, Level
    from napari_materialize.geometry import Box
    from napari_materialize.session import Job, Progress

__all__ = [
    "box_text",
    "bytes_text",
    "count_text",
    "ending_text",
    "level_text",
    "progress_text",
    "seconds_text",
    "size_text",
    "typed_box",
]

_SHORT = {
    "picometer": "pm",
    "angstrom": "\N{ANGSTROM SIGN}",
    "nanometer": "nm",
    "micrometer": "µm",
    "millimeter": "mm",
    "centimeter": "cm",
    "meter": "m",
}

TIMES = "\N{MULTIPLICATION SIGN}"
DOT = " \N{MIDDLE DOT} "


def size_text(sizes: Sequence[float], axes: Sequence[Axis]) -> str:
    """Return lengths along the space axes with their unit.

    >>> from napari_materialize.arrays import Axis
    >>> size_text((1, 64, 0.4), (Axis("c", "channel"), Axis("y"), Axis("x")))
    '64×0.4'
    """  # noqa: RUF002 - that is what people read
    rows = [(s, a) for s, a in zip(sizes, axes, strict=True) if a.type == "space"]
    units = {axis.unit for _, axis in rows}
    if len(units) > 1:
        return TIMES.join(f"{size:.4g} {_unit(axis.unit)}".strip() for size, axis in rows)
    numbers = TIMES.join(f"{size:.4g}" for size, _ in rows)
    return f"{numbers} {_unit(units.pop()) if units else ''}".strip()


def _unit(unit: str | None) -> str:
    return "" if unit is None else _SHORT.get(unit, unit)


def level_text(level: Level) -> str:
    """Return a level's shape and voxel size, along the space axes.

    >>> from napari_materialize.arrays import Axis, Level
    >>> level_text(Level((9, 8), "u1", (9, 8), (Axis("y", unit="nanometer"), Axis("x"))))
    '9×8 · 1 nm×1'
    """  # noqa: RUF002 - that is what people read
    sizes = [n for n, axis in zip(level.shape, level.axes, strict=True) if axis.type == "space"]
    return f"{TIMES.join(map(str, sizes))}{DOT}{size_text(level.scale, level.axes)}"


def box_text(level: Level, box: Box) -> str:
    """Return a box as ranges of voxels, axis by axis.

    >>> from napari_materialize.arrays import Level
    >>> from napari_materialize.geometry import Box
    >>> box_text(Level((9, 8), "u1", (9, 8)), Box((0, 2), (4, 8)))
    'y 0–4, x 2–8'
    """  # noqa: RUF002 - that is what people read
    rows = zip(level.axes, box.start, box.stop, strict=True)
    return ", ".join(f"{axis.name} {low}\N{EN DASH}{high}" for axis, low, high in rows)


def typed_box(box: Box | None) -> str:
    """Return a box as `napari_materialize.recipe.parse_box` reads it."""
    if box is None:
        return ""
    return f"{','.join(map(str, box.start))}:{','.join(map(str, box.stop))}"


def progress_text(progress: Progress) -> str:
    """Return how far a job is, how fast, and how long still.

    >>> from napari_materialize.session import Progress
    >>> progress_text(Progress(done=4, total=10, rate=2.0, left=3.0))
    '4 of 10 chunks · 2 per second · about 3 s left'
    """
    parts = [f"{progress.done} of {count_text(progress.total, 'chunk')}"]
    if progress.rate is not None:
        quick = progress.rate >= 1
        pace = progress.rate if quick else progress.rate * 60
        parts.append(f"{pace:.2g} per {'second' if quick else 'minute'}")
    if progress.left is not None and progress.done < progress.total:
        left = progress.left if progress.left >= 10 else max(1, round(progress.left))
        parts.append(f"about {seconds_text(left).replace('.0', '')} left")
    return DOT.join(parts)


def ending_text(job: Job) -> str:
    """Return how a job ended, in a sentence."""
    if job.state is JobState.FAILED:
        return f"Failed: {job.reason}"
    receipt = job.receipt
    if receipt is None:
        return ""
    empty = f", {receipt.skipped} of them empty" if receipt.skipped else ""
    if job.state is JobState.ABORTED:
        return (
            f"Cancelled after {receipt.written + receipt.skipped} of "
            f"{count_text(receipt.chunks, 'chunk')}; what was written stays."
        )
    return (
        f"Done: {count_text(receipt.chunks, 'chunk')}{empty}, {bytes_text(receipt.bytes)} on disk, "
        f"in {seconds_text(receipt.seconds)}."
    )
