"""Every format, dtype, codec and rank, read back equal by software that did not write it."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import zarr

from napari_materialize import Box, Engine, MemoryStore, errors, open_view
from napari_materialize.arrays import default_axes
from outside import tools
from outside.corpus import (
    CODECS,
    DTYPES,
    LAYOUTS,
    RANKS,
    layouts_and_dtypes,
    voxels,
    write_corpus,
    write_images,
)
from readback import document, in_tensorstore, opened, with_tensorstore

SHAPE, CHUNKS, SHARDS = (2, 3, 3, 7, 9), (1, 1, 2, 4, 5), (1, 2, 1, 2, 2)


@pytest.fixture(scope="module")
def engine():
    with Engine(slots=2) as engine:
        yield engine


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("ndim", RANKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_dtype_reads_back_equal(engine, layout, ndim, codec):
    shards = SHARDS[-ndim:] if layout.endswith("sharded") else None
    for dtype in (name for known, name in layouts_and_dtypes() if known == layout):
        array = voxels(dtype, SHAPE[-ndim:], CHUNKS[-ndim:])
        store = MemoryStore()
        done = engine.materialize(
            open_view(array, chunks=CHUNKS[-ndim:], kind="image"),
            store,
            format=layout.split()[0],
            shards=shards,
            compression=codec,
        )
        assert done.skipped >= 1
        read = [with_tensorstore(store)]
        if layout != "n5":
            read.append(opened(store)[...])
        for found in read:
            np.testing.assert_array_equal(found, array, strict=True)


def test_the_cross_product_is_whole():
    assert len(layouts_and_dtypes()) == 3 * 12 + 10
    assert len(DTYPES) == 12


@pytest.mark.parametrize("dtype", ["bool", "float16"])
def test_n5_refuses_what_it_cannot_hold_and_creates_nothing(engine, dtype, tmp_path):
    view = open_view(np.zeros((4, 4), dtype))
    with pytest.raises(errors.OptionError, match=r"in N5, level 0 has .*; cast it"):
        engine.materialize(view, tmp_path / "out.n5", format="n5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("extent", ["level", "box"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_box_in_nanometres_lands_to_a_billionth(engine, layout, extent):
    scale, origin = (40.0, 8.1, 7.9), (-1234.5, -0.1, 1e6 + 0.3)
    view = open_view(
        np.ones((9, 20, 20), "u1"), chunks=(4, 8, 8), scale=scale, translation=origin, units="nm"
    )
    box = Box((3, 5, 6), (8, 17, 20))
    store = MemoryStore()
    options = {"box": box, "extent": extent, "pyramid": 1, "format": layout.split()[0]}
    engine.materialize(
        view, store, **options, shards=(2, 2) if layout.endswith("sharded") else None
    )
    corner = box.start if extent == "box" else (0, 0, 0)
    place = [t + s * a for t, s, a in zip(origin, scale, corner, strict=True)]
    coarse = [place[0], place[1] + 8.1 / 2, place[2] + 7.9 / 2]
    attributes = document(store)
    if layout == "n5":
        found = [each["transform"] for each in attributes["multiscales"][0]["datasets"]]
        pairs = [(each["scale"], each["translate"]) for each in found]
        assert attributes["units"] == ["nm"] * 3
        np.testing.assert_allclose(attributes["resolution"], scale[::-1], atol=1e-9)
        np.testing.assert_allclose(attributes["offset"], place[::-1], atol=1e-9)
        assert [u.base_unit for u in in_tensorstore(store).dimension_units] == ["nm"] * 3
        assert json.loads(store.files["s1/attributes.json"])["downsamplingFactors"] == [2, 2, 1]
    else:
        entry = attributes.get("ome", attributes)["multiscales"][0]
        transforms = [each["coordinateTransformations"] for each in entry["datasets"]]
        pairs = [(one["scale"], two["translation"]) for one, two in transforms]
        assert [axis["unit"] for axis in entry["axes"]] == ["nanometer"] * 3
    np.testing.assert_allclose(pairs[0], (scale, place), atol=1e-9)
    np.testing.assert_allclose(pairs[1], ((40, 16.2, 15.8), coarse), atol=1e-9)


class TestN5:
    def write(self, engine, view, **options):
        store = MemoryStore()
        engine.materialize(view, store, format="n5", **options)
        return store

    def test_its_readers_find_what_they_look_for(self, engine):
        view = open_view(
            np.ones((4, 6, 8), "u2"), chunks=(2, 3, 4), scale=(3, 2, 2), units="um", name="cells"
        )
        store = self.write(engine, view, pyramid=1)
        group, s0, s1 = (
            json.loads(store.files[f"{path}attributes.json"]) for path in ("", "s0/", "s1/")
        )
        # neuroglancer
        assert group["axes"] == ["x", "y", "z"]
        assert (group["resolution"], group["units"]) == ([2, 2, 3], ["um"] * 3)
        assert group["scales"] == [[1, 1, 1], [2, 2, 1]]
        # n5-viewer and BigDataViewer: the full resolution, and a factor against it
        for each, factors in ((s0, [1, 1, 1]), (s1, [2, 2, 1])):
            assert each["pixelResolution"] == {"unit": "um", "dimensions": [2, 2, 3]}
            assert each["downsamplingFactors"] == factors
        # tensorstore
        assert [str(unit) for unit in in_tensorstore(store).dimension_units] == [
            "2 um",
            "2 um",
            "3 um",
        ]
        # COSEM, in C order
        assert s1["transform"] == {
            "axes": ["z", "y", "x"],
            "scale": [3, 4, 4],
            "translate": [0, 1, 1],
            "units": ["um"] * 3,
        }
        assert group["n5"] == "2.0.0"

    def test_a_unit_is_never_invented(self, engine):
        view = open_view(np.ones((2, 4, 4)), axes="czy", units=("", "nm", ""))
        store = self.write(engine, view)
        group = json.loads(store.files["attributes.json"])
        assert group["units"] == ["", "nm", ""]
        assert "pixelResolution" not in group
        assert "pixelResolution" not in json.loads(store.files["s0/attributes.json"])

    def test_blocks_at_the_edge_are_clipped_and_named_from_the_fastest_axis(self, engine):
        view = open_view(np.arange(15, dtype="u1").reshape(3, 5), chunks=(2, 4))
        store = self.write(engine, view, compression=None, skip_empty=False)
        files = {path for path in store.files if not path.endswith("json")}
        assert files == {"s0/0/0", "s0/0/1", "s0/1/0", "s0/1/1"}
        assert store.files["s0/1/0"] == b"\0\0\0\2\0\0\0\1\0\0\0\2" + bytes([4, 9])

    def test_a_missing_block_reads_as_zero_whatever_the_fill_was(self, engine, tmp_path):
        path = tmp_path / "filled.zarr"
        source = zarr.create_array(path, shape=(4, 4), chunks=(2, 2), dtype="u1", fill_value=7)
        source[:2, :2] = 0
        store = self.write(engine, open_view(path))
        found = with_tensorstore(store)
        assert found.tolist() == [[0, 0, 7, 7]] * 2 + [[7] * 4] * 2
        assert "s0/0/0" not in store.files


# ---------------------------------------------------------------------- readers from elsewhere


@pytest.fixture(scope="module")
def outside():
    if reason := tools.missing():
        pytest.skip(reason)


def test_readers_outside_the_project_agree(outside, tmp_path):
    manifest = write_corpus(tmp_path)
    assert len(manifest) == len(layouts_and_dtypes()) * len(CODECS) * len(RANKS) == 736
    found = tools.report("readers.py", tmp_path) | tools.report("read.mjs", tmp_path)
    assert found.keys() == {"zarrs", "ngff-zarr", "zarrita"}
    in_zarr = {name for name, entry in manifest.items() if entry["layout"] != "n5"}
    for reader, results in found.items():
        assert results.keys() == in_zarr
        wrong = {name: result for name, result in results.items() if result != "equal"}
        if reader == "zarrita":
            # JavaScript's half floats are younger than the node of many
            wrong = {name: result for name, result in wrong.items() if "float16" not in name}
        assert wrong == {}, reader


def test_three_validators_pass_every_kind_of_image(outside, tmp_path):
    images = write_images(tmp_path)
    for validator, results in tools.report("validators.py", tmp_path).items():
        assert results.keys() == images.keys()
        assert {name: said for name, said in results.items() if said != "valid"} == {}, validator


def test_what_no_validator_sees(tmp_path):
    images = write_images(tmp_path)
    assert len(images) == 3 * 11
    for name, stored in images.items():
        group = zarr.open_group(tmp_path / name, mode="r")
        attributes = group.attrs.asdict()
        ome = attributes["ome"] if stored == "zarr3" else attributes
        check_image(group, ome, stored)


def check_image(group, ome, stored):
    (entry,) = ome["multiscales"]
    if stored == "zarr3":
        assert ome["version"] == "0.5"
        assert json.dumps(ome).count('"version"') == 1
    else:
        assert entry["version"] == "0.4"
    names = [axis["name"] for axis in entry["axes"]]
    assert names == [axis.name for axis in default_axes(len(names))] or names == list("tzyx")
    for axis in entry["axes"]:
        assert axis.get("unit") in {None, "micrometer", "nanometer"}
    for channel in ome.get("omero", {"channels": []})["channels"]:
        window = channel["window"]
        assert all(map(math.isfinite, window.values()))
        assert window["min"] <= window["start"] < window["end"] <= window["max"]
    before = None
    for dataset in entry["datasets"]:
        array = group[dataset["path"]]
        one, two = dataset["coordinateTransformations"]
        scale, shift = one["scale"], two["translation"]
        assert min(scale) > 0
        if stored == "zarr2":
            assert array.metadata.dimension_separator == "/"
        else:
            assert list(array.metadata.dimension_names) == names
        assert "image-label" not in ome or array.dtype.kind in "iu"
        if before is not None and entry["type"] in {"mean", "mode"}:
            shape, fine, place = before
            factors = [round(coarse / s) for coarse, s in zip(scale, fine, strict=True)]
            assert array.shape == tuple(-(-n // f) for n, f in zip(shape, factors, strict=True))
            moved = [t + (c - s) / 2 for t, c, s in zip(place, scale, fine, strict=True)]
            np.testing.assert_allclose(shift, moved, atol=1e-9)
        before = array.shape, scale, shift


def test_consolidated_metadata_is_what_the_files_say(engine):
    store = MemoryStore()
    engine.materialize(open_view(np.ones((8, 8)), chunks=(4, 4)), store, pyramid=1)
    consolidated = json.loads(store.files[".zmetadata"])["metadata"]
    plain = [path for path in store.files if path.rpartition("/")[2].startswith(".z")]
    assert consolidated == {
        path: json.loads(store.files[path]) for path in plain if path != ".zmetadata"
    }
    assert len(list(itertools.filterfalse(str.isalnum, plain))) == 7
