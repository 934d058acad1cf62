"""Our own ways to a case: in process, and by the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _cases import LOW, SIGMA

if TYPE_CHECKING:
    from _cases import Case

SPECS = {"none": [], "threshold": [f"threshold:low={LOW}"], "gaussian": [f"gaussian:sigma={SIGMA}"]}


def options(case: Case) -> dict[str, Any]:
    return {"format": case.format, "compression": case.compression, "shards": case.shards}


def ours(case: Case, source: Path, out: Path) -> None:
    """Open, write and close, in this process."""
    import napari_materialize as nm

    nm.materialize(str(source), str(out), ops=SPECS[case.op], **options(case))


def command_line(case: Case, source: Path, out: Path) -> None:
    """Run `napari-materialize run`: with starting Python and importing."""
    program = Path(sys.executable).with_name("napari-materialize")
    command = [str(program), "run", str(source), str(out)]
    for spec in SPECS[case.op]:
        command += ["--op", spec]
    command += ["--format", case.format, "--compression", case.compression]
    if case.shards:
        command += ["--shards", ",".join(map(str, case.shards))]
    subprocess.run(command, check=True, capture_output=True)
