"""Space and time before a job runs: what ``run --estimate`` tells, and a warning where it is tight.

Owns what is said on the command line. What a job takes is found out in `estimate`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from napari_materialize.cli.outcome import DONE, Report, complain, say

if TYPE_CHECKING:
    from napari_materialize.engine import Engine
    from napari_materialize.plan import Plan

__all__ = ["tell_estimate", "warn_if_tight"]


def tell_estimate(engine: Engine, plan: Plan, as_json: bool, report: Report) -> int:
    """Say what a job would take, and write nothing."""
    from napari_materialize.estimate import estimate_plan

    found = estimate_plan(engine, plan)
    report |= {"status": "estimated", **asdict(found), "fits": found.fits}
    say(found.sentence, err=as_json)
    return DONE


def warn_if_tight(engine: Engine, plan: Plan) -> None:
    """Say so if what will be written may not fit; measured only where that is not plain."""
    from napari_materialize.estimate import estimate_plan, may_be_tight

    if may_be_tight(plan):
        found = estimate_plan(engine, plan)
        if found.fits is False:
            complain(f"warning: {found.sentence}")
