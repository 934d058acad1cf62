"""Halving: against tensorstore, which rounds halves to even and takes the smallest of several."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorstore
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from napari_materialize.arrays import Axis, Level
from napari_materialize.downsample import halved, halving, method_for, shrink

INTEGERS = [np.dtype(f"{kind}{size}") for kind in "ui" for size in (1, 2, 4, 8)]
FLOATS = [np.dtype(f"f{size}") for size in (2, 4, 8)]


def blocks(dtypes, elements=None):
    shapes = hnp.array_shapes(min_dims=2, max_dims=4, max_side=7)
    return hnp.arrays(st.sampled_from(dtypes), shapes, elements=elements, fill=st.nothing())


def with_tensorstore(block, factors, method):
    return tensorstore.downsample(tensorstore.array(block), list(factors), method).read().result()


@given(block=blocks(INTEGERS), data=st.data())
def test_a_mean_of_integers_is_exact_and_rounded_once(block, data):
    factors = data.draw(st.tuples(*[st.sampled_from([1, 2])] * block.ndim))
    expected = with_tensorstore(block, factors, "mean")
    np.testing.assert_array_equal(shrink(block, factors, "mean"), expected, strict=True)


@given(block=blocks(FLOATS, st.floats(-1000, 1000, width=16)), data=st.data())
def test_a_mean_of_floats(block, data):
    factors = data.draw(st.tuples(*[st.sampled_from([1, 2])] * block.ndim))
    wide = with_tensorstore(block.astype("f8"), factors, "mean")
    np.testing.assert_array_equal(shrink(block, factors, "mean"), wide.astype(block.dtype))


@given(
    block=st.one_of(
        blocks([*INTEGERS, np.dtype("?")]),
        blocks(INTEGERS, st.integers(0, 1)),
        blocks(INTEGERS, st.integers(0, 3)),
    ),
    data=st.data(),
)
def test_a_mode_is_the_most_frequent_and_then_the_smallest(block, data):
    factors = data.draw(st.tuples(*[st.sampled_from([1, 2])] * block.ndim))
    expected = with_tensorstore(block, factors, "mode")
    before = block.copy()
    np.testing.assert_array_equal(shrink(block, factors, "mode"), expected, strict=True)
    np.testing.assert_array_equal(block, before)


@pytest.mark.parametrize("dtype", [*INTEGERS, np.dtype(">u2"), np.dtype(">i4")], ids=str)
@pytest.mark.parametrize("factors", [(2, 2, 2), (1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 1, 2)])
def test_means_of_the_whole_range_in_short_rows_and_long_ones(dtype, factors):
    random, native = np.random.default_rng(3), dtype.newbyteorder("=")
    limits = np.iinfo(dtype)
    for shape in ((4, 6, 8), (6, 34, 66), (3, 21, 301), (4, 40, 600)):
        block = random.integers(limits.min, limits.max, shape, native, endpoint=True)
        block[:, :2] = limits.max  # whose sum is the largest there is
        block[0, -1] = limits.min
        expected = with_tensorstore(block, factors, "mean")
        for turned in (block.astype(dtype), np.asfortranarray(block)):
            np.testing.assert_array_equal(shrink(turned, factors, "mean"), expected)


@pytest.mark.parametrize("bits", range(1, 4))
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2"])
def test_every_remainder_of_a_mean_is_rounded_alike_below_and_above_zero(dtype, bits):
    limits, covered = np.iinfo(dtype), 1 << bits
    for low in (limits.min, -9 if limits.min else 0, limits.max - 9):
        rows = np.array(list(itertools.combinations_with_replacement(range(low, low + 10), 2)))
        cells = np.repeat(rows, covered // 2, axis=1) if bits > 1 else rows
        cells = np.clip(cells + np.arange(covered) % 3, limits.min, limits.max).astype(dtype)
        block = np.moveaxis(cells.reshape(-1, *(2,) * bits), 0, -2).reshape(*(2,) * (bits - 1), -1)
        exact = cells.astype("i8").sum(axis=1) / covered  # np.rint rounds halves to even
        found = shrink(block, (2,) * bits, "mean").reshape(-1)
        np.testing.assert_array_equal(found, np.rint(exact).astype(dtype), strict=True)


@pytest.mark.parametrize("dtype", [*INTEGERS, np.dtype("?"), np.dtype(">u2")], ids=str)
@pytest.mark.parametrize("factors", [(2, 2, 2), (1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 2, 1)])
def test_the_mode_of_masks_of_any_type(dtype, factors):
    random, native = np.random.default_rng(4), dtype.newbyteorder("=")
    for shape in ((4, 6, 8), (7, 34, 66), (3, 21, 301)):
        mask = (random.random(shape) < 0.5).astype(native)
        expected = with_tensorstore(mask, factors, "mode")
        for block in (mask.astype(dtype), np.asfortranarray(mask)):
            found = shrink(block, factors, "mode")
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == block.dtype


@pytest.mark.parametrize("dtype", [*INTEGERS, np.dtype(">u2"), np.dtype(">i8")], ids=str)
def test_ids_of_any_distance_wherever_they_lie(dtype):
    # two ids and many, near and far apart, at both ends of what a type holds
    random, native = np.random.default_rng(6), dtype.newbyteorder("=")
    limits, shape = np.iinfo(dtype), (6, 34, 66)
    for apart in (1, 5, 254, 255, 256, 65535, 65536, 2**40):
        for low in (limits.min, 0, limits.max - apart):
            if not limits.min <= low <= low + apart <= limits.max:
                continue
            ends = np.array([low, low + apart], native)
            two = ends[random.integers(0, 2, shape)]
            many = random.integers(low, low + apart, shape, native, endpoint=True)
            many[:, 8:] = two[:, 8:]
            rare = two.copy()
            rare[3, 2:4, 2:4] = ends[0] + native.type(apart // 2)
            for ids in (two, many, rare):
                expected = with_tensorstore(ids, (2, 2, 2), "mode")
                found = shrink(ids.astype(dtype), (2, 2, 2), "mode")
                np.testing.assert_array_equal(found, expected)
                assert found.dtype == dtype


def test_one_voxel_among_many_is_not_overlooked():
    # of a chunk that looks uniform, or a mask, only some voxels are looked at first
    for odd, ids in ((7, np.ones((32, 32, 32), "u1")), (-1, np.zeros((32, 32, 32), "i2"))):
        ids[20:22, 20:22, 20:22] = odd
        ids[1, 1, 1:3] = 1
        expected = with_tensorstore(ids, (2, 2, 2), "mode")
        assert odd in expected
        np.testing.assert_array_equal(shrink(ids, (2, 2, 2), "mode"), expected, strict=True)


def test_a_mean_of_halves_is_rounded_once():
    # the sum is a little more than halfway between two numbers, which single precision cannot say
    block = np.array([[256, 1.125], [1e-6, 0]], "f2")
    assert shrink(block, (2, 2), "mean").tolist() == [[np.float16(block.astype("f8").mean())]]
    assert shrink(block, (2, 2), "mean").tolist() == [[64.3125]]


@pytest.mark.parametrize("turned", [np.asfortranarray, lambda block: block[::-1, ::-1]])
def test_a_block_may_lie_in_memory_as_it_likes(turned):
    ids = turned(np.random.default_rng(0).integers(0, 3, (6, 8, 10)).astype("u4") + 2)
    for factors in ((2, 2, 2), (1, 2, 2), (2, 1, 1), (2, 2, 1)):
        found = shrink(ids, factors, "mode")
        np.testing.assert_array_equal(found, with_tensorstore(ids, factors, "mode"), strict=True)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("values", [2, 3, 99])
@pytest.mark.parametrize("factors", [(2, 2, 2), (1, 2, 2), (2, 2, 1)])
def test_bodies_and_what_is_no_body(dtype, values, factors):
    # planes of two ids and of many: which way a voxel goes must not show
    random = np.random.default_rng(values)
    ids = random.integers(1, 1 + values, (24, 30, 34)).astype(dtype)
    ids[:12] = np.where(random.random((12, 30, 34)) < 0.1, 5, 9)
    expected = with_tensorstore(ids, factors, "mode")
    np.testing.assert_array_equal(shrink(ids, factors, "mode"), expected, strict=True)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(("axes", "values"), [(1, 3), (2, 4), (3, 3)])
def test_every_way_in_which_so_many_values_fall_on_the_voxels_covered(dtype, axes, values):
    # all columns there are: each is a voxel of the result
    covered = 2**axes
    columns = np.array(list(itertools.product(range(values), repeat=covered)))
    names = np.sort(np.array([-100, -7, 5, 90][:values]).astype(dtype))
    cells = names[columns].reshape(-1, *(2,) * axes)
    block = np.moveaxis(cells, 0, -2).reshape(*(2,) * (axes - 1), -1)
    counts = (columns[:, :, np.newaxis] == np.arange(values)).sum(axis=1)
    found = shrink(block, (2,) * axes, "mode").reshape(-1)
    np.testing.assert_array_equal(found, names[counts.argmax(axis=1)], strict=True)


@pytest.mark.parametrize("dtype", [*INTEGERS, np.dtype(">u2"), np.dtype(">i4")], ids=str)
@pytest.mark.parametrize("factors", [(2, 2, 2), (2, 1, 2), (2, 2, 1), (1, 1, 2), (1, 2, 1)])
def test_noise_of_any_sign_and_an_odd_size(dtype, factors):
    random = np.random.default_rng(5)
    for values, shape in ((3, (9, 31, 25)), (6, (8, 30, 34)), (200, (7, 33, 35))):
        ids = (random.integers(0, values, shape) - 3).astype(dtype)
        if dtype.itemsize == 8:
            ids += np.array(2**62, dtype)
        expected = with_tensorstore(ids.astype(dtype.newbyteorder("=")), factors, "mode")
        for block in (ids, np.asfortranarray(ids)):
            np.testing.assert_array_equal(shrink(block, factors, "mode"), expected)


def test_an_axis_of_one_voxel_may_have_any_stride_and_nothing_stays_nothing():
    ids = np.random.default_rng(1).integers(2, 6, (1, 6, 8)).astype("u2")
    turned = np.lib.stride_tricks.as_strided(ids, strides=(0, *ids.strides[1:]))
    expected = with_tensorstore(ids, (1, 2, 2), "mode")
    np.testing.assert_array_equal(shrink(turned, (1, 2, 2), "mode"), expected, strict=True)
    for method in ("mean", "mode"):
        assert shrink(np.empty((0, 5), "u2"), (2, 2), method).shape == (0, 3)


def test_large_ids_survive():
    ids = np.array([[2**63 + 7, 2**63 + 7], [2**63 + 7, 1]], "u8")
    assert shrink(ids, (2, 2), "mode").tolist() == [[2**63 + 7]]
    assert shrink(np.full((2, 2), 2**64 - 1, "u8"), (2, 2), "mean").tolist() == [[2**64 - 1]]
    assert shrink(np.full((2, 2), -(2**63), "i8"), (2, 2), "mean").tolist() == [[-(2**63)]]


def test_the_largest_floats_do_not_overflow_and_nan_stays():
    for dtype in FLOATS:
        largest = np.full((2, 2), np.finfo(dtype).max, dtype)
        assert shrink(largest, (2, 2), "mean")[0, 0] == np.finfo(dtype).max
    opposite = np.array([[np.inf, -np.inf]], "f8")
    assert np.isnan(shrink(opposite, (1, 2), "mean"))[0, 0]
    block = np.array([[1, 1, np.nan], [1, 1, 1]], "f4")
    np.testing.assert_array_equal(shrink(block, (2, 2), "mean"), [[1, np.nan]])


def test_the_ragged_corner_of_5_by_7():
    block = np.arange(35, dtype="f4").reshape(5, 7)
    half = shrink(block, (2, 2), "mean")
    assert half.shape == (3, 4)
    assert half[2, 3] == block[4, 6]
    assert half[2, 0] == block[4, :2].mean()
    assert half[0, 3] == block[:2, 6].mean()


@pytest.mark.parametrize(
    ("shape", "scale", "factors"),
    [
        ((10, 10, 10), (1, 1, 1), (2, 2, 2)),
        ((10, 10, 10), (4, 1, 1), (1, 2, 2)),
        ((10, 10, 10), (2, 1, 1), (1, 2, 2)),
        ((10, 10, 10), (1.3, 1, 1), (2, 2, 2)),
        ((10, 10, 10), (1.5, 1, 1), (1, 2, 2)),
        ((1, 10, 10), (0.1, 1, 1), (1, 2, 2)),
        ((10, 1, 1), (9, 1, 1), (2, 1, 1)),
        ((1, 1, 1), (1, 1, 1), (1, 1, 1)),
    ],
)
def test_axes_are_halved_where_voxels_are_finest(shape, scale, factors):
    assert halving(Level(shape, "u1", shape, scale=scale)) == factors


def test_an_anisotropic_image_becomes_isotropic_and_stays_so():
    level, scales = Level((64, 512, 512), "u1", (64, 64, 64), scale=(40, 8, 8)), []
    for _ in range(5):
        level = halved(level, halving(level))
        scales.append(level.scale)
    assert scales == [(40, 16, 16), (40, 32, 32), (80, 64, 64), (160, 128, 128), (320, 256, 256)]


def test_time_and_channels_are_not_halved():
    axes = (Axis("t", "time"), Axis("c", "channel"), Axis("z"), Axis("y"), Axis("x"))
    level = Level((8,) * 5, "u1", (4,) * 5, axes)
    assert halving(level) == (1, 1, 2, 2, 2)


def test_the_centre_of_the_first_voxel_moves_by_half_a_voxel():
    level = Level((5, 7), "u1", (4, 4), scale=(4.0, 0.5), translation=(-10.0, 3.0))
    coarse = halved(level, (1, 2))
    assert (coarse.shape, coarse.scale, coarse.chunks) == ((5, 4), (4.0, 1.0), (4, 4))
    assert coarse.translation == (-10.0, 3.25)
    # both levels end at the same face of the world, or half a voxel beyond
    assert halved(coarse, (1, 2)).translation == (-10.0, 3.75)


@pytest.mark.parametrize(
    ("kind", "dtype", "method"),
    [
        ("image", "f4", "mean"),
        ("image", "?", "mode"),
        ("label", "u4", "mode"),
        ("mask", "u1", "mode"),
    ],
)
def test_ids_and_masks_are_never_averaged(kind, dtype, method):
    assert method_for(kind, np.dtype(dtype)) == method
