"""Sources that are zarr on disk open as what they are, and read what zarr reads."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from napari_materialize.arrays import Axis
from napari_materialize.errors import BoxError, LevelError
from napari_materialize.geometry import Box
from napari_materialize.sources import open_source

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]


def write_image(
    path: Path,
    shapes: list[tuple[int, ...]],
    *,
    zarr_format: int = 2,
    dtype: str = "u2",
    paths: list[str] | None = None,
    attributes: dict[str, Any] | None = None,
    **entry: Any,
) -> list[np.ndarray]:
    """Write an image whose ``multiscales`` entry is as given; datasets default to bare paths."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    paths = paths or [str(k) for k in range(len(shapes))]
    arrays = []
    for k, (inner, shape) in enumerate(zip(paths, shapes, strict=True)):
        data = (np.arange(math.prod(shape)) + k).reshape(shape).astype(dtype)
        group.create_array(inner, data=data, chunks=tuple(min(n, 4) for n in shape))
        arrays.append(data)
    entry.setdefault("datasets", [{"path": inner} for inner in paths])
    entry = {key: value for key, value in entry.items() if value is not None}
    if zarr_format == 3:
        ome = {"version": entry.pop("version", "0.5"), "multiscales": [entry], **(attributes or {})}
        group.attrs.update({"ome": ome})
    else:
        entry.setdefault("version", "0.4")
        group.attrs.update({"multiscales": [entry], **(attributes or {})})
    return arrays


def scaled(path: str, scale: list[float], translation: list[float] | None = None) -> dict[str, Any]:
    transformations: list[dict[str, Any]] = [{"type": "scale", "scale": scale}]
    if translation is not None:
        transformations.append({"type": "translation", "translation": translation})
    return {"path": path, "coordinateTransformations": transformations}


def whole(source: Any, level: int = 0) -> np.ndarray:
    return source.read(level, Box.whole(source.levels[level].shape))


ZYX = [
    {"name": "z", "type": "space", "unit": "nanometer"},
    {"name": "y", "type": "space", "unit": "nm"},
    {"name": "x", "type": "space"},
]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_image_with_everything_said(tmp_path: Path, zarr_format: int) -> None:
    path = tmp_path / "my image (1).ome.zarr"
    arrays = write_image(
        path,
        [(8, 10, 12), (4, 5, 6)],
        zarr_format=zarr_format,
        paths=["scale0/image", "scale1/image"],
        axes=ZYX,
        datasets=[
            scaled("scale0/image", [40, 4, 4], [-100, 0, 7]),
            scaled("scale1/image", [80, 8, 8], [-80, 2, 9]),
        ],
        name="cells",
    )
    source = open_source(path)
    assert (source.name, source.kind, source.stable) == ("cells", "image", True)
    assert source.location == str(path.resolve())
    fine, coarse = source.levels
    assert fine.axes == (Axis("z", unit="nanometer"), Axis("y", unit="nanometer"), Axis("x"))
    assert (fine.shape, fine.chunks, fine.dtype) == ((8, 10, 12), (4, 4, 4), np.dtype("u2"))
    assert (fine.scale, fine.translation) == ((40, 4, 4), (-100, 0, 7))
    assert (coarse.scale, coarse.translation) == ((80, 8, 8), (-80, 2, 9))
    for level, array in enumerate(arrays):
        np.testing.assert_array_equal(whole(source, level), array)
    assert source.record == {
        "type": "ome-zarr",
        "format": "0.4" if zarr_format == 2 else "0.5",
        "location": str(path.resolve()),
        "zarr_format": zarr_format,
    }


def test_transformations_are_applied_in_order_and_the_images_own_last(tmp_path: Path) -> None:
    write_image(
        tmp_path,
        [(8, 8)],
        axes=["y", "x"],
        datasets=[scaled("0", [2, 3], [10, 20])],
        coordinateTransformations=[
            {"type": "scale", "scale": [5, 1]},
            {"type": "translation", "translation": [1, 2]},
            {"type": "identity"},
        ],
    )
    level = open_source(tmp_path).levels[0]
    assert (level.scale, level.translation) == ((10, 3), (51, 22))


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_old_image_without_axes_or_scales(tmp_path: Path, version: str) -> None:
    write_image(tmp_path, [(1, 2, 5, 100, 90), (1, 2, 5, 50, 45)], version=version)
    source = open_source(tmp_path)
    assert [axis.name for axis in source.levels[0].axes] == ["t", "c", "z", "y", "x"]
    assert source.levels[0].scale == (1,) * 5
    assert source.levels[1].scale == (1, 1, 1, 2, 2)
    assert source.levels[1].translation == (0, 0, 0, 0.5, 0.5)
    assert source.record["format"] == version


def test_axes_of_0_3_are_names_and_types_are_guessed_where_unusual(tmp_path: Path) -> None:
    write_image(tmp_path / "a.zarr", [(2, 3, 4)], version="0.3", axes=["t", "y", "x"])
    assert [a.type for a in open_source(tmp_path / "a.zarr").levels[0].axes] == [
        "time",
        "space",
        "space",
    ]
    axes = [{"name": "angle", "type": "custom", "unit": "degree"}, {"name": "y"}, {"name": "x"}]
    write_image(tmp_path / "b.zarr", [(2, 3, 4)], axes=axes)
    assert open_source(tmp_path / "b.zarr").levels[0].axes[0] == Axis("angle", "channel")


def test_a_level_without_transformations_is_placed_by_its_shape(tmp_path: Path) -> None:
    shapes = [(100, 9), (50, 9), (25, 9), (13, 9)]
    datasets = [scaled("0", [0.5, 2], [10, 0]), *({"path": str(k)} for k in (1, 2, 3))]
    write_image(tmp_path, shapes, axes=["y", "x"], datasets=datasets)
    levels = open_source(tmp_path).levels
    assert [level.scale for level in levels] == [(0.5, 2), (1, 2), (2, 2), (4, 2)]
    assert [level.translation[0] for level in levels] == [10, 10.25, 10.75, 11.75]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_labels_are_found_by_path_and_by_mark(tmp_path: Path, zarr_format: int) -> None:
    path = tmp_path / "x.zarr"
    write_image(path, [(4, 4)], zarr_format=zarr_format)
    labels = zarr.open_group(path / "labels", mode="w", zarr_format=zarr_format)
    marked = {"image-label": {}}
    keywords = {"zarr_format": zarr_format, "dtype": "u4"}
    write_image(path / "labels/by path", [(4, 4)], **keywords)
    write_image(tmp_path / "marked.zarr", [(4, 4)], attributes=marked, **keywords)
    labels.create_array("plain", data=np.zeros((4, 4), "i8"))
    labels.create_array("truth", data=np.zeros((4, 4), bool))
    labels.create_array("float", data=np.zeros((4, 4), "f4"))
    found = [
        open_source(place).kind
        for place in (
            path,
            path / "labels/by path",
            path / "labels/by path/0",
            tmp_path / "marked.zarr",
            path / "labels/plain",
            path / "labels/truth",
            path / "labels/float",
        )
    ]
    assert found == ["image", "label", "label", "label", "label", "mask", "image"]
    assert open_source(path / "labels/plain", kind="image").kind == "image"


def test_an_ordinary_folder_named_labels_makes_no_labels(tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    write_image(tmp_path / "labels" / "raw.zarr", [(4, 4)])
    assert open_source(tmp_path / "labels" / "raw.zarr").kind == "image"


def test_one_level_of_an_image_keeps_its_place(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    datasets = [scaled("a/s0", [2, 2]), scaled("a/s1", [4, 4], [1, 1])]
    arrays = write_image(
        path, [(8, 8), (4, 4)], axes=ZYX[:2], paths=["a/s0", "a/s1"], datasets=datasets, name="em"
    )
    source = open_source(path / "a" / "s1")
    assert len(source.levels) == 1
    assert source.levels[0] == open_source(path).levels[1]
    assert (source.name, source.record["path"]) == ("em a/s1", "a/s1")
    np.testing.assert_array_equal(whole(source), arrays[1])


def test_a_level_of_a_damaged_image_still_opens_as_an_array(tmp_path: Path) -> None:
    arrays = write_image(tmp_path, [(8, 8)], axes=["y", "x"], datasets=[scaled("0", [0, 1])])
    source = open_source(tmp_path / "0")
    assert (source.record["type"], source.levels[0].scale) == ("zarr", (1, 1))
    np.testing.assert_array_equal(whole(source), arrays[0])


@pytest.mark.parametrize("attributes", [{"ome": "odd"}, {"ome": {"multiscales": 7}}])
def test_an_array_opens_whatever_the_group_above_it_says(
    tmp_path: Path, attributes: dict[str, Any]
) -> None:
    group = zarr.open_group(tmp_path, mode="w", zarr_format=3, attributes=attributes)
    group.create_array("a", data=np.eye(3)).attrs["ome"] = "odd"
    np.testing.assert_array_equal(whole(open_source(tmp_path / "a")), np.eye(3))
    (tmp_path / "zarr.json").write_text("{")
    np.testing.assert_array_equal(whole(open_source(tmp_path / "a")), np.eye(3))


def test_a_group_with_one_array_opens_it(tmp_path: Path) -> None:
    deep = zarr.open_group(tmp_path / "g", mode="w", zarr_format=2)
    deep.create_group("foo/bar").create_array("baz", data=np.eye(3))
    assert open_source(tmp_path / "g").location == str(tmp_path.resolve() / "g/foo/bar/baz")


def test_stale_consolidated_metadata_is_not_believed(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path, mode="w", zarr_format=2)
    group.create_array("a", data=np.zeros((4, 4), "u1"))
    zarr.consolidate_metadata(tmp_path, zarr_format=2)
    zarr.create_array(tmp_path / "a", data=np.ones((6, 7), "u2"), zarr_format=2, overwrite=True)
    source = open_source(tmp_path)
    assert (source.levels[0].shape, source.levels[0].dtype) == ((6, 7), np.dtype("u2"))
    assert whole(source).all()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["c", "Y", "X"], ["c", "y", "x"]),
        (["time", "row", "column"], ["time", "row", "column"]),
        (["dim_0", "dim_1", "dim_2"], ["z", "y", "x"]),
        (["y", "y", "x"], ["z", "y", "x"]),
        (["-3", "-2", "-1"], ["z", "y", "x"]),
        ([None, "y", "x"], ["z", "y", "x"]),
    ],
)
def test_dimension_names_that_make_sense_become_axes(
    tmp_path: Path, names: list[str], expected: list[str]
) -> None:
    data = np.zeros((2, 3, 4))
    zarr.create_array(tmp_path / "v3", data=data, zarr_format=3, dimension_names=names)
    old = zarr.create_array(tmp_path / "v2", data=data, zarr_format=2)
    old.attrs["_ARRAY_DIMENSIONS"] = names
    for version in ("v2", "v3"):
        axes = open_source(tmp_path / version).levels[0].axes
        assert [axis.name for axis in axes] == expected
    assert open_source(tmp_path / "v2").levels[0].axes[0].type in ("channel", "time", "space")


@pytest.mark.parametrize(
    ("zarr_format", "dtype", "stored", "fill"),
    [
        (2, "<f4", None, 0),
        (2, "<f4", "NaN", math.nan),
        (3, "f8", "NaN", math.nan),
        (2, "<u8", 2**63 + 7, 2**63 + 7),
        (3, "bool", 0, False),
        (3, "bool", True, True),
        (2, ">i2", -5, -5),
    ],
)
def test_fill_values_are_what_missing_chunks_read_as(
    tmp_path: Path, zarr_format: int, dtype: str, stored: Any, fill: Any
) -> None:
    zarr.create_array(tmp_path, shape=(4, 4), dtype=dtype, zarr_format=zarr_format)
    document = tmp_path / (".zarray" if zarr_format == 2 else "zarr.json")
    document.write_text(json.dumps(json.loads(document.read_text()) | {"fill_value": stored}))
    source = open_source(tmp_path)
    assert type(source.levels[0].fill) is type(np.asarray(fill, dtype).item())
    np.testing.assert_equal(source.levels[0].fill, fill)
    np.testing.assert_array_equal(whole(source), np.full((4, 4), fill, dtype))


def test_a_shard_is_read_by_its_inner_chunks(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 255, (10, 10), "u1")
    zarr.create_array(tmp_path, data=data, chunks=(2, 2), shards=(4, 4))
    source = open_source(tmp_path)
    assert source.levels[0].chunks == (2, 2)
    np.testing.assert_array_equal(source.read(0, Box((1, 3), (7, 10))), data[1:7, 3:10])


def test_overrides_win_and_coarser_levels_keep_their_factors(tmp_path: Path) -> None:
    datasets = [scaled("0", [2, 2, 2], [1, 1, 1]), scaled("1", [4, 4, 6], [2, 2, 3])]
    write_image(tmp_path, [(8, 8, 9), (4, 4, 3)], axes=ZYX, datasets=datasets)
    options = {
        "scale": [10, 1, 1],
        "translation": [0, 0, -3],
        "units": "um",
        "axes": ["t", "y", "x"],
        "kind": "label",
        "name": "mine",
        "chunks": [1, 8, 8],
    }
    source = open_source(tmp_path, **options)
    assert (source.name, source.kind) == ("mine", "label")
    fine, coarse = source.levels
    assert fine.axes == (
        Axis("t", "time"),
        Axis("y", unit="micrometer"),
        Axis("x", unit="micrometer"),
    )
    assert (fine.scale, fine.translation) == ((10, 1, 1), (0, 0, -3))
    assert (coarse.scale, coarse.translation) == ((20, 2, 3), (5, 0.5, -2))
    assert fine.chunks == coarse.chunks == (1, 8, 8)
    assert source.record["options"] | {"axes": options["axes"]} == options
    again = open_source(source.record["location"], **source.record["options"])
    assert (again.identity, again.levels) == (source.identity, source.levels)


def test_units_and_axes_in_every_form_they_may_be_given(tmp_path: Path) -> None:
    zarr.create_array(tmp_path, data=np.zeros((2, 3, 4)))
    axes = open_source(tmp_path, axes="cyx", units=["um", "nm", None]).levels[0].axes
    assert axes == (Axis("c", "channel"), Axis("y", unit="nanometer"), Axis("x"))
    source = open_source(tmp_path, axes=[Axis("t", "time", "second"), "y", {"name": "x"}])
    assert source.levels[0].axes[0].unit == "second"
    json.dumps(source.record)  # Axis objects became JSON
    assert open_source(tmp_path, **source.record["options"]).levels == source.levels


def test_paths_as_text_as_url_and_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a b%.zarr"
    zarr.create_array(path, data=np.eye(3))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.zarr").symlink_to(path)
    for what in (path, str(path), path.as_uri(), "a b%.zarr", "./x/../a b%.zarr", "link.zarr"):
        assert open_source(what).location == str(path.resolve())


def test_identity_follows_content_description_and_rewriting(tmp_path: Path) -> None:
    def opened(**options: Any) -> str:
        return open_source(tmp_path / "a", **options).identity

    zarr.create_array(tmp_path / "a", data=np.eye(4), chunks=(2, 2), zarr_format=2)
    first = opened()
    assert first == opened() == opened(name="another name")
    assert len({first, opened(scale=(2, 2)), opened(chunks=(4, 4)), opened(units="um")}) == 4
    script = "import sys; from napari_materialize.sources import open_source as o; "
    script += "print(o(sys.argv[1]).identity)"
    command = [sys.executable, "-c", script, str(tmp_path / "a")]
    assert subprocess.check_output(command, text=True).strip() == first
    zarr.create_array(tmp_path / "b", data=np.eye(4), chunks=(2, 2), zarr_format=2)
    assert open_source(tmp_path / "b").identity != first
    # The same documents, written again later: perhaps other voxels.
    os.utime(tmp_path / "a" / ".zarray", ns=(0, 1))
    assert opened() != first


def test_reading_what_is_not_there_is_refused(tmp_path: Path) -> None:
    zarr.create_array(tmp_path, data=np.eye(4))
    source = open_source(tmp_path)
    with pytest.raises(LevelError, match="got level 1"):
        source.read(1, Box.whole((4, 4)))
    for box in (Box((0, 0), (5, 4)), Box((-1, 0), (4, 4)), Box((0,), (4,))):
        with pytest.raises(BoxError, match="inside shape"):
            source.read(0, box)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_unreadable_chunk_is_an_error_and_a_missing_one_the_fill(
    tmp_path: Path, zarr_format: int
) -> None:
    zarr.create_array(
        tmp_path, data=np.ones((4, 4), "u1"), chunks=(2, 2), zarr_format=zarr_format, fill_value=9
    )
    first, last = ("0.0", "1.1") if zarr_format == 2 else ("c/0/0", "c/1/1")
    (tmp_path / first).write_bytes(b"not what the codec wrote")
    (tmp_path / last).unlink()
    source = open_source(tmp_path)
    assert (source.read(0, Box((2, 2), (4, 4))) == 9).all()
    assert (source.read(0, Box((0, 2), (2, 4))) == 1).all()
    with pytest.raises(ValueError, match="damaged"):
        source.read(0, Box((0, 0), (1, 1)))


def test_several_threads_read_at_once(tmp_path: Path) -> None:
    data = np.random.default_rng(1).integers(0, 2**16, (40, 40, 40), "u2")
    zarr.create_array(tmp_path, data=data, chunks=(8, 8, 8))
    source = open_source(tmp_path)
    boxes = [source.levels[0].grid.box(index) for index in np.ndindex(5, 5, 5)]
    with ThreadPoolExecutor(8) as pool:
        blocks = list(pool.map(lambda box: source.read(0, box), boxes * 2))
    for box, block in zip(boxes * 2, blocks, strict=True):
        np.testing.assert_array_equal(block, data[box.slices])


@st.composite
def stored_arrays(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any], Box]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=2, max_size=5)))
    dtype = np.dtype(draw(st.sampled_from("<>")) + draw(st.sampled_from(DTYPES)))
    seed = draw(st.integers(0, 2**32 - 1))
    raw = np.random.default_rng(seed).integers(0, 256, math.prod(shape) * dtype.itemsize, "u1")
    data = raw.view(dtype) if dtype.kind != "b" else (raw > 128).view(dtype)
    data = np.asarray(data.reshape(shape), order=draw(st.sampled_from("CF")))
    chunks = tuple(draw(st.integers(1, n + 2)) for n in shape)
    zarr_format = draw(st.sampled_from([2, 3]))
    how: dict[str, Any] = {"zarr_format": zarr_format, "chunks": chunks}
    if zarr_format == 2:
        how["order"] = draw(st.sampled_from("CF"))
    elif draw(st.booleans()):
        how["shards"] = tuple(c * draw(st.integers(1, 2)) for c in chunks)
    start = tuple(draw(st.integers(0, n - 1)) for n in shape)
    stop = tuple(draw(st.integers(low + 1, n)) for low, n in zip(start, shape, strict=True))
    return data, how, Box(start, stop)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(stored_arrays())
def test_what_zarr_wrote_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[np.ndarray, dict[str, Any], Box]
) -> None:
    data, how, box = case
    path = tmp_path_factory.mktemp("stored")
    zarr.create_array(path, data=data, overwrite=True, **how)
    source = open_source(path)
    block = source.read(0, box)
    assert source.levels[0].chunks == how["chunks"]
    assert block.dtype == data.dtype.newbyteorder("=")
    assert block.dtype.isnative
    assert block.flags.c_contiguous
    np.testing.assert_array_equal(block, data[box.slices])
