"""Sources on real volumes and on containers that other programs wrote.

They are found beside the repository; where they are not, the project stands without them.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr

from napari_materialize.arrays import Axis
from napari_materialize.errors import SourceError
from napari_materialize.geometry import Box
from napari_materialize.sources import open_source

DATA = Path(__file__).parents[1].parent / "shared" / "data"
CONTAINERS = DATA / "containers"

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif(not DATA.is_dir(), reason="no ../shared/data beside the repository"),
    # Codecs of numcodecs in zarr v3 are outside its specification: zarr says so each time.
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
]

LARGEST_READ = 50 * 2**20
"""Bytes: larger arrays, of which no chunk is there anyway, are read in one corner."""


READERS = {"v2": "zarr", "v3": "zarr3", "n5": "n5"}
"""TensorStore's drivers."""

ONE_AXIS = "an image has 2 to 5 axes"
NO_NUMBERS = "an image's values are bool, integers or floats"

REFUSED = {
    # text, of which zarr reads most and TensorStore none
    "neuroglancer/v2_from_zarr-python.zarr/2d.chunked.U7": NO_NUMBERS,
    "neuroglancer/v2_from_zarr-python.zarr/3d.chunked.O": NO_NUMBERS,
    "zarrita.js/v2_data.zarr/2d.chunked.U7": NO_NUMBERS,
    "zarrita.js/v2_data.zarr/3d.chunked.O": NO_NUMBERS,
    "zarrita.js/v3_data.zarr/2d.chunked.string.vlen": NO_NUMBERS,
    # another format
    "neuroglancer/precomputed/one_channel": "got Neuroglancer's precomputed",
    "neuroglancer/precomputed/two_channels": "got Neuroglancer's precomputed",
}
"""Arrays of more than one axis that are refused, and words of the sentence; lines are no images."""


def rows(*formats: str) -> list[dict[str, str]]:
    if not CONTAINERS.is_dir():
        return []
    with (CONTAINERS / "arrays.tsv").open() as table:
        return [row for row in csv.DictReader(table, delimiter="\t") if row["format"] in formats]


def corner(shape: tuple[int, ...], itemsize: int) -> Box:
    if math.prod(shape) * itemsize <= LARGEST_READ:
        return Box.whole(shape)
    return Box((0,) * len(shape), tuple(min(n, 16) for n in shape))


def images() -> list[str]:
    """Paths of the groups in the containers that describe an image, of the versions read."""
    found = []
    for path in sorted([*CONTAINERS.rglob(".zattrs"), *CONTAINERS.rglob("zarr.json")]):
        document = json.loads(path.read_text())
        attributes = document.get("attributes", {}) if path.name == "zarr.json" else document
        if "multiscales" in attributes.get("ome", attributes):
            found.append(path.parent.relative_to(CONTAINERS).as_posix())
    return found


def test_fibsem_volume_and_its_labels() -> None:
    path = DATA / "volumes" / "fibsem_medulla_250.v04.ome.zarr"
    source = open_source(path)
    assert source.kind == "image"
    assert [level.shape for level in source.levels] == [(250, n, n) for n in (250, 125, 62)]
    assert {level.dtype for level in source.levels} == {np.dtype("u1")}
    assert source.levels[0].axes == (Axis("z"), Axis("y"), Axis("x"))
    assert [level.scale[1] for level in source.levels] == [1, 2, 250 / 62]
    assert [level.translation[2] for level in source.levels[:2]] == [0, 0.5]
    box = Box((40, 60, 80), (140, 190, 230))
    stored = zarr.open_array(path / "s0", mode="r")
    np.testing.assert_array_equal(source.read(0, box), stored[box.slices])
    labels = open_source(path / "labels" / "neurons")
    assert (labels.kind, labels.levels[0].dtype) == ("label", np.dtype("u4"))
    assert np.unique(labels.read(0, Box.whole((250, 250, 250)))).size in (526, 527)  # 0 is no body
    assert open_source(path / "labels").identity == labels.identity
    assert open_source(path / "s1").levels == source.levels[1:2]


def test_t1_head_with_nested_dataset_paths() -> None:
    path = DATA / "volumes" / "t1_head_256.v04.ome.zarr"
    source = open_source(path)
    assert source.name == "t1_crop"
    assert source.levels[0].axes == tuple(Axis(name, unit="millimeter") for name in "zyx")
    assert [level.scale for level in source.levels] == [(1,) * 3, (2,) * 3, (4,) * 3]
    assert [level.translation for level in source.levels] == [(0,) * 3, (0.5,) * 3, (1.5,) * 3]
    for k, level in enumerate(source.levels):
        stored = zarr.open_array(path / f"scale{k}" / "t1_crop", mode="r")
        np.testing.assert_array_equal(source.read(k, Box.whole(level.shape)), stored[:])
    one = open_source(path / "scale1" / "t1_crop")
    assert (one.levels, one.name) == (source.levels[1:2], "t1_crop scale1/t1_crop")


def test_the_table_is_the_one_that_was_looked_at() -> None:
    listed = rows("v2", "v3", "n5", "precomputed")
    assert len(listed) == 280
    assert {row["path"] for row in listed} > set(REFUSED)


@pytest.mark.parametrize("row", rows(*READERS, "precomputed"), ids=lambda row: row["path"])
def test_every_array_opens_equal_or_is_refused_with_a_sentence(row: dict[str, str]) -> None:
    path, shape = CONTAINERS / row["path"], json.loads(row["shape"])
    reason = ONE_AXIS if len(shape) == 1 else REFUSED.get(row["path"])
    if reason is not None:
        with pytest.raises(SourceError, match=reason) as caught:
            open_source(path)
        assert "\n" not in str(caught.value)
        return
    source = open_source(path)
    (level,) = source.levels
    assert list(level.shape) == (shape[::-1] if row["format"] == "n5" else shape)
    box = corner(level.shape, level.dtype.itemsize)
    block = source.read(0, box)
    judges = 0
    if row["zarr_3.4.2"].startswith("ok"):
        stored = zarr.open_array(path, mode="r")
        np.testing.assert_array_equal(block, np.asarray(stored[box.slices]))
        judges += 1
    if row["tensorstore_0.1.86"].startswith("ok"):
        kvstore = {"driver": "file", "path": str(path)}
        spec = {"driver": READERS[row["format"]], "kvstore": kvstore}
        store: Any = tensorstore.open(spec, read=True).result()
        store = store.T if row["format"] == "n5" else store
        np.testing.assert_array_equal(block, store[box.slices].read().result())
        judges += 1
    # neither reads what N5 1.5 wrote, nor TensorStore its order F: see the tests below
    assert judges or row["path"] in BY_NOBODY


BY_NOBODY = {
    "n5-java/data-1.5.0.n5/raw": "n5-java/data-3.1.3.n5/raw",
    "neuroglancer/v3_from_zarrita.zarr/3d.chunked.mixed.i2.F": (
        "neuroglancer/v2_from_zarr-python.zarr/3d.chunked.mixed.i2.F"
    ),
}
"""What neither reader takes, beside the same voxels in a form that they do."""


@pytest.mark.parametrize(("path", "other"), BY_NOBODY.items())
def test_what_other_readers_refuse(path: str, other: str) -> None:
    mine, theirs = open_source(CONTAINERS / path), open_source(CONTAINERS / other)
    whole = Box.whole(mine.levels[0].shape)
    np.testing.assert_array_equal(mine.read(0, whole), theirs.read(0, whole))
    assert mine.read(0, whole).any()


TURNED = {"mapAxis.zarr": "mapAxis", "anisotropic_rotation.zarr": "affine", "/rotation": "rotation"}
"""Images of 0.6 that are more than scaled and moved, and by what."""


@pytest.mark.parametrize("path", images())
def test_every_image_opens_placed_or_is_refused_with_a_sentence(path: str) -> None:
    turned = next((kind for name, kind in TURNED.items() if name in path), None)
    if turned is not None:
        with pytest.raises(SourceError, match=f"got '{turned}'") as caught:
            open_source(CONTAINERS / path)
        assert "\n" not in str(caught.value)
        return
    source = open_source(CONTAINERS / path)
    assert source.record["type"] == "ome-zarr"
    assert source.notices == ()
    assert source.kind == ("label" if "/labels/" in path else "image")
    for k, level in enumerate(source.levels):
        box = corner(level.shape, level.dtype.itemsize)
        assert source.read(k, box).shape == box.shape
        # A coarser level covers the same world as the finest, but for the last voxels of it.
        extent = np.multiply(level.shape, level.scale)
        finest = np.multiply(source.levels[0].shape, source.levels[0].scale)
        assert (np.abs(extent - finest) <= 2 * np.array(level.scale)).all()


@pytest.mark.parametrize(
    ("name", "scale", "translation"),
    [
        ("basic/identity", (1, 1, 1), (0, 0, 0)),
        ("basic/scale", (4, 3, 2), (0, 0, 0)),
        ("basic/translation", (1, 1, 1), (30, 20, 10)),
        ("basic/sequenceScaleTranslation", (4, 3, 2), (32, 21, 10)),
        ("simple/affine", (4, 3, 2), (32, 21, 10)),
    ],
)
def test_ome_zarr_0_6(name: str, scale: tuple[int, ...], translation: tuple[int, ...]) -> None:
    source = open_source(CONTAINERS / "neuroglancer" / "ome_zarr_0.6" / f"{name}.zarr")
    (level,) = source.levels
    assert (level.scale, level.translation) == (scale, translation)
    assert level.axes == tuple(Axis(axis, unit="micrometer") for axis in "zyx")


# Name, axes (C order, unit), and scale and translation of each level.
N5_IMAGES = [
    ("n5-ij/test.n5/c0", "xyz", "millimeter",
     [((7, 11, 13), (2, 3, 5)), ((14, 22, 26), (3, 4.5, 7.5))]),
    ("n5-ij/test.n5/cosem", "zyx", "nanometer", [((64,) * 3, (28,) * 3)]),
    ("n5-ij/test.n5/cosem_F", "zyx", "nanometer", [((128, 64, 32), (30, 29, 28))]),
    ("n5-ij/test.n5/cosem_ms", "zyx", "nanometer",
     [((n,) * 3, (t,) * 3) for n, t in ((32, 21), (64, 28), (128, 35))]),
    ("n5-ij/test.n5/n5v_ds", "zyx", None, [((2,) * 3, (0.5,) * 3)]),
    ("n5-ij/test.n5/n5v_pr", "zyx", "millimeter", [((1.5,) * 3, (0,) * 3)]),
    ("n5-ij/test.n5/n5v_pr-ds", "zyx", "millimeter", [((3,) * 3, (0.75,) * 3)]),
    ("n5-ij/test.n5/n5v_pra", "zyx", None, [((1.5,) * 3, (0,) * 3)]),
    ("n5-ij/test.n5/n5v_pra-ds", "zyx", None, [((3,) * 3, (0.75,) * 3)]),
    ("n5-ij/test.n5/others/res", "zyx", None, [((1,) * 3, (0,) * 3)]),
    *((f"neuroglancer/n5/n5_viewer_multiscale_{age}", "yx", ("second", "nanometer"),
       [((20, 10), (0, 0)), ((40, 20), (10, 5)), ((80, 40), (30, 15))])
      for age in ("deprecated", "modern")),
]  # fmt: skip


@pytest.mark.parametrize(("path", "axes", "unit", "placed"), N5_IMAGES)
def test_n5_dialects(path: str, axes: str, unit: Any, placed: list[Any]) -> None:
    source = open_source(CONTAINERS / path)
    units = unit if isinstance(unit, tuple) else (unit,) * len(axes)
    named = tuple(Axis(name, unit=each) for name, each in zip(axes, units, strict=True))
    assert source.levels[0].axes == named
    assert [(level.scale, level.translation) for level in source.levels] == placed
    if len(placed) > 1:
        assert open_source(CONTAINERS / path / "s1").levels == source.levels[1:2]


@pytest.mark.parametrize(
    ("path", "listed"),
    [
        ("ome2024-ngff-challenge/bf2raw.zarr", "inside are 0, 1: open one"),
        ("ome2024-ngff-challenge/hcs.zarr", "a plate holds .* A/1/0, A/1/1, .*, B/2/1: open one"),
        ("ome2024-ngff-challenge/hcs.zarr/A/1", "a well holds .* inside are 0, 1: open one"),
        ("zarrita.js/v2_data.zarr", "and more"),
        ("n5-ij/v0.5.ome.zarr", "got none of them; inside are .*Tonsil1"),
        ("n5-ij/test.n5", "got none of them; inside are c0, cosem, cosem_F, cosem_ms, n5v_ds"),
        ("neuroglancer/n5", "inside are n5_viewer_multiscale_deprecated, n5_viewer_mul"),
    ],
)
def test_containers_of_many_say_what_is_inside(path: str, listed: str) -> None:
    with pytest.raises(SourceError, match=listed):
        open_source(CONTAINERS / path)


def test_a_container_of_one_array_opens_it() -> None:
    source = open_source(CONTAINERS / "jzarr" / "example_5.zarr")
    assert source.location == str((CONTAINERS / "jzarr/example_5.zarr/foo/bar/baz").resolve())
    assert source.levels[0].dtype == np.dtype("i4")
