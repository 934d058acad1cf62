"""The arithmetic between a canvas and voxels: rectangles, views, outlines, affines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from napari.layers import Image

from napari_materialize._napari.viewport import (
    Frame,
    affine_of,
    embed,
    spanned_axes,
    view_corners,
)
from napari_materialize.arrays import Level
from napari_materialize.errors import BoxError
from napari_materialize.geometry import Box

SHAPE = (20, 60, 80)


def layer(**keywords: Any) -> Image:
    return Image(np.zeros(SHAPE, "u1"), contrast_limits=(0, 1), **keywords)


def frame_of(image: Image) -> Frame:
    level = Level(
        SHAPE, "u1", (5, 20, 20), scale=tuple(image.scale), translation=tuple(image.translate)
    )
    return Frame(level, affine_of(image))


def rectangle(y: tuple[float, float], x: tuple[float, float], z: float = 4.0) -> np.ndarray:
    return np.array([[z, y[0], x[0]], [z, y[0], x[1]], [z, y[1], x[1]], [z, y[1], x[0]]])


PLACED = [
    {},
    {"scale": (2.0, 0.4, 0.5), "translate": (7.0, -3.0, 100.0)},
    {"rotate": 30.0},
    {"scale": (1.0, 0.4, 0.4), "translate": (1.0, 2.0, 3.0), "rotate": -20.0},
    {"shear": (0.0, 0.0, 0.25), "scale": (3.0, 2.0, 1.0)},
    {"affine": np.array([[1, 0, 0, 5], [0, 0, -1, 90], [0, 1, 0, 2], [0, 0, 0, 1.0]])},
]


@pytest.mark.parametrize("keywords", PLACED)
def test_a_frame_goes_the_way_that_napari_goes(keywords: dict[str, Any]) -> None:
    image = layer(**keywords)
    frame = frame_of(image)
    points = np.array([[0.0, 0.0, 0.0], [3.0, 20.5, -1.0], [19.0, 59.0, 79.0]])
    world = np.array([image.data_to_world(point) for point in points])
    np.testing.assert_allclose(frame.to_world(points), world, atol=1e-9)
    np.testing.assert_allclose(frame.to_voxels(world), points, atol=1e-9)


@pytest.mark.parametrize("keywords", PLACED[:2])
def test_scale_and_translation_leave_no_affine(keywords: dict[str, Any]) -> None:
    assert affine_of(layer(**keywords)) is None


@pytest.mark.parametrize("keywords", PLACED)
def test_a_box_holds_what_the_rectangle_touches_and_no_more(keywords: dict[str, Any]) -> None:
    image = layer(**keywords)
    corners = rectangle((10.2, 30.7), (20.4, 40.4))
    world = np.array([image.data_to_world(corner) for corner in corners])
    assert spanned_axes(world) == (1, 2)
    box = frame_of(image).box(world, Box((2, 0, 0), (9, 60, 80)))
    assert box == Box((2, 10, 20), (9, 32, 41))


def test_a_rectangle_on_a_turned_layer_becomes_its_bounding_box() -> None:
    image = layer(rotate=45.0)
    frame = frame_of(image)
    centre = np.array(image.data_to_world((4, 30, 40)))
    half = 5.0
    corners = np.array(
        [
            centre + np.array([0, y, x])
            for y, x in ((-half, -half), (-half, half), (half, half), (half, -half))
        ]
    )
    box = frame.box(corners, Box((4, 0, 0), (5, 60, 80)))
    reach = half * np.sqrt(2)
    assert box == Box(
        (4, int(np.floor(30 - reach + 0.5)), int(np.floor(40 - reach + 0.5))),
        (5, int(np.ceil(30 + reach + 0.5)), int(np.ceil(40 + reach + 0.5))),
    )


@given(
    low=st.tuples(st.floats(-30, 55), st.floats(-30, 75)),
    size=st.tuples(st.floats(0.01, 60), st.floats(0.01, 60)),
    scale=st.sampled_from([0.004, 0.5, 1.0, 3.7, 250.0]),
    factor=st.integers(1, 4),
)
def test_half_pixel_rule_on_every_level(
    low: tuple[float, float], size: tuple[float, float], scale: float, factor: int
) -> None:
    """On level 0 and on a coarser one: floor((lo + 1/2) / f) to ceil((hi + 1/2) / f), clipped."""
    level = Level(SHAPE, "u1", (5, 20, 20), scale=(1.0, scale, scale), translation=(0.0, 5.0, -9.0))
    high = (low[0] + size[0], low[1] + size[1])
    corners = Frame(level).to_world(rectangle((low[0], high[0]), (low[1], high[1])))
    shape = np.array(SHAPE[1:])
    start = np.clip(np.floor(np.array(low) + 0.5 + 1e-6), 0, shape)
    stop = np.clip(np.ceil(np.array(high) + 0.5 - 1e-6), 0, shape)
    rest = Box((4, 0, 0), (5, 60, 80))
    if np.any(start >= stop):
        with pytest.raises(BoxError, match="outside"):
            Frame(level).box(corners, rest)
        return
    box = Frame(level).box(corners, rest)
    assert (box.start[1:], box.stop[1:]) == (tuple(start), tuple(stop))
    coarse = Level(
        (20, -(-60 // factor), -(-80 // factor)),
        "u1",
        (5, 20, 20),
        scale=(1.0, scale * factor, scale * factor),
        translation=(0.0, 5.0 + (factor - 1) / 2 * scale, -9.0 + (factor - 1) / 2 * scale),
    )
    onto = coarse.box_from(box, level)
    assert onto.start[1:] == tuple(int(n) // factor for n in start)
    assert onto.stop[1:] == tuple(-(-int(n) // factor) for n in stop)


def test_a_line_and_a_point_are_refused() -> None:
    frame = Frame(Level(SHAPE, "u1", (5, 20, 20)))
    for corners in (rectangle((5, 5), (9, 30)), rectangle((5, 5), (9, 9))):
        with pytest.raises(BoxError, match="larger"):
            frame.box(corners, Box.whole(SHAPE))


def test_a_viewer_with_more_axes_than_the_source() -> None:
    frame = Frame(Level((60, 80), "u1", (20, 20)))
    corners = np.hstack([np.full((4, 2), 3.0), rectangle((10, 20), (30, 40))[:, 1:]])
    assert frame.box(corners, Box((0, 0), (1, 1))) == Box((10, 30), (21, 41))


def test_transposed_axes_are_those_that_the_rectangle_spans() -> None:
    frame = Frame(Level(SHAPE, "u1", (5, 20, 20)))
    corners = np.array([[2.0, 33, 10], [2.0, 33, 50], [9.0, 33, 50], [9.0, 33, 10]])
    assert frame.box(corners, Box((0, 33, 0), (20, 34, 80))) == Box((2, 33, 10), (10, 34, 51))


def test_the_slice_is_the_nearest_voxel_inside() -> None:
    frame = Frame(Level(SHAPE, "u1", (5, 20, 20), scale=(2.0, 1.0, 1.0)))
    assert frame.slice_box((6.9, 10.2, 500.0)) == Box((3, 10, 79), (4, 11, 80))


def test_corners_of_a_view() -> None:
    corners = view_corners((0, 50.0, 60.0), 2.0, (100, 200), (1, 2), (7.0, 0.0, 0.0))
    assert corners.min(axis=0).tolist() == [7.0, 25.0, 10.0]
    assert corners.max(axis=0).tolist() == [7.0, 75.0, 110.0]


def test_a_section_is_the_box_where_the_plane_cuts_it() -> None:
    level = Level(SHAPE, "u1", (5, 20, 20), scale=(2.0, 0.5, 0.5), translation=(0.0, 10.0, 10.0))
    low, high = level.world_corners(Box((5, 20, 40), (10, 40, 60)))
    frame = Frame(level)
    section, inside = frame.section(low, high, (12.0, 0.0, 0.0), (1, 2))
    assert inside
    assert section.min(axis=0).tolist() == [6.0, 19.5, 39.5]
    assert section.max(axis=0).tolist() == [6.0, 39.5, 59.5]
    assert not frame.section(low, high, (20.0, 0.0, 0.0), (1, 2))[1]


def test_a_box_has_twelve_edges() -> None:
    level = Level(SHAPE, "u1", (5, 20, 20))
    low, high = level.world_corners(Box((5, 20, 40), (10, 40, 60)))
    edges = Frame(level).edges(low, high, (0.0, 0.0, 0.0), (0, 1, 2))
    assert len({tuple(map(tuple, np.round(edge, 3))) for edge in edges}) == 12
    lengths = sorted(float(np.abs(np.diff(edge, axis=0)).sum()) for edge in edges)
    assert lengths == [5.0] * 4 + [20.0] * 8


def test_an_affine_is_embedded_by_the_names_of_axes() -> None:
    turned = affine_of(layer(rotate=30.0))
    over_channels = embed(turned, ["z", "y", "x"], ["c", "z", "y", "x"])
    assert over_channels is not None
    np.testing.assert_allclose(over_channels[1:, 1:], np.array(turned), atol=1e-12)
    assert over_channels[0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert embed(None, ["y", "x"], ["y", "x"]) is None
