"""Write docs/benchmarks.md and docs/benchmarks.json of what `./dev bench` measured.

    python bench/_report.py RESULTS

RESULTS is a folder with what each benchmark printed, `NAME.md`, and the records of `throughput`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# `queue.py` beside this file must not be taken for the standard library's
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE] + [str(HERE)]

from throughput import PYTHON, table  # noqa: E402

DOCS = HERE.parent / "docs"
TITLES = {
    "throughput": "Writing a box",
    "import": "Beginning",
    "latency": "A viewer's wait while a job runs",
    "waiting": "A viewer's wait beside a job that is all gzip",
    "memory": "Peak memory of a job",
    "queue": "The queue by itself",
    "formats": "Formats, shards and pyramids",
    "onnx": "Models",
    "stall": "Moving through a live layer",
    "notebook": "The notebook panel",
    "crash": "Killed jobs",
}
OURS = ("napari-materialize", "numpy", "scipy", "deflate", "numcodecs", "zarr", "onnxruntime-gpu")
PEERS = ("chunkmirage", "tensorstore", "zarrista", "ngff-zarr", "zarr", "dask")


def processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def versions(names: tuple[str, ...], python: str) -> dict[str, str]:
    """Return the versions of distributions, as an interpreter has them."""
    code = (
        "import json, sys; from importlib.metadata import version; "
        "print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
    )
    command = [python, "-c", code, *names]
    done = subprocess.run(command, capture_output=True, check=False)
    found: dict[str, str] = json.loads(done.stdout or "{}")
    return found


def machine() -> dict[str, Any]:
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "ours": versions(OURS, sys.executable),
        "peers": versions(PEERS, str(PYTHON)) if PYTHON.exists() else {},
    }


def named(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in found.items())


def main() -> None:
    results = Path(sys.argv[1])
    about = machine()
    lines = [
        "# Benchmarks",
        "",
        "Written by `./dev bench`. Compare ratios, not numbers: `bench/README.md` says how to read",
        "each table, and what the limit is.",
        "",
        f"Machine: {about['processor']}, {about['cores']} cores, {about['system']}, Python "
        f"{about['python']}.",
        f"Ours: {named(about['ours'])}. Peers: {named(about['peers']) or 'none'}.",
        "",
    ]
    remarks = HERE / "remarks.md"  # written by hand, of the run that the page is of
    if remarks.exists():
        lines += [remarks.read_text().strip(), ""]
    document: dict[str, Any] = {"machine": about}
    for name, title in TITLES.items():
        records = results / f"{name}.json"
        if records.exists():
            document[name] = json.loads(records.read_text())
        printed = results / f"{name}.md"
        text = printed.read_text().strip() if printed.exists() else ""
        if name == "throughput" and records.exists():
            text = table(document[name])
        if text:
            lines += [f"## {title}", "", f"`./dev bench {name}`", "", text, ""]
    (DOCS / "benchmarks.md").write_text("\n".join(lines))
    (DOCS / "benchmarks.json").write_text(json.dumps(document, indent=1) + "\n")
    print(f"written: docs/benchmarks.md, of napari-materialize {version('napari-materialize')}")


if __name__ == "__main__":
    main()
