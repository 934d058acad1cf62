"""Sources that nobody should have to trust: one sentence, bounded memory, nothing touched."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import struct
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numcodecs
import numpy as np
import pytest
import zarr

from malformed import AXES, MALFORMED, N5, V2, V3, image, make, scaled, sharded, write
from napari_materialize.errors import DamagedChunk, SourceError, StoreError
from napari_materialize.geometry import Box
from napari_materialize.sources import open_source
from terminal import everything_in, here

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY = 32 * 2**20
"""Bytes that refusing something may take."""


def test_there_are_as_many_as_were_promised() -> None:
    assert len(MALFORMED) >= 60


@pytest.mark.parametrize("name", MALFORMED)
def test_run_and_info_refuse_in_one_sentence(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, told = make(name, tmp_path), MALFORMED[name][1]
    before = everything_in(tmp_path)
    tracemalloc.start()
    try:
        for arguments in (["run", str(folder), str(tmp_path / "out.zarr")], ["info", str(folder)]):
            ended = here(capfd, *arguments)
            assert (ended.code, ended.out) == (2, ""), ended
            assert re.fullmatch(r"napari-materialize: [^\n]+\n", ended.err), ended.err
            assert re.search(told.replace("[", r"\[").replace("^", r"\^"), ended.err), ended.err
            assert "Traceback" not in ended.err
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    assert everything_in(tmp_path) == before


LIMITED = """
import json, resource, sys
from pathlib import Path
from napari_materialize.cli import main
import zarr, tensorstore
import napari_materialize.sources, napari_materialize.plan, napari_materialize.engine
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + int(sys.argv[1]), resource.RLIM_INFINITY))
for folder in json.loads(sys.stdin.read()):
    codes = [main(["info", folder]), main(["run", folder, folder + " out"])]
    print(*codes, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says and limits what is taken")
def test_refusing_needs_no_memory(tmp_path: Path) -> None:
    """All memory counts, not only what Python knows of: whoever wants more is ended by it."""
    folders = []
    for number, name in enumerate(MALFORMED):
        (tmp_path / str(number)).mkdir()
        folders.append(str(make(name, tmp_path / str(number))))
    before = everything_in(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, str(4 * MEMORY)],
        input=json.dumps(folders),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.stdout.splitlines() == ["2 2"] * len(MALFORMED), ended
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) == 2 * len(MALFORMED)
    assert everything_in(tmp_path) == before


def peak() -> int:
    """Return the most bytes this process has held in memory, or 0 where nobody says."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(re.search(r"VmHWM:\s*(\d+)", text)[1]) * 1024  # type: ignore[index]


def test_the_widget_says_the_same_sentence(make_napari_viewer: Any, tmp_path: Path) -> None:
    from napari_materialize._napari.widget import MaterializeWidget

    viewer = make_napari_viewer()
    widget = MaterializeWidget(viewer)
    viewer.window.add_dock_widget(widget)
    widget.output.folder.setText(str(tmp_path))
    widget.output.folder.editingFinished.emit()
    widget.output.name.setText("out.zarr")
    widget.output.name.editingFinished.emit()
    began = peak()
    for name in MALFORMED:
        folder = make(name, tmp_path)
        before = everything_in(tmp_path)
        with pytest.raises(SourceError) as refused:
            open_source(folder)
        widget.source.choose_path(str(folder))
        assert widget.session.resolved.problems["source"] == str(refused.value), name
        assert widget.source.problem.text()
        assert not widget.run_bar.run.isEnabled()
        assert everything_in(tmp_path) == before
    assert peak() - began < 4 * MEMORY
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".zarr") == ["elsewhere"]


# --- chunks ------------------------------------------------------------------------------------

BOMB = 256 * 2**20
"""Bytes that a few kilobytes become below."""

SHAPE = (64, 64)


def zeros(compress: Callable[[bytes], bytes]) -> bytes:
    """Return 256 MiB of zeros, compressed; streams in a row, so that making it takes no memory."""
    return compress(bytes(BOMB))


BOMBS: dict[str, tuple[dict[str, Any], Callable[[bytes], bytes]]] = {
    "gzip": ({"id": "gzip", "level": 9}, lambda data: gzip.compress(data, 9)),
    "zlib": ({"id": "zlib", "level": 9}, lambda data: zlib.compress(data, 9)),
    "bz2": ({"id": "bz2", "level": 9}, lambda data: bz2.compress(data[: 2**25], 9) * 8),
    "lzma": ({"id": "lzma"}, lambda data: lzma.compress(data, preset=0)),
    "zstd": ({"id": "zstd", "level": 1}, numcodecs.Zstd(1).encode),
    "blosc": ({"id": "blosc"}, numcodecs.Blosc("zstd", 5).encode),
    "lz4": ({"id": "lz4"}, numcodecs.LZ4().encode),
}
"""By name: the compressor of ``.zarray``, and how the bomb is made."""


def refused(folder: Path, told: str, kind: type[Exception] = DamagedChunk) -> None:
    """Open, and read the first chunk, which must not be possible."""
    source = open_source(folder)
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=told) as caught:
            source.read(0, Box((0, 0), SHAPE))
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def bombs() -> dict[str, bytes]:
    return {name: bytes(zeros(compress)) for name, (_, compress) in BOMBS.items()}


@pytest.mark.parametrize("name", BOMBS)
def test_chunks_that_become_gigabytes(name: str, bombs: dict[str, bytes], tmp_path: Path) -> None:
    document = V2 | {"shape": SHAPE, "chunks": SHAPE, "compressor": BOMBS[name][0]}
    assert len(bombs[name]) < 2**21
    refused(
        write(tmp_path / "v2", {".zarray": document, "0.0": bombs[name]}),
        "becomes more than|at most .* bytes make a chunk",
    )


@pytest.mark.parametrize("name", ["gzip", "zstd", "blosc"])
@pytest.mark.parametrize("inside_a_shard", [False, True])
def test_chunks_of_v3_that_become_gigabytes(
    name: str, inside_a_shard: bool, bombs: dict[str, bytes], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "gzip": {"level": 5},
        "zstd": {"level": 0, "checksum": False},
        "blosc": {
            "cname": "zstd",
            "clevel": 5,
            "shuffle": "shuffle",
            "typesize": 2,
            "blocksize": 0,
        },
    }[name]
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    codecs: list[Any] = [little, {"name": name, "configuration": settings}]
    data = bombs[name]
    if inside_a_shard:
        inner = {"chunk_shape": SHAPE, "codecs": codecs, "index_codecs": [little]}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
        data += struct.pack("<QQ", 0, len(data))
    grid = {"name": "regular", "configuration": {"chunk_shape": SHAPE}}
    document = V3 | {"shape": SHAPE, "chunk_grid": grid, "codecs": codecs}
    refused(write(tmp_path, {"zarr.json": document, "c/0/0": data}), "becomes more than")


N5_NAMES = {"bz2": "bzip2", "lzma": "xz"}


@pytest.mark.parametrize("name", [name for name in BOMBS if name not in ("zlib", "lz4")])
def test_blocks_of_n5_that_become_gigabytes(
    name: str, bombs: dict[str, bytes], tmp_path: Path
) -> None:
    document = N5 | {"dimensions": SHAPE, "blockSize": SHAPE}
    document |= {"compression": {"type": N5_NAMES.get(name, name)}}
    block = struct.pack(">HHII", 0, 2, *SHAPE) + bombs[name]
    refused(write(tmp_path, {"attributes.json": document, "0/0": block}), "becomes more than")


def lz4_of_java(data: bytes, said: int | None = None) -> bytes:
    packed = numcodecs.LZ4().encode(data)[4:]
    head = struct.pack("<8sBiii", b"LZ4Block", 0x25, len(packed), said or len(data), 0)
    return head + packed + struct.pack("<8sBiii", b"LZ4Block", 0x15, 0, 0, 0)


def test_lz4_as_java_writes_it(tmp_path: Path) -> None:
    voxels = np.arange(16, dtype=">i2").reshape(4, 4)
    document = N5 | {"blockSize": [4, 4], "compression": {"type": "lz4"}}
    head = struct.pack(">HHII", 0, 2, 4, 4)
    block = head + lz4_of_java(voxels.tobytes())
    source = open_source(write(tmp_path / "whole", {"attributes.json": document, "0/0": block}))
    np.testing.assert_array_equal(source.read(0, Box((0, 0), (4, 4))), voxels)
    for number, bad in enumerate((lz4_of_java(bytes(32), 2**30), b"wat" * 20, block[12:40])):
        folder = tmp_path / str(number)
        broken = open_source(write(folder, {"attributes.json": document, "0/0": head + bad}))
        with pytest.raises(DamagedChunk, match=r"block .*0/0: its lz4"):
            broken.read(0, Box((0, 0), (4, 4)))


HEADS = {
    "nothing": b"",
    "half a head": struct.pack(">HH", 0, 2),
    "three axes": struct.pack(">HHIII", 0, 3, 2, 2, 2) + bytes(16),
    "another mode": struct.pack(">HHII", 2, 2, 2, 2) + bytes(8),
    "too large": struct.pack(">HHII", 0, 2, 2**31, 2**31) + bytes(8),
    "too small": struct.pack(">HHII", 0, 2, 1, 2) + bytes(4),
    "too few voxels": struct.pack(">HHII", 0, 2, 2, 2) + bytes(7),
    "too many voxels": struct.pack(">HHII", 0, 2, 2, 2) + bytes(9),
}


@pytest.mark.parametrize("name", HEADS)
def test_blocks_of_n5_that_are_damaged(name: str, tmp_path: Path) -> None:
    source = open_source(write(tmp_path, {"attributes.json": N5, "0/0": HEADS[name]}))
    with pytest.raises(DamagedChunk, match=r"block .*0/0: it") as caught:
        source.read(0, Box((0, 0), (2, 2)))
    assert "\n" not in str(caught.value)
    assert not source.read(0, Box((2, 2), (4, 4))).any()


def no_end(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def much(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**26)


def out(path: Path) -> None:
    (path.parent.parent / "secret").write_bytes(bytes(2 * 64 * 64))
    path.symlink_to("../secret")


FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a device": (no_end, "no regular file"),
    "a pipe": (os.mkfifo, "no regular file"),
    "a folder": (lambda path: path.mkdir(), "no regular file|[Ii]s a directory"),
    "more than there can be": (much, "bytes make a chunk of this array"),
    "a terabyte of holes": (a_hole, "bytes make a chunk of this array"),
    "a link in a circle": (lambda path: path.symlink_to(path.name), "symbolic links"),
    "a link out of the container": (out, "a link leads out of"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("written", ["v2", "n5"])
def test_chunks_that_are_no_files(name: str, written: str, tmp_path: Path) -> None:
    place, told = FILES[name]
    folder = tmp_path / "image.zarr"
    if written == "v2":
        write(folder, {".zarray": V2 | {"shape": SHAPE, "chunks": SHAPE}})
        place(folder / "0.0")
    else:
        write(folder, {"attributes.json": N5 | {"dimensions": SHAPE, "blockSize": SHAPE}})
        (folder / "0").mkdir()
        place(folder / "0" / "0")
        if name.startswith("a link out"):
            (folder / "0" / "0").unlink()
            (folder / "0" / "0").symlink_to("../../secret")
            (tmp_path / "secret").write_bytes(b"")
    refused(folder, told, StoreError)


def test_links_within_a_container_are_followed(tmp_path: Path) -> None:
    """As version control of large files makes them."""
    folder = write(tmp_path / "a.zarr", image(scaled("0", [1, 1])))
    (folder / ".store").mkdir()
    voxels = np.arange(4, dtype="<i2").reshape(2, 2)
    (folder / ".store" / "key").write_bytes(voxels.tobytes())
    (folder / "0" / "0.0").symlink_to("../.store/key")
    for source in (open_source(folder), open_source(folder / "0")):
        np.testing.assert_array_equal(source.read(0, Box((0, 0), (2, 2))), voxels)


def test_a_link_out_of_a_folder_that_was_looked_at_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "a.zarr", image(scaled("0", [1, 1])))
    (tmp_path / "secret").write_bytes(bytes(8))
    (folder / "0" / "0.0").write_bytes(np.arange(4, dtype="<i2").tobytes())
    (folder / "0" / "0.1").symlink_to("../../secret")
    source = open_source(folder)
    assert source.read(0, Box((0, 0), (2, 2))).any()  # its folder is known now
    with pytest.raises(StoreError, match="a link leads out of"):
        source.read(0, Box((0, 2), (2, 4)))


def test_a_shard_whose_index_lies(tmp_path: Path) -> None:
    files = sharded(4, 2)
    index = struct.pack("<8Q", 0, 8, 2**40, 8, 0, 2**50, 2**63, 2**63)
    folder = write(tmp_path, files | {"c/0/0": bytes(8) + index})
    source = open_source(folder)
    assert not source.read(0, Box((0, 0), (2, 2))).any()
    for start in ((0, 2), (2, 0), (2, 2)):
        box = Box(start, (start[0] + 2, start[1] + 2))
        tracemalloc.start()
        try:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - zarr's own, of several types
                source.read(0, box)
            assert tracemalloc.get_traced_memory()[1] < MEMORY
        finally:
            tracemalloc.stop()
        assert not isinstance(caught.value, BaseExceptionGroup | MemoryError)


# --- levels that contradict themselves ---------------------------------------------------------


def test_levels_whose_scales_contradict_their_shapes_are_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "a.zarr", image(scaled("0", [1, 1]), scaled("1", [8, 2])))
    source = open_source(folder)
    (notice,) = source.notices
    assert notice.startswith("level 1: its scale makes it 16 wide along y, and level 0 is 4 wide;")
    assert source.levels[1].scale == (8, 2)
    assert notice in here(capfd, "info", str(folder)).out
    assert here(capfd, "info", str(folder), "--json").result["notices"] == [notice]
    ended = here(capfd, "run", str(folder), str(tmp_path / "out.zarr"), "--json")
    assert ended.code == 0
    assert f"notice: {notice}" in ended.err
    right = write(tmp_path / "b.zarr", image(scaled("0", [1, 1]), scaled("1", [2, 2])))
    assert open_source(right).notices == ()


def test_of_several_images_in_a_group_the_first_is_opened_and_the_others_are_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files: dict[str, Any] = image(scaled("0", [1, 1]))
    other = {"version": "0.4", "axes": AXES, "datasets": [scaled("big", [3, 3])]}
    files[".zattrs"]["multiscales"].append(other)
    folder = write(tmp_path / "a.zarr", files)
    source = open_source(folder)
    (notice,) = source.notices
    assert "the first of 2 images in one group is opened" in notice
    assert notice.endswith("(big)")
    assert source.levels[0].shape == (4, 4)
    assert notice in here(capfd, "info", str(folder)).out
    files[".zattrs"]["multiscales"][1] = "none"
    assert open_source(write(tmp_path / "b.zarr", files)).notices == ()


@pytest.mark.parametrize("sizes", [(5, 3, 2, 1), (250, 125, 62, 31), (7, 7, 3)])
def test_rounding_is_no_contradiction(sizes: tuple[int, ...], tmp_path: Path) -> None:
    files: dict[str, Any] = image()
    scale, datasets = 1.0, []
    for number, size in enumerate(sizes):
        if number and size != sizes[number - 1]:
            scale *= 2
        files[f"{number}/.zarray"] = V2 | {"shape": [size, size]}
        datasets.append(scaled(str(number), [scale, scale]))
    files[".zattrs"]["multiscales"][0]["datasets"] = datasets
    assert open_source(write(tmp_path, files)).notices == ()


def test_what_is_whole_here_is_broken_above(tmp_path: Path) -> None:
    whole = {
        "v2": {".zarray": V2},
        "v3": {"zarr.json": V3},
        "n5": {"attributes.json": N5},
        "image": image(scaled("0", [1, 1])),
        "shards": sharded(4, 2),
    }
    for name, files in whole.items():
        source = open_source(write(tmp_path / name, files))
        assert source.read(0, Box((0, 0), (4, 4))).shape == (4, 4)
    assert zarr.open_array(tmp_path / "v2", mode="r").shape == (4, 4)
    assert json.loads((tmp_path / "v2" / ".zarray").read_text())["shape"] == [4, 4]
