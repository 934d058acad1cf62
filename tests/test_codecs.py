"""Chunks to bytes and back; every encoder against an independent decoder."""

from __future__ import annotations

import gzip
import sys
import threading
import zlib

import deflate
import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import ndimage

from napari_materialize.codecs import Compression, chunk_bytes, is_fill
from napari_materialize.downsample import shrink
from napari_materialize.errors import ChunkError, OptionError

NAMES = ["gzip", "zstd", "blosc", "none"]
DTYPES = [np.dtype(name) for name in ("?", "u1", "i1", "u2", "i4", "u8", "f2", "f4", "f8")]


def test_a_fill_that_a_float32_only_comes_near_is_found_all_the_same():
    assert is_fill(np.full((3, 4), 0.1, np.float32), 0.1)
    assert not is_fill(np.full((3, 4), 0.2, np.float32), 0.1)


def blobs(dtype: np.dtype, shape: tuple[int, ...] = (32, 32, 32)) -> np.ndarray:
    waves = sum(np.sin(axis / 5) for axis in np.ogrid[tuple(map(slice, shape))])
    noise = np.random.default_rng(0).normal(0, 0.1, shape)
    return ((waves + noise) * 20 + 60).astype(dtype) if dtype.kind != "b" else waves > 1


class TestParse:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("gzip", "gzip:6"),
            ("gzip:1", "gzip:1"),
            (" GZIP:1 ", "gzip:1"),
            (("gzip", 3), "gzip:3"),
            (["zstd"], "zstd:3"),
            (("zstd", None), "zstd:3"),
            ("zstd:22", "zstd:22"),
            ("blosc", "blosc:3"),
            ("blosc:0", "blosc:0"),
            ("none", "none"),
            (None, "none"),
            (Compression("zstd", 9), "zstd:9"),
        ],
    )
    def test_reads(self, value, text):
        compression = Compression.parse(value)
        assert str(compression) == text
        assert Compression.parse(str(compression)) == compression

    def test_the_default_is_gzip_6(self):
        assert Compression() == Compression("gzip", 6)

    @pytest.mark.parametrize(
        ("value", "sentence"),
        [
            ("lzma", "must be one of gzip, zstd, blosc, none, got 'lzma'"),
            ("", "must be one of gzip, zstd, blosc, none, got ''"),
            ("gzip:10", "the level of gzip must be a whole number from 0 to 9, got 10"),
            ("gzip:-1", "from 0 to 9, got '-1'"),
            ("gzip:", "from 0 to 9, got ''"),
            ("gzip:fast", "from 0 to 9, got 'fast'"),
            ("gzip:6:7", "from 0 to 9, got '6:7'"),
            ("zstd:0", "the level of zstd must be a whole number from 1 to 22, got 0"),
            ("zstd:23", "from 1 to 22, got 23"),
            ("blosc:10", "the level of blosc must be a whole number from 0 to 9, got 10"),
            (("gzip", 6.5), "from 0 to 9, got 6.5"),
            (("gzip", True), "from 0 to 9, got True"),
            (("none", 1), "none has no level, got 1"),
            ("none:1", "none has no level, got 1"),
            ((), "must be a name such as"),
            ((1, 2), "must be a name such as"),
            (("gzip", 1, 2), "must be a name such as"),
            (6, "must be a name such as"),
            ({"gzip": 6}, "must be a name such as"),
        ],
    )
    def test_refuses_in_one_sentence(self, value, sentence):
        with pytest.raises(OptionError) as caught:
            Compression.parse(value)
        assert sentence in str(caught.value)
        assert str(caught.value).startswith("compression: ")


class TestEncode:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("name", NAMES)
    def test_numcodecs_decodes_by_the_metadata(self, name, dtype):
        compression = Compression.parse(name)
        voxels = blobs(dtype)
        data = compression.encode(chunk_bytes(voxels, voxels.shape, 0), dtype)
        assert isinstance(data, bytes)
        config = compression.zarr2_config(dtype)
        plain = data if config is None else numcodecs.get_codec(config).decode(data)
        np.testing.assert_array_equal(
            np.frombuffer(plain, dtype).reshape(voxels.shape), voxels, strict=True
        )
        assert compression.decode(data, voxels.nbytes) == voxels.tobytes()

    @pytest.mark.parametrize(
        "text", ["gzip:0", "gzip:9", "zstd:1", "zstd:22", "blosc:0", "blosc:9"]
    )
    def test_takes_every_level_of_its_range(self, text):
        compression = Compression.parse(text)
        voxels = blobs(np.dtype("u2"), (16, 16, 16))
        data = compression.encode(chunk_bytes(voxels, voxels.shape, 0), voxels.dtype)
        assert compression.decode(data, voxels.nbytes) == voxels.tobytes()

    @pytest.mark.parametrize("name", NAMES)
    def test_gives_the_same_bytes_from_any_thread(self, name):
        compression, voxels = Compression.parse(name), blobs(np.dtype("u2"), (64, 64, 64))
        data = chunk_bytes(voxels, voxels.shape, 0)
        results = [compression.encode(data, voxels.dtype)]
        thread = threading.Thread(
            target=lambda: results.append(compression.encode(data, voxels.dtype))
        )
        thread.start()
        thread.join()
        assert results[0] == results[1]

    def test_gzip_holds_no_time_and_no_name(self):
        data = Compression().encode(b"voxels", np.dtype("u1"))
        # flags and modification time, RFC 1952
        assert (data[:4], data[4:8]) == (b"\x1f\x8b\x08\x00", bytes(4))
        assert gzip.decompress(data) == b"voxels"

    @pytest.mark.parametrize("dtype", ["u1", "u2", "i2", "f2", "f4", "f8"])
    @pytest.mark.parametrize("side", [16, 48])
    def test_gzip_of_an_image_is_as_small_as_zlibs(self, dtype, side):
        data = blobs(np.dtype(dtype), (side, side, side)).tobytes()
        ours = len(Compression().encode(data, np.dtype(dtype)))
        assert ours <= 1.03 * len(zlib.compress(data, 6))

    @pytest.mark.parametrize("dtype", ["?", "u1", "u4"])
    def test_gzip_of_masks_with_few_edges_is_as_small_as_zlibs(self, dtype):
        random = np.random.default_rng(0)
        waves = ndimage.gaussian_filter(random.standard_normal((64,) * 3), 12, mode="wrap")
        data = (waves > 0.7 * waves.std()).astype(dtype).tobytes()
        ours = len(Compression().encode(data, np.dtype(dtype)))
        assert ours <= 1.03 * len(zlib.compress(data, 6))

    @pytest.mark.parametrize("dtype", ["u1", "u2", "i2", "f4"])
    def test_gzip_of_noise_is_as_small_as_zlibs_and_searches_nothing(self, dtype):
        random = np.random.default_rng(0)
        middle = 100 if dtype == "u1" else 2000
        voxels = random.normal(middle, middle / 8, (48,) * 3).astype(dtype)
        data = Compression().encode(voxels.tobytes(), voxels.dtype)
        assert gzip.decompress(data) == voxels.tobytes()
        assert len(data) <= 1.03 * len(zlib.compress(voxels.tobytes(), 6))
        assert data == Compression("gzip", 1).encode(voxels.tobytes(), voxels.dtype)

    def test_gzip_searches_as_much_as_it_pays(self):
        noisy, labels = blobs(np.dtype("u1"), (48,) * 3), blobs(np.dtype("?"), (48,) * 3)
        few = np.zeros_like(labels)
        few[9:30, 9:30, 9:30] = True
        for voxels, effort in ((noisy, 4), (labels, 6), (few, 7), (noisy[:16, :16, :16], 6)):
            data = voxels.tobytes()
            assert Compression().encode(data, voxels.dtype) == deflate.gzip_compress(data, effort)

    @pytest.mark.parametrize("noise", [6, 3])
    def test_gzip_searches_little_in_noise_that_was_averaged(self, noise):
        """As a pyramid's coarser levels are; where more is to be found libdeflate finds it."""
        random = np.random.default_rng(0)
        blobs = ndimage.zoom(random.normal(0, 1, (8, 8, 8)), 16, order=1)
        fine = (110 + 40 * blobs + random.normal(0, noise, (128,) * 3)).clip(0, 255).astype("u1")
        data = shrink(fine, (2, 2, 2), "mean").tobytes()
        found = Compression().encode(data, np.dtype("u1"))
        quick = Compression("gzip", 1).encode(data, np.dtype("u1"))
        assert (found == quick) == (noise == 6)
        assert gzip.decompress(found) == data
        assert len(found) <= 1.03 * len(zlib.compress(data, 6))

    @pytest.mark.parametrize("sigma", [10, 18])
    def test_gzip_of_noise_on_a_slope_is_as_small_as_zlibs(self, sigma):
        """The codes that suit one end do not suit the other."""
        noise = np.random.default_rng(0).normal(0, sigma, (64,) * 3)
        slope = np.linspace(20, 127, 64)[:, np.newaxis, np.newaxis]
        data = (slope + noise).clip(0, 255).astype("u1").tobytes()
        found = Compression().encode(data, np.dtype("u1"))
        assert len(found) <= 1.03 * len(zlib.compress(data, 6))

    @pytest.mark.parametrize("nbytes", [(1 << 15) - 1, 1 << 15, (1 << 15) + 1, 100_003])
    def test_gzip_keeps_every_byte_whatever_the_size(self, nbytes):
        data = np.random.default_rng(0).bytes(nbytes)
        assert gzip.decompress(Compression().encode(data, np.dtype("u1"))) == data

    @pytest.mark.parametrize("name", ["gzip", "zstd", "blosc"])
    def test_lets_other_threads_run(self, name):
        compression = Compression.parse({"gzip": "gzip:9", "zstd": "zstd:15"}.get(name, "blosc:9"))
        voxels = blobs(np.dtype("u2"), (96, 96, 96))
        data = chunk_bytes(voxels, voxels.shape, 0)
        compression.encode(data, voxels.dtype)  # imports are not what is looked at

        def looked() -> bool:
            """Return whether this thread came to look while another one encoded."""
            begun, done = threading.Event(), list[bool]()

            def encode() -> None:
                begun.set()
                compression.encode(data, voxels.dtype)
                done.append(True)

            thread = threading.Thread(target=encode)
            thread.start()
            begun.wait()
            between = not done
            thread.join()
            return between

        # nobody takes Python's lock from a thread that does not give it, so one look is proof
        interval = sys.getswitchinterval()
        sys.setswitchinterval(60)
        try:
            assert any(
                looked() for _ in range(50)
            )  # a busy machine may bring it too late, at times
        finally:
            sys.setswitchinterval(interval)

    @pytest.mark.parametrize("name", NAMES)
    def test_damage_is_an_error(self, name):
        compression, voxels = Compression.parse(name), blobs(np.dtype("u1"))
        data = compression.encode(chunk_bytes(voxels, voxels.shape, 0), voxels.dtype)
        for damaged in (data[: len(data) // 2], b"", data[:-1]):
            with pytest.raises(ChunkError, match="chunk: "):
                compression.decode(damaged, voxels.nbytes)
        with pytest.raises(ChunkError, match=f"must hold {voxels.nbytes + 1} bytes"):
            compression.decode(data, voxels.nbytes + 1)

    @pytest.mark.parametrize(
        ("dtype", "number", "word"),
        [
            ("?", 2, "bitshuffle"),
            ("u1", 0, "noshuffle"),
            ("u2", 1, "shuffle"),
            ("f8", 1, "shuffle"),
        ],
    )
    def test_blosc_shuffles_by_the_voxel(self, dtype, number, word):
        dtype, compression = np.dtype(dtype), Compression.parse("blosc")
        (codec,) = compression.zarr3_codecs(dtype)
        assert compression.zarr2_config(dtype)["shuffle"] == number
        assert codec["configuration"]["shuffle"] == word
        assert codec["configuration"]["typesize"] == dtype.itemsize
        voxels = blobs(dtype)
        header = compression.encode(chunk_bytes(voxels, voxels.shape, 0), dtype)[:4]
        # Blosc's own header: flags (shuffle in bit 0, bit shuffle in bit 2), size of a voxel
        assert (header[3], header[2] & 0b101) == (dtype.itemsize, {0: 0, 1: 1, 2: 4}[number])


class TestChunkBytes:
    def test_copies_nothing_where_the_bytes_are_right_already(self):
        voxels = np.arange(24, dtype="<u2").reshape(2, 3, 4)
        voxels.flags.writeable = False
        data = chunk_bytes(voxels, (2, 3, 4), 0)
        assert np.shares_memory(np.frombuffer(data, "<u2"), voxels)

    @given(
        voxels=hnp.arrays(
            st.sampled_from(DTYPES).flatmap(
                lambda dtype: st.sampled_from([dtype, dtype.newbyteorder(">")])
            ),
            hnp.array_shapes(min_dims=1, max_dims=4, max_side=4),
        ),
        more=st.lists(st.integers(0, 3), min_size=4, max_size=4),
        order=st.sampled_from(["C", "F", "strided"]),
    )
    def test_is_the_block_in_its_corner_and_the_fill_elsewhere(self, voxels, more, order):
        if order == "F":
            voxels = np.asfortranarray(voxels)
        elif order == "strided":
            voxels = np.repeat(voxels, 2, axis=-1)[..., ::2]
        shape = tuple(size + extra for size, extra in zip(voxels.shape, more, strict=False))
        data = chunk_bytes(voxels, shape, 1)
        assert (data.format, data.ndim, data.c_contiguous) == ("B", 1, True)
        chunk = np.frombuffer(data, voxels.dtype.newbyteorder("<")).reshape(shape)
        inside = tuple(map(slice, voxels.shape))
        assert chunk[inside].astype(voxels.dtype).tobytes() == voxels.tobytes()
        outside = np.ones(shape, bool)
        outside[inside] = False
        assert (chunk[outside] == 1).all()

    def test_pads_with_nan(self):
        data = chunk_bytes(np.ones(1, np.float16), (2,), float("nan"))
        np.testing.assert_array_equal(np.frombuffer(data, "<f2"), [1, np.nan])

    @pytest.mark.parametrize("shape", [(2,), (2, 2), (3, 3, 3), (2, 4)])
    def test_refuses_a_block_that_does_not_fit(self, shape):
        with pytest.raises(ValueError, match=r"a block of shape \(3, 3\) does not fit"):
            chunk_bytes(np.zeros((3, 3)), shape, 0)


class TestIsFill:
    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_sees_one_voxel_that_differs(self, dtype, order):
        voxels = np.ones((3, 4, 5), dtype.newbyteorder(order))
        assert is_fill(voxels, 1)
        assert is_fill(voxels[:, ::2], 1)
        assert not is_fill(voxels, 0)
        for place in ((0, 0, 0), (1, 2, 3), (2, 3, 4)):
            other = voxels.copy()
            other[place] = 0
            assert not is_fill(other, 1)

    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
    def test_tells_the_zeros_apart_and_not_the_nans(self, dtype):
        zeros = np.zeros(3, dtype)
        assert is_fill(zeros, 0.0)
        assert not is_fill(-zeros, 0.0)
        assert not is_fill(zeros, -0.0)
        assert is_fill(-zeros, -0.0)
        mixed = zeros.copy()
        mixed[1] = -0.0
        assert not is_fill(mixed, 0.0)
        nans = np.full(3, np.nan, dtype)
        nans[1] = -nans[1]
        assert is_fill(nans, float("nan"))
        assert not is_fill(nans, 0.0)
        assert not is_fill(zeros, float("nan"))
        assert is_fill(zeros + np.inf, float("inf"))

    def test_takes_large_integers_exactly(self):
        largest = np.iinfo(np.uint64).max
        assert is_fill(np.full(3, largest, np.uint64), int(largest))
        assert not is_fill(np.full(3, largest, np.uint64), int(largest) - 1)

    @given(
        hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(max_dims=3, max_side=3)),
    )
    def test_leaving_a_chunk_out_loses_nothing(self, voxels):
        fill = voxels.flat[0].item()
        restored = np.full(voxels.shape, fill, voxels.dtype)
        nan = np.isnan(voxels) if voxels.dtype.kind == "f" else np.zeros(voxels.shape, bool)
        same = np.where(nan, 0, voxels).tobytes() == np.where(
            nan, 0, restored
        ).tobytes() and np.array_equal(nan, nan & (restored != restored))
        assert is_fill(voxels, fill) == same
