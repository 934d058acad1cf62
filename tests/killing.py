"""Kill a job before each thing that it does to its folder, one after the other, and go on.

    python killing.py FOLDER FORMAT WHAT

Runs as a process of its own: it forks, and what is killed must be one that nobody else needs. Each
job is killed with SIGKILL just before the first, the second, ... file is opened, renamed or
removed or folder is made below its target, until one is not killed. Then the job goes on and must
leave what an undisturbed one leaves. WHAT is ``resume``, ``overwrite`` (something else is there),
``add`` (another box is there) or ``repair`` (files are missing and damaged). Prints JSON: how many
moments there were, and what went wrong at which.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c  # noqa: F401 - loaded once, before processes are forked
import numcodecs  # noqa: F401
import numpy as np
import zarr  # noqa: F401
from isal import isal_zlib  # noqa: F401

import napari_materialize as nm
from napari_materialize import cli, job, once, recipe, sources  # noqa: F401
from napari_materialize.cli import run, verify, watch  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
"""What Python tells of before it is done, and what changes a folder."""

HALVES = (nm.Box((0, 0), (12, 8)), nm.Box((0, 8), (12, 12)))

DOCUMENTS = {".zattrs", ".zmetadata", "zarr.json", "attributes.json"}

FORMATS: dict[str, dict[str, Any]] = {
    "zarr2": {"format": "zarr2", "pyramid": 1},
    "zarr3": {"format": "zarr3", "shards": (2, 2)},
    "n5": {"format": "n5"},
}


def die_before(number: int, target: Path) -> None:
    """Let this process be killed before the change of a number to what is below ``target``."""
    left = number

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event not in CHANGES or not isinstance(arguments[0], str):
            return
        if arguments[0] == str(target) or arguments[0].startswith(f"{target}{os.sep}"):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(heard)


def in_child(work: Callable[[], object]) -> int:
    """Do something in a forked process; return its exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - told, and told the parent by the code
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def content(folder: Path) -> dict[str, Any]:
    """Return what is in a folder, without the times and counts of a record."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    for path, data in found.items():
        if path.rpartition("/")[2] in DOCUMENTS:
            found[path] = without_times(json.loads(data))
    return found


def without_times(value: Any) -> Any:
    """Return a document without what differs from run to run."""
    if not isinstance(value, dict):
        return value
    record = value.get("napari_materialize", {})
    earlier = record.get("earlier", [])
    # who adds a box that is there adds it once more, and both are told
    earlier[:] = [each for each in earlier if each["box"] != record["box"]]
    for each in (record, *earlier):
        for name in ("started", "ended", "counts"):
            each.pop(name, None)
    return {key: without_times(each) for key, each in value.items()}


class Trial:
    """A job that is to be killed: what is there before, what it does, what is there in the end."""

    def __init__(self, folder: Path, format_: str, what: str) -> None:
        self.what, self.options = what, FORMATS[format_]
        self.source = folder / "source.zarr"

    def make_source(self) -> None:
        """Write what is inverted: four chunks, the first of them empty then."""
        voxels = np.random.default_rng(1).integers(1, 250, (12, 12)).astype("u1")
        voxels[:8, :8] = 255
        nm.materialize(nm.open_view(voxels, chunks=(8, 8)), self.source)

    def write(self, target: Path, existing: str, **more: Any) -> None:
        """Write the image that is to be there in the end, or a box of it."""
        view = nm.open_view(self.source, "invert")
        with nm.Engine(1, nice=0) as engine:
            engine.materialize(view, target, existing=existing, **self.options, **more)

    def prepare(self, target: Path) -> None:
        """Make what is there before the job."""
        if self.what == "overwrite":
            nm.materialize(nm.open_view(self.source), target)
        elif self.what == "add":
            self.write(target, "error", box=HALVES[0])
        elif self.what == "repair":
            self.write(target, "error")
            chunks = sorted(
                path for path in target.rglob("*") if path.is_file() and path.name.isdecimal()
            )
            chunks[0].unlink()
            chunks[-1].write_bytes(b"none of ours")

    def work(self, target: Path) -> None:
        """Do what may be killed, or go on with it."""
        if self.what == "repair":
            assert cli.main(["verify", str(target), "--repair"]) == 0
        elif self.what == "add":
            self.write(target, "add", box=HALVES[1])
        else:
            self.write(target, self.what)

    def killed(self, target: Path, moment: int) -> None:
        """Do it, and be killed before a change."""
        die_before(moment, target)
        self.work(target)


def main() -> None:
    folder = Path(sys.argv[1])
    trial = Trial(folder, *sys.argv[2:])
    whole = folder / "whole"
    for step in (trial.make_source, lambda: trial.prepare(whole), lambda: trial.work(whole)):
        assert in_child(step) == 0
    expected, wrong, moments = content(whole), [], 0
    while True:
        target = folder / f"at {moments}"
        assert in_child(lambda to=target: trial.prepare(to)) == 0
        code = in_child(lambda at=moments, to=target: trial.killed(to, at))
        if code != -signal.SIGKILL:
            break
        again = in_child(lambda to=target: trial.work(to))
        left = content(target)
        if trial.what == "repair":  # of what is whole it touches nothing, a dead job's lock neither
            left.pop(".napari-materialize-job", None)
        if again or left != expected:
            odd = sorted(
                path for path in {*left, *expected} if left.get(path) != expected.get(path)
            )
            wrong.append({"moment": moments, "going on": again, "differ": odd})
        shutil.rmtree(target)
        moments += 1
    said = {"moments": moments, "then": code, "wrong": wrong}
    print(json.dumps(said))  # noqa: T201 - read by the test


if __name__ == "__main__":
    main()
