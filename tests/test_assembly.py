"""Pieces put together from parts: whatever the grids, and from several threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from napari_materialize.assembly import Assembly
from napari_materialize.geometry import Box, ChunkGrid


@given(data=st.data())
def test_pieces_are_those_of_the_whole_array_and_each_is_made_once(data):
    draw = data.draw
    shape = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple))
    parts = ChunkGrid(shape, tuple(draw(st.integers(1, 5)) for _ in shape))
    nested = draw(st.booleans())  # each part in one piece, or cut wherever
    sizes = tuple(n * draw(st.integers(1, 3)) for n in parts.chunks)
    pieces = ChunkGrid(shape, sizes if nested else tuple(draw(st.integers(1, 6)) for _ in shape))
    low = tuple(draw(st.integers(0, n - 1)) for n in shape)
    region = Box(low, tuple(draw(st.integers(a + 1, n)) for a, n in zip(low, shape, strict=True)))
    if draw(st.booleans()):
        region = parts.round_out(region)
    whole = np.arange(np.prod(shape)).reshape(shape) + 1
    expected = np.zeros_like(whole)
    expected[region.slices] = whole[region.slices]
    assembly = Assembly(parts, region, pieces, (0,) * len(shape))
    lost = draw(st.sampled_from([None, *parts.covering(region)]))
    gone = set() if lost is None else set(assembly.lose(lost))
    order = draw(st.permutations(list(parts.covering(region))))
    made = [
        each
        for index in order
        if index != lost
        for each in assembly.add(index, whole[parts.box(index).slices])
    ]
    places = [each.place for each in made]
    assert len(places) == len(set(places))
    assert set(places) == set(pieces.covering(region)) - gone
    assert assembly.waiting == 0
    for place, block in made:
        np.testing.assert_array_equal(block, expected[pieces.box(place).slices])


@pytest.mark.parametrize("side", [2, 3])
def test_threads_that_put_parts_into_one_piece_make_it_once_and_whole(side):
    shape = (12, 12)
    parts, pieces = ChunkGrid(shape, (side, side)), ChunkGrid(shape, (12, 12))
    whole = np.arange(144).reshape(shape)
    for _ in range(20):
        assembly = Assembly(parts, Box.whole(shape), pieces, (0, 0))
        indices = list(parts.covering(Box.whole(shape)))
        gate, made = threading.Barrier(4), []

        def work(mine, assembly=assembly, gate=gate, made=made):
            gate.wait()
            for index in mine:
                made.extend(assembly.add(index, whole[parts.box(index).slices]))

        threads = [threading.Thread(target=work, args=(indices[n::4],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [each.place for each in made] == [(0, 0)]
        np.testing.assert_array_equal(made[0].block, whole)


def test_a_piece_that_is_lost_while_its_last_part_is_copied_is_not_made():
    grid, pieces = ChunkGrid((4,), (2,)), ChunkGrid((4,), (4,))
    assembly = Assembly(grid, Box((0,), (4,)), pieces, (0,))
    assert assembly.add((0,), np.array([1, 2])) == []

    class Losing:
        """A part that is lost again by the time it is copied."""

        dtype, shape, size = np.dtype(int), (2,), 2

        def __array__(self, dtype=None, copy=None):
            assert assembly.lose((0,)) == [(0,)]
            return np.array([3, 4], dtype)

    assert assembly.add((1,), Losing()) == []
    assert assembly.waiting == 0
    assert assembly.add((1,), np.array([3, 4])) == []
