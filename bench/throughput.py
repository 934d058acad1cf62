"""How fast a box is written: this project, its peers, and the limit of the machine.

    ./dev bench throughput [--rounds N] [--side VOXELS] [--only ROW] [--systems NAMES] [--into F]

Every way runs in a process of its own, which imports what it needs in a small run before; its
voxels are compared with the op on the whole array. Then they take turns, round after round, on the
same image of blobs and noise, and what is told is the median and the spread of the rounds. *The
limit* is `_limit.py`: a loop with threads around the same codec and the same op. Peers run where
`./dev bench` made them an environment; without one only ours and the limit are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
# `queue.py` beside this file must not be taken for the standard library's
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE] + [str(HERE)]

import numpy as np  # noqa: E402

from _cases import LOW, SIGMA, Case, cases, make_source  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = ("ours", "limit", "command line")
COMMAND = "chunkmirage's command line"
PEERS = ("chunkmirage", COMMAND, "tensorstore", "zarrista", "ngff-zarr", "zarr-python", "dask")
SLOW = ("ngff-zarr", "zarr-python", "dask")
PYTHON = HERE.parent / ".dev" / "peers" / "bin" / "python"


def environment() -> dict[str, str]:
    """Return this process's, in which Python keeps what it compiled, as after an installation."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"OMP_NUM_THREADS": "1"}


class Child:
    """One way, in a process of its own."""

    def __init__(self, name: str, log: Path) -> None:
        python = sys.executable if name in OURS else str(PYTHON)
        self.name, self.log = name, log.open("a")
        self.process = subprocess.Popen(
            [python, str(HERE / "_worker.py"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment(),
        )

    def run(self, case: Case, source: Path, out: Path) -> dict[str, Any]:
        """Run a case once; return what the process tells."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        told = {"case": case.to_json(), "source": str(source), "out": str(out)}
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            return {"error": f"{self.name} ended; {self.log.name} says why"}
        found: dict[str, Any] = json.loads(answer)
        return found

    def end(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.log.close()


def small(case: Case) -> Case:
    """Return the same case on an image of 2 to 4 chunks along each axis."""
    shape = tuple(
        min(total, max(2 * n, 96)) for n, total in zip(case.chunks, case.shape, strict=True)
    )
    return replace(case, shape=(16, *shape[1:]) if case.chunks[0] == 1 else shape)


def expected(case: Case, source: Path) -> np.ndarray:
    """Return the op on the whole array."""
    import zarr
    from scipy.ndimage import gaussian_filter

    image = np.asarray(zarr.open_array(source, mode="r")[...])
    if case.op == "threshold":
        return (image >= LOW).view("u1")
    if case.op == "gaussian":
        smooth = gaussian_filter(image.astype("f4"), SIGMA, truncate=4, mode="nearest")
        return np.rint(smooth).astype("u1")
    return image


def stored(case: Case, out: Path) -> np.ndarray:
    """Read what was written, by whom it was not."""
    if case.format == "n5":
        import tensorstore

        (place,) = (path.parent for path in out.rglob("attributes.json") if _is_n5(path))
        spec = {"driver": "n5", "kvstore": {"driver": "file", "path": str(place)}}
        return np.asarray(tensorstore.open(spec).result().read().result()).transpose()
    import zarr

    found = [path.parent for path in out.rglob(".zarray")]
    found += [
        path.parent
        for path in out.rglob("zarr.json")
        if json.loads(path.read_text())["node_type"] == "array"
    ]
    (place,) = found
    return np.asarray(zarr.open_array(place, mode="r")[...])


def _is_n5(path: Path) -> bool:
    return "blockSize" in json.loads(path.read_text())


def check(case: Case, name: str, out: Path, wanted: np.ndarray, sizes: dict[str, Any]) -> str:
    """Say what is wrong with a result; nothing if it is right."""
    if name == "limit":  # it writes no documents: but the very same chunks as ours
        mine = sorted(p.stat().st_size for p in out.rglob("*") if p.is_file())
        sizes["limit"] = mine
        return ""
    try:
        found = stored(case, out)
    except Exception as error:  # noqa: BLE001 - told in the row
        return f"cannot be read: {error}"
    if found.shape != wanted.shape:
        return f"shape {found.shape}"
    away = int(np.abs(found.astype(int) - wanted.astype(int)).max())
    allowed = 0 if name in OURS or case.op != "gaussian" else 1
    return "" if away <= allowed else f"voxels differ by up to {away}"


def measure(
    chosen: list[Case], systems: list[str], rounds: int, folder: Path, log: Path
) -> Iterator[dict[str, Any]]:
    """Walk the runs, a record for each."""
    begun = int(time.time())
    children = {name: Child(name, log) for name in systems}
    try:
        for case in chosen:
            source, out = make_source(case, folder), folder / "out"
            tiny = small(case)
            wanted = expected(tiny, make_source(tiny, folder))
            going, sizes = {}, {}
            for name, child in children.items():
                found = child.run(tiny, make_source(tiny, folder), out)
                wrong = found.get("error") or check(tiny, name, out, wanted, sizes)
                if wrong:
                    print(f"   {case.name}, {name}: {wrong}", file=sys.stderr, flush=True)
                else:
                    going[name] = child
                shutil.rmtree(out, ignore_errors=True)
            for number in range(rounds):
                # in turns, and not always the same one after the same
                order = list(going.values())
                for child in order[number % 2 :] + order[: number % 2]:
                    found = child.run(case, source, out)
                    if "error" in found:  # its text names folders of this machine
                        print(f"   {case.name}, {child.name}: {found['error']}", file=sys.stderr)
                        found = {"error": found["error"].partition(":")[0]}
                    size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
                    shutil.rmtree(out, ignore_errors=True)
                    about = {"case": case.name, "system": child.name, "round": f"{begun}/{number}"}
                    yield {**about, "voxels": case.bytes, "size": size, **found}
    finally:
        for child in children.values():
            child.end()


def rates(
    records: list[dict[str, Any]], case: str, system: str, clock: str = "seconds"
) -> dict[str, float]:
    """Return MB of voxels per second of each round; by wall time, or per CPU second."""
    return {
        each["round"]: each["voxels"] / 1e6 / each[clock]
        for each in records
        if each["case"] == case and each["system"] == system and clock in each
    }


ENDS = (
    "of the limit",
    "of the limit, per CPU second",
    "of chunkmirage",
    "command line, of its command line",
    "of the best peer",
)


def table(records: list[dict[str, Any]]) -> str:
    """Return a Markdown table: rates, and ours against the limit and the peers."""
    columns = [s for s in (*OURS, *PEERS) if any(each["system"] == s for each in records)]
    lines = [
        "| MB of voxels per second | " + " | ".join((*columns, *ENDS)) + " |",
        "| --- |" + " ---: |" * (len(columns) + len(ENDS)),
    ]
    for case in dict.fromkeys(each["case"] for each in records):
        found = {name: rates(records, case, name) for name in columns}
        cpu = [rates(records, case, name, "cpu") for name in ("ours", "limit")]
        best = max(
            (name for name in PEERS if found.get(name)),
            key=lambda name, of=found: statistics.median(of[name].values()),
            default="",
        )
        cells = [_cell(found[name]) for name in columns]
        cells.append(_ratio(found.get("ours"), found.get("limit")))
        cells.append(_ratio(*cpu))
        cells.append(_ratio(found.get("ours"), found.get("chunkmirage")))
        cells.append(_ratio(found.get("command line"), found.get(COMMAND)))
        cells.append(f"{_ratio(found.get('ours'), found[best])} ({best})" if best else "-")
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: dict[str, float]) -> str:
    if not values:
        return "-"
    found = sorted(values.values())
    digits = 1 if found[-1] < 10 else 0
    middle = statistics.median(found)
    return f"{middle:.{digits}f} ({found[0]:.{digits}f} to {found[-1]:.{digits}f})"


def _ratio(ours: dict[str, float] | None, other: dict[str, float] | None) -> str:
    """Return the median of the ratios of the rounds that both took part in."""
    ours, other = ours or {}, other or {}
    pairs = [ours[name] / other[name] for name in ours if name in other]
    return f"{statistics.median(pairs):.2f}" if pairs else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--only", action="append", help="the names of rows; all if left out")
    parser.add_argument("--systems", help="comma-separated; all if left out")
    parser.add_argument("--into", type=Path, help="a JSON file that the records are added to")
    asked = parser.parse_args()
    systems = asked.systems.split(",") if asked.systems else list(OURS + PEERS)
    if not PYTHON.exists():
        left = [name for name in systems if name in PEERS]
        systems = [name for name in systems if name in OURS]
        if left:
            print(f"no peers: {PYTHON} is not there; ./dev bench makes it", file=sys.stderr)
    chosen = [case for case in cases(asked.side) if not asked.only or case.name in asked.only]
    place = HERE.parent / ".dev" / "bench"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as run:
        for made in place.glob("*.zarr"):  # images are made once
            (Path(run) / made.name).symlink_to(made)
        records = []
        if asked.into is not None and asked.into.exists():
            records = json.loads(asked.into.read_text())
        for each in measure(chosen, systems, asked.rounds, Path(run), place / "throughput.log"):
            records.append(each)
            if asked.into is not None:  # what was measured is not lost when a later run fails
                asked.into.write_text(json.dumps(records, indent=0))
        for made in Path(run).glob("*.zarr"):
            if not made.is_symlink():
                made.rename(place / made.name)
    print(table(records))


if __name__ == "__main__":
    main()
