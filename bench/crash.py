"""Kill jobs at random moments, harm what they left, and see whether going on makes it whole.

Each run is a process of its own that writes a small image and is killed with SIGKILL. What it left
must open and validate, and read as the image or as fill and nothing else. Of some runs chunk files
are then cut off, emptied or exchanged. Then the job goes on, is perhaps killed again, and in the
end every file must equal that of a run that nobody killed, byte for byte, but for the times in the
record; and no more chunks may have been computed again than were unfinished or harmed, and as many
as run at a time.

Then pairs of processes are started at once on one target, for the same box, for two boxes, or to
begin anew: one of them is refused with a sentence, or what both wrote is right, and there is never
a chunk that is neither right nor fill.

    python bench/crash.py [--runs 240] [--pairs 50] [--seed 1]

Prints counts, and the first runs that went wrong; ends with 1 if there are any.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

# `queue.py` beside this file must not be taken for the standard library's.
sys.path = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

import google_crc32c  # noqa: E402, F401 - loaded once, before processes are forked
import numcodecs  # noqa: E402, F401
import numpy as np  # noqa: E402
import tensorstore  # noqa: E402
import yaozarrs  # noqa: E402
import zarr  # noqa: E402, F401
from isal import isal_zlib  # noqa: E402, F401

import napari_materialize as nm  # noqa: E402
from napari_materialize import job, once, recipe, sources  # noqa: E402, F401

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPE, CHUNKS, SLOTS = (48, 60, 64), (16, 16, 16), 3
RECORD = "napari_materialize"
JOURNAL = ".napari-materialize-journal"

CASES: dict[str, dict[str, Any]] = {
    "zarr2": {"format": "zarr2"},
    "zarr2 keep empty, none": {"skip_empty": False, "compression": None},
    "zarr2 pyramid": {"pyramid": 2},
    "zarr3": {"format": "zarr3", "compression": "zstd"},
    "zarr3 shards": {"format": "zarr3", "shards": (2, 2, 2)},
    "zarr3 shards pyramid": {"format": "zarr3", "shards": (2, 2, 2), "pyramid": 2},
    "n5": {"format": "n5"},
    "n5 pyramid": {"format": "n5", "pyramid": "auto", "compression": "blosc"},
    "a box of its own, pyramid": {
        "extent": "box",
        "box": nm.Box((5, 7, 9), (45, 60, 50)),
        "pyramid": 1,
    },
    "channels": {"channels": True, "format": "zarr3"},
}

COUNTER = mmap.mmap(-1, 8)
"""Calls of the op, in whichever process."""


def _count() -> ctypes.c_long:
    return ctypes.c_long.from_buffer(COUNTER)


def slow(block: np.ndarray) -> np.ndarray:
    """Take a moment, so that there are moments to be killed in."""
    libc_add = _count()
    libc_add.value += 1  # one process at a time, and the interpreter's lock in it
    time.sleep(0.002)
    return 255 - block


def stacked(block: np.ndarray) -> np.ndarray:
    """Make a float image."""
    return slow(block).astype("f4") / 3


def open_case(source: Path, case: dict[str, Any]) -> tuple[nm.View, dict[str, Any]]:
    options = dict(case)
    function, dtype = slow, "uint8"
    if options.pop("channels", False):
        function, dtype = stacked, "float32"
    op = nm.ops.Function(function, dtype=dtype, name=function.__name__, version="1")
    return nm.open_view(source, [op]), options


def write(source: Path, target: Path, case: dict[str, Any], existing: str) -> None:
    view, options = open_case(source, case)
    with nm.Engine(SLOTS, nice=0) as engine:
        engine.materialize(view, target, existing=existing, **options)


def in_child(work: Callable[[], None]) -> int:
    """Fork a process that does something and ends; return its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - told, and told the parent by the code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def plain(path: str, data: bytes) -> Any:
    """Return a file's content, without the times and counts of a record."""
    if path.rpartition("/")[2] not in (".zattrs", ".zmetadata", "zarr.json", "attributes.json"):
        return data

    def strip(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kept = {key: strip(each) for key, each in value.items()}
        if RECORD in kept:
            for name in ("started", "ended", "counts"):
                kept[RECORD].pop(name, None)
        return kept

    return strip(json.loads(data))


def is_chunk(path: str) -> bool:
    return path.rpartition("/")[2].isdecimal()


# ---------------------------------------------------------------------- what a killed job left


def check_readable(target: Path, reference: Path, name: str) -> None:
    """Raise unless what is there opens, validates, and reads as the reference or as fill."""
    driver = {"zarr2": "zarr", "zarr3": "zarr3", "n5": "n5"}[CASES[name].get("format", "zarr2")]
    if driver != "n5":
        yaozarrs.validate_zarr_store(str(target))
    nm.open_view(target)
    levels = sorted(path.name for path in reference.iterdir() if path.is_dir())
    for level in levels:
        pair = []
        for folder in (target, reference):
            spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{folder}/{level}/"}}
            pair.append(tensorstore.open(spec, read=True).result().read().result())
        got, whole = pair
        if not ((got == whole) | (got == 0)).all():
            raise AssertionError(f"level {level} holds voxels that are neither right nor fill")


def documents_there(target: Path, reference: Path) -> bool:
    names = [path for path in files(reference) if not is_chunk(path)]
    return all((target / name).exists() for name in names)


def settled(target: Path, reference: dict[str, bytes]) -> tuple[set[str], int]:
    """Return the chunk files that are right, and how many empty ones of level 0 are known."""
    right = {
        path
        for path, data in reference.items()
        if is_chunk(path) and (target / path).exists() and (target / path).read_bytes() == data
    }
    journal = target / JOURNAL
    lines = journal.read_bytes().split(b"\n") if journal.exists() else []
    return right, len({line.split(b" ")[2] for line in lines if line.startswith(b"e 0 ")})


def harm(target: Path, chance: random.Random) -> str:
    """Cut off, empty, or exchange chunk files; return what was done."""
    there = sorted(path for path in files(target) if is_chunk(path))
    if len(there) < 2:
        return "nothing to harm"
    kind = chance.choice(["cut off", "emptied", "exchanged", "removed", "garbage"])
    for path in chance.sample(there, min(len(there), chance.randint(1, 3))):
        place = target / path
        if not place.exists():
            continue
        data = place.read_bytes()
        if kind == "cut off":
            place.write_bytes(data[: chance.randint(0, max(len(data) - 1, 0))])
        elif kind == "emptied":
            place.write_bytes(b"")
        elif kind == "removed":
            place.unlink()
        elif kind == "garbage":
            place.write_bytes(bytes(len(data)))
        else:
            other = target / chance.choice(there)
            if other.exists():
                more = other.read_bytes()
                other.write_bytes(data)
                place.write_bytes(more)
    return kind


# ---------------------------------------------------------------------- one run


class Case:
    """One way to write, and what comes of it when nobody disturbs."""

    def __init__(self, root: Path, source: Path, name: str) -> None:
        self.name, self.source, self.options = name, source, CASES[name]
        self.reference = root / f"reference {name}"
        began = time.perf_counter()
        if wait(in_child(lambda: write(source, self.reference, self.options, "error"))):
            raise SystemExit(f"{name}: the undisturbed run failed")
        self.seconds = time.perf_counter() - began
        self.files = files(self.reference)
        self.plain = {path: plain(path, data) for path, data in self.files.items()}

    def run(self, target: Path, chance: random.Random, counts: Counter[str]) -> None:
        """Kill, look, harm, go on; raise AssertionError if anything is not as it has to be."""
        for _ in range(chance.choice([1, 1, 2, 3])):
            existing = "resume" if target.exists() else chance.choice(["resume", "error"])
            pid = in_child(lambda e=existing: write(self.source, target, self.options, e))
            time.sleep(chance.uniform(0, self.seconds))
            os.kill(pid, signal.SIGKILL)
            code = wait(pid)
            counts["killed" if code == -signal.SIGKILL else "were faster"] += 1
            if code not in (0, -signal.SIGKILL):
                raise AssertionError(f"going on failed with {code}")
        if not target.exists():
            counts["nothing there yet"] += 1
        elif documents_there(target, self.reference):
            counts["opened and validated"] += 1
            if wait(in_child(lambda: check_readable(target, self.reference, self.name))):
                raise AssertionError("what is left is not readable, valid, or right")
        else:
            counts["before the metadata"] += 1
        if chance.random() < 0.4:
            counts[f"harmed: {harm(target, chance)}"] += 1
        self.go_on(target, counts)

    def go_on(self, target: Path, counts: Counter[str]) -> None:
        """Let the job go on to its end, and compare."""
        right, empty = settled(target, self.files)
        level = next(path for path in self.files if is_chunk(path)).split("/")[0]
        done = sum(path.startswith(f"{level}/") for path in right) + empty
        before = _count().value
        if wait(in_child(lambda: write(self.source, target, self.options, "resume"))):
            raise AssertionError("going on failed")
        again = _count().value - before
        counts["computed in the end"] += again
        if "shards" not in self.options and "extent" not in self.options:
            total = int(np.prod([-(-n // c) for n, c in zip(SHAPE, CHUNKS, strict=True)]))
            unfinished = total - done
            counts["of them needed"] += unfinished
            if again > unfinished + SLOTS:
                raise AssertionError(f"{again} chunks computed, {unfinished} were unfinished")
        got = {path: plain(path, data) for path, data in files(target).items()}
        if got != self.plain:
            odd = sorted(p for p in {*got, *self.plain} if got.get(p) != self.plain.get(p))
            raise AssertionError(f"differs from the undisturbed run: {odd[:6]}")
        counts["equal in the end"] += 1


# ---------------------------------------------------------------------- two at once

HALVES = (nm.Box((0, 0, 0), (32, 60, 64)), nm.Box((32, 0, 0), (48, 60, 64)))
WHOLE = nm.Box((0, 0, 0), SHAPE)
REFUSED = 7

PAIRS: dict[str, tuple[tuple[nm.Box, nm.Box], str]] = {
    "two boxes": (HALVES, "add"),
    "one box": ((WHOLE, WHOLE), "resume"),
    "error": ((WHOLE, WHOLE), "error"),
    "overwrite": ((WHOLE, WHOLE), "overwrite"),
    "boxes that overlap": ((WHOLE, HALVES[0]), "add"),
}
"""What two processes ask for, and how they take what is there."""

PAIR_FORMATS = ("zarr2", "zarr3", "zarr3 shards", "n5", "zarr2 pyramid")


def one_of_two(gate: int, wait: float, work: Callable[[], None]) -> None:
    """Wait until both may start, and end with `REFUSED` if it is refused in a sentence."""
    os.read(gate, 1)
    time.sleep(wait)
    try:
        work()
    except nm.errors.TargetError as error:
        if "\n" in str(error):
            raise AssertionError(f"not one sentence: {error}") from error
        sys.stderr.flush()
        os._exit(REFUSED)


def pair(case: Case, target: Path, kind: str, chance: random.Random, counts: Counter[str]) -> None:
    """Start two at once; raise AssertionError unless what is left is right and whole."""
    boxes, existing = PAIRS[kind]
    gate, opens = os.pipe()
    waits = [0.0, chance.choice([0.0, chance.uniform(0, 2 * case.seconds)])]
    pids = []
    for box, wait_for in zip(boxes, waits, strict=True):
        options = case.options | {"box": box}
        work = lambda o=options: write(case.source, target, o, existing)  # noqa: E731
        pids.append(in_child(lambda w=work, s=wait_for: one_of_two(gate, s, w)))
    os.write(opens, b"12")
    codes = [wait(pid) for pid in pids]
    os.close(gate)
    os.close(opens)
    if not set(codes) <= {0, REFUSED} or 0 not in codes:
        raise AssertionError(f"they ended with {codes}")
    counts["pairs: one refused" if REFUSED in codes else "pairs: both done"] += 1
    if any(name in path for path in files(target) for name in (JOURNAL, "materialize-")):
        raise AssertionError("a journal, a lock or half a file is left")
    if wait(in_child(lambda: check_readable(target, case.reference, case.name))):
        raise AssertionError("what is left is not readable, valid, or right")
    done = [box for box, code in zip(boxes, codes, strict=True) if code == 0]
    if wait(in_child(lambda: check_whole(target, case, done))):
        raise AssertionError("what somebody was told to be done is not there")
    counts[f"pairs: {kind}"] += 1


def check_whole(target: Path, case: Case, boxes: list[nm.Box]) -> None:
    """Raise unless the voxels of every box that was done are there."""
    with nm.Engine(1, nice=0) as engine:
        got, right = (
            np.asarray(engine.array(nm.open_view(folder))[:]) for folder in (target, case.reference)
        )
    for box in boxes:
        np.testing.assert_array_equal(got[box.slices], right[box.slices])


def two_at_once(
    cases: dict[str, Case], root: Path, number: int, chance: random.Random, counts: Counter[str]
) -> list[str]:
    """Start pairs; return what went wrong."""
    wrong, kinds = [], list(PAIRS)
    for at in range(number):
        kind = kinds[at % len(kinds)]
        case = cases[PAIR_FORMATS[at // len(kinds) % len(PAIR_FORMATS)]]
        target = root / f"pair {at}"
        try:
            pair(case, target, kind, chance, counts)
        except AssertionError as error:
            wrong.append(f"pair {at}, {kind}, {case.name}: {error}")
        shutil.rmtree(target, ignore_errors=True)
    return wrong


def make_source(path: Path) -> None:
    voxels = np.random.default_rng(3).integers(0, 250, SHAPE).astype("u1")
    voxels[:16, :32] = 255  # empty once inverted
    view = nm.open_view(voxels, chunks=CHUNKS, scale=(4, 2, 2), units="nanometer")
    nm.materialize(view, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=240)
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance, counts, wrong = random.Random(asked.seed), Counter[str](), []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source = root / "source.zarr"
        wait(in_child(lambda: make_source(source)))
        cases = [Case(root, source, name) for name in CASES]
        began = time.perf_counter()
        for number in range(asked.runs):
            case, target = cases[number % len(cases)], root / f"run {number}"
            try:
                case.run(target, chance, counts)
            except AssertionError as error:
                wrong.append(f"run {number}, {case.name}: {error}")
            shutil.rmtree(target, ignore_errors=True)
            counts[f"runs: {case.name}"] += 1
        named = {each.name: each for each in cases}
        wrong += two_at_once(named, root, asked.pairs, chance, counts)
        seconds = time.perf_counter() - began
    for what, count in sorted(counts.items()):
        print(f"{count:6}  {what}")
    print(f"{asked.runs} runs and {asked.pairs} pairs in {seconds:.0f} s, {len(wrong)} went wrong")
    for line in wrong[:20]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
