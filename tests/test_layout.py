"""Documents and chunk keys: golden bytes, independent readers, what is refused.

``tests/golden/FORMAT/CASE`` holds the documents of each case as they are written. When one has to
change, look at the difference after::

    NAPARI_MATERIALIZE_WRITE_GOLDEN=1 python -m pytest tests/test_layout.py -k golden
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import yaozarrs
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.core.buffer import default_buffer_prototype

from napari_materialize.arrays import Axis, Level, default_axes
from napari_materialize.codecs import Compression, chunk_bytes, is_fill
from napari_materialize.errors import OptionError
from napari_materialize.layout import RECORD_KEY, ImageDocument, layout_for
from napari_materialize.stores import DirectoryStore, MemoryStore

GOLDEN = Path(__file__).parent / "golden"
FORMATS = ["zarr2", "zarr3"]
KINDS = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]
COMPRESSIONS = ["gzip", "zstd", "blosc", "none"]


def space(names: str, unit: str | None = "um") -> tuple[Axis, ...]:
    return tuple(Axis(name, "space", unit) for name in names)


TIME, CHANNEL = Axis("t", "time", "s"), Axis("c", "channel")


def pyramid() -> tuple[Level, ...]:
    fine = Level((5, 12, 13), "u2", (2, 5, 8), space("zyx"), (0.5, 0.1, 0.1), (10.0, 0.0, -3.0))
    coarse = replace(fine, shape=(5, 6, 7), scale=(0.5, 0.2, 0.2), translation=(10.0, 0.05, -2.95))
    return fine, coarse


def document(kind="image", *levels, compression="gzip", **options) -> ImageDocument:
    return ImageDocument("cells", kind, levels, Compression.parse(compression), **options)


CASES = {
    "yx": document("image", Level((9, 11), "u1", (4, 8)), compression="none"),
    "zyx_units": document("image", *pyramid(), method="mean", record={"version": 1}),
    "czyx": document(
        "image",
        Level((3, 4, 5, 6), "u1", (1, 2, 5, 4), (CHANNEL, *space("zyx", "nanometer"))),
        attributes={"operator": "\u00b5-team", "plan": {"boxes": [[0, 1.5], None, True]}},
        compression="zstd",
    ),
    "tczyx": document(
        "image",
        Level((2, 3, 4, 5, 6), "i2", (1, 1, 4, 4, 4), (TIME, CHANNEL, *space("zyx"))),
        limits=(-100, 1000.5),
        compression="blosc",
    ),
    "label": document("label", Level((4, 5, 6), "u8", (4, 4, 4), space("zyx"))),
    "mask": document("mask", Level((4, 5, 6), "u1", (4, 4, 4), space("zyx")), limits=(0, 1)),
    "bool": document("mask", Level((4, 5), "?", (3, 3)), compression="blosc"),
    "float_nan": document("image", Level((4, 5), "f4", (3, 3), fill=float("nan"))),
    "half": document("image", Level((2, 4, 5), "f2", (2, 3, 3), fill=-0.0), limits=(0, 1)),
}

SHARDED = {
    "sharded": document("image", *pyramid(), method="mean", details={"why": 1}, shards=(1, 2, 3))
}


def voxels_of(level: Level, position: int) -> np.ndarray:
    """Return voxels with a first chunk of nothing but the fill value."""
    random = np.random.default_rng(position)
    voxels = random.integers(0, 100, level.shape).astype(level.dtype)
    if level.dtype.kind == "b":
        voxels = random.random(level.shape) < 0.5
    elif level.dtype.kind == "u":
        voxels[tuple(-1 for _ in level.shape)] = np.iinfo(level.dtype).max
    voxels[tuple(map(slice, level.chunks))] = level.fill
    return voxels


def write(store, layout, image: ImageDocument, voxels: list[np.ndarray]) -> int:
    """Write an image as a job does; return how many chunks were left out."""
    skipped = 0
    for path, data in layout.documents(image).items():
        store.put(path, data)
    for position, (level, array) in enumerate(zip(image.levels, voxels, strict=True)):
        for index in np.ndindex(level.grid.counts):
            block = array[level.grid.box(index).slices]
            if is_fill(block, level.fill):
                skipped += 1
                continue
            plain = chunk_bytes(block, level.chunks, level.fill)
            data = image.compression.encode(plain, level.dtype)
            store.put(layout.chunk_key(position, index), data)
    return skipped


def open_tensorstore(path: Path, layout_name: str) -> np.ndarray:
    driver = {"zarr2": "zarr", "zarr3": "zarr3"}[layout_name]
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}
    return tensorstore.open(spec, read=True).result().read().result()


def zarr_group_of(store: MemoryStore) -> zarr.Group:
    buffer = default_buffer_prototype().buffer
    files = {path: buffer.from_bytes(data) for path, data in store.files.items()}
    return zarr.open_group(zarr.storage.MemoryStore(files, read_only=True), mode="r")


def ome_of(documents: dict[str, bytes]) -> dict:
    if "zarr.json" in documents:
        return json.loads(documents["zarr.json"])["attributes"]["ome"]
    return json.loads(documents[".zattrs"])


def golden_cases() -> list[tuple[str, str]]:
    cases = [(layout_name, case) for layout_name in FORMATS for case in CASES]
    cases += [("n5", case) for case in CASES if case not in {"bool", "half"}]
    return [*cases, ("zarr3", "sharded")]


@pytest.mark.parametrize(("layout_name", "case"), golden_cases())
def test_golden_documents(layout_name, case):
    documents = layout_for(layout_name).documents((CASES | SHARDED)[case])
    folder = GOLDEN / layout_name / case
    if os.environ.get("NAPARI_MATERIALIZE_WRITE_GOLDEN"):
        shutil.rmtree(folder, ignore_errors=True)
        for path, data in documents.items():
            DirectoryStore(folder).put(path, data)
    golden = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert documents == golden


def test_the_golden_corpus_is_whole():
    found = {f"{path.parent.name}/{path.name}" for path in GOLDEN.glob("*/*")}
    assert found == {f"{layout_name}/{case}" for layout_name, case in golden_cases()}
    assert len(CASES) >= 8


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layout_name", FORMATS)
def test_independent_readers_agree(layout_name, case, compression, tmp_path):
    image = replace(CASES[case], compression=Compression.parse(compression))
    voxels = [voxels_of(level, position) for position, level in enumerate(image.levels)]
    skipped = write(DirectoryStore(tmp_path), layout_for(layout_name), image, voxels)
    assert skipped >= len(voxels)

    yaozarrs.validate_zarr_store(str(tmp_path))
    group = zarr.open_group(tmp_path, mode="r")
    for position, (level, expected) in enumerate(zip(image.levels, voxels, strict=True)):
        array = group[str(position)]
        assert (array.shape, array.chunks, array.dtype) == (level.shape, level.chunks, level.dtype)
        for read in (array[...], open_tensorstore(tmp_path / str(position), layout_name)):
            assert read.dtype == level.dtype
            assert read.tobytes() == expected.tobytes()
        names = [axis.name for axis in level.axes]
        if layout_name == "zarr3":
            assert list(array.metadata.dimension_names) == names
        else:
            assert array.attrs["_ARRAY_DIMENSIONS"] == names


@pytest.mark.parametrize("case", CASES)
def test_consolidated_metadata_matches_the_documents(case):
    documents = layout_for("zarr2").documents(CASES[case])
    consolidated = json.loads(documents.pop(".zmetadata"))
    assert consolidated == {
        "zarr_consolidated_format": 1,
        "metadata": {path: json.loads(data) for path, data in documents.items()},
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layout_name", FORMATS)
def test_what_no_validator_catches(layout_name, case):
    image = CASES[case]
    documents = layout_for(layout_name).documents(image)
    ome = ome_of(documents)
    (entry,) = ome["multiscales"]
    assert [dataset["path"] for dataset in entry["datasets"]] == [
        str(position) for position in range(len(image.levels))
    ]
    arrays = {path.split("/")[0] for path in documents if "/" in path}
    assert arrays == {dataset["path"] for dataset in entry["datasets"]}
    for dataset, level in zip(entry["datasets"], image.levels, strict=True):
        assert dataset["coordinateTransformations"] == [
            {"type": "scale", "scale": list(level.scale)},
            {"type": "translation", "translation": list(level.translation)},
        ]
    for axis in entry["axes"]:
        assert axis["type"] in {"time", "channel", "space"}
        assert axis.get("unit") in {None, "second", "micrometer", "nanometer"}
        assert axis["type"] != "channel" or "unit" not in axis
    if layout_name == "zarr3":
        assert ome["version"] == "0.5"
        assert json.dumps(ome).count('"version"') == 1
    else:
        assert entry["version"] == "0.4"
    for channel in ome.get("omero", {"channels": []})["channels"]:
        window = channel["window"]
        assert window["min"] <= window["start"] < window["end"] <= window["max"]
        assert not channel["color"].startswith("#")
    for data in documents.values():
        assert b"\r" not in data
        json.loads(data.decode(), parse_constant=pytest.fail)


@pytest.mark.parametrize("layout_name", FORMATS)
def test_arrays_are_put_before_the_group_that_lists_them(layout_name):
    paths = list(layout_for(layout_name).documents(CASES["zyx_units"]))
    depth = [path.count("/") for path in paths]
    assert depth == sorted(depth, reverse=True)


@pytest.mark.parametrize("layout_name", FORMATS)
def test_kinds(layout_name):
    documents = {kind: layout_for(layout_name).documents(CASES[kind]) for kind in ("label", "mask")}
    label, mask = (ome_of(documents[kind]) for kind in ("label", "mask"))
    assert label["image-label"] == ({"version": "0.4"} if layout_name == "zarr2" else {})
    assert "omero" not in label
    assert "image-label" not in mask
    assert mask["omero"]["channels"][0]["window"] == {"min": 0, "max": 1, "start": 0, "end": 1}


def test_windows_that_were_seen_are_for_channels_without_known_limits():
    wide = Level((2, 3, 4), "u2", (1, 3, 4), (CHANNEL, *space("yx")))
    image = document("image", wide)
    assert image.wants_windows
    seen = replace(image, windows=((1.0, 2.0), (5.0, 9.0)))
    channels = ome_of(layout_for("zarr2").documents(seen))["omero"]["channels"]
    assert [(c["window"]["start"], c["window"]["end"]) for c in channels] == [(1, 2), (5, 9)]
    assert [c["color"] for c in channels] == ["00FF00", "FF00FF"]
    assert not document("image", wide, limits=(0, 9)).wants_windows
    assert not document("label", wide).wants_windows
    assert not document("image", Level((3, 4), "u2", (3, 4))).wants_windows


def test_a_window_is_never_made_up():
    wide = Level((2, 3, 4), "u2", (1, 3, 4), (CHANNEL, *space("yx")))
    layout = layout_for("zarr3")
    assert "omero" not in ome_of(layout.documents(document("image", wide)))
    flat = document("image", wide, limits=(5, 5))
    assert "omero" not in ome_of(layout.documents(flat))
    known = ome_of(layout.documents(document("image", wide, limits=(5, 9))))
    assert [channel["window"]["end"] for channel in known["omero"]["channels"]] == [9, 9]


class TestAttributes:
    @pytest.mark.parametrize("layout_name", FORMATS)
    def test_stand_beside_ours(self, layout_name):
        image = document(
            "image", pyramid()[0], attributes={"mine": [1, {"ome": 2}]}, record={"status": "done"}
        )
        store = MemoryStore()
        write(store, layout_for(layout_name), image, [voxels_of(pyramid()[0], 0)])
        attributes = zarr_group_of(store).attrs.asdict()
        assert attributes["mine"] == [1, {"ome": 2}]
        assert attributes[RECORD_KEY] == {"status": "done"}
        assert {"ome", "multiscales"} & attributes.keys()

    @pytest.mark.parametrize(
        "key",
        [
            "ome",
            "multiscales",
            "omero",
            "image-label",
            "labels",
            "_ARRAY_DIMENSIONS",
            "napari_materialize",
            "plate",
            "well",
            "bioformats2raw.layout",
        ],
    )
    def test_cannot_replace_what_the_image_is(self, key):
        class Disguised(str):
            __slots__ = ()

            def __eq__(self, other):
                return self is other

            def __hash__(self):
                return 0

        for name in (key, Disguised(key)):
            with pytest.raises(OptionError, match=f"attributes: {key} cannot be replaced"):
                document("image", pyramid()[0], attributes={"mine": 1, name: {}})

    @pytest.mark.parametrize(
        "attributes",
        [
            {"a": float("nan")},
            {"a": [float("inf")]},
            {"a": {1, 2}},
            {"a": b"bytes"},
            {"a": np.float32(1)},
            {"a": "\ud800"},
            {("a", "b"): 1},
            [("a", 1)],
            "text",
        ],
    )
    def test_hold_only_what_json_can(self, attributes):
        with pytest.raises(OptionError, match="attributes: must"):
            document("image", pyramid()[0], attributes=attributes)

    def test_a_circle_is_refused(self):
        circle: dict = {}
        circle["self"] = circle
        with pytest.raises(OptionError, match="attributes: must hold"):
            document("image", pyramid()[0], attributes=circle)

    def test_later_changes_reach_no_file(self):
        attributes = {"mine": [1]}
        image = document("image", pyramid()[0], attributes=attributes)
        attributes["mine"].append(2)
        attributes["ome"] = {}
        written = json.loads(layout_for("zarr3").documents(image)["zarr.json"])["attributes"]
        assert (written["mine"], written["ome"]["version"]) == ([1], "0.5")


class TestRefusal:
    @pytest.mark.parametrize("layout_name", FORMATS)
    @pytest.mark.parametrize("case", CASES)
    def test_has_no_reason_for_what_fits(self, layout_name, case):
        assert layout_for(layout_name).refusal(CASES[case]) is None

    @pytest.mark.parametrize("layout_name", FORMATS)
    @pytest.mark.parametrize(
        ("image", "sentence"),
        [
            (document("image"), "levels: at least one"),
            (
                document("image", Level((5,), "u1", (5,), (Axis("x"),))),
                "axes: OME-Zarr has 2 to 5, got 1: x (space)",
            ),
            (
                document(
                    "image",
                    Level((1,) * 6, "u1", (1,) * 6, (TIME, CHANNEL, Axis("w"), *space("zyx"))),
                ),
                "axes: OME-Zarr has 2 to 5, got 6",
            ),
            (
                document("image", Level((2, 3), "u1", (2, 3), (CHANNEL, Axis("x")))),
                "2 or 3 of space and at most one of time and one of channels, got c (channel), x",
            ),
            (
                document("image", Level((1,) * 4, "u1", (1,) * 4, space("wzyx"))),
                "2 or 3 of space",
            ),
            (
                document(
                    "image",
                    Level((1,) * 4, "u1", (1,) * 4, (CHANNEL, Axis("d", "channel"), *space("yx"))),
                ),
                "at most one of time and one of channels",
            ),
            (
                document("image", Level((1,) * 3, "u1", (1,) * 3, (*space("yx"), CHANNEL))),
                "the order must be time, channel, space",
            ),
            (
                document("image", Level((1,) * 4, "u1", (1,) * 4, (CHANNEL, TIME, *space("yx")))),
                "the order must be time, channel, space",
            ),
            (
                document("image", Level((1,) * 3, "u1", (1,) * 3, space("xyz"))),
                "the order in space must be z, y, x",
            ),
            (
                document("image", Level((1, 1), "u1", (1, 1), (Axis(""), Axis("x")))),
                "axes: each needs a name",
            ),
            (document("image", Level((4, 5), "c8", (4, 5))), "level 0 has complex64; cast it"),
            (document("image", Level((4, 5), "U3", (4, 5))), "dtype: must be bool"),
            (document("image", Level((4, 5), "M8[s]", (4, 5))), "dtype: must be bool"),
            (
                document("label", Level((4, 5), "f4", (4, 5))),
                "labels must be integers, got float32",
            ),
            (document("label", Level((4, 5), "?", (4, 5))), "labels must be integers, got bool"),
            (document("image", Level((0, 5), "u1", (4, 5))), "at least one voxel"),
            (document("image", Level((4, 5), "u1", (0, 5))), "at least one voxel"),
            (document("image", Level((4, 5), "u1", (2**16, 2**15))), "smaller than 2 GiB"),
            (document("image", Level((4, 5), "u1", (4, 5), fill=256)), "must be a uint8, got 256"),
            (document("image", Level((4, 5), "u1", (4, 5), fill=-1)), "must be a uint8, got -1"),
            (document("image", Level((4, 5), "i1", (4, 5), fill=0.5)), "must be a int8, got 0.5"),
            (
                document("image", Level((4, 5), "i1", (4, 5), fill=float("nan"))),
                "must be a int8, got nan",
            ),
            (document("image", Level((4, 5), "?", (4, 5), fill=2)), "must be a bool, got 2"),
            (document("image", Level((4, 5), "f2", (4, 5), fill=1e9)), "must be a float16"),
            (document("image", *reversed(pyramid())), "the finest must come first"),
            (
                document("image", pyramid()[0], replace(pyramid()[1], dtype=np.dtype("f4"))),
                "level 1 has ['z', 'y', 'x'] float32 and not ['z', 'y', 'x'] uint16",
            ),
            (
                document("image", pyramid()[0], replace(pyramid()[1], axes=space("zyx", None))),
                "all need the axes and the dtype of the first",
            ),
        ],
    )
    def test_gives_the_reason(self, layout_name, image, sentence):
        layout = layout_for(layout_name)
        reason = layout.refusal(image)
        assert sentence in reason
        assert "\n" not in reason
        with pytest.raises(OptionError) as caught:
            layout.documents(image)
        assert str(caught.value) == reason

    @pytest.mark.parametrize(
        ("layout_name", "shards", "sentence"),
        [
            ("zarr2", (1, 2, 2), "shards: only zarr3 has them"),
            ("n5", (1, 2, 2), "shards: only zarr3 has them"),
            ("zarr3", (2, 2), "along each of the 3 axes"),
            ("zarr3", (0, 2, 2), "1 or more"),
            ("zarr3", (2**10, 2**10, 2**10), "put fewer chunks in a shard"),
        ],
    )
    def test_shards(self, layout_name, shards, sentence):
        image = document("image", *pyramid(), shards=shards)
        assert sentence in layout_for(layout_name).refusal(image)

    @pytest.mark.parametrize(
        ("image", "sentence"),
        [
            (document("mask", Level((4, 5), "?", (4, 5))), "float32, 64 in N5, level 0 has bool"),
            (document("image", Level((4, 5), "f2", (4, 5))), "has float16; cast it"),
            (document("label", Level((4, 5), "f4", (4, 5))), "labels must be integers"),
            (
                document("image", pyramid()[0], attributes={"offset": 1}),
                "offset cannot be replaced",
            ),
            (document("image"), "levels: at least one"),
        ],
    )
    def test_n5(self, image, sentence):
        assert sentence in layout_for("n5").refusal(image)
        with pytest.raises(OptionError):
            layout_for("n5").documents(image)

    @pytest.mark.parametrize("limits", [(0, float("nan")), (float("-inf"), 1), (2, 1)])
    def test_limits_are_numbers(self, limits):
        with pytest.raises(OptionError, match="limits: must be two finite numbers"):
            document("image", pyramid()[0], limits=limits)

    @pytest.mark.parametrize(
        ("name", "sentence"), [("tiff", "one of zarr2, zarr3, n5, got 'tiff'"), ("zarr", "'zarr'")]
    )
    def test_formats(self, name, sentence):
        with pytest.raises(OptionError, match=sentence):
            layout_for(name)


@st.composite
def levels(draw) -> Level:
    ndim = draw(st.integers(2, 5))
    sizes = st.lists(st.integers(1, 5), min_size=ndim, max_size=ndim).map(tuple)
    kind = draw(st.sampled_from(KINDS))
    dtype = np.dtype(kind).newbyteorder(draw(st.sampled_from("<>")))
    fills = {"f": [0.0, -0.0, 1.5, float("nan"), float("-inf")], "b": [False, True]}
    fill = draw(st.sampled_from(fills.get(dtype.kind, [0, 1, 100])))
    return Level(draw(sizes), dtype, draw(sizes), default_axes(ndim), fill=fill)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    level=levels(),
    layout_name=st.sampled_from(FORMATS),
    compression=st.sampled_from(COMPRESSIONS),
    seed=st.integers(0, 100),
)
def test_any_image_reads_back_through_zarr(level, layout_name, compression, seed):
    image = document("image", level, compression=compression)
    voxels = voxels_of(level, seed)
    store = MemoryStore()
    write(store, layout_for(layout_name), image, [voxels])
    array = zarr_group_of(store)["0"]
    assert (array.dtype, array.chunks) == (level.dtype, level.chunks)
    assert np.asarray(array[...]).tobytes() == voxels.tobytes()  # -0.0 is not 0.0
