"""What it costs to begin: importing, `--help`, and the first chunk on the disk.

    ./dev bench import [--rounds N]

Every figure is of a process of its own, the median of the rounds with the spread; all take turns.
Python's compiled files are there, as they are after a first start. *The first chunk* is the time
from starting `napari-materialize run` to a chunk's file under its name, gzip, of a local zarr array
of 256^3 in chunks of 64^3. Rules: importing at most 0.15 s more than numpy, help within 0.5 s, the
first chunk within 1.5 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# `queue.py` beside this file must not be taken for the standard library's
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE] + [str(HERE)]

from _cases import Case, make_source  # noqa: E402

PROGRAM = str(Path(sys.executable).with_name("napari-materialize"))
POLL = 0.001
LONGEST = 60.0


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def whole(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment())
    return time.perf_counter() - began


def first_chunk(source: Path, folder: Path, ops: list[str]) -> float:
    out = folder / f"out-{time.monotonic_ns()}"
    command = [PROGRAM, "run", str(source), str(out), *ops]
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
    ) as process:
        while not list(out.glob("0/[0-9]*/*/[0-9]*")):
            if time.perf_counter() - began > LONGEST or process.poll():
                process.kill()
                raise RuntimeError(f"no chunk came of {' '.join(command)}")
            time.sleep(POLL)
        seconds = time.perf_counter() - began
        process.wait()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--into", type=Path, help="a JSON file for what was measured")
    asked = parser.parse_args()
    python = [sys.executable, "-c"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = make_source(Case("", shape=(256, 256, 256)), folder)
        smooth = ["--op", "gaussian:sigma=1.5"]
        ways = {
            "python -c pass": lambda: whole([*python, "pass"]),
            "import numpy": lambda: whole([*python, "import numpy"]),
            "import napari_materialize": lambda: whole([*python, "import napari_materialize"]),
            "both": lambda: whole([*python, "import numpy, napari_materialize"]),
            "napari-materialize --help": lambda: whole([PROGRAM, "--help"]),
            "first chunk, no op": lambda: first_chunk(source, folder, []),
            "first chunk, gaussian": lambda: first_chunk(source, folder, smooth),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(asked.rounds + 1):
            for what, way in ways.items():
                seconds = way()
                if number:  # the first time compiles and fills the disk's cache
                    found[what].append(seconds)
    print("| from the start of the process | s | least to most |")
    print("| --- | ---: | ---: |")
    for name, values in found.items():
        middle = statistics.median(values)
        print(f"| {name} | {middle:.2f} | {min(values):.2f} to {max(values):.2f} |")
    extra = [b - a for a, b in zip(found["import numpy"], found["both"], strict=True)]
    print(f"\nImporting napari_materialize after numpy: {statistics.median(extra):.3f} s")
    if asked.into is not None:
        asked.into.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
