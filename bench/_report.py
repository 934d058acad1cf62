"""Put what `./dev bench` measured into docs/benchmarks.md and docs/benchmarks.json.

    python bench/_report.py RESULTS

RESULTS is a folder with what each benchmark printed, `NAME.md`, the arguments it ran with,
`NAME.args`, and the records of `throughput` and `import`, `NAME.json`. Only the sections of what is
there are renewed, each between its marks; what is written around them by hand stays.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# `queue.py` beside this file must not be taken for the standard library's
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE] + [str(HERE)]

from _cases import cases  # noqa: E402
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
    "journal": "Taking note of every file",
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


def about_line(about: dict[str, Any]) -> str:
    return (
        f"Machine: {about['processor']}, {about['cores']} cores, {about['system']}, Python "
        f"{about['python']}.\n"
        f"Ours: {named(about['ours'])}. Peers: {named(about['peers']) or 'none'}."
    )


def commit() -> str:
    """Return what is checked out, in short; with a plus where files differ from it."""
    command = ["git", "-C", str(HERE), "describe", "--always", "--dirty=+"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def renewed(page: str, name: str, text: str) -> str:
    """Return the page with what stands between a name's marks replaced, or with a new section."""
    begin, end = f"<!-- measured: {name} -->", f"<!-- end of {name} -->"
    block = f"{begin}\n{text.strip()}\n{end}"
    if begin in page:
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        return pattern.sub(lambda _: block, page, count=1)
    return f"{page.rstrip()}\n\n## {TITLES.get(name, name)}\n\n{block}\n"


def rows(text: str) -> list[dict[str, str]]:
    r"""Return the rows of the Markdown tables in a text, by their columns.

    >>> rows("| op | s |\n| --- | ---: |\n| none | 2 |")
    [{'op': 'none', 's': '2'}]
    """
    found: list[dict[str, str]] = []
    names: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            names = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not names:
            names = cells
        elif not all(set(cell) <= set("-: ") for cell in cells):
            found.append(dict(zip(names, cells, strict=False)))
    return found


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of a bench that may run row by row: new rows take the old ones' place."""
    measured = {each["case"] for each in new}
    order = [case.name for case in cases(64)]
    new = [
        {key: round(v, 4) if isinstance(v, float) else v for key, v in each.items()} for each in new
    ]
    every = [each for each in old if each["case"] not in measured] + new
    return sorted(every, key=lambda each: order.index(each["case"]))


def section(results: Path, name: str, document: dict[str, Any]) -> str:
    """Return what is to stand between a name's marks, and put it into the document; or nothing."""
    printed, records = results / f"{name}.md", results / f"{name}.json"
    if not printed.exists():
        return ""
    text, given = printed.read_text().strip(), results / f"{name}.args"
    arguments = given.read_text().strip() if given.exists() else ""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    entry: dict[str, Any] = {"measured": today, "commit": commit(), "arguments": arguments}
    if name == "throughput" and records.exists():
        old = document.get(name, {}).get("records", [])
        entry["records"] = merged(old, json.loads(records.read_text()))
        text = table(entry["records"])
    elif records.exists():
        entry["records"] = json.loads(records.read_text())
    else:
        entry["rows"] = rows(text)
    document[name] = entry
    command = f"./dev bench {name} {arguments}".strip()
    return f"`{command}`, {today}, {entry['commit']}\n\n{text}"


def main() -> None:
    results, about = Path(sys.argv[1]), machine()
    page = (DOCS / "benchmarks.md").read_text()
    document: dict[str, Any] = json.loads((DOCS / "benchmarks.json").read_text())
    document["machine"] = about
    page = renewed(page, "machine", about_line(about))
    for name in TITLES:
        text = section(results, name, document)
        if text:
            page = renewed(page, name, text)
    (DOCS / "benchmarks.md").write_text(page)
    (DOCS / "benchmarks.json").write_text(json.dumps(document, indent=1) + "\n")
    print(f"written: docs/benchmarks.md, of napari-materialize {version('napari-materialize')}")


if __name__ == "__main__":
    main()
