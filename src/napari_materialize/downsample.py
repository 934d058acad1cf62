"""Coarser levels from finer ones: which axes are halved, where the voxels lie, what they are.

Owns the arithmetic of halving: mean for intensities, mode for ids and masks. A voxel of a coarser
level is made of the voxels it covers, those that exist: a level of 5 voxels becomes one of 3, whose
last voxel is made of one. It knows nothing of chunks, files or jobs.
"""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Index

__all__ = ["Method", "halved", "halving", "method_for", "shrink"]

type Method = Literal["mean", "mode"]
"""``mean``: of the voxels covered. ``mode``: the value that most of them have."""

_ISOTROPY = math.sqrt(2)
"""An axis is halved while its voxels are less than this much longer than the shortest: halving
those and not the others brings the voxel nearer to a cube."""

_COUNTS, _PAIRS = np.dtype(np.uint8), np.dtype(np.uint16)


def method_for(kind: Kind, dtype: np.dtype) -> Method:
    """Return how a coarser level is made of voxels of a kind: ids and masks are never averaged.

    Examples
    --------
    >>> method_for("image", np.dtype("u1")), method_for("label", np.dtype("u4"))
    ('mean', 'mode')
    """
    return "mean" if kind == "image" and dtype.kind != "b" else "mode"


def halving(level: Level) -> Index:
    """Return the factor along each axis to the next coarser level: 2 or 1.

    Axes of space are halved where voxels are finest, so that an anisotropic image becomes isotropic
    first. An axis of one voxel is not halved. All ones: there is no coarser level.

    Examples
    --------
    >>> from napari_materialize.arrays import Level
    >>> halving(Level((10, 100, 100), "u1", (8, 8, 8), scale=(40, 8, 8)))
    (1, 2, 2)
    >>> halving(Level((10, 100, 1), "u1", (8, 8, 8), scale=(10, 8, 1)))
    (2, 2, 1)
    """
    space = [
        axis.type == "space" and size > 1
        for axis, size in zip(level.axes, level.shape, strict=True)
    ]
    finest = min(itertools.compress(level.scale, space), default=0.0)
    return tuple(
        2 if counts and size < finest * _ISOTROPY else 1
        for counts, size in zip(space, level.scale, strict=True)
    )


def halved(level: Level, factors: Sequence[int]) -> Level:
    """Return the next coarser level of ``level``.

    Sizes are rounded up. The scale grows by the factor and not by the ratio of sizes. The centre
    of the first voxel is that of the voxels it covers, ``t + (s' - s) / 2``.

    Examples
    --------
    >>> from napari_materialize.arrays import Level
    >>> coarse = halved(Level((5, 7), "u1", (4, 4), scale=(1, 0.5)), (2, 2))
    >>> coarse.shape, coarse.scale, coarse.translation
    ((3, 4), (2.0, 1.0), (0.5, 0.25))
    """
    shape = tuple(-(-size // factor) for size, factor in zip(level.shape, factors, strict=True))
    scale = tuple(map(operator.mul, level.scale, factors))
    return replace(
        level,
        shape=shape,
        scale=scale,
        chunks=tuple(map(min, level.chunks, shape)),
        translation=tuple(
            t + (coarse - fine) / 2
            for t, coarse, fine in zip(level.translation, scale, level.scale, strict=True)
        ),
    )


def shrink(block: np.ndarray, factors: Sequence[int], method: Method) -> np.ndarray:
    """Return a block made smaller along the axes whose factor is 2.

    Parameters
    ----------
    block : numpy.ndarray
        Any shape; its first voxel is the first that a voxel of the result covers. At the far end of
        an odd axis the last voxel of the result covers one voxel.
    factors : sequence of int
        1 or 2 for each axis.
    method : {"mean", "mode"}
        ``mean``: of the voxels covered, computed exactly and rounded once; integers to the nearest,
        halves to the even one. NaN where one of them is NaN. ``mode``: the value most of them have,
        the smallest of several.

    Returns
    -------
    numpy.ndarray
        In the block's dtype, sizes halved and rounded up.

    Examples
    --------
    >>> shrink(np.array([[1, 2, 7], [2, 2, 7]], "u1"), (2, 2), "mean")
    array([[2, 7]], dtype=uint8)
    >>> shrink(np.array([[5, 2, 7], [2, 9, 7]], "u1"), (2, 2), "mode")
    array([[2, 7]], dtype=uint8)
    """
    halve = [axis for axis, factor in enumerate(factors) if factor == 2]
    if not halve:
        return block
    if _is_uniform(block):  # much of many volumes is background
        return np.ascontiguousarray(block[tuple(slice(None, None, factor) for factor in factors)])
    # the voxel at the far end of an odd axis stands for two: neither mean nor mode changes
    odd = [(0, size % 2 * (axis in halve)) for axis, size in enumerate(block.shape)]
    if any(more for _, more in odd):
        block = np.pad(block, odd, mode="edge")
    return _mean(block, halve) if method == "mean" else _mode(block, halve)


def _mean(block: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    kind, size = block.dtype.kind, block.dtype.itemsize
    bits = len(axes)
    if kind == "f":
        # as doubles a sum of a few halves is exact, of floats nearly; of doubles it could overflow,
        # so they are divided first, which is exact
        wide, share = np.dtype("f8"), 1 / (1 << bits)
        with np.errstate(invalid="ignore"):  # of infinities of both signs comes NaN
            if size == 8:
                return _sums(block * share, axes, wide)
            return (_sums(block, axes, wide) * share).astype(block.dtype)
    if size < 8:
        total = _whole_sums(block, axes)
        if size <= 2:  # single precision holds such a sum, and its rounding is this one
            share4 = np.float32(1 / (1 << bits))
            mean = np.multiply(total, share4, dtype=np.float32, casting="unsafe")
            return np.asarray(np.rint(mean, out=mean).astype(block.dtype))
        # a half is rounded up if that makes the number even: one more than just below a half
        odd = total >> bits
        odd &= 1
        odd += total
        odd += (1 << (bits - 1)) - 1
        odd >>= bits
        return odd.astype(block.dtype)
    # eight 64-bit numbers need more bits than there are: whole parts and rests apart
    rest = _sums(block & ((1 << bits) - 1), axes, block.dtype)
    down = _sums(block >> bits, axes, block.dtype) + (rest >> bits)
    left = (rest & ((1 << bits) - 1)) + (down & 1) + ((1 << (bits - 1)) - 1)
    return np.asarray(down + (left >> bits))


def _whole_sums(block: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Return the sums of integers along some axes, in twice their size."""
    kind, size = block.dtype.kind, block.dtype.itemsize
    wide = np.dtype(f"{kind}{2 * size}")
    if not (axes[-1] == block.ndim - 1 and block.dtype.isnative):
        return _sums(block, axes, wide)
    # two neighbours of a row are one number of that size, and are added within it: a sum along the
    # rows that goes by strides, after one along each other axis, takes as long as these
    pairs, bits = np.ascontiguousarray(block).view(wide), 8 * size
    low = pairs << bits >> bits if kind == "i" else pairs & ((1 << bits) - 1)
    low += pairs >> bits
    return _sums(low, axes[:-1], wide)


_SHORT = 256
"""Bytes of a run up to which it is quicker to add or compare every run with the next, all in one
loop, and to leave out every other, than to go by pairs: for each short one numpy begins anew."""


def _sums(block: np.ndarray, axes: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return the sums of neighbours along some axes, one axis after the other."""
    for axis in axes:
        run = math.prod(block.shape[axis + 1 :])
        if (
            axis > 0
            and 0 < run * dtype.itemsize <= _SHORT
            and block.dtype == dtype
            and block.flags.c_contiguous
        ):
            flat, every = block.reshape(-1), np.empty(block.shape, dtype)
            np.add(flat[:-run], flat[run:], out=every.reshape(-1)[:-run])
            block = _halves(every, axis)[0]
        else:
            block = np.add(*_halves(block, axis), dtype=dtype, casting="unsafe")
    return block


def _mode(block: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    if block.dtype.kind == "b" or (block.dtype.kind in "iu" and _is_binary(block)):
        most = _majority(block, axes)
        return most.view(block.dtype) if block.dtype.itemsize == 1 else most.astype(block.dtype)
    block = np.ascontiguousarray(block)
    if block.dtype.kind in "iu" and block.size:
        low, high = (find(_some(block)) for find in (np.min, np.max))
        # of zeros and ones alone it is known by now that there are others
        second = None if low >= 0 and high <= 1 else _second_of_two(block, low, high)
        if second is not None:
            chosen = np.where(_majority(second, axes), high, low)
            return np.asarray(chosen.astype(block.dtype, copy=False))
        if int(high) - int(low) < _NARROWER:
            narrow, low = _narrower(block)
            if narrow is not block:
                above = _mode_of_many(narrow, axes).astype(block.dtype)
                return np.asarray(np.add(above, low).astype(block.dtype, copy=False))
    return _mode_of_many(block, axes)


_NARROWER = 1 << 16
"""Ids that lie so close together are told apart in two bytes, or in one."""


def _narrower(block: np.ndarray) -> tuple[np.ndarray, np.integer]:
    """Return ids in fewer bytes each, as far above the lowest as they are, and the lowest.

    The block itself if they need theirs.
    """
    low, high = block.min(), block.max()
    for dtype in (_COUNTS, _PAIRS):
        most = 1 << 8 * dtype.itemsize
        if dtype.itemsize < block.dtype.itemsize and int(high) - int(low) < most:
            # what is cut off is the same for all of them, or makes up for the difference
            return np.subtract(block.astype(dtype), np.asarray(int(low) % most, dtype)), low
    return block, low


def _second_of_two(block: np.ndarray, low: np.integer, high: np.integer) -> np.ndarray | None:
    """Return where the second of two ids is; None if there are others, as a few tell of most."""
    some = _some(block)
    if not ((some == low) | (some == high)).all():
        return None
    second = block == high
    return second if np.logical_or(second, block == low).all() else None


def _mode_of_many(block: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    last, kind = block.ndim - 1, block.dtype
    # two neighbours of a row are compared and fetched as one number: strides are what costs
    paired = axes[-1] == last and kind.kind in "iu" and kind.itemsize < 8 and kind.isnative
    cells = block.view(f"u{2 * kind.itemsize}") if paired else block
    across = [axis for axis in axes if not (paired and axis == last)]
    differ, first = _differ(cells, across)
    result = first.copy()  # what most voxels of labels are: inside of something
    if paired:
        result, second = _apart(result, kind)
        apart = result != second
        differ = apart if differ is None else np.logical_or(apart, differ, out=apart)
    assert differ is not None
    where = np.flatnonzero(differ)
    if where.size:
        covered = _covered(cells, across, result.shape, where)
        if paired:
            covered = np.concatenate(_apart(covered, kind))
        result.reshape(-1)[where] = _most_common(covered)
    return result


def _majority(block: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Return where most of zeros and ones are ones: their sum counts them."""
    ones = block.view(_COUNTS) if block.dtype.kind == "b" else block.astype(_COUNTS, copy=False)
    enough = (1 << len(axes)) // 2 + 1
    if axes[-1] == block.ndim - 1:
        # the sum of a pair's two counts, of at most four each, becomes its higher byte
        pairs = _sums(np.ascontiguousarray(ones).view(_PAIRS), axes[:-1], _PAIRS)
        return np.asarray(pairs * np.uint16(257) >= np.uint16(enough << 8))
    return np.asarray(_sums(ones, axes, _COUNTS) >= enough)


def _apart(pairs: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the two halves of numbers that are two voxels each."""
    half = f"u{dtype.itemsize}"
    second = pairs >> (8 * dtype.itemsize)
    return pairs.astype(half).view(dtype), second.astype(half).view(dtype)


def _is_uniform(block: np.ndarray) -> bool:
    """Whether all voxels are equal; a few tell of most blocks that they are not."""
    return block.size > 0 and all(part.min() == part.max() for part in (_some(block), block))


def _is_binary(block: np.ndarray) -> bool:
    """Whether all voxels are 0 or 1; a few tell of most blocks that they are not."""
    block = block.view(block.dtype.str.replace("i", "u"))  # of which none is below 0
    return block.size > 0 and all(part.max() <= 1 for part in (_some(block), block))


_FEW_VOXELS = 256
"""Of up to twice as many numpy finds the extremes without giving Python's lock away."""


def _some(block: np.ndarray) -> np.ndarray:
    """Return a few voxels from all over a block; the first plane if it lies in another order."""
    if not block.flags.c_contiguous:
        return block[:1]
    # odd, so that it is no multiple of a side that is a power of two
    return block.reshape(-1)[:: block.size // _FEW_VOXELS | 1]


def _differ(block: np.ndarray, axes: Sequence[int]) -> tuple[np.ndarray | None, np.ndarray]:
    """Return for each voxel of the result whether those it covers differ, and the first of them.

    One axis after the other, the slowest first: what is compared along it lies in long runs.
    """
    differ, first = None, block
    for axis in axes:
        one, two = _halves(first, axis)
        found = one != two
        if differ is not None:
            for half in _halves(differ, axis):
                found |= half
        differ, first = found, one
    return differ, first


def _halves(block: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the even and the odd voxels along an axis."""
    lead = (slice(None),) * axis
    return block[(*lead, slice(0, None, 2))], block[(*lead, slice(1, None, 2))]


def _covered(
    block: np.ndarray, axes: Sequence[int], shape: tuple[int, ...], where: np.ndarray
) -> np.ndarray:
    """Return the voxels that some of the result cover, a column for each.

    Parameters
    ----------
    block : numpy.ndarray
        C-contiguous.
    axes : sequence of int
        Those that are halved.
    shape : tuple of int
        The result's.
    where : numpy.ndarray
        Flat indices into the result.
    """
    steps = tuple(stride // block.itemsize for stride in block.strides)
    step = 2 if len(shape) - 1 in axes else 1
    at = _ahead(shape, steps, tuple(axes)).take(where // shape[-1])
    at += where * step if step > 1 else where
    offsets = [sum(each) for each in itertools.product(*((0, steps[axis]) for axis in axes))]
    # with any other mode `take` looks at all indices before it begins
    every = at + np.array(offsets)[:, np.newaxis]
    found: np.ndarray = block.reshape(-1).take(every, mode="clip")
    return found


@lru_cache(maxsize=64)
def _ahead(shape: tuple[int, ...], steps: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    """Return by how much each row of a block is ahead of the same of the result, by the rows before
    it; the same for every chunk.
    """
    *rows, length = shape
    starts = np.zeros((), np.intp)
    for axis, size in enumerate(rows):
        step = steps[axis] * (2 if axis in axes else 1)
        starts = starts[..., np.newaxis] + np.arange(size) * step
    step = 2 if len(rows) in axes else 1
    ahead: np.ndarray = starts.reshape(-1) - np.arange(starts.size) * (length * step)
    ahead.flags.writeable = False
    return ahead


def _most_common(values: np.ndarray) -> np.ndarray:
    """Return, column by column, the value that most rows have, the smallest of several.

    Of eight in order the fourth is the one if it is there four times: another that is there as
    often is larger. So it is of two values, and wherever one has the majority; likewise of four.
    """
    rows = len(values)
    if rows not in (4, 8) or values.dtype.kind == "f":
        return _most_common_of_many(values)
    found = _middle(values)
    counts = (values == found).view(_COUNTS).sum(axis=0, dtype=_COUNTS)
    rest = np.flatnonzero(counts < rows // 2)
    if rest.size:
        found[rest] = _most_common_of_many(values.take(rest, axis=1))
    return found


def _middle(values: np.ndarray) -> np.ndarray:
    """Return, column by column, the second of four rows in order, or the fourth of eight.

    By a network that merges, each step of it all rows at once
    (https://en.wikipedia.org/wiki/Bitonic_sorter).
    """
    half = len(values) // 2
    low = np.minimum(values[:half], values[half:])
    high = np.maximum(values[:half], values[half:])
    if half == 2:
        in_order = np.stack((low, high))
    else:
        in_order = np.empty((4, 2, values.shape[1]), values.dtype)
        np.minimum(low[:2], low[2:], out=in_order[0])
        np.maximum(high[:2], high[2:], out=in_order[3])
        one, two = np.maximum(low[:2], low[2:]), np.minimum(high[:2], high[2:])
        np.minimum(one, two, out=in_order[1])
        np.maximum(one, two, out=in_order[2])
    # of two in order the smaller half is the smaller of the first and the last, and so on
    smaller = np.minimum(in_order[:, 0], in_order[::-1, 1])
    found: np.ndarray = smaller.max(axis=0)
    return found


_FEW = 4096
"""Columns that are told apart by comparing all rows in one call: with so few it is the calls that
take the time, each of which gives Python's lock away and waits for it."""


def _most_common_of_many(values: np.ndarray) -> np.ndarray:
    """Return the same by comparing every row with every other."""
    if values.shape[1] <= _FEW:
        same = values[:, np.newaxis] == values
        return _smallest(values, same.view(_COUNTS).sum(axis=1, dtype=_COUNTS))
    counts = np.zeros(values.shape, np.uint8)
    for apart in range(1, len(values)):
        same = (values[apart:] == values[:-apart]).view(np.uint8)
        counts[apart:] += same
        counts[:-apart] += same
    return _smallest(values, counts)


def _smallest(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return, column by column, the smallest of the values whose count is the highest."""
    found: np.ndarray = np.where(counts == counts.max(axis=0), values, values.max()).min(axis=0)
    return found
