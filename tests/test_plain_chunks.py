"""The short way to plain chunks gives what zarr gives, and leaves to zarr what is not plain."""

from __future__ import annotations

import numcodecs
import numpy as np
import pytest
import zarr
from zarr import codecs

from napari_materialize.errors import DamagedChunk
from napari_materialize.geometry import Box
from napari_materialize.sources import open_source

TWO = {
    "gzip": numcodecs.GZip(1),
    "zstd": numcodecs.Zstd(1),
    "blosc": numcodecs.Blosc("lz4", 1, numcodecs.Blosc.SHUFFLE),
    "none": None,
}
THREE = {
    "gzip": codecs.GzipCodec(level=1),
    "zstd": codecs.ZstdCodec(level=1),
    "blosc": codecs.BloscCodec(cname="lz4", clevel=1),
    "none": None,
}
BOXES = [
    Box((0, 0, 0), (4, 5, 6)),
    Box((8, 5, 6), (10, 10, 12)),
    Box((8, 10, 12), (10, 11, 13)),
    Box((3, 4, 5), (9, 11, 13)),
    Box((5, 6, 7), (6, 7, 8)),
    Box((0, 0, 0), (10, 11, 13)),
]


def voxels(dtype: str) -> np.ndarray:
    generator = np.random.default_rng(7)
    return generator.integers(0, 2 if dtype == "?" else 99, (10, 11, 13)).astype(dtype)


def made(folder, dtype: str, version: int, compressor: str, **options) -> np.ndarray:
    image = voxels(dtype)
    array = zarr.create_array(
        folder,
        shape=image.shape,
        chunks=(4, 5, 6),
        dtype=dtype,
        zarr_format=version,
        compressors=(TWO if version == 2 else THREE)[compressor],
        **{"fill_value": 3, **options},
    )
    array[...] = image
    return image


def plain_of(source):
    return source.readers[0].plain


@pytest.mark.parametrize("compressor", TWO)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", ["?", "u1", "<i2", ">u2", "<f4", ">f8"])
def test_it_reads_what_zarr_reads(tmp_path, dtype, version, compressor):
    if version == 3 and dtype[0] == ">":
        options = {"serializer": codecs.BytesCodec(endian="big")}
        image = made(tmp_path / "a", dtype[1:], 3, compressor, **options)
    else:
        image = made(tmp_path / "a", dtype, version, compressor)
    source = open_source(tmp_path / "a")
    assert plain_of(source) is not None
    for box in BOXES:
        found = plain_of(source).read(box)
        np.testing.assert_array_equal(found, image[box.slices])
        assert found.dtype == source.levels[0].dtype


def test_a_chunk_that_is_stored_nowhere_is_the_fill_value(tmp_path):
    image = made(tmp_path / "a", "u1", 2, "gzip")
    (tmp_path / "a" / "0.1.1").unlink()
    image[0:4, 5:10, 6:12] = 3
    source = open_source(tmp_path / "a")
    for box in [*BOXES, Box((0, 5, 6), (4, 10, 12))]:
        np.testing.assert_array_equal(plain_of(source).read(box), image[box.slices])


@pytest.mark.parametrize(
    ("version", "options"),
    [
        (2, {"order": "F"}),
        (2, {"filters": [numcodecs.Delta("u1")]}),
        (2, {"compressors": numcodecs.LZ4()}),
        (3, {"filters": [codecs.TransposeCodec(order=(2, 1, 0))]}),
        (3, {"compressors": [codecs.GzipCodec(), codecs.Crc32cCodec()]}),
        (3, {"shards": (8, 10, 12)}),
    ],
)
def test_what_is_not_plain_is_left_to_zarr(tmp_path, version, options):
    image = voxels("u1")
    array = zarr.create_array(
        tmp_path / "a",
        shape=image.shape,
        chunks=(4, 5, 6),
        dtype="u1",
        zarr_format=version,
        **options,
    )
    array[...] = image
    source = open_source(tmp_path / "a")
    assert plain_of(source) is None
    np.testing.assert_array_equal(source.read(0, BOXES[3]), image[BOXES[3].slices])


@pytest.mark.parametrize("compressor", TWO)
def test_what_does_not_decode_to_a_chunk_is_asked_of_zarr(tmp_path, compressor):
    made(tmp_path / "a", "u1", 2, compressor)
    file = tmp_path / "a" / "0.0.0"
    file.write_bytes(file.read_bytes()[:20])
    source = open_source(tmp_path / "a")
    assert plain_of(source).read(BOXES[0]) is None
    with pytest.raises((ValueError, RuntimeError, DamagedChunk)):
        source.read(0, BOXES[0])


def test_gzip_in_several_streams_is_asked_of_zarr(tmp_path):
    import gzip

    image = made(tmp_path / "a", "u1", 2, "gzip")
    file = tmp_path / "a" / "0.0.0"
    plain = gzip.decompress(file.read_bytes())
    file.write_bytes(gzip.compress(plain[:50]) + gzip.compress(plain[50:]))
    source = open_source(tmp_path / "a")
    assert plain_of(source).read(BOXES[0]) is None
    np.testing.assert_array_equal(source.read(0, BOXES[0]), image[BOXES[0].slices])
