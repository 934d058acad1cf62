"""Sources that are arrays or look like napari layers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pytest
import zarr

from napari_materialize.arrays import Axis
from napari_materialize.errors import SourceError
from napari_materialize.geometry import Box
from napari_materialize.sources import open_source

if TYPE_CHECKING:
    from pathlib import Path


def whole(source: Any, level: int = 0) -> np.ndarray:
    return source.read(level, Box.whole(source.levels[level].shape))


class Recording:
    """An array-like that remembers which indices it was asked for, and by which thread."""

    def __init__(self, data: np.ndarray, dtype: Any = None) -> None:
        self.data = data
        self.shape = data.shape
        self.dtype = data.dtype if dtype is None else dtype
        self.asked: list[tuple[Any, str]] = []

    def __getitem__(self, index: Any) -> np.ndarray:
        self.asked.append((index, threading.current_thread().name))
        return self.data[index]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<i2", ">i2", ">f8", "?", ">u8"])
def test_numpy_of_any_order_reads_right(dtype: str, order: Any) -> None:
    data = np.asarray(np.arange(120).reshape(4, 5, 6), dtype=dtype, order=order)
    source = open_source(data)
    block = source.read(0, Box((1, 0, 2), (3, 5, 6)))
    np.testing.assert_array_equal(block, data[1:3, :, 2:])
    assert block.dtype.isnative
    assert block.flags.c_contiguous
    assert source.kind == ("mask" if dtype == "?" else "image")
    assert (source.location, source.stable, source.name) == (None, True, "array")


def test_a_block_is_a_copy_of_numpys_voxels() -> None:
    data = np.zeros((4, 4), "u1")
    block = whole(open_source(data))
    data[:] = 7
    assert not block.any()


def test_numpy_identity_is_its_content_in_any_process() -> None:
    data = np.arange(24, dtype="<u2").reshape(4, 6)
    first = open_source(data).identity
    assert first == open_source(data.copy(order="F")).identity
    assert first == open_source(data.astype(">u2")).identity
    changed = data.copy()
    changed[3, 5] += 1
    # The same bytes in the other order are other voxels.
    others = [changed, data.T, data.view(">u2"), data.view("i2"), data.reshape(6, 4)]
    identities = {open_source(other).identity for other in others}
    assert len(identities | {first, open_source(data, scale=(2, 2)).identity}) == 7
    script = "import numpy as np; from napari_materialize.sources import open_source as o; "
    script += "print(o(np.arange(24, dtype='<u2').reshape(4, 6)).identity)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == first


def test_a_large_array_is_not_hashed_and_not_stable() -> None:
    # Broadcast: 300 MiB to look at, one byte in memory.
    data = np.broadcast_to(np.zeros((), "u1"), (300, 1024, 1024))
    one, two = open_source(data), open_source(data)
    assert not one.stable
    assert one.identity != two.identity


@pytest.mark.parametrize(
    ("shape", "axes", "chunks"),
    [
        ((200, 300, 400), "zyx", (64, 64, 64)),
        ((10, 300, 40), "zyx", (10, 64, 40)),
        ((1000, 700), "yx", (512, 512)),
        ((9, 3, 200, 200, 200), "tczyx", (1, 1, 64, 64, 64)),
        ((9, 3, 1000, 1000), "tcyx", (1, 1, 512, 512)),
        ((1, 1000, 1000), "zyx", (1, 512, 512)),
        ((7, 1000), "cx", (1, 1000)),
    ],
)
def test_chunks_for_arrays_that_have_none(
    shape: tuple[int, ...], axes: str, chunks: tuple[int, ...]
) -> None:
    source = open_source(np.broadcast_to(np.zeros((), "u1"), shape), axes=axes)
    assert source.levels[0].chunks == chunks


def test_a_list_is_a_pyramid_finest_first() -> None:
    shapes = [(5, 101, 100), (5, 51, 50), (5, 26, 25), (5, 13, 8)]
    source = open_source(
        [np.full(s, k, "u1") for k, s in enumerate(shapes)],
        scale=(10, 2, 2),
        translation=(0, 5, 5),
        units="nm",
    )
    assert [level.scale for level in source.levels[:3]] == [(10, 2, 2), (10, 4, 4), (10, 8, 8)]
    assert source.levels[3].scale == (10, 16, 24)  # 25 to 8 is a factor of 3, exactly as 24 to 8
    assert source.levels[2].translation == (0, 8, 8)
    assert source.levels[3].axes[0] == Axis("z", unit="nanometer")
    for level in range(4):
        assert (whole(source, level) == level).all()


def test_any_array_like_is_sliced_for_the_box_alone() -> None:
    array = Recording(np.arange(100).reshape(10, 10))
    source = open_source(array)
    np.testing.assert_array_equal(source.read(0, Box((2, 3), (4, 5))), array.data[2:4, 3:5])
    assert array.asked == [((slice(2, 4), slice(3, 5)), threading.current_thread().name)]
    assert (source.stable, source.record["library"]) == (False, __name__.partition(".")[0])
    assert source.identity != open_source(array).identity


def test_an_array_like_that_lies_about_itself_is_an_error() -> None:
    with pytest.raises(TypeError, match="described as uint8, gave float64"):
        whole(open_source(Recording(np.zeros((3, 3)), dtype="u1")))


def test_dask_is_computed_in_the_calling_thread() -> None:
    threads = []

    def note(block: np.ndarray) -> np.ndarray:
        threads.append(threading.current_thread())
        return block + 1

    data = np.arange(64, dtype="u1").reshape(8, 8)
    array = da.from_array(data, chunks=(4, 2)).map_blocks(note, dtype="u1", meta=data[:0, :0])
    source = open_source(array)
    assert source.levels[0].chunks == (4, 2)
    np.testing.assert_array_equal(source.read(0, Box((1, 1), (7, 8))), (data + 1)[1:7, 1:])
    assert set(threads) == {threading.current_thread()}


def test_dask_identity_is_its_name_in_this_process() -> None:
    data = np.arange(64).reshape(8, 8)
    one, two = (da.from_array(data, chunks=4) + 1 for _ in range(2))
    assert open_source(one).identity == open_source(two).identity
    assert open_source(one).identity != open_source(one + 1).identity
    assert not open_source(one).stable


def test_irregular_dask_chunks_become_the_first() -> None:
    array = da.zeros((10, 10), chunks=((3, 5, 2), (10,)), dtype="u1")
    assert open_source(array).levels[0].chunks == (3, 10)
    assert open_source(array, chunks=(5, 5)).levels[0].chunks == (5, 5)


def test_dask_of_unknown_shape_is_refused() -> None:
    array = da.zeros((4, 4), chunks=2)
    with pytest.raises(SourceError, match="whole numbers"):
        open_source(array[array[:, 0] > 0])


def test_zarr_arrays_in_memory_say_chunks_fill_and_axes() -> None:
    array = zarr.create_array(
        zarr.storage.MemoryStore(),
        shape=(4, 6),
        dtype=">i2",
        chunks=(2, 3),
        fill_value=-3,
        dimension_names=["t", "x"],
    )
    source = open_source(array)
    level = source.levels[0]
    assert (level.chunks, level.fill) == ((2, 3), -3)
    assert level.axes == (Axis("t", "time"), Axis("x"))
    assert (whole(source) == -3).all()
    assert (source.stable, source.location) == (False, None)


def test_a_zarr_array_in_a_folder_is_opened_by_its_path(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a", data=np.eye(4))
    assert open_source(array).identity == open_source(tmp_path / "a").identity
    coarse = zarr.create_array(tmp_path / "b", data=np.eye(2))
    source = open_source([array, coarse])
    assert (source.stable, source.location) == (True, None)
    assert source.record["locations"] == [str(tmp_path.resolve() / name) for name in "ab"]
    assert source.levels[1].scale == (2, 2)
    np.testing.assert_array_equal(whole(source, 1), np.eye(2))


# --- layers ------------------------------------------------------------------------------------


@dataclass
class Image:
    """What is looked at of napari's layer of this name."""

    data: Any
    scale: Any = (1, 1, 1)
    translate: Any = (0, 0, 0)
    multiscale: bool = False
    rgb: bool = False
    units: Any = ("pixel",) * 3
    axis_labels: Any = ("-3", "-2", "-1")
    name: str = "nuclei"
    rotate: Any = field(default=45.0)


class Labels(Image):
    pass


class Points(Image):
    pass


def test_a_layer_gives_its_data_and_place() -> None:
    data = np.arange(60, dtype="u2").reshape(3, 4, 5)
    layer = Image(data, scale=np.array([4, 2, 2.0]), translate=np.array([-1, 0, 8.0]))
    layer.units, layer.axis_labels = ("um", "um", "pixel"), ("t", "y", "x")
    source = open_source(layer)
    assert (source.name, source.kind, source.location) == ("nuclei", "image", None)
    level = source.levels[0]
    assert (level.scale, level.translation) == ((4, 2, 2), (-1, 0, 8))
    assert level.axes == (Axis("t", "time", "micrometer"), Axis("y", unit="micrometer"), Axis("x"))
    np.testing.assert_array_equal(whole(source), data)
    assert source.record["layer"] == {"name": "nuclei", "class": "Image"}
    assert json.loads(json.dumps(source.record)) == source.record
    assert open_source(data, **source.record["options"]).levels == source.levels


@pytest.mark.parametrize("kind", ["numpy", "dask", "zarr"])
def test_colours_are_a_channel_axis_that_comes_first(kind: str) -> None:
    data = np.random.default_rng(0).integers(0, 255, (40, 50, 3), "u1")
    wrap = {
        "numpy": lambda: data,
        "dask": lambda: da.from_array(data, chunks=(16, 20, 3)),
        "zarr": lambda: zarr.array(data, chunks=(16, 20, 1)),
    }
    layer = Image(wrap[kind](), (2, 3), (5, 6), rgb=True, units=("um", "um"), axis_labels=("", ""))
    source = open_source(layer)
    level = source.levels[0]
    assert level.axes == (
        Axis("c", "channel"),
        Axis("y", unit="micrometer"),
        Axis("x", unit="micrometer"),
    )
    assert (level.scale, level.translation) == ((1, 2, 3), (0, 5, 6))
    assert level.chunks == {"numpy": (1, 40, 50), "dask": (3, 16, 20), "zarr": (1, 16, 20)}[kind]
    np.testing.assert_array_equal(whole(source), np.moveaxis(data, -1, 0))
    part = source.read(0, Box((1, 7, 9), (3, 30, 11)))
    np.testing.assert_array_equal(part, np.moveaxis(data[7:30, 9:11, 1:3], -1, 0))


def test_colours_over_named_axes_and_levels() -> None:
    data = [np.zeros((2, 8, 8, 4), "f4"), np.zeros((2, 4, 4, 4), "f4")]
    layer = Image(data, multiscale=True, rgb=True, axis_labels=("t", "y", "x"))
    source = open_source(layer)
    assert [axis.name for axis in source.levels[0].axes] == ["c", "t", "y", "x"]
    assert [level.scale for level in source.levels] == [(1, 1, 1, 1), (1, 1, 2, 2)]
    layer.axis_labels = ("c", "y", "x")
    assert [axis.name for axis in open_source(layer).levels[0].axes] == ["c", "z", "y", "x"]


def test_a_mirrored_layer_has_voxels_of_a_size() -> None:
    layer = Image(np.zeros((3, 4, 5), "u1"), scale=(-4, 1, 1), translate=(7, 0, 0))
    level = open_source(layer).levels[0]
    assert (level.scale, level.translation) == ((4, 1, 1), (7, 0, 0))


def test_a_labels_layer_is_labels_whatever_it_is_wrapped_in() -> None:
    class Proxy:
        def __init__(self, layer: Any) -> None:
            self._layer = layer

        @property
        def __class__(self) -> type:
            return type(self._layer)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._layer, name)

    layer = Labels(np.zeros((3, 4, 5), "u4"))
    assert open_source(layer).kind == open_source(Proxy(layer)).kind == "label"
    assert open_source(layer, kind="mask", name="mine").name == "mine"
    assert [axis.unit for axis in open_source(layer).levels[0].axes] == [None] * 3


def test_options_win_over_the_layer_and_a_pyramid_has_all_levels() -> None:
    data = [da.zeros((4, 8, 8), chunks=4, dtype="u1"), da.ones((4, 4, 4), chunks=4, dtype="u1")]
    layer = Image(data, multiscale=True, scale=(3, 1, 1))
    source = open_source(layer, scale=(6, 1, 1))
    assert [level.scale for level in source.levels] == [(6, 1, 1), (6, 2, 2)]
    assert whole(source, 1).all()


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Image(np.zeros((2, 2, 2, 2, 2, 3), "u1"), scale=(1,) * 5, rgb=True), "RGB layer"),
        (Points(np.zeros((9, 3))), "Points layer"),
        (Image([[1, 2]]), "got list"),
        (Image(np.zeros((3, 4, 5), "c8")), "complex64"),
    ],
)
def test_layers_that_are_not_voxels_are_refused(layer: Image, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        open_source(layer)
    assert "nuclei" in str(caught.value)


def test_real_napari_layers_without_a_window() -> None:
    from napari import layers  # slow to import, so only here

    data = np.arange(512, dtype="u1").reshape(8, 8, 8)
    image = layers.Image(
        [data, data[::2, ::2, ::2]], scale=(2, 1, 1), translate=(5, 0, 0), units=("nm",) * 3
    )
    source = open_source(image)
    assert [level.scale for level in source.levels] == [(2, 1, 1), (4, 2, 2)]
    assert source.levels[0].translation == (5, 0, 0)
    assert source.levels[0].axes == tuple(Axis(name, unit="nanometer") for name in "zyx")
    np.testing.assert_array_equal(whole(source, 1), data[::2, ::2, ::2])
    labels = layers.Labels(data.astype("u2"), name="cells")
    source = open_source(labels)
    assert (source.kind, source.name, source.levels[0].axes[0].unit) == ("label", "cells", None)
    assert open_source(labels).identity == source.identity


def test_a_masked_array_is_not_read_without_its_mask() -> None:
    voxels = np.ma.masked_array(np.arange(6).reshape(2, 3), mask=[[0, 0, 1], [0, 0, 0]])
    with pytest.raises(SourceError, match=r"without a mask is expected.*array\.filled\(0\)"):
        open_source(voxels)
    np.testing.assert_array_equal(whole(open_source(voxels.filled(0)), 0), [[0, 1, 0], [3, 4, 5]])
    open_source(np.ma.masked_array(np.zeros((2, 3))))  # nothing is masked


def test_neither_dask_nor_zarr_nor_napari_is_imported_for_numpy() -> None:
    script = """
import sys
import numpy as np
from napari_materialize.sources import open_source
open_source(np.zeros((4, 4)))
print(sorted({"dask", "zarr", "napari", "qtpy"} & set(sys.modules)))
"""
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"
