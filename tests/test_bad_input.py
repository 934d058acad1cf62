"""Bad input: exit code 2, one sentence that says what is wrong, nothing created or touched."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING

import pytest
import zarr

from napari_materialize.errors import InputError
from napari_materialize.recipe import open_view
from napari_materialize.samples import detector_path
from napari_materialize.stores._lock import FolderLock
from terminal import apart, everything_in, here, ramp, write_image

if TYPE_CHECKING:
    from pathlib import Path

CHANNELS, IMAGE = "channels.zarr", "image.zarr"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, and with things that only look like it."""
    folder = tmp_path_factory.mktemp("bad") / "place"
    folder.mkdir()
    write_image(folder / IMAGE, [ramp(20, 32, 32), ramp(10, 16, 16)], (8, 8, 8))
    write_image(folder / CHANNELS, [ramp(2, 16, 16)], (1, 8, 8), "cyx", (1, 1))
    zarr.open_group(folder / "group.zarr", mode="w", zarr_format=2)
    (folder / "text.txt").write_text("not an image")
    (folder / "empty").mkdir()
    (folder / "pngs").mkdir()
    (folder / "pngs" / "plane_0.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / "full").mkdir()
    (folder / "full" / "thesis.txt").write_text("two years of work")
    (folder / "hidden").mkdir()
    (folder / "hidden" / ".keep").write_text("")
    (folder / "link.zarr").symlink_to(IMAGE)
    (folder / "nowhere.zarr").symlink_to("gone")
    (folder / "junk.onnx").write_bytes(b"junk")
    (folder / "short.onnx").write_bytes(detector_path().read_bytes()[:-200])
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, as the working directory."""
    folder = shutil.copytree(made, tmp_path / "place", symlinks=True)
    monkeypatch.chdir(folder)
    return folder


SOURCES = {
    "not there": (["gone.zarr"], r"gone\.zarr.*nothing is there"),
    "no name": ([""], r"source: a path.*got ''"),
    "a NUL in its name": (["a\0b"], r"source: a path.*got 'a\\x00b'"),
    "a newline in its name": (["gone\nfor ever.zarr"], r"gone for ever\.zarr.*nothing is there"),
    "spaces and letters in its name": (["Größe µ 図 1.zarr"], r"Größe µ 図 1\.zarr"),
    "an escape in its name": (["\x1b[31mred.zarr"], r"\\x1b\[31mred\.zarr"),
    "a text file": (["text.txt"], r"text\.txt: zarr is a folder, got a file"),
    "an empty folder": (["empty"], r"empty: zarr holds .* got none of them"),
    "a folder of PNGs": (["pngs"], r"pngs: zarr holds .* got none of them"),
    "a group without an image": (["group.zarr"], r"group\.zarr: .*image.* none"),
    "a level that is not there": ([f"{IMAGE}/7"], r"image\.zarr is there"),
    "a broken link": (["nowhere.zarr"], r"gone.*nothing is there"),
    "another machine's": (["file://host/image.zarr"], r"this machine.*'host'"),
    "a server that is not there": (["http://me:secret@127.0.0.1:9/a.zarr"], r"cannot be reached"),
    "a bucket with a password": (["s3://key:secret@bucket/a.zarr"], r"more than bucket and key"),
}


@pytest.mark.parametrize(("source", "told"), SOURCES.values(), ids=SOURCES)
def test_source(
    source: list[str], told: str, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(capfd, place, [*source, "out.zarr"], told)


def test_source_whose_metadata_is_damaged(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / IMAGE / ".zattrs").write_text('{"multiscales": [')
    refused(capfd, place, [IMAGE, "out.zarr"], r"image\.zarr")


def onnx(model: str) -> list[str]:
    return ["--op", f"onnx:model={model},halo=6"]


OPTIONS = {
    # ops
    "unknown op": (["--op", "blur:sigma=1"], r"no op is called 'blur'; known are .*gaussian"),
    "nearly an op": (["--op", "gausian:sigma=1"], r"did you mean 'gaussian'"),
    "no op": (["--op", ""], r"op '': a name comes first"),
    "unknown parameter": (["--op", "gaussian:size=1"], r"no parameter 'size'.*it takes sigma"),
    "missing parameter": (["--op", "gaussian"], r"needs sigma.*missing"),
    "parameter twice": (["--op", "gaussian:sigma=1,sigma=2"], r"sigma is given twice"),
    "parameter without =": (["--op", "gaussian:1"], r"key=value, got '1'"),
    "negative value": (["--op", "gaussian:sigma=-1"], r"sigma .*0 or more, got -1"),
    "not a number": (["--op", "gaussian:sigma=wide"], r"sigma.*number.*got 'wide'"),
    "one too many values": (["--op", "gaussian:sigma=1,1,1,1"], r"sigma.*got 4"),
    "unknown dtype": (["--op", "cast:dtype=float31"], r"dtype.*float31"),
    "channels where there are none": (["--op", "argmax"], r"needs a channel axis.*z, y, x"),
    "good op, then a bad one": (["--op", "invert", "--op", "select:channel=0"], r"channel axis"),
    # models
    "no model": (["--op", "onnx:halo=6"], r"needs model"),
    "model without a name": (["--op", "onnx:model="], r"model.*must be a path, got ''"),
    "model not there": (onnx("gone.onnx"), r"no model file .*gone\.onnx"),
    "model is junk": (onnx("junk.onnx"), r"junk\.onnx is not an ONNX model"),
    "model is cut off": (onnx("short.onnx"), r"short\.onnx"),
    "model is a folder": (onnx("empty"), r"empty is a folder"),
    "model is a text file": (onnx("text.txt"), r"text\.txt is not an ONNX model"),
    # levels
    "level too high": (["--level", "2"], r"levels 0 to 1, got 2"),
    "level negative": (["--level", "-1"], r"levels 0 to 1, got -1"),
    "level not a number": (["--level", "fine"], r"--level.*got 'fine'"),
    "level not whole": (["--level", "0.5"], r"--level.*got '0\.5'"),
    "level twice": (["--level", "0", "--level", "0"], r"none twice"),
    "box level too high": (["--box", "0:1", "--box-level", "2"], r"levels 0 to 1, got 2"),
    "box level alone": (["--box-level", "1"], r"there is no --box; give one"),
    "box level not a number": (["--box", "0:1", "--box-level", "x"], r"--box-level.*got 'x'"),
    # boxes
    "box empty": (["--box", "0,0,0:0,5,5"], r"at least one voxel"),
    "box inverted": (["--box", "9,9,9:5,12,12"], r"stop must not lie before start"),
    "box outside": (["--box", "20,0,0:25,9,9"], r"must overlap.*\(20, 32, 32\)"),
    "box below zero": (["--box", "-9,0,0:0,9,9"], r"must overlap"),
    "box with too many axes": (["--box", "0,0,0,0:1,1,1,1"], r"at most 3 axes.*got 4"),
    "box with uneven corners": (["--box", "0,0:1,1,1"], r"one number per axis"),
    "box of letters": (["--box", "a,b:c,d"], r"whole numbers.*40,60,80:140,190,230"),
    "box of parts of voxels": (["--box", "0,0.5,0:4,4,4"], r"whole numbers"),
    "box with one corner": (["--box", "0,0,0"], r"two corners"),
    "box of nothing": (["--box", ""], r"two corners"),
    "world box outside": (["--world-box", "-20,0,0:-10,5,5"], r"spans -2,-1,-1 to 78,63,63"),
    "world box inverted": (["--world-box", "5,5,5:1,9,9"], r"upper corner must not lie below"),
    "world box not finite": (["--world-box", "nan,0,0:5,5,5"], r"finite numbers"),
    "world box of letters": (["--world-box", "a:b"], r"two corners of numbers"),
    "world box with too many axes": (["--world-box", "0,0,0,0:1,1,1,1"], r"at most 3"),
    "two boxes": (["--box", "0:1", "--world-box", "0:1"], r"--box and --world-box.*both"),
    # choices
    "unknown extent": (["--extent", "all"], r"extent: one of level, box, got 'all'"),
    "unknown format": (["--format", "tiff"], r"format: .*zarr2, zarr3, n5, got 'tiff'"),
    "unknown compression": (["--compression", "lzma"], r"compression: .*gzip.*got 'lzma'"),
    "compression level too high": (["--compression", "gzip:10"], r"0 to 9, got 10"),
    "compression level of letters": (["--compression", "gzip:x"], r"0 to 9, got 'x'"),
    "unknown existing": (["--existing", "maybe"], r"existing: one of .*got 'maybe'"),
    "unknown on-error": (["--on-error", "cry"], r"one of raise, collect, got 'cry'"),
    "unknown boundary": (["--boundary", "mirror"], r"boundary: one of edge, zeros, got 'mirror'"),
    "no slots": (["--slots", "0"], r"--slots: .*1 or more, got '0'"),
    "slots of letters": (["--slots", "all"], r"--slots: .*got 'all'"),
    "no threads": (["--threads", "-3"], r"--threads: .*1 or more, got '-3'"),
    # selection
    "no channel axis": (["--select", "c=0"], r"--select c=0: .*has none"),
    "another axis": (["--select", "z=3"], r"--select z=3: only along the image's channel axis"),
    "selection without =": (["--select", "c"], r"as in c=0"),
    # not built yet
    "shards": (["--shards", "2,2,2"], r"shards: only zarr3 has them"),
    "shards text": (["--shards", "2,x", "--format", "zarr3"], r"--shards: a whole number"),
    "pyramid": (["--pyramid", "all"], r"--pyramid: a whole number, 0 or more, got 'all'"),
    "pyramid of levels": (["--pyramid", "99"], r"pyramid: at most \d+ coarser levels"),
    "dask": (["--dask", "tcp://host:8786"], r"--dask: is not built yet"),
    # what click refuses
    "unknown option": (["--colour", "red"], r"no such option '--colour'.*run --help"),
    "nearly an option": (["--bx", "0:1"], r"no such option '--bx', did you mean '--box'\?; napari"),
    "nearly two": (["--boxx", "0:1"], r"'--boxx', did you mean '--box', '--op'\?; napari"),
    "option without its value": (["--box"], r"'--box' requires an argument.*--help"),
    "argument too many": (["third"], r"extra argument.*third"),
}


@pytest.mark.parametrize(("options", "told"), OPTIONS.values(), ids=OPTIONS)
def test_option(
    options: list[str], told: str, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(capfd, place, [IMAGE, "out.zarr", *options], told)


CHANNEL_OPTIONS = {
    "channel too high": (["--select", "c=2"], r"2 channels.*got channel 2"),
    "channel negative": (["--select", "c=-1"], r"counted from 0, got -1"),
    "channel of letters": (["--select", "c=red"], r"whole number, got 'red'"),
    "another axis": (["--select", "y=1"], r"its channel axis is c, got 'y'"),
    "too many axes once selected": (["--select", "c=1", "--box", "0,0,0:1,1,1"], r"at most 2 axes"),
}


@pytest.mark.parametrize(("options", "told"), CHANNEL_OPTIONS.values(), ids=CHANNEL_OPTIONS)
def test_option_of_an_image_with_channels(
    options: list[str], told: str, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(capfd, place, [CHANNELS, "out.zarr", *options], told)


TARGETS = {
    "a file": ("text.txt", r"text\.txt.*found a file"),
    "a folder with a file": ("full", r"full.*must be empty or not there yet"),
    "a folder with a hidden file": ("hidden", r"hidden.*must be empty or not there yet"),
    "another image": (CHANNELS, r"channels\.zarr.*must be empty or not there yet"),
    "the source": (IMAGE, r"must lie apart from the source"),
    "the source, with a slash": (f"{IMAGE}/", r"must lie apart from the source"),
    "the source, through ..": (f"empty/../{IMAGE}", r"must lie apart from the source"),
    "the source, through .": (f"./{IMAGE}/.", r"must lie apart from the source"),
    "the source, through a link": ("link.zarr", r"must lie apart from the source"),
    "inside the source": (f"{IMAGE}/out.zarr", r"must lie apart from the source"),
    "inside the source, through a link": ("link.zarr/out.zarr", r"must lie apart from the source"),
    "around the source": ("../place", r"must lie apart from the source"),
    "a link that leads nowhere": ("nowhere.zarr", r"link that leads nowhere"),
    "below a file": ("text.txt/out.zarr", r"a file is where a folder has to be"),
    "no name": ("", r"target: a folder's path is needed"),
    "a NUL in its name": ("a\0b", r"target: a folder's path is needed"),
    "too long a name": ("x" * 300, r"(?i)name too long"),
    "a bucket": ("s3://key:secret@bucket/out.zarr", r"more than bucket and key"),
    "a web server": ("https://host/out.zarr", r"a web server is only read from"),
    "another machine's": ("file://host/out.zarr", r"this machine.*'host'"),
}


@pytest.mark.parametrize(("target", "told"), TARGETS.values(), ids=TARGETS)
def test_target(target: str, told: str, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    refused(capfd, place, [IMAGE, target], told)


def test_target_that_is_the_source_as_a_url(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    url = (place / IMAGE).as_uri()
    refused(capfd, place, [IMAGE, url], "must lie apart from the source")
    refused(capfd, place, [url, IMAGE], "must lie apart from the source")
    refused(capfd, place, [url, f"{url}/out.zarr"], "must lie apart from the source")


def test_source_through_a_link_and_target_that_it_leads_to(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(capfd, place, ["link.zarr", IMAGE], "must lie apart from the source")


def test_target_in_the_image_that_one_level_is_read_from(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(capfd, place, [f"{IMAGE}/0", f"{IMAGE}/0/out.zarr"], "must lie apart from the source")
    refused(capfd, place, [f"{IMAGE}/0", IMAGE], "must lie apart from the source")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a /proc that nobody writes to")
def test_target_where_nobody_can_write(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    refused(capfd, place, [IMAGE, "/proc/1/out.zarr"], r"/proc/1/out\.zarr.*failed")


def test_target_that_is_an_empty_folder_nobody_can_write_to(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(lock: FolderLock) -> None:  # the system's own rules do not hold for root
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(FolderLock, "take", refuse)
    refused(capfd, place, [IMAGE, "empty"], "permission denied; choose another folder")


def test_info_refuses_as_run_does(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, told in (
        (["gone.zarr"], "nothing is there"),
        ([IMAGE, "--op", "blur"], "no op is called"),
        ([IMAGE, "--boundary", "mirror"], "boundary: one of"),
    ):
        refused(capfd, place, arguments, told, command="info")


def test_demo_refuses_a_folder_with_something_in_it(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("full", "text.txt"):
        arguments = ["--headless", "--out", name]
        refused(capfd, place, arguments, rf"--out {name}: ", command="demo")


def test_commands_that_do_not_exist(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for command in ("varify", "--wrong"):
        ended = here(capfd, command)
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert "napari-materialize --help" in ended.err
    refused(capfd, place, [IMAGE], "missing argument 'OUT'")
    refused(capfd, place, [], "missing argument 'SOURCE'")


def refused(
    capfd: pytest.CaptureFixture[str],
    place: Path,
    arguments: list[str],
    told: str,
    command: str = "run",
) -> None:
    """Run a command that has to be refused, and look at all that must not have happened."""
    before = everything_in(place.parent)
    ended = here(capfd, command, *arguments)
    assert (ended.code, ended.out) == (2, ""), ended
    assert re.fullmatch(r"napari-materialize: [^\n]+\n", ended.err), ended.err
    assert re.search(told, ended.err), ended.err
    assert "Traceback" not in ended.err
    assert "secret" not in ended.err
    assert everything_in(place.parent) == before


BY_THE_INSTALLED_COMMAND = [SOURCES["not there"], SOURCES["a newline in its name"]]


@pytest.mark.parametrize(("source", "told"), BY_THE_INSTALLED_COMMAND)
def test_the_installed_command_refuses(source: list[str], told: str, place: Path) -> None:
    before = everything_in(place.parent)
    ended = apart("run", *source, "out.zarr", "--json", cwd=place)
    assert ended.code == 2
    assert re.fullmatch(r"napari-materialize: [^\n]+\n", ended.err)
    assert re.search(told, ended.err)
    assert ended.result["status"] == "refused"
    assert ended.err == f"napari-materialize: {ended.result['error']}\n"
    assert everything_in(place.parent) == before


def test_the_installed_command_loads_a_broken_model_quietly(place: Path) -> None:
    """Onnxruntime writes to the process's own standard error, past Python."""
    before = everything_in(place.parent)
    ended = apart("run", IMAGE, "out.zarr", *onnx("short.onnx"), cwd=place)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1), ended
    assert everything_in(place.parent) == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no names that are not text")
def test_a_name_that_is_not_text_is_refused_or_works(place: Path) -> None:
    """A record in JSON cannot hold such a source's name."""
    odd = os.fsdecode(b"odd\xff.zarr")
    (place / IMAGE).rename(place / odd)
    before = everything_in(place.parent)
    ended = apart("run", odd, "out.zarr", cwd=place)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1), ended
    assert everything_in(place.parent) == before


def test_every_refusal_in_python_is_an_input_error(place: Path) -> None:
    """The command line has no list of its own of what is bad input."""
    for op in ("blur", "gaussian", "gaussian:sigma=-1", "onnx:model=junk.onnx,halo=1"):
        with pytest.raises(InputError):
            open_view(IMAGE, [op])
    with pytest.raises(InputError, match=r"ops: .*got None; give \[\] for none"):
        open_view(IMAGE, None)  # type: ignore[arg-type]
