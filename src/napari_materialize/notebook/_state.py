"""What the browser is told of a session, as JSON; and what it asks of one, made of JSON.

Owns the names and shapes of both, and decides nothing: sentences are the session's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import BoxError, OptionError
from napari_materialize.geometry import Box
from napari_materialize.session import JobState
from napari_materialize.wording import (
    box_text,
    bytes_text,
    count_text,
    ending_text,
    level_text,
    progress_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.arrays import Level
    from napari_materialize.session import Job, Resolved, Session

__all__ = [
    "COMPRESSIONS",
    "EXTENTS",
    "FORMATS",
    "box_asked",
    "fields_asked",
    "job_state",
    "state_of",
]

FORMATS = (("zarr2", "OME-Zarr 0.4 (zarr v2)"), ("zarr3", "OME-Zarr 0.5 (zarr v3)"), ("n5", "N5"))
EXTENTS = (("level", "Whole level"), ("box", "Only the box"))
COMPRESSIONS = (
    ("gzip:6", "gzip 6"),
    ("gzip:1", "gzip 1"),
    ("zstd:3", "zstd 3"),
    ("blosc:3", "blosc 3"),
    ("none", "none"),
)


def state_of(session: Session) -> dict[str, Any]:
    """Return what a panel shows of a session: the view, the box, the output, what is missing."""
    state, intent = session.resolved, session.intent
    return {
        "name": state.name,
        "axes": _axes(state.view.levels[0] if state.view else state.source_level),
        "box_axes": _axes(state.source_level),
        "levels": [] if state.view is None else [level_text(each) for each in state.view.levels],
        "level": intent.level,
        "box": _box(state),
        "written": _written(state),
        "cost": _cost(state),
        "format": intent.format,
        "formats": FORMATS,
        "compression": intent.compression or "none",
        "compressions": _compressions(intent.compression),
        "extent": intent.extent,
        "extents": EXTENTS,
        "skip_empty": intent.skip_empty,
        "folder": str(Path(state.target).parent) if state.target else intent.folder or "",
        "target": Path(state.target).name if state.target else "",
        "named": intent.target is not None,
        "problems": dict(state.problems),
        "blocked": session.blocked,
        "job": job_state(session.job),
    }


def job_state(job: Job) -> dict[str, Any]:
    """Return what a panel shows of a job."""
    progress, target = job.progress, job.resolved and job.resolved.target
    return {
        "state": str(job.state),
        "done": progress.done,
        "total": progress.total,
        "text": progress_text(progress) if job.state is JobState.RUNNING else ending_text(job),
        "target": target or "",
        "failures": [] if job.receipt is None else [str(each) for each in job.receipt.failures],
    }


def _axes(level: Level | None) -> list[dict[str, Any]]:
    if level is None:
        return []
    return [
        {
            "name": axis.name,
            "type": axis.type,
            "size": size,
            "scale": scale,
        }
        for axis, size, scale in zip(level.axes, level.shape, level.scale, strict=True)
    ]


def _box(state: Resolved) -> dict[str, list[int]] | None:
    """Return the box asked for, by axis, in finest voxels of the source; None for all."""
    level, box = state.source_level, state.source_box
    if state.intent.box is None or level is None or box is None:
        return None
    rows = zip(level.axes, box.start, box.stop, strict=True)
    return {axis.name: [low, high] for axis, low, high in rows}


def _written(state: Resolved) -> dict[str, list[float]] | None:
    """Return the outer faces of the box that is written, in finest voxels of the source."""
    level, corners = state.source_level, state.source_corners
    if level is None or corners is None:
        return None
    rows = zip(level.axes, *corners, level.translation, level.scale, strict=True)
    return {
        axis.name: [(low - t) / s + 0.5, (high - t) / s + 0.5] for axis, low, high, t, s in rows
    }


def _cost(state: Resolved) -> str:
    if state.plan is None or state.level is None:
        return ""
    plan = state.plan
    what = f"{count_text(plan.chunks, 'chunk')}, {bytes_text(plan.nbytes)}"
    return f"{box_text(state.level, plan.box)}: {what} before compression"


def _compressions(chosen: str | None) -> list[tuple[str, str]]:
    """Return what can be chosen, and what is, if code chose something else."""
    rows = list(COMPRESSIONS)
    if (chosen or "none") not in dict(rows):
        rows.append((str(chosen), str(chosen).replace(":", " ")))
    return rows


# ---------------------------------------------------------------------- what a browser asks


def fields_asked(state: Resolved, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Intent` that a browser asks to change.

    Parameters
    ----------
    state : Resolved
        What is so far.
    asked : mapping
        Some of ``level``, ``format``, ``compression``, ``extent``, ``skip_empty``, ``folder`` and
        ``target`` (a folder's name in ``folder``; an empty one for a name that is free).

    Raises
    ------
    OptionError
        If one is not among these, or of another kind.
    """
    fields: dict[str, Any] = {}
    for name, value in asked.items():
        kind = {"level": int, "skip_empty": bool}.get(name, str)
        if name not in _ASKED or type(value) is not kind:
            raise OptionError(f"panel: {name} cannot be set to {value!r}; reload the page")
        fields[name] = value
    if "compression" in fields and fields["compression"] == "none":
        fields["compression"] = None
    if "folder" in fields or "target" in fields:
        shown = str(Path(state.target).parent) if state.target else state.intent.folder or ""
        folder = _absolute(fields.get("folder", shown))
        before = Path(state.intent.target).name if state.intent.target is not None else ""
        name = fields.get("target", before).strip()
        fields["folder"] = folder
        fields["target"] = str(Path(folder, name)) if name else None
    return fields


_ASKED = frozenset({"level", "format", "compression", "extent", "skip_empty", "folder", "target"})


def _absolute(folder: str) -> str:
    return os.path.abspath(Path(folder.strip()).expanduser())  # noqa: PTH100 - links stay as typed


def box_asked(level: Level, asked: Mapping[str, Any] | None) -> Box | None:
    """Return the box a browser asks for, in voxels of the source's finest ``level``, clipped.

    Parameters
    ----------
    level : Level
        The source's finest.
    asked : mapping or None
        ``{axis: [start, stop]}``; an axis that is not named is taken whole. None for all.

    Raises
    ------
    BoxError
        If a place is not a number, or nothing of the box lies in the level.
    """
    if asked is None:
        return None
    start, stop = [], []
    for axis, size in zip(level.axes, level.shape, strict=True):
        try:
            low, high = map(int, asked.get(axis.name, (0, size)))
        except (TypeError, ValueError, OverflowError) as error:
            raise BoxError(
                f"box: whole numbers, a start and a stop along {axis.name}, got "
                f"{asked.get(axis.name)!r}"
            ) from error
        start.append(low)
        stop.append(max(low, high))
    box = Box(tuple(start), tuple(stop)).clip(level.shape)
    if box.is_empty:
        raise BoxError(
            f"box {tuple(start)} to {tuple(stop)}: at least one voxel of the source, whose shape "
            f"is {level.shape}; draw or type another"
        )
    return box
