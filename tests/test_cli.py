"""The command line: what its commands do, say and end with. Bad input is in `test_bad_input`."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pytest
import tensorstore
import yaozarrs
import zarr
from scipy import ndimage

import napari_materialize as nm
from napari_materialize.cli.demo import WINDOW
from napari_materialize.cli.outcome import conclude
from napari_materialize.cli.watch import Stop
from terminal import SCRIPT, Ended, apart, here, ramp, start, write_image

if TYPE_CHECKING:
    from collections.abc import Callable

    Capture = pytest.CaptureFixture[str]


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The finest level of ``image.zarr``, an image of two levels in the working directory."""
    monkeypatch.chdir(tmp_path)
    finest = ramp(20, 32, 32)
    write_image(Path("image.zarr"), [finest, finest[::2, ::2, ::2]], (8, 8, 8))
    return finest


def stored(path: str | Path, level: str = "0") -> Any:
    """Return a level as zarr reads it; a path, since zarr takes text for a URL."""
    return zarr.open_group(Path(path), mode="r")[level][...]


def files_of_chunks(path: str | Path) -> dict[str, int]:
    """Return the chunks of a zarr2 store's first level and their sizes."""
    folder = Path(path, "0")
    files = (file for file in folder.rglob("*") if file.name.isdigit() and file.is_file())
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}


# ---------------------------------------------------------------------- what run writes


def test_all_levels_are_written_unless_some_are_named(image: np.ndarray, capfd: Capture) -> None:
    assert here(capfd, "run", "image.zarr", "all.zarr").code == 0
    np.testing.assert_array_equal(stored("all.zarr", "0"), image)
    np.testing.assert_array_equal(stored("all.zarr", "1"), image[::2, ::2, ::2])
    assert here(capfd, "run", "image.zarr", "one.zarr", "--level", "1").code == 0
    np.testing.assert_array_equal(stored("one.zarr"), image[::2, ::2, ::2])
    assert not Path("one.zarr/1").exists()
    yaozarrs.validate_zarr_store("all.zarr")
    yaozarrs.validate_zarr_store("one.zarr")


def test_ops_run_in_their_order(image: np.ndarray, capfd: Capture) -> None:
    ops = ["--op", "gaussian:sigma=0,1,1", "--op", "threshold:low=100,high=140", "--op", "invert"]
    assert here(capfd, "run", "image.zarr", "out.zarr", "--level", "0", *ops).code == 0
    smooth = np.rint(ndimage.gaussian_filter(image.astype("f4"), (0, 1, 1), mode="nearest"))
    expected = 1 - ((smooth >= 100) & (smooth <= 140))  # inverting a mask
    np.testing.assert_array_equal(stored("out.zarr"), expected)


def test_a_box_is_rounded_out_to_chunks_or_kept_exactly(image: np.ndarray, capfd: Capture) -> None:
    box = ["--level", "0", "--box", "1,2,9:9,8,12"]
    done = here(capfd, "run", "image.zarr", "level.zarr", *box, "--json").result
    assert done["box"] == [[0, 0, 8], [16, 8, 16]]
    assert files_of_chunks("level.zarr").keys() == {"0/0/1", "1/0/1"}
    done = here(capfd, "run", "image.zarr", "box.zarr", *box, "--extent", "box", "--json").result
    assert done["box"] == [[1, 2, 9], [9, 8, 12]]
    np.testing.assert_array_equal(stored("box.zarr"), image[1:9, 2:8, 9:12])


def test_a_box_counts_voxels_of_the_level_that_is_said(image: np.ndarray, capfd: Capture) -> None:
    def box_of(*options: str) -> list[list[int]]:
        out = f"out{len(list(Path().iterdir()))}.zarr"
        arguments = ["run", "image.zarr", out, "--extent", "box", "--json", *options]
        found = here(capfd, *arguments).result["box"]
        assert isinstance(found, list)
        return found

    assert box_of("--level", "0", "--box", "8,8:16,24") == [[0, 8, 8], [20, 16, 24]]
    # centres of voxels 0 coincide: a face of level 1 lies in the middle of a voxel of level 0
    assert box_of("--level", "0", "--box", "4,4:8,12", "--box-level", "1") == [
        [0, 7, 7],
        [20, 16, 24],
    ]
    assert box_of("--level", "1", "--box", "4,4:8,12", "--box-level", "1") == [
        [0, 4, 4],
        [10, 8, 12],
    ]


@pytest.mark.parametrize(
    ("text", "box"),
    [
        # scale 4, 2, 2: voxel i covers from (i - 1/2) to (i + 1/2) of its scale
        ("-100,-1,-1:2,1,1", [[0, 0, 0], [1, 1, 1]]),
        ("30,15:62.9,1e3", [[0, 15, 8], [20, 32, 32]]),
        ("-1e9:1e9", [[0, 0, 0], [20, 32, 32]]),
    ],
)
def test_a_world_box_becomes_the_voxels_it_touches(
    text: str, box: list[list[int]], image: np.ndarray, capfd: Capture
) -> None:
    arguments = ["--level", "0", "--world-box", text, "--extent", "box", "--json"]
    ended = here(capfd, "run", "image.zarr", "out.zarr", *arguments)
    assert ended.result["box"] == box
    start_, stop = box
    expected = image[tuple(map(slice, start_, stop))]
    np.testing.assert_array_equal(stored("out.zarr"), expected)


def test_formats_compressions_and_empty_chunks(image: np.ndarray, capfd: Capture) -> None:
    dark = ["--op", "threshold:low=300", "--level", "0"]
    for format_ in ("zarr2", "zarr3"):
        for compression in ("none", "gzip", "zstd:9", "blosc:1"):
            out = f"{format_}-{compression.replace(':', '-')}.zarr"
            options = ["--format", format_, "--compression", compression]
            assert here(capfd, "run", "image.zarr", out, *options).code == 0
            np.testing.assert_array_equal(stored(out), image)
            yaozarrs.validate_zarr_store(out)
    assert here(capfd, "run", "image.zarr", "dark.zarr", *dark, "--json").result["skipped"] == 48
    kept = here(capfd, "run", "image.zarr", "kept.zarr", *dark, "--keep-empty", "--json").result
    assert (kept["skipped"], kept["written"], len(files_of_chunks("kept.zarr"))) == (0, 48, 48)


def test_a_channel_is_selected_before_the_ops(tmp_path: Path, capfd: Capture) -> None:
    channels = ramp(3, 16, 16)
    source = write_image(tmp_path / "rgb.zarr", [channels], (1, 8, 8), "cyx", (1, 1))
    out = tmp_path / "out.zarr"
    ended = here(capfd, "run", str(source), str(out), "--select", "c=2", "--op", "invert")
    assert ended.code == 0
    np.testing.assert_array_equal(stored(out), 255 - channels[2])


def test_the_boundary_is_what_ops_see_past_the_edge(image: np.ndarray, capfd: Capture) -> None:
    for boundary, mode in (("edge", "nearest"), ("zeros", "constant")):
        options = ["--op", "median:size=3", "--boundary", boundary, "--level", "0"]
        assert here(capfd, "run", "image.zarr", f"{boundary}.zarr", *options).code == 0
        expected = ndimage.median_filter(image, 3, mode=mode)
        np.testing.assert_array_equal(stored(f"{boundary}.zarr"), expected)


def test_every_option_at_once_and_urls(image: np.ndarray, capfd: Capture) -> None:
    source, out = Path("image.zarr").resolve().as_uri(), Path("my out.zarr").resolve().as_uri()
    options = """--op cast:dtype=uint16 --level 0 --level 1 --box 0,0,0:9,9,9 --box-level 0
        --extent level --format zarr3 --compression zstd:3 --pyramid 0 --keep-empty
        --existing error --on-error collect --boundary edge --slots 2 --threads 3 --json --debug"""
    ended = here(capfd, "run", source, out, *options.split())
    assert ended.code == 0
    assert ended.result["target"] == str(Path("my out.zarr").resolve())
    assert stored("my out.zarr").dtype == np.uint16
    np.testing.assert_array_equal(stored("my out.zarr")[:16, :16, :16], image[:16, :16, :16])


@pytest.mark.parametrize(
    "name", ["two words.zarr", "Größe µ 図.zarr", "a#b?c%20d.zarr", "-dash.zarr", "line\nbreak"]
)
def test_odd_file_names(name: str, image: np.ndarray, capfd: Capture) -> None:
    Path("image.zarr").rename(name)
    ended = here(capfd, "run", "--level", "1", "--", name, f"out {name}")
    assert (ended.code, ended.out.count("\n"), ended.err) == (0, 1, "")
    np.testing.assert_array_equal(stored(f"out {name}"), image[::2, ::2, ::2])


# ---------------------------------------------------------------------- what run says


def test_the_last_line_says_what_was_done(image: np.ndarray, capfd: Capture) -> None:
    ended = here(capfd, "run", "image.zarr", "out.zarr")
    assert re.fullmatch(
        r"56 of 56 chunks written, \d+\.\d kB in \d+\.\d s \(\d+ chunks/s\): .*/out\.zarr\n",
        ended.out,
    ), ended.out
    assert ended.err == ""


def test_json_is_one_object_in_the_last_line_of_standard_output(image: np.ndarray) -> None:
    arguments = ["--op", "threshold:low=250", "--box", "0,0,0:8,8,16", "--level", "0"]
    ended = apart("run", "image.zarr", "out.zarr", *arguments, "--json")
    assert ended.code == 0
    assert ended.out.count("\n") == 1
    assert ended.err.count("\n") == 1
    seconds = ended.result.pop("seconds")
    assert 0 < seconds < 60
    assert {k: v for k, v in ended.result.items() if k != "seconds"} == {
        "target": str(Path("out.zarr").resolve()),
        "format": "zarr2",
        "levels": [0],
        "box": [[0, 0, 0], [8, 8, 16]],
        "status": "complete",
        "chunks": 2,
        "written": 2,
        "skipped": 0,
        "failed": 0,
        "bytes": sum(files_of_chunks("out.zarr").values()),
        "aborted": False,
        "failures": [],
        "found": 0,
        "notes": [],
    }


def damage(path: Path) -> None:
    assert path.is_file()
    path.write_bytes(b"not a chunk")


def test_a_failing_chunk_stops_the_job(image: np.ndarray, capfd: Capture) -> None:
    damage(Path("image.zarr/0/1/2/3"))
    ended = here(capfd, "run", "image.zarr", "out.zarr", "--level", "0", "--json")
    assert ended.code == 1
    assert re.fullmatch(r"napari-materialize: chunk \(1, 2, 3\) of level 0 .*\n", ended.err)
    assert ended.result["status"] == "failed"
    assert "chunk (1, 2, 3) of level 0" in ended.result["error"]
    assert ended.result["target"] == str(Path("out.zarr").resolve())
    counts = record(Path("out.zarr"))["counts"]
    assert (counts["chunks"], counts["failed"]) == (48, 1)
    assert ended.result.items() >= counts.items()


def test_failing_chunks_are_collected(image: np.ndarray, capfd: Capture) -> None:
    for x in range(4):
        for y in (1, 2):
            damage(Path(f"image.zarr/0/1/{y}/{x}"))
    options = ["--level", "0", "--on-error", "collect", "--json"]
    ended = here(capfd, "run", "image.zarr", "out.zarr", *options)
    assert ended.code == 3
    result = ended.result
    assert (result["status"], result["failed"], result["written"]) == ("complete", 8, 40)
    assert {tuple(each["index"]) for each in result["failures"]} == {
        (1, y, x) for y in (1, 2) for x in range(4)
    }
    lines = ended.err.splitlines()
    assert "40 of 48 chunks written, 8 failed" in lines[0]
    assert len(lines) == 7
    assert all(re.match(r"napari-materialize: chunk \(1, ", line) for line in lines[1:6])
    assert lines[6] == "napari-materialize: and 3 chunks more failed; --json lists all"
    np.testing.assert_array_equal(stored("out.zarr")[16:], image[16:])


def end_with(work: Callable[[dict[str, Any]], int], capfd: Capture, **options: bool) -> Ended:
    """End a command that does ``work``."""
    with pytest.raises(click.exceptions.Exit) as ended:
        conclude(work, **options)
    return Ended(ended.value.exit_code, *capfd.readouterr())


def test_an_unexpected_error_is_one_sentence_too(capfd: Capture) -> None:
    def work(report: dict[str, Any]) -> int:
        report["target"] = "out.zarr"
        raise ZeroDivisionError("in the\nmiddle of it")

    ended = end_with(work, capfd, as_json=True)
    sentence = "unexpected error, ZeroDivisionError: in the middle of it; --debug shows where"
    assert (ended.code, ended.err) == (1, f"napari-materialize: {sentence}\n")
    assert ended.result == {"target": "out.zarr", "status": "failed", "error": sentence}
    ended = end_with(work, capfd, debug=True)
    assert ended.err.startswith("Traceback (most recent call last):\n")
    assert ended.err.endswith(f"napari-materialize: {sentence}\n")
    assert ended.out == ""


def test_a_second_signal_ends_with_that_signals_code(capfd: Capture) -> None:
    def interrupted(report: dict[str, Any]) -> int:
        stop = Stop()
        stop(signal.SIGTERM, None)
        assert stop.event.is_set()
        assert stop.signal == signal.SIGTERM
        stop(signal.SIGTERM, None)
        raise AssertionError("the second one goes on")

    assert end_with(interrupted, capfd).code == 143

    def before_any_job(report: dict[str, Any]) -> int:
        raise KeyboardInterrupt

    ended = end_with(before_any_job, capfd, as_json=True)
    assert (ended.code, ended.result["status"]) == (130, "aborted")
    assert ended.err == "napari-materialize: stopped at once\n"


def test_warnings_are_one_line_each(image: np.ndarray) -> None:
    code = (
        "import sys, warnings\n"
        "from napari_materialize.cli import main, ops\n"
        "from napari_materialize.ops import registry\n"
        "available = registry.available\n"
        "import napari_materialize.ops as package\n"
        "def with_a_warning():\n"
        "    warnings.warn('op x of y is left out:\\n the name is taken')\n"
        "    return available()\n"
        "package.available = with_a_warning\n"
        "sys.exit(main(['ops']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == (
        "napari-materialize: warning: op x of y is left out: the name is taken\n"
    )


# ---------------------------------------------------------------------- stopping


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A job of half a minute, many chunks of a fifth of a second: source and op."""
    path = tmp_path_factory.mktemp("slow") / "large.zarr"
    zarr.create_array(path, data=ramp(64, 512, 512), chunks=(16, 64, 64), compressors=None)
    return str(path), "--op", "median:size=5"


def under_way(process: subprocess.Popen[str], out: Path) -> None:
    """Wait until a job has stored its first chunk."""
    deadline = time.monotonic() + 60
    while not files_of_chunks(out):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)  # there is nothing to wait on: the chunk appears in another process


def record(out: Path) -> dict[str, Any]:
    found = json.loads((out / ".zattrs").read_text())["napari_materialize"]
    assert isinstance(found, dict)
    return found


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no signals to one process")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_aborts(number: int, code: int, slow: tuple[str, ...], tmp_path: Path) -> None:
    source, *op = slow
    out = tmp_path / "out.zarr"
    process = start("run", source, str(out), *op, "--json")
    under_way(process, out)
    process.send_signal(number)
    ended = Ended(-1, *process.communicate(timeout=60))
    assert process.returncode == code
    result = ended.result
    assert (result["status"], result["aborted"], result["failed"]) == ("aborted", True, 0)
    assert 0 < result["written"] < result["chunks"] == 256
    assert re.fullmatch(r"aborted, \d+ of 256 chunks written, .*\n", ended.err), ended.err
    assert record(out)["status"] == "aborted"
    assert len(files_of_chunks(out)) == record(out)["counts"]["written"]
    # what is there reads as it should
    assert yaozarrs.validate_zarr_store(out) is not None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no signals to one process")
def test_a_second_signal_stops_at_once(slow: tuple[str, ...], tmp_path: Path) -> None:
    source, *op = slow
    process = start("run", source, str(tmp_path / "out.zarr"), *op)
    under_way(process, tmp_path / "out.zarr")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in out + err


# ---------------------------------------------------------------------- progress


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """Run the command with a terminal as its standard error; return its code and what it showed."""
    ours, theirs = pty.openpty()
    process = start(*arguments, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown: list[bytes] = []

    def read() -> None:
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # how Linux says that the other end is closed
                return
            if not piece:
                return
            shown.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    process.wait(timeout=120)
    reader.join(timeout=60)
    os.close(ours)
    return process.returncode, b"".join(shown).decode()


def test_a_terminal_shows_a_bar(image: np.ndarray) -> None:
    arguments = ["image.zarr", "out.zarr", "--op", "median:size=5", "--level", "0", "--slots", "2"]
    code, shown = on_a_terminal("run", *arguments)
    assert code == 0
    assert re.search(r"\d+/48 chunks  \d+\.\d chunks/s  \d+\.\d MB/s  \d+:\d\d left", shown), shown
    assert "48/48 chunks" in shown


def test_without_a_terminal_there_is_no_bar(image: np.ndarray) -> None:
    ended = apart("run", "image.zarr", "out.zarr")
    assert (ended.code, ended.err, ended.out.count("\n")) == (0, "", 1)


# ---------------------------------------------------------------------- info, ops, help


def test_info_says_what_an_image_is(image: np.ndarray, capfd: Capture) -> None:
    ended = here(capfd, "info", "image.zarr")
    assert ended.code == 0
    assert "ome-zarr 0.4 (zarr v2)" in ended.out
    assert "z (micrometer), y (micrometer), x (micrometer)" in ended.out
    assert re.search(r"^0 +20 x 32 x 32 +8 x 8 x 8 +uint8 +4, 2, 2 +0, 0, 0", ended.out, re.M)
    assert re.search(r"^1 +10 x 16 x 16 +8 x 8 x 8 +uint8 +8, 4, 4", ended.out, re.M)
    assert "made by" not in ended.out


def test_info_counts_the_chunks_of_a_shard(image: np.ndarray, capfd: Capture) -> None:
    options = ("--format", "zarr3", "--shards", "2,1,2", "--level", "0")
    assert here(capfd, "run", "image.zarr", "sharded.zarr", *options).code == 0
    ended = here(capfd, "info", "sharded.zarr", "--op", "threshold:low=9")
    assert "gzip:6; in shards of 2 x 1 x 2 chunks (16 x 8 x 16 voxels)" in ended.out
    (stored,) = here(capfd, "info", "sharded.zarr", "--json").result["storage"]
    assert (stored["shards"], stored["chunks_per_shard"]) == ([16, 8, 16], [2, 1, 2])


def test_info_as_json(image: np.ndarray, capfd: Capture) -> None:
    found = here(capfd, "info", "image.zarr", "--op", "threshold:low=9", "--json").result
    assert found["kind"] == "mask"
    assert found["ops"] == ["threshold:low=9"]
    assert found["record"] is None
    assert found["source"]["location"] == str(Path("image.zarr").resolve())
    assert found["axes"][0] == {"name": "z", "type": "space", "unit": "micrometer"}
    assert found["levels"][1] == {
        "shape": [10, 16, 16],
        "dtype": "uint8",
        "chunks": [8, 8, 8],
        "scale": [8.0, 4.0, 4.0],
        "translation": [0.0, 0.0, 0.0],
        "fill": 0,
        "bytes": 2560,
    }
    assert found["identity"] == nm.open_view("image.zarr", ["threshold:low=9"]).identity


def test_info_of_an_array_whose_fill_is_not_a_number(tmp_path: Path, capfd: Capture) -> None:
    path = tmp_path / "nan.zarr"
    zarr.create_array(path, shape=(8, 8), chunks=(4, 4), dtype="f4", fill_value=np.nan)
    found = here(capfd, "info", str(path), "--json").result
    assert (found["levels"][0]["fill"], found["levels"][0]["dtype"]) == ("nan", "float32")
    assert "zarr (zarr v3)" in here(capfd, "info", str(path)).out


@pytest.mark.parametrize("format_", ["zarr2", "zarr3"])
def test_info_of_a_result_says_what_made_it(
    format_: str, image: np.ndarray, capfd: Capture
) -> None:
    options = ["--op", "gaussian:sigma=1", "--op", "invert", "--format", format_]
    assert here(capfd, "run", "image.zarr", "out.zarr", *options).code == 0
    ended = here(capfd, "info", "out.zarr", "--json")
    made = ended.result["record"]
    assert [op["name"] for op in made["view"]["ops"]] == ["gaussian", "invert"]
    assert (made["status"], made["counts"]["written"]) == ("complete", 56)
    text = here(capfd, "info", "out.zarr").out
    assert f"napari-materialize {nm.__version__}, through gaussian, invert; complete" in text


def test_ops_lists_every_op_with_its_parameters(capfd: Capture) -> None:
    ended = here(capfd, "ops")
    assert ended.code == 0
    found = here(capfd, "ops", "--json").result["ops"]
    assert [op["name"] for op in found] == list(nm.ops.available())
    for op in found:
        assert re.search(rf"^{op['name']}: \S", ended.out, re.M)
        described = nm.ops.describe_parameters(nm.ops.available()[op["name"]])
        assert [p["name"] for p in op["parameters"]] == [p.name for p in described]
        for parameter in op["parameters"]:
            assert re.search(rf"^    {parameter['name']} +\S", ended.out, re.M)
    [sigma, dtype] = next(op for op in found if op["name"] == "gaussian")["parameters"]
    assert (sigma["type"], sigma["required"]) == ("number or numbers", True)
    assert (dtype["type"], dtype["required"], dtype["default"]) == ("text", False, None)


def test_help_and_version(capfd: Capture) -> None:
    for arguments in ([], ["--help"]):
        ended = here(capfd, *arguments)
        assert (ended.code, ended.err) == (0, "")
        for command in ("run", "info", "ops", "demo"):
            assert re.search(rf"^  {command} +\S", ended.out, re.M)
    assert here(capfd, "--version").out == f"napari-materialize {nm.__version__}\n"
    told = here(capfd, "run", "--help").out
    page = (Path(__file__).parents[1] / "docs" / "reference" / "command-line.md").read_text()
    options = set(re.findall(r"--[a-z-]+", told))
    assert {"--op", "--world-box", "--threads"} <= options
    missing = {option for option in options if f"`{option}" not in page} - {"--help"}
    assert not missing, "docs/reference/command-line.md lacks these"


def test_the_package_is_a_command_too() -> None:
    command = [sys.executable, "-m", "napari_materialize"]
    told = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == f"napari-materialize {nm.__version__}\n"
    wrong = subprocess.run([*command, "run"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell closes the stream")
def test_a_standard_output_that_is_closed_stops_nothing() -> None:
    line = 'exec >&-; exec "$0" -m napari_materialize ops'
    told = subprocess.run(
        ["sh", "-c", line, sys.executable], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (told.returncode, told.stderr) == (0, "")


def test_help_loads_little() -> None:
    code = "import sys\nfrom napari_materialize.cli import main\nmain(['run', '--help'])\n"
    code += "print(*sys.modules, sep='\\n', file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "napari_materialize.cli.run" in loaded
    assert not loaded & {"numpy", "zarr", "scipy", "onnxruntime", "rich", "PIL", "napari"}


# ---------------------------------------------------------------------- demo


def size_of_png(path: Path) -> tuple[int, int]:
    """Return the width and height of a PNG, its pixels checked for being whole."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    pixels, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            pixels += data[at + 8 : at + 8 + length]
        at += 12 + length
    assert len(zlib.decompress(pixels)) == height * (1 + 3 * width)
    return width, height


def test_the_demo_without_a_display(tmp_path: Path) -> None:
    ended = apart("demo", "--out", str(tmp_path / "demo"))
    assert (ended.code, ended.err) == (0, ""), ended
    assert "equal, voxel for voxel" in ended.out
    source, found, picture = (
        tmp_path / "demo" / n for n in ("blobs.zarr", "found.zarr", "demo.png")
    )
    for path in (source, found, picture):
        assert f"  {path}\n" in ended.out
    yaozarrs.validate_zarr_store(source)
    yaozarrs.validate_zarr_store(found)
    blobs = stored(found)
    assert blobs.shape == (2, 64, 512, 512)
    assert all(0 < channel.sum() < 0.05 * channel.size for channel in blobs)
    assert not blobs[:, :, :128].any()
    width, height = size_of_png(picture)
    assert width > 1500
    assert height > 500
    # the command it shows does the same
    line = ended.out.splitlines()[-1].split()
    assert line[0] == SCRIPT.name
    again = apart(*line[1:], cwd=tmp_path)
    assert again.code == 0, again
    np.testing.assert_array_equal(stored(tmp_path / "again.zarr"), blobs)


def test_the_demo_goes_on_without_a_window_where_qt_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":99")
    # as Python has it for a module that cannot be imported
    monkeypatch.setitem(sys.modules, WINDOW, None)
    ended = here(capfd, "demo")
    assert ended.code == 0
    assert re.fullmatch(r"napari-materialize: napari cannot open a window here .*\n", ended.err)
    [folder] = tmp_path.glob("napari-materialize-demo-*")
    assert (folder / "demo.png").is_file()


def test_the_demo_opens_a_window_where_one_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    """The window itself is napari's half and tested there; here is when it is opened."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    opened: list[bool] = []
    window = ModuleType(WINDOW)
    window.run = lambda: opened.append(True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, WINDOW, window)
    monkeypatch.setenv("DISPLAY", ":99")
    assert here(capfd, "demo").code == 0
    assert (opened, list(tmp_path.iterdir())) == ([True], [])
    # without one it goes on to its files, and here to why it cannot write them
    (tmp_path / "file").touch()
    for arguments in (["--headless"], []):
        ended = here(capfd, "demo", *arguments, "--out", str(tmp_path))
        assert (ended.code, len(opened)) == (2, 1)


# ---------------------------------------------------------------------- real data


@pytest.fixture(scope="module")
def expected(shared_data: Path) -> np.ndarray:
    """The real volume, smoothed and thresholded whole by scipy."""
    path = shared_data / "volumes" / "fibsem_medulla_250.v04.ome.zarr"
    volume = stored(path, "s0").astype("f4")
    smooth = ndimage.gaussian_filter(volume, 2, mode="nearest", truncate=4)
    return (np.rint(smooth) >= 120).astype("u1")


@pytest.mark.real_data
@pytest.mark.parametrize("compression", ["gzip", "none"])
@pytest.mark.parametrize("format_", ["zarr2", "zarr3"])
def test_a_box_of_a_real_volume(
    format_: str,
    compression: str,
    expected: np.ndarray,
    shared_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    source = shared_data / "volumes" / "fibsem_medulla_250.v04.ome.zarr"
    job = "--op gaussian:sigma=2 --op threshold:low=120 --box 40,60,80:140,190,230 --level 0 --json"
    options = [*job.split(), "--format", format_, "--compression", compression]
    # once as it is installed, and in this process where that would only take longer
    run = apart if (format_, compression) == ("zarr2", "gzip") else partial(here, capfd)
    ended = run("run", str(source), "out.zarr", *options)
    assert ended.code == 0, ended
    out = tmp_path / "out.zarr"
    yaozarrs.validate_zarr_store(out)
    inside = tuple(map(slice, *ended.result["box"]))
    assert all(
        s.start <= lo and hi <= s.stop
        for s, lo, hi in zip(inside, (40, 60, 80), (140, 190, 230), strict=True)
    )
    outside = np.ones(expected.shape, bool)
    outside[inside] = False
    spec = {
        "driver": "zarr" if format_ == "zarr2" else "zarr3",
        "kvstore": {"driver": "file", "path": f"{out}/0"},
    }
    for read in (stored(out), tensorstore.open(spec, read=True).result().read().result()):
        assert (read.shape, read.dtype) == (expected.shape, np.uint8)
        np.testing.assert_array_equal(read[inside], expected[inside])
        assert not read[outside].any()
    before, after = (nm.open_view(path).level(0) for path in (source, out))
    assert (after.scale, after.translation) == (before.scale, before.translation)
