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


def refused_for(row: dict[str, str]) -> str | None:
    """Return words of the sentence an array of the table is refused with, None if it opens."""
    if row["dtype"] == "string" or row["dtype"].lstrip("<>|")[0] in "OSU":
        return "bool, integers or floats" if len(json.loads(row["shape"])) > 1 else "2 to 5 axes"
    if len(json.loads(row["shape"])) == 1:
        return "2 to 5 axes"
    # What zarr-python cannot open; tensorstore can read one of these.
    return None if row["zarr_3.4.2"].startswith("ok") else "zarr-python reads it"


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


@pytest.mark.parametrize("row", rows("v2", "v3"), ids=lambda row: row["path"])
def test_every_array_opens_equal_or_is_refused_with_a_sentence(row: dict[str, str]) -> None:
    path = CONTAINERS / row["path"]
    reason = refused_for(row)
    if reason is not None:
        with pytest.raises(SourceError, match=reason) as caught:
            open_source(path)
        assert "\n" not in str(caught.value)
        return
    source = open_source(path)
    (level,) = source.levels
    assert list(level.shape) == json.loads(row["shape"])
    box = corner(level.shape, level.dtype.itemsize)
    block = source.read(0, box)
    stored = zarr.open_array(path, mode="r")
    np.testing.assert_array_equal(block, np.asarray(stored[box.slices]))
    if row["tensorstore_0.1.86"].startswith("ok"):
        driver = "zarr" if row["format"] == "v2" else "zarr3"
        store: Any = tensorstore.open(
            {"driver": driver, "kvstore": {"driver": "file", "path": str(path)}}, read=True
        ).result()
        np.testing.assert_array_equal(block, store[box.slices].read().result())


@pytest.mark.parametrize("path", images())
def test_every_image_opens_placed_or_is_refused_with_a_sentence(path: str) -> None:
    if "ome_zarr_0.6" in path:
        with pytest.raises(SourceError, match=r"got version 0\.6") as caught:
            open_source(CONTAINERS / path)
        assert "\n" not in str(caught.value)
        return
    source = open_source(CONTAINERS / path)
    assert source.record["type"] == "ome-zarr"
    assert source.kind == ("label" if "/labels/" in path else "image")
    for k, level in enumerate(source.levels):
        box = corner(level.shape, level.dtype.itemsize)
        assert source.read(k, box).shape == box.shape
        # A coarser level covers the same world as the finest, but for the last voxels of it.
        extent = np.multiply(level.shape, level.scale)
        finest = np.multiply(source.levels[0].shape, source.levels[0].scale)
        assert (np.abs(extent - finest) <= 2 * np.array(level.scale)).all()


@pytest.mark.parametrize("row", rows("n5"), ids=lambda row: row["path"])
def test_n5_is_refused_with_a_sentence(row: dict[str, str]) -> None:
    with pytest.raises(SourceError, match="got N5") as caught:
        open_source(CONTAINERS / row["path"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "listed"),
    [
        ("ome2024-ngff-challenge/bf2raw.zarr", "inside are 0, 1: open one"),
        ("ome2024-ngff-challenge/hcs.zarr", "a plate holds .* A/1/0, A/1/1, .*, B/2/1: open one"),
        ("ome2024-ngff-challenge/hcs.zarr/A/1", "a well holds .* inside are 0, 1: open one"),
        ("zarrita.js/v2_data.zarr", "and more"),
        ("n5-ij/v0.5.ome.zarr", "got none of them; inside are .*Tonsil1"),
    ],
)
def test_containers_of_many_say_what_is_inside(path: str, listed: str) -> None:
    with pytest.raises(SourceError, match=listed):
        open_source(CONTAINERS / path)


def test_a_container_of_one_array_opens_it() -> None:
    source = open_source(CONTAINERS / "jzarr" / "example_5.zarr")
    assert source.location == str((CONTAINERS / "jzarr/example_5.zarr/foo/bar/baz").resolve())
    assert source.levels[0].dtype == np.dtype("i4")
