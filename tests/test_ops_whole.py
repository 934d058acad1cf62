"""Every op on a box cut out of a padded array equals scipy or numpy on the whole array, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given
from hypothesis import strategies as st

from napari_materialize import ops
from napari_materialize.arrays import Axis, Kind, Level
from napari_materialize.geometry import Box

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = ["bool", "u1", "i1", "u2", "i2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
AXES = {
    "yx": (Axis("y"), Axis("x")),
    "zyx": (Axis("z"), Axis("y"), Axis("x")),
    "cyx": (Axis("c", "channel"), Axis("y"), Axis("x")),
    "tcyx": (Axis("t", "time"), Axis("c", "channel"), Axis("y"), Axis("x")),
    "yxc": (Axis("y"), Axis("x"), Axis("c", "channel")),
}


def level_of(array: np.ndarray, axes: str) -> Level:
    return Level(array.shape, array.dtype, (4,) * array.ndim, AXES[axes], fill=3)


def apply(op: ops.Op, array: np.ndarray, level: Level, kind: Kind, box: Box) -> np.ndarray:
    """Do what a view does: cut the block out of the edge-padded array and run the op on it."""
    op = op.fit(level, kind)
    described = op.describe(level, kind).level
    need = op.reach(box, level)
    low = [max(0, -start) for start in need.start]
    high = [max(0, stop - size) for stop, size in zip(need.stop, array.shape, strict=True)]
    padded = np.pad(array, list(zip(low, high, strict=True)), mode="edge")
    block = padded[need.shift(low).slices].copy()
    block.flags.writeable = False
    result = op.run(block, box, level)
    assert result.shape == box.shape
    assert result.dtype == described.dtype
    return result


@st.composite
def images(draw: st.DrawFn, axes: str, dtypes: list[str] = DTYPES) -> np.ndarray:
    shape = draw(st.tuples(*[st.integers(1, 9)] * len(AXES[axes])))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    if dtype.kind == "f":
        values = random.normal(0, draw(st.sampled_from([0.5, 300.0])), shape).astype(dtype)
        values[random.random(shape) < 0.1] = draw(st.sampled_from([np.nan, np.inf, 0.5, 1.5]))
        return values
    if dtype.kind == "b":
        return random.random(shape) < 0.5
    limits = np.iinfo(dtype)
    low, high = draw(st.sampled_from([(limits.min, limits.max), (0, 20), (limits.max - 9,) * 2]))
    return random.integers(low, high, shape, dtype, endpoint=True)


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    spans = [
        sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)).filter(lambda p: p[0] != p[1])))
        for n in shape
    ]
    return Box(tuple(a for a, _ in spans), tuple(b for _, b in spans))


def check(
    data: st.DataObject,
    op: ops.Op,
    array: np.ndarray,
    axes: str,
    whole: np.ndarray,
    kind: Kind = "image",
) -> None:
    level = level_of(array, axes)
    described = op.fit(level, kind).describe(level, kind)
    assert described.level.shape == whole.shape
    assert described.level.fill == 0
    box = data.draw(boxes(whole.shape))
    result = apply(op, array, level, kind, box)
    np.testing.assert_array_equal(result, whole[box.slices], strict=True)


def rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round and saturate by exact arithmetic on Python numbers."""
    if dtype.kind not in "iu":
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    flat = [
        0 if v != v else limits.max if v == np.inf else limits.min if v == -np.inf else round(v)
        for v in values.ravel().tolist()
    ]
    inside = [min(max(v, limits.min), limits.max) for v in flat]
    return np.array(inside, dtype).reshape(values.shape)


def inside(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


@given(data=st.data(), axes=st.sampled_from(sorted(AXES)))
def test_threshold_compares_exactly(data: st.DataObject, axes: str) -> None:
    array = data.draw(images(axes))
    near = +array.ravel()[0].item()  # of a mask a number, as bounds are
    bound = st.none() | st.sampled_from([near, 0, -1, 3, 2**63, -(2**70)]) | st.floats(-1e3, 1e3)
    if near == near and abs(near) != np.inf:
        bound |= st.sampled_from([int(near) + 1, int(near) - 1])
    low, high = data.draw(bound), data.draw(bound)
    low, high = (None if v is None or v != v else v for v in (low, high))
    if low is None and high is None:
        low = 1
    if low is not None and high is not None and low > high:
        low, high = high, low
    # floats are compared in their own dtype: so are the bounds of the oracle
    with np.errstate(over="ignore"):
        own = (
            [None if b is None else array.dtype.type(b).item() for b in (low, high)]
            if array.dtype.kind == "f"
            else [low, high]
        )
    whole = np.array([inside(v, *own) for v in array.ravel().tolist()], "u1").reshape(array.shape)
    check(data, ops.Threshold(low, high), array, axes, whole)


@given(data=st.data(), axes=st.sampled_from(["yx", "zyx", "cyx", "tcyx"]))
def test_gaussian_equals_scipy(data: st.DataObject, axes: str) -> None:
    array = data.draw(images(axes, [d for d in DTYPES if d != "bool"]))
    space = [i for i, axis in enumerate(AXES[axes]) if axis.type == "space"]
    one = st.sampled_from([0, 0.1, 0.5, 0.8, 1.0, 1.7])
    sigma = data.draw(one | st.tuples(*[one] * len(space)))
    dtype = data.draw(st.sampled_from([None, "float32"]))
    each = iter(sigma if isinstance(sigma, tuple) else (sigma,) * len(space))
    sigmas = [next(each) if i in space else 0 for i in range(array.ndim)]
    working = "f8" if array.dtype == np.float64 else "f4"
    smooth = scipy.ndimage.gaussian_filter(
        array.astype(working), sigmas, mode="nearest", truncate=4
    )
    whole = rounded(smooth, np.dtype(dtype or array.dtype))
    check(data, ops.Gaussian(sigma, dtype), array, axes, whole)


@given(data=st.data(), axes=st.sampled_from(["yx", "zyx", "cyx", "tcyx"]))
def test_median_equals_scipy(data: st.DataObject, axes: str) -> None:
    array = data.draw(images(axes, ["bool", "u1", "i2", "u4", "f4", "f8"]))
    array = np.nan_to_num(array) if array.dtype.kind == "f" else array
    space = [i for i, axis in enumerate(AXES[axes]) if axis.type == "space"]
    one = st.integers(1, 5)
    size = data.draw(one | st.tuples(*[one] * len(space)))
    each = iter(size if isinstance(size, tuple) else (size,) * len(space))
    sizes = tuple(next(each) if i in space else 1 for i in range(array.ndim))
    whole = scipy.ndimage.median_filter(array, size=sizes, mode="nearest")
    dtype = data.draw(st.sampled_from([None, "float32"]))
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
        expected = whole.astype(dtype or array.dtype)
    check(data, ops.Median(size, dtype), array, axes, expected)


@pytest.mark.parametrize("value", [2**64 - 1, 2**53 + 1, 2**63 + 7])
def test_median_keeps_large_ids_exactly(value: int) -> None:
    array = np.full((5, 5), value, "u8")
    array[2, 2] = 3
    op, level = ops.Median(3), Level((5, 5), "u8", (5, 5))
    block = np.pad(array, 1, mode="edge")
    np.testing.assert_array_equal(op.compute(block, level), np.full((5, 5), value, "u8"))


@given(data=st.data(), axes=st.sampled_from(sorted(AXES)))
def test_invert_turns_the_range_round(data: st.DataObject, axes: str) -> None:
    array = data.draw(images(axes))
    if array.dtype.kind == "b":
        whole = ~array
    elif array.dtype.kind == "f":
        whole = (1 - array).astype(array.dtype)
    else:
        limits = np.iinfo(array.dtype)
        turned = [limits.min + limits.max - v for v in array.ravel().tolist()]
        whole = np.array(turned, array.dtype).reshape(array.shape)
    check(data, ops.Invert(), array, axes, whole)


@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_invert_of_a_mask_changes_0_and_1(data: st.DataObject, dtype: str) -> None:
    array = data.draw(images("yx", ["bool"])).astype(dtype)
    check(data, ops.Invert(), array, "yx", (array == 0).astype(dtype), "mask")


@given(data=st.data(), axes=st.sampled_from(sorted(AXES)), dtype=st.sampled_from(DTYPES))
def test_cast_saturates(data: st.DataObject, axes: str, dtype: str) -> None:
    array, target = data.draw(images(axes)), np.dtype(dtype)
    if target.kind == "b":
        flat: list[Any] = [v == v and v != 0 for v in array.ravel().tolist()]
    elif target.kind == "f":
        limit = float(np.finfo(target).max)
        flat = [
            v if not abs(v) < np.inf else min(max(v, -limit), limit) for v in array.ravel().tolist()
        ]
    else:
        flat = rounded(array, target).ravel().tolist()
    check(data, ops.Cast(dtype), array, axes, np.array(flat, target).reshape(array.shape))


@given(data=st.data(), dtype=st.sampled_from(["u1", "i1", "u2", "i2", "i4", "f4", "f8"]))
def test_rescale_maps_the_window(data: st.DataObject, dtype: str) -> None:
    array, target = data.draw(images("yx")), np.dtype(dtype)
    low = data.draw(st.integers(-200, 200))
    width = data.draw(st.sampled_from([1, 7, 255, 1000]))
    position = np.clip((array.astype("f8") - low) / width, 0, 1)
    if target.kind == "f":
        expected, tolerance = position, 1e-6
    else:
        limits = np.iinfo(target)
        span = limits.max - limits.min
        expected = np.nan_to_num(limits.min + position * span, nan=0)
        tolerance = 0.5 + 1e-6 * span  # half a step, and float32 on the way to it
    level = level_of(array, "yx")
    box = data.draw(boxes(array.shape))
    op = ops.Rescale(low, low + width, dtype)
    result = apply(op, array, level, "image", box)
    np.testing.assert_allclose(result.astype("f8"), expected[box.slices], rtol=0, atol=tolerance)
    assert op.describe(level, "image").limits is not None
    whole = apply(op, array, level, "image", Box.whole(array.shape))
    np.testing.assert_array_equal(result, whole[box.slices])


@given(data=st.data(), axes=st.sampled_from(["cyx", "tcyx", "yxc"]))
def test_select_takes_one_channel(data: st.DataObject, axes: str) -> None:
    array = data.draw(images(axes))
    position = axes.index("c")
    channel = data.draw(st.integers(0, array.shape[position] - 1))
    check(data, ops.Select(channel), array, axes, array.take(channel, position))


@given(data=st.data(), axes=st.sampled_from(["cyx", "tcyx", "yxc"]))
def test_argmax_takes_the_first_highest(data: st.DataObject, axes: str) -> None:
    array = data.draw(images(axes, ["u1", "i2", "f4"]))
    whole = np.argmax(array, axes.index("c")).astype("u1")
    check(data, ops.Argmax(), array, axes, whole)


def padded_sum(block: np.ndarray) -> np.ndarray:
    """Sum 5 voxels along x and give the block's shape back."""
    return scipy.ndimage.uniform_filter1d(block.astype("f8"), 5, mode="nearest") * 5


def valid_sum(block: np.ndarray) -> np.ndarray:
    """Sum 5 voxels along x and give back what is complete."""
    return np.lib.stride_tricks.sliding_window_view(block.astype("f8"), 5, -1).sum(-1)


@pytest.mark.parametrize("fn", [padded_sum, valid_sum])
@given(data=st.data())
def test_a_function_may_keep_its_halo_or_not(
    fn: Callable[[np.ndarray], np.ndarray], data: st.DataObject
) -> None:
    array = data.draw(images("yx", ["u1", "i2"]))
    whole = valid_sum(np.pad(array, [(0, 0), (2, 2)], mode="edge"))
    check_close(data, ops.Function(fn, halo=(0, 2)), array, whole)


def check_close(data: st.DataObject, op: ops.Op, array: np.ndarray, whole: np.ndarray) -> None:
    box = data.draw(boxes(whole.shape))
    result = apply(op, array, level_of(array, "yx"), "image", box)
    np.testing.assert_allclose(result, whole[box.slices], rtol=1e-12, atol=1e-9)
