"""What a person at a panel is doing: source, ops, box, target, and the job that follows from them.

Owns the one state that every panel shows. It draws nothing and knows no Qt, no napari and no
notebook: a panel calls `Session.change`, `Session.run` and `Session.cancel`, shows
`Session.resolved` and `Session.job`, and keeps nothing itself.
"""

from napari_materialize.session._intent import Chain, Intent, follow
from napari_materialize.session._job import Job, JobState, Pace, Progress
from napari_materialize.session._resolve import Corners, Resolved, resolve
from napari_materialize.session._session import Session

__all__ = [
    "Chain",
    "Corners",
    "Intent",
    "Job",
    "JobState",
    "Pace",
    "Progress",
    "Resolved",
    "Session",
    "follow",
    "resolve",
]
