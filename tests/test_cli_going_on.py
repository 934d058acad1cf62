"""``run --existing resume`` and signals: what is said, the exit code, and what is left."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import yaozarrs
import zarr

from napari_materialize import open_view
from napari_materialize.stores._lock import Owner
from terminal import Ended, everything_in, here, ramp, start, write_image
from test_cli import files_of_chunks, record, under_way

type Capture = pytest.CaptureFixture[str]

OP = ("--op", "invert", "--level", "0")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """A working directory with ``image.zarr`` and its result ``out.zarr``; returns the result."""
    monkeypatch.chdir(tmp_path)
    voxels = ramp(16, 16, 16) | 1
    write_image(Path("image.zarr"), [voxels], (8, 8, 8))
    return 255 - voxels


@pytest.fixture
def finished(place: np.ndarray, capfd: Capture) -> np.ndarray:
    assert here(capfd, "run", "image.zarr", "out.zarr", *OP).code == 0
    return place


def resume(capfd: Capture, *more: str, existing: str = "resume") -> Ended:
    return here(
        capfd, "run", "image.zarr", "out.zarr", *(more or OP), "--existing", existing, "--json"
    )


def untouched() -> dict[str, tuple[int, ...]]:
    """Return what is there; a folder's time tells that a clock was asked by a file in it."""
    found = everything_in(Path.cwd())
    return {path: told[:2] if Path(path).is_dir() else told for path, told in found.items()}


def refused(capfd: Capture, told: str, *more: str, existing: str = "resume") -> None:
    before = untouched()
    ended = resume(capfd, *more, existing=existing)
    assert ended.code == 2
    assert re.fullmatch(r"napari-materialize: target [^\n]+\n", ended.err), ended.err
    assert re.search(told, ended.err), ended.err
    assert ended.result["status"] == "refused"
    assert untouched() == before


def test_a_finished_store_is_found_done(finished: np.ndarray, capfd: Capture) -> None:
    files = files_of_chunks("out.zarr")
    ended = resume(capfd)
    assert ended.code == 0
    assert (ended.result["written"], ended.result["found"]) == (0, len(files))
    assert f"{len(files)} found done" in ended.err
    assert record(Path("out.zarr"))["status"] == "complete"
    assert here(capfd, "verify", "out.zarr").code == 0


def test_a_damaged_store_is_mended_by_going_on(finished: np.ndarray, capfd: Capture) -> None:
    Path("out.zarr/0/0/1/1").unlink()
    Path("out.zarr/0/1/1/1").write_bytes(b"no")
    other = Path("out.zarr/0/1/0/0")
    other.write_bytes(Path("out.zarr/0/1/0/1").read_bytes())
    assert here(capfd, "verify", "out.zarr").code == 1
    ended = resume(capfd)
    assert ended.code == 0
    assert (ended.result["written"], ended.result["found"]) == (3, 5)
    np.testing.assert_array_equal(zarr.open_group("out.zarr", mode="r")["0"][...], finished)
    assert here(capfd, "verify", "out.zarr").code == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--op", "threshold:low=3", "--level", "0"), "another job.*ops there: .*invert"),
        ((*OP, "--box", "0,0,0:8,8,8"), "another job.*levels and boxes"),
        ((*OP, "--format", "n5"), "another job.*format there: zarr2, here: n5"),
        ((*OP, "--compression", "zstd"), "another job.*compression there"),
    ],
    ids=["view", "box", "format", "compression"],
)
def test_a_store_of_another_job_is_refused(
    options: tuple[str, ...], told: str, finished: np.ndarray, capfd: Capture
) -> None:
    refused(capfd, told, *options)


def test_a_source_that_changed_is_refused(finished: np.ndarray, capfd: Capture) -> None:
    write_image(Path("image.zarr"), [ramp(16, 16, 16)[::-1]], (8, 8, 8))
    refused(capfd, "source or a model has other content")


@pytest.mark.parametrize("existing", ["resume", "add", "overwrite"])
def test_a_store_by_another_tool_is_refused(
    existing: str, place: np.ndarray, capfd: Capture
) -> None:
    write_image(Path("out.zarr"), [place], (8, 8, 8))
    refused(capfd, "did not write.*choose another place", existing=existing)


@pytest.mark.parametrize("existing", ["resume", "add", "overwrite"])
def test_a_store_whose_record_is_no_json_is_refused(
    existing: str, finished: np.ndarray, capfd: Capture
) -> None:
    document = json.loads(Path("out.zarr/.zattrs").read_text())
    document["napari_materialize"]["earlier"] = [{"counts": float("nan")}]
    Path("out.zarr/.zattrs").write_text(json.dumps(document))
    refused(capfd, "did not write", existing=existing)


@pytest.mark.parametrize("existing", ["error", "resume", "add", "overwrite"])
def test_a_job_on_another_machine_is_named(
    existing: str, finished: np.ndarray, capfd: Capture
) -> None:
    """How long ago it gave a sign of life is all that is known of it."""
    me = Owner.me()
    said = {"host": "far", "space": "another", "pid": 7, "started": "", "since": me.since}
    if existing == "error":
        Path("out.zarr").rename("before.zarr")
        Path("out.zarr").mkdir()
    Path("out.zarr/.napari-materialize-job").write_text(json.dumps({**said, "token": "t"}))
    refused(capfd, r"another job writes there .process 7 on far, since 20.*wait", existing=existing)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no signals to one process")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_what_two_signals_leave_is_gone_on_with(
    number: int, tmp_path: Path, capfd: Capture
) -> None:
    """Stopped at once: no lock that counts, nothing half-written, and the rest is made."""
    source, out = tmp_path / "large.zarr", tmp_path / "out.zarr"
    voxels = ramp(16, 256, 256)
    zarr.create_array(source, data=voxels, chunks=(16, 64, 64), compressors=None)
    arguments = ["run", str(source), str(out), "--op", "median:size=5"]
    process = start(*arguments)
    under_way(process, out)
    process.send_signal(number)
    process.send_signal(number)
    told = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in "".join(told)
    assert yaozarrs.validate_zarr_store(out) is not None
    assert open_view(out).levels[0].shape == voxels.shape
    assert not [path for path in out.rglob("*") if "writing" in path.name]
    there = files_of_chunks(out)
    ended = here(capfd, *arguments, "--existing", "resume", "--json")
    assert ended.code == 0
    assert ended.result["found"] >= len(there) - 1
    assert ended.result["found"] + ended.result["written"] == 16
    assert record(out)["status"] == "complete"
    assert here(capfd, "verify", str(out)).code == 0
    assert not [path for path in out.iterdir() if path.name.startswith(".napari")]
