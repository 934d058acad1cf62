"""Stores that nobody should have to trust: damaged, contradictory, or made to do harm.

No test is here. `MALFORMED` has a store for each name, and words of the sentence it is
refused with.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

V2: dict[str, Any] = {
    "zarr_format": 2, "shape": [4, 4], "chunks": [2, 2], "dtype": "<i2", "compressor": None,
    "fill_value": 0, "order": "C", "filters": None,
}  # fmt: skip
V3: dict[str, Any] = {
    "zarr_format": 3, "node_type": "array", "shape": [4, 4], "data_type": "int16",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
}  # fmt: skip
N5: dict[str, Any] = {
    "dimensions": [4, 4], "blockSize": [2, 2], "dataType": "int16", "compression": {"type": "raw"},
}  # fmt: skip
GROUP = {"zarr_format": 2}
AXES = [{"name": name, "type": "space"} for name in "yx"]

type Files = dict[str, Any]


def scaled(path: str, *steps: Any) -> dict[str, Any]:
    """Return a dataset; numbers stand for a scale."""
    listed = [{"type": "scale", "scale": s} if isinstance(s, list) else s for s in steps]
    return {"path": path, "coordinateTransformations": listed}


def image(*datasets: Any, **more: Any) -> Files:
    """Return the files of an image with levels 0 (4 x 4), 1 (2 x 2) and big (8 x 8)."""
    entry = {"version": "0.4", "axes": AXES, "datasets": list(datasets)} | more
    return {
        ".zgroup": GROUP,
        ".zattrs": {"multiscales": [entry]},
        "0/.zarray": V2,
        "1/.zarray": V2 | {"shape": [2, 2]},
        "big/.zarray": V2 | {"shape": [8, 8]},
        "float/.zarray": V2 | {"shape": [2, 2], "dtype": "<f4"},
    }


def image6(*steps: Any, **more: Any) -> Files:
    """Return the files of an image of OME-Zarr 0.6."""
    systems = [{"name": name, "axes": AXES} for name in ("world", "other")]
    entry = {"coordinateSystems": systems, "datasets": [scaled("0", *steps)]} | more
    ome = {"version": "0.6", "multiscales": [entry]}
    group = {"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}}
    return {"zarr.json": group, "0/zarr.json": V3}


def v3(**change: Any) -> Files:
    """Return an array of zarr v3."""
    return {"zarr.json": V3 | change}


def v2(**change: Any) -> Files:
    """Return an array of zarr v2."""
    return {".zarray": V2 | change}


def n5(**change: Any) -> Files:
    """Return an array of N5."""
    return {"attributes.json": N5 | change}


def grid(*chunk: Any) -> dict[str, Any]:
    """Return a chunk grid of v3."""
    return {"name": "regular", "configuration": {"chunk_shape": list(chunk)}}


def sharded(outer: int, inner: int) -> Files:
    """Return an array of v3 in shards."""
    little = [{"name": "bytes", "configuration": {"endian": "little"}}]
    inside = {"chunk_shape": [inner, inner], "codecs": little, "index_codecs": little}
    codecs = [{"name": "sharding_indexed", "configuration": inside}]
    return v3(shape=[outer, outer], chunk_grid=grid(outer, outer), codecs=codecs)


def linked(to: str) -> Callable[[Path], None]:
    """Make an image whose level 0 is a link."""

    def make(folder: Path) -> None:
        write(folder, image(scaled("0", [1, 1])))
        (folder / "0" / ".zarray").unlink()
        (folder / "0").rmdir()
        write(folder.parent / "elsewhere", {".zarray": V2})
        (folder / "0").symlink_to(to)

    return make


def a_pipe(folder: Path) -> None:
    """Make a document that nobody ever ends writing."""
    folder.mkdir()
    os.mkfifo(folder / "zarr.json")


def a_device(folder: Path) -> None:
    """Make a document that never ends."""
    folder.mkdir()
    (folder / ".zarray").symlink_to("/dev/zero")


def a_hole(folder: Path) -> None:
    """Make a document of a terabyte, none of which is on the disk."""
    folder.mkdir()
    with (folder / "zarr.json").open("wb") as file:
        file.truncate(2**40)


def a_circle(folder: Path) -> None:
    """Make a group whose only child is the group."""
    write(folder, {".zgroup": GROUP})
    (folder / "child").symlink_to(folder)


TURN = [[0, 1], [1, 0]]
END = {"output": "world"}
HUGE = 2**62

MALFORMED: dict[str, tuple[Files | Callable[[Path], None], str]] = {
    # documents
    "cut off": ({".zarray": b'{"zarr_format": 2, "sha'}, "has to be JSON"),
    "cut off, v3": ({"zarr.json": b'{"zarr_format"'}, "has to be JSON"),
    "cut off, N5": ({"attributes.json": b'{"dimensions": [4'}, "has to be JSON"),
    "empty": ({"zarr.json": b""}, "has to be JSON"),
    "not text": ({".zarray": b"\xff\xfe\x00"}, "has to be JSON"),
    "nested deep": ({"zarr.json": b"[" * 100_000}, "has to be JSON"),
    "a number of many digits": ({".zarray": b'{"zarr_format": ' + b"9" * 9999 + b"}"}, "JSON"),
    "a list": ({".zarray": []}, "a JSON object, got list"),
    "attributes that are none": ({".zgroup": GROUP, ".zattrs": [1]}, "a JSON object, got list"),
    "a pipe": (a_pipe, "a regular file"),
    "a device": (a_device, "a regular file"),
    "a terabyte of holes": (a_hole, "at most"),
    "a group in itself": (a_circle, "no image or array in it"),
    # sizes
    "negative shape": (v2(shape=[-4, 4]), "at least one voxel"),
    "no voxels": (v3(shape=[0, 4]), "at least one voxel"),
    "one axis": (v2(shape=[4], chunks=[2]), "2 to 5 axes"),
    "six axes": (v3(shape=[4] * 6, chunk_grid=grid(*[2] * 6)), "2 to 5 axes"),
    "shape of text": (v2(shape="44"), "whole numbers"),
    "shape of fractions": (v3(shape=[4.5, 4]), "whole numbers"),
    "no shape": (v2(shape=None), "whole numbers"),
    "huge shape": (v2(shape=[HUGE, HUGE]), "fewer than 2^63 bytes"),
    "huge shape, v3": (v3(shape=[HUGE, HUGE]), "fewer than 2^63 bytes"),
    "huge shape, N5": (n5(dimensions=[HUGE, HUGE]), "fewer than 2^63 bytes"),
    "huge chunks": (v2(shape=[10**6, 10**6], chunks=[10**6, 10**6]), "at most 4 GiB"),
    "huge shards": (sharded(10**6, 100), "at most 4 GiB"),
    "a shard of very many chunks": (sharded(40_000, 1), "a shard's index"),
    "huge blocks": (n5(dimensions=[10**6] * 2, blockSize=[10**6] * 2), "at most 4 GiB"),
    "chunks of nothing": (v2(chunks=[0, 2]), "at least one voxel"),
    "negative chunks": (v3(chunk_grid=grid(-2, 2)), "at least one voxel"),
    "chunks of another rank": (v2(chunks=[2]), "one per axis"),
    "chunks that are true": (v2(chunks=[True, 2]), "at least one voxel"),
    "negative blocks": (n5(blockSize=[-2, 2]), "at least 1"),
    "blocks of another rank": (n5(blockSize=[2, 2, 2]), "one per axis"),
    "no blocks": (n5(blockSize=None), "whole numbers"),
    # values
    "no dtype": (v2(dtype=None), "bool, integers or floats"),
    "objects": (v2(dtype="|O", filters=[{"id": "pickle"}]), "bool, integers or floats"),
    "numbers of 2^30 bytes": (v2(dtype="|V1073741824"), "bool, integers or floats"),
    "a dtype of v4": (v3(data_type="int4096"), "bool, integers or floats"),
    "a dtype that N5 lacks": (n5(dataType="float16"), "got dataType 'float16'"),
    "a dtype of N5 that is a list": (n5(dataType=[]), "got dataType []"),
    "an unknown compression": (n5(compression={"type": "wat"}), "got 'wat'"),
    "an unknown codec": (v3(codecs=[{"name": "wat"}]), "wat"),
    "a fill that is none": (v2(fill_value={"a": 1}), "zarr-python"),
    # images
    "no levels": (image(), "one entry per level"),
    "no images": ({".zgroup": GROUP, ".zattrs": {"multiscales": []}}, "one JSON object per image"),
    "images of another type": ({".zgroup": GROUP, ".zattrs": {"multiscales": 7}}, "got 7"),
    "a level that is not there": (image(scaled("7", [1, 1])), "got none at '7'"),
    "a level that leads up": (image(scaled("../elsewhere", [1, 1])), "inside the group"),
    "a level with an absolute path": (image(scaled("/etc", [1, 1])), "inside the group"),
    "a level without a path": (image({}), "inside the group"),
    "a level with an odd path": (image(scaled("a\\b", [1, 1])), "inside the group"),
    "a level that is a link out": (linked("../elsewhere"), "a link that leads out"),
    "a level that is a link in a circle": (linked("0"), "leads out|cannot be read"),
    "a level twice": (image(scaled("0", [1, 1]), scaled("0", [2, 2])), "an array of its own"),
    "levels that grow": (image(scaled("0", [2, 2]), scaled("big", [1, 1])), "finest first"),
    "levels of two dtypes": (image(scaled("0", [1, 1]), scaled("float", [2, 2])), "same dtype"),
    "a scale that is no number": (image(scaled("0", [float("nan"), 1])), "positive numbers"),
    "a scale without end": (image(scaled("0", [float("inf"), 1])), "positive numbers"),
    "a scale of zero": (image(scaled("0", [0, 1])), "positive numbers"),
    "a negative scale": (image(scaled("0", [-1, 1])), "positive numbers"),
    "a scale of text": (image(scaled("0", ["1", "1"])), "positive numbers"),
    "a scale of another rank": (image(scaled("0", [1, 1, 1])), "positive numbers"),
    "scales whose product ends": (image(scaled("0", [1e300, 1], [1e300, 1])), "positive numbers"),
    "a rotation": (image(scaled("0", {"type": "rotation", "rotation": TURN})), "got 'rotation'"),
    "axes of another rank": (image(scaled("0", [1, 1]), axes=AXES[:1]), "one entry per axis"),
    "an axis twice": (image(scaled("0", [1, 1]), axes=[AXES[0]] * 2), "names must differ"),
    "axes of numbers": (image(scaled("0", [1, 1]), axes=[1, 2]), "a name each"),
    "another version": (image(scaled("0", [1, 1]), version="9.9"), "got version 9.9"),
    "a rotation in 0.6": (image6({"type": "rotation", "rotation": TURN} | END), "got 'rotation'"),
    "axes exchanged in 0.6": (image6({"type": "mapAxis", "mapAxis": [1, 0]} | END), "'mapAxis'"),
    "a field in 0.6": (image6({"type": "displacements", "path": "x"} | END), "'displacements'"),
    "a system that is not there": (image6({"type": "identity", "output": "gone"}), "['gone']"),
    "sequences without end": (
        image6({"type": "sequence", "transformations": 7} | END),
        "a list, got 7",
    ),
    "a scale of N5 that is zero": (n5(resolution=[0, 1]), "positive numbers"),
    "a scale of N5 that is text": (n5(pixelResolution={"dimensions": "ab"}), "positive numbers"),
    "a factor of N5 that is none": (n5(downsamplingFactors=[float("nan"), 1]), "positive numbers"),
    "a place of N5 that is none": (n5(resolution=[1, 1], offset=[1]), "finite numbers"),
}


def write(folder: Path, files: Files) -> Path:
    """Write files; what is not bytes is written as JSON."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def make(name: str, parent: Path) -> Path:
    """Write the store ``name`` into a folder of an odd name."""
    what, _ = MALFORMED[name]
    folder = parent / f"a b\u00b5\n{name}.zarr"
    if callable(what):
        what(folder)
    else:
        write(folder, what)
    return folder
