"""Live layers in napari: what reads claim, what is painted, when claims are given up."""

from __future__ import annotations

import gc
import importlib
import os
import queue
import subprocess
import sys
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from napari.components import ViewerModel
from napari.layers import Image, Labels
from napari.layers._multiscale_data import MultiScaleData
from napari.utils import DirectLabelColormap
from napari.utils._proxies import PublicOnlyProxy
from napari.utils.notifications import notification_manager

import napari_materialize as nm
from doubles import Gate, RecordingArray, cranked
from napari_materialize import ops
from napari_materialize._napari import asking, repaint, telling
from napari_materialize._napari.dropping import Dropped
from napari_materialize._napari.holding import Group
from napari_materialize._napari.live import add_view, placement
from napari_materialize._napari.pacing import Pace
from napari_materialize._napari.repaint import live_layer
from napari_materialize.cache import ChunkState
from napari_materialize.errors import EngineClosed, OptionError
from napari_materialize.looking import Lease
from windows import WAIT, live_of, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from napari.layers import Layer

    from napari_materialize import Engine, View

SCREEN = (400, 500)

RENAMED = (
    "napari renamed a part of its slicing that _napari/asking.py goes by: without it a live layer "
    "would block the window; look up what reads a layer's data now, and say so there"
)


def volume(shape: tuple[int, ...] = (12, 96, 96), dtype: str = "u2") -> list[np.ndarray]:
    """A pyramid of a few blobs, halved twice."""
    grid = np.stack(np.meshgrid(*(np.linspace(-2, 2, n) for n in shape), indexing="ij"))
    base = 1000 * np.exp(-(grid**2).sum(0)) + 300 * np.exp(-((grid - 1) ** 2).sum(0) * 8)
    return [base[(slice(None, None, 2**n),) * base.ndim].astype(dtype) for n in range(3)]


def plus_one(**options: Any) -> View:
    op = nm.ops.Function(lambda block: block + np.uint16(1), dtype="u2", name="one", version="1")
    return nm.open_view(volume(), [op], chunks=(4, 32, 32), **options)


def direct_colormap(colours: dict[int | None, str]) -> DirectLabelColormap:
    return DirectLabelColormap(color_dict=colours)


def picture(layer: Layer) -> set[Any]:
    """The chunks a layer holds claims on for the canvas, as (level, index)."""
    return set(live_of(layer).reads.held(Group.PICTURE))


def nothing_held(layer: Layer) -> bool:
    return not any(live_of(layer).reads.held(group) for group in Group)


def asked(engine: Engine) -> int:
    """How many claims were ever made."""
    stats = engine.stats()
    return int(stats["hits"] + stats["misses"])


# ---------------------------------------------------------------------- what reads what


def test_the_names_that_tell_callers_apart() -> None:
    module = importlib.import_module(asking.SLICING_MODULE)
    assert hasattr(module._ScalarFieldSliceRequest, asking.SLICING_FUNCTION), RENAMED
    fields = module._ScalarFieldSliceRequest.__dataclass_fields__
    assert {"slice_input", "data_at_thumbnail_level"} <= set(fields), RENAMED
    for name in asking.DATA_MODULES:
        assert importlib.import_module(name), RENAMED
    layer = Image(MultiScaleData([np.zeros((4, 4)), np.zeros((2, 2))]), multiscale=True)
    assert hasattr(layer, "_level_materializer"), RENAMED


def test_which_reads_claim(make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any) -> None:
    viewer = make_napari_viewer(show=True)
    view = plus_one()
    layer = add_view(viewer, view, engine, contrast_limits=(0, 1000))
    settle(qtbot, layer)
    viewer.dims.set_current_step(0, 9)
    settle(qtbot, layer)
    level = layer.data_level
    factor = 2**level
    planes = {index[0] * view.levels[level].chunks[0] * factor for _, index in picture(layer)}
    assert planes == {8}, RENAMED
    assert {place for place, _ in picture(layer)} == {level}
    thumbnail = set(live_of(layer).reads.held(Group.THUMBNAIL))
    assert thumbnail == {(2, (0, 0, 0))}, RENAMED

    before, kept = asked(engine), picture(layer)
    layer.get_value(viewer.dims.point, world=True)
    viewer.update_status_from_cursor()
    layer.reset_contrast_limits()
    layer.reset_contrast_limits_range()
    layer.histogram.mode = "full"
    assert list(layer.histogram.compute())
    assert repr(layer.data)
    layer.gamma = 0.9  # draws the thumbnail again
    assert asked(engine) == before, "a read that only shows something has claimed chunks"
    assert picture(layer) == kept


def test_anybody_else_reads_exactly(make_napari_viewer: Any, engine: Any) -> None:
    viewer = make_napari_viewer()
    layer = add_view(viewer, plus_one(), engine)
    expected = [array + 1 for array in volume()]
    part = layer.data[0][3:9:2, ::-1, 40]
    np.testing.assert_array_equal(np.asarray(part), expected[0][3:9:2, ::-1, 40])
    np.testing.assert_array_equal(np.asarray(layer.data[2]), expected[2])
    assert np.max(layer.data[1]) == expected[1].max()


def test_nothing_is_read_before_there_is_a_viewer(engine: Any) -> None:
    array = RecordingArray(np.zeros((4, 64, 64), "u1"), (4, 32, 32))
    viewer = ViewerModel()
    add_view(viewer, array.view(), engine, visible=False)
    assert array.reads == []
    assert asked(engine) == 0


# ---------------------------------------------------------------------- what is painted


@pytest.mark.parametrize("ndisplay", [2, 3])
@pytest.mark.parametrize("kind", ["image", "mask"])
def test_the_settled_picture_is_that_of_stored_data(
    make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any, kind: str, ndisplay: int
) -> None:
    chain = ["gaussian:sigma=1"] if kind == "image" else ["gaussian:sigma=1", "threshold:low=200"]
    view = nm.open_view(volume(), chain, chunks=(4, 32, 32), scale=(3, 1, 1), units="um")
    stored = [np.asarray(engine.array(view, level)) for level in range(3)]
    fresh = nm.open_view([array.copy() for array in volume()], chain, chunks=(4, 32, 32))
    options = {"contrast_limits": (0, 900)} if kind == "image" else {}
    viewer = make_napari_viewer(show=True, ndisplay=ndisplay)
    live = add_view(viewer, fresh, engine, scale=(3, 1, 1), units="um", **options)
    settle(qtbot, live)
    viewer.dims.set_current_step(0, 5)
    viewer.scene.camera.zoom *= 1.3
    settle(qtbot, live)
    assert live_of(live).reads.complete
    painted = viewer.screenshot(size=SCREEN, flash=False)
    camera = (viewer.scene.camera.center, viewer.scene.camera.zoom)
    known = (Image if kind == "image" else Labels)(
        MultiScaleData(stored), multiscale=True, **placement(view), **options
    )
    viewer.add_layer(known)
    live.visible = False
    assert (viewer.scene.camera.center, viewer.scene.camera.zoom) == camera
    qtbot.waitUntil(lambda: known.loaded, timeout=WAIT)
    expected = viewer.screenshot(size=SCREEN, flash=False)
    assert len(np.unique(expected[..., :3].reshape(-1, 3), axis=0)) > 1, "there is nothing to see"
    np.testing.assert_array_equal(painted, expected)


@pytest.mark.parametrize("kind", ["image", "label"])
@pytest.mark.parametrize("how", ["transposed", "thick"])
def test_the_settled_picture_is_that_of_stored_data_seen_otherwise(
    make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any, kind: str, how: str
) -> None:
    arrays = [(array % 7).astype("u1") for array in volume()]
    view = nm.open_view(arrays, ["median:size=3"], chunks=(4, 32, 32), kind=kind)
    stored = [np.asarray(engine.array(view, level)) for level in range(3)]
    fresh = nm.open_view(
        [a.copy() for a in arrays], ["median:size=3"], chunks=(4, 32, 32), kind=kind
    )
    options = {"contrast_limits": (0, 7), "projection_mode": "max"} if kind == "image" else {}
    viewer = make_napari_viewer(show=True)
    live = add_view(viewer, fresh, engine, **options)
    if how == "transposed":
        viewer.dims.order = (2, 0, 1)
        viewer.fit_to_view()
    else:
        viewer.dims.thickness = (6, 0, 0)
    settle(qtbot, live)
    viewer.dims.set_current_step(viewer.dims.order[0], 6)
    settle(qtbot, live)
    assert live_of(live).reads.complete
    painted = viewer.screenshot(size=SCREEN, flash=False)
    known = (Image if kind == "image" else Labels)(
        MultiScaleData(stored), multiscale=True, **placement(view), **options
    )
    viewer.add_layer(known)
    live.visible = False
    qtbot.waitUntil(lambda: known.loaded, timeout=WAIT)
    expected = viewer.screenshot(size=SCREEN, flash=False)
    assert len(np.unique(expected[..., :3].reshape(-1, 3), axis=0)) > 2, "there is nothing to see"
    np.testing.assert_array_equal(painted, expected)


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0)])
def test_transposed_axes(
    make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any, order: tuple[int, ...]
) -> None:
    viewer = make_napari_viewer(show=True)
    layer = add_view(viewer, plus_one(), engine)
    viewer.dims.order = order
    viewer.dims.set_current_step(order[0], 20 if order[0] else 5)
    settle(qtbot, layer)
    number = layer.data_level
    level, factor = volume()[number] + 1, 2**number
    whole = np.transpose(level, order)[round(20 / factor)]
    rows, columns = (slice(*layer.corner_pixels[:, a] + (0, 1)) for a in order[1:])
    np.testing.assert_array_equal(layer._slice.image.raw, whole[rows, columns])


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_thick_slices(
    make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any, mode: str
) -> None:
    viewer = make_napari_viewer(show=True)
    layer = add_view(viewer, plus_one(), engine, projection_mode=mode)
    viewer.dims.set_current_step(0, 6)
    viewer.dims.thickness = (6, 0, 0)
    settle(qtbot, layer)
    number = layer.data_level
    box = tuple(slice(*layer.corner_pixels[:, a] + (0, 1)) for a in (1, 2))
    request = layer._slicing_state._make_slice_request(viewer.dims)
    along = request._data_slice_to_slices(request._thick_slice_at_level(number), [1, 2])[0]
    assert along.stop - along.start > 1
    expected = getattr(np, mode)((volume()[number] + 1)[along], axis=0)[box]
    np.testing.assert_array_equal(layer._slice.image.raw, expected)


def test_two_dimensions(make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any) -> None:
    """napari would keep the coarsest level of these as it was when it first read it."""
    arrays = [array[5] for array in volume((24, 512, 512))]
    op = nm.ops.Function(lambda block: block + np.uint16(1), dtype="u2")
    view = nm.open_view(arrays, [op], chunks=(64, 64))
    viewer = make_napari_viewer(show=True)
    layer = add_view(viewer, view, engine)
    assert layer.ndim == 2
    for zoom, number in ((0.2, 2), (8, 0)):
        viewer.scene.camera.zoom = zoom
        qtbot.waitUntil(lambda number=number: layer.data_level == number, timeout=WAIT)
        settle(qtbot, layer)
        box = tuple(slice(*layer.corner_pixels[:, a] + (0, 1)) for a in (0, 1))
        np.testing.assert_array_equal(layer._slice.image.raw, (arrays[number] + 1)[box])
    assert layer._slice.image.raw.size < arrays[0].size
    np.testing.assert_array_equal(layer._slice.thumbnail.raw, arrays[2] + 1)


def test_holes_show_the_coarser_level_until_they_are_filled(
    make_napari_viewer: Any, qtbot: Any, engine: Any
) -> None:
    gate = Gate()
    view = nm.open_view([a.astype("i8") for a in volume()], [gate.op], chunks=(4, 32, 32))
    coarse = np.asarray(engine.array(view, 2))
    gate.open.clear()
    viewer = make_napari_viewer(show=True)
    layer = add_view(viewer, view, engine, contrast_limits=(0, 1000), locked_data_level=0)
    viewer.dims.set_current_step(0, 4)
    qtbot.waitUntil(lambda: gate.running == 2, timeout=WAIT)
    seen = layer._slice.image.raw
    np.testing.assert_array_equal(seen, coarse[1].repeat(4, 0).repeat(4, 1))
    gate.open.set()
    settle(qtbot, layer)
    np.testing.assert_array_equal(layer._slice.image.raw, volume()[0][4] + 1)
    assert live_of(layer).repaints >= 1


def test_labels_of_which_nothing_is_there_are_drawn_as_one_voxel(
    make_napari_viewer: Any, qtbot: Any, slicing: str
) -> None:
    engine, workers = cranked(slots=2)
    arrays = [np.ones((2, *(16 // 2**n,) * 3), "u1") for n in range(2)]
    view = nm.open_view(arrays, chunks=(1, 4, 4, 4), kind="label")
    viewer = make_napari_viewer(show=True)
    viewer.add_image(np.arange(4096.0).reshape(16, 16, 16))
    layer = add_view(viewer, view, engine)
    viewer.dims.ndisplay = 3
    qtbot.waitUntil(
        lambda: layer.loaded and layer._slice.image.raw.shape == (1, 1, 1), timeout=WAIT
    )
    nothing = viewer.screenshot(size=SCREEN, flash=False)
    assert layer.extent.data.tolist() == [[0, 0, 0, 0], [1, 15, 15, 15]]
    middle, ray = (0.0, *[8.0] * 3), {"view_direction": (0, 1, 0, 0), "dims_displayed": [1, 2, 3]}
    assert layer.get_value(middle, **ray) in (None, (1, None))
    layer.colormap = direct_colormap({0: "red", 1: "blue", None: "green"})
    layer.refresh()  # where the background is seen it is drawn
    qtbot.waitUntil(
        lambda: layer.loaded and layer._slice.image.raw.shape == (8, 8, 8), timeout=WAIT
    )
    layer.colormap = direct_colormap({1: "blue", None: "green"})
    layer.refresh()
    qtbot.waitUntil(
        lambda: layer.loaded and layer._slice.image.raw.shape == (1, 1, 1), timeout=WAIT
    )
    layer.visible = False
    np.testing.assert_array_equal(viewer.screenshot(size=SCREEN, flash=False), nothing)
    layer.visible = True
    qtbot.waitUntil(
        lambda: workers.run_all() == 0 and live_of(layer).settled and layer.loaded, timeout=WAIT
    )
    np.testing.assert_array_equal(layer._slice.image.raw, arrays[1][0])
    assert not np.array_equal(viewer.screenshot(size=SCREEN, flash=False), nothing)
    engine.close()


def test_repaints_are_apart(qtbot: Any) -> None:
    pace = Pace()
    assert pace.wait(now=0.0, interval=0.08) == 0
    pace.ended, pace.cost = 1.0, 0.01
    assert pace.wait(now=1.0, interval=0.08) == pytest.approx(0.08)
    pace.cost = 0.1
    assert pace.wait(now=1.05, interval=0.08) == pytest.approx(0.35)  # at most a fifth of the time
    assert pace.wait(now=1.01, interval=0.08, last=True) == pytest.approx(0.03)
    assert pace.wait(now=2.0, interval=0.08) == 0


def test_many_arrivals_make_few_repaints(make_napari_viewer: Any, qtbot: Any, engine: Any) -> None:
    view = nm.open_view(np.arange(2**16).reshape(1, 256, 256), chunks=(1, 8, 8))
    viewer = make_napari_viewer(show=True)
    viewer.window.resize(400, 400)
    layer = add_view(viewer, view, engine, contrast_limits=(0, 1000))
    live, arrived = live_of(layer), live_of(layer).reads.news
    settle(qtbot, layer)
    assert engine.stats()["read"] > 500
    arrived = live.reads.news - arrived
    assert arrived > 500
    assert live.repaints < arrived / 10  # one for each would be as many as arrived
    np.testing.assert_array_equal(
        layer._slice.image.raw, np.arange(2**16).reshape(256, 256)[_corners(layer)]
    )


def test_a_repaint_has_the_list_of_layers_drawn_once_its_picture_is_there(
    make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any
) -> None:
    viewer = make_napari_viewer(show=True)
    layer = add_view(viewer, nm.open_view(np.ones((4, 64, 64), "u1")), engine)
    settle(qtbot, layer)
    told: list[str] = []
    viewer.layers.events.connect(lambda event: told.append(event.type))
    repaint._refresh(layer, thumbnail=True)
    assert not {"set_data", "thumbnail", "reload"} & set(told)
    qtbot.waitUntil(lambda: {"set_data", "thumbnail"} <= set(told), timeout=WAIT)


def test_what_is_put_off_for_long_is_told_all_the_same(qtbot: Any) -> None:
    layer, now, told = Image(np.zeros((4, 4))), [5.0], list[str]()
    assert layer.events.emitters.keys() >= set(telling.PUT_OFF)  # else napari renamed one
    layer.events.connect(lambda event: told.append(event.type))
    telling_of = telling.Telling(layer, in_a_hurry=lambda: True, clock=lambda: now[0])
    telling_of.begin()
    telling_of.begin()
    for _ in range(3):
        layer.events.set_data()
        now[0] += telling.PATIENCE / 4
        telling_of.tell()
    assert told == []
    layer.name = "another"  # nothing else is put off
    assert told == ["name"]
    now[0] += telling.PATIENCE / 4
    telling_of.tell()
    assert told == ["name", "set_data"]  # three of a kind are one
    layer.events.thumbnail()
    assert told == ["name", "set_data"]
    telling_of.end()
    telling_of.end()
    assert told == ["name", "set_data", "thumbnail"]
    layer.events.set_data()
    assert told[3:] == ["set_data"]


def _corners(layer: Layer) -> tuple[slice, ...]:
    return tuple(slice(*layer.corner_pixels[:, a] + (0, 1)) for a in layer._slice_input.displayed)


# ---------------------------------------------------------------------- claims over time


def test_a_dropped_drag_computes_few_stale_chunks(
    make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any
) -> None:
    gate = Gate()
    base = np.zeros((24, 128, 128), "i8") + np.arange(24)[:, None, None]
    view = nm.open_view(base, [gate.op], chunks=(1, 64, 64))
    viewer = make_napari_viewer(show=True)
    layer = add_view(viewer, view, engine, contrast_limits=(0, 30))
    settle(qtbot, layer)
    gate.open.clear()
    done = len(gate.calls)
    for z in range(1, 11):
        viewer.dims.set_current_step(0, z)
        qtbot.waitUntil(lambda z=z: {index[0] for _, index in picture(layer)} == {z}, timeout=WAIT)
    gate.open.set()
    settle(qtbot, layer)
    computed = gate.calls[done:]
    assert computed.count(10) == 4
    stale = [z for z in computed if z != 10]
    assert len(stale) <= engine.slots, stale
    np.testing.assert_array_equal(layer._slice.image.raw, base[10] + 1)


def test_a_step_is_heard_once_and_before_napari_has_sliced_twice(
    make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any, monkeypatch: Any
) -> None:
    """In asynchronous slicing napari slices at `point` and at `current_step`."""
    viewer = make_napari_viewer()
    layer = add_view(viewer, plus_one(), engine, contrast_limits=(0, 1000))
    settle(qtbot, layer)
    reads, heard = live_of(layer).reads, list[str]()
    moved = reads.moved

    def hear(**read: bool) -> None:
        heard.append("step")
        moved(**read)

    monkeypatch.setattr(reads, "moved", hear)
    viewer.dims.events.current_step.connect(lambda: heard.append("sliced twice"))
    viewer.dims.set_current_step(0, 9)
    assert heard == ["step", "sliced twice"]
    settle(qtbot, layer)
    assert heard == ["step", "sliced twice"]


def test_a_step_that_was_read_before_it_is_told_counts_once(
    make_napari_viewer: Any, qtbot: Any, engine: Any, monkeypatch: Any
) -> None:
    """Else the hand would be taken for twice as fast, and what it passes would be asked for."""
    viewer = make_napari_viewer()
    layer = add_view(viewer, plus_one(), engine, contrast_limits=(0, 1000))
    settle(qtbot, layer)
    reads, steps = live_of(layer).reads, list[float]()
    monkeypatch.setattr(reads._moving, "step", counting(reads._moving.step, steps))
    for z in (0, 4, 8):  # planes apart on every level
        viewer.dims.set_current_step(0, z)
        settle(qtbot, layer)
    assert len(steps) == 3


def counting(step: Any, steps: list[float]) -> Any:
    def counted(now: float) -> None:
        steps.append(now)
        step(now)

    return counted


@pytest.fixture
def held(make_napari_viewer: Any, qtbot: Any, engine: Any) -> Iterator[tuple[Any, Any, Gate]]:
    """A viewer with a live layer in mid-computation: its op waits for the gate."""
    gate = Gate(shut=True)
    view = nm.open_view([a.astype("i8") for a in volume()], [gate.op], chunks=(4, 32, 32))
    viewer = make_napari_viewer(show=True)
    layer = add_view(viewer, view, engine, contrast_limits=(0, 1000))
    qtbot.waitUntil(lambda: gate.running == 2, timeout=WAIT)
    assert not nothing_held(layer)
    yield viewer, layer, gate
    gate.open.set()


def test_a_hidden_layer_holds_nothing_and_comes_back(held: Any, qtbot: Any, engine: Any) -> None:
    viewer, layer, gate = held
    layer.visible = False
    assert nothing_held(layer)
    assert not engine.stats()["waiting"]["client"]
    viewer.dims.set_current_step(0, 1)
    viewer.scene.camera.zoom *= 2
    assert nothing_held(layer)
    gate.open.set()
    layer.visible = True
    settle(qtbot, layer)
    number = layer.data_level
    z = round(1 / 2**number)
    expected = (volume()[number][z] + 1)[_corners(layer)]
    np.testing.assert_array_equal(layer._slice.image.raw, expected)


def test_a_removed_layer_holds_nothing_and_can_come_back(
    held: Any, qtbot: Any, engine: Any
) -> None:
    viewer, layer, gate = held
    viewer.layers.remove(layer)
    assert nothing_held(layer)
    assert not engine.stats()["waiting"]["client"]
    np.asarray(layer)  # napari's own object, not data
    assert nothing_held(layer)
    gate.open.set()
    viewer.layers.append(layer)
    settle(qtbot, layer)
    assert live_of(layer).reads.complete
    assert not nothing_held(layer)


def test_a_layer_that_is_given_other_data_holds_nothing_until_it_has_its_own_again(
    held: Any, qtbot: Any, engine: Any
) -> None:
    _, layer, gate = held
    own, reads = layer.data, live_of(layer).reads
    layer.data = MultiScaleData([array.astype("i8") for array in volume()])
    assert live_layer(layer) is None
    assert not reads.claims()
    assert not engine.stats()["waiting"]["client"]
    layer.data = own
    assert picture(layer)
    gate.open.set()
    settle(qtbot, layer)
    assert live_of(layer).reads.complete


def test_moving_a_layer_changes_nothing(held: Any, qtbot: Any) -> None:
    viewer, layer, _gate = held
    viewer.add_image(np.zeros((4, 4)))
    before = live_of(layer).reads.held(Group.PICTURE)
    viewer.layers.move(0, 2)
    assert live_of(layer).reads.held(Group.PICTURE) == before


def test_a_copy_of_a_layer_is_live_too(held: Any, qtbot: Any, engine: Any) -> None:
    viewer, layer, gate = held
    viewer.layers.selection = {layer}
    from napari.layers._layer_actions import _duplicate_layer

    _duplicate_layer(viewer.layers)
    copied = next(other for other in viewer.layers if other is not layer)
    assert live_of(copied) is not live_of(layer)
    gate.open.set()
    settle(qtbot, layer, copied)
    np.testing.assert_array_equal(copied._slice.image.raw, layer._slice.image.raw)
    layer.visible = False
    assert nothing_held(layer)
    assert not nothing_held(copied)
    viewer.dims.set_current_step(0, 11)
    settle(qtbot, copied)
    assert live_of(copied).reads.complete


def test_closing_the_viewer_in_mid_computation_is_prompt(held: Any, engine: Any) -> None:
    viewer, layer, gate = held
    viewer.close()
    assert gate.running  # closing did not wait for what is computed
    assert nothing_held(layer)
    assert not engine.stats()["waiting"]["client"]


WINDOW = """
import time

import napari
import numpy as np
from doubles import Gate
from qtpy.QtCore import QTimer

import napari_materialize as nm
from napari_materialize._napari.live import add_view

gate = Gate(shut=True)
viewer = napari.Viewer()
engine = nm.Engine(slots=2)
view = nm.open_view(np.zeros((4, 256, 256), "i8"), [gate.op], chunks=(1, 64, 64))
layer = add_view(viewer, view, engine, contrast_limits=(0, 1))

def close_when_computing():
    if gate.running == 2 and engine.stats()["waiting"]["client"]:
        timer.stop()
        viewer.window._qt_window.close()

timer = QTimer()
timer.timeout.connect(close_when_computing)
timer.start(10)
napari.run()
print(engine.stats()["waiting"]["client"], gate.running, len(viewer.layers))
"""


def test_closing_the_window_by_its_button_ends_all(tmp_path: Any) -> None:
    """The button removes no layers; two chunks that never end keep no process alive."""
    script = tmp_path / "window.py"
    script.write_text(WINDOW)
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split("\n")[-2] == "{} 2 1", done.stderr


def test_nothing_keeps_a_layer_alive(qtbot: Any, engine: Any) -> None:
    viewer = ViewerModel()
    layer = add_view(viewer, plus_one(), engine)
    reads, gone = live_of(layer).reads, weakref.ref(layer)
    assert reads.held(Group.PICTURE)
    del viewer, layer
    gc.collect()
    assert gone() is None
    qtbot.waitUntil(lambda: not reads.held(Group.PICTURE), timeout=WAIT)


def test_a_layer_may_be_collected_inside_the_engines_lock(qtbot: Any, engine: Any) -> None:
    """Garbage is collected wherever something is made, in the engine's threads too."""
    viewer = ViewerModel()
    layer = add_view(viewer, plus_one(), engine)
    reads = live_of(layer).reads
    with engine._lock:
        del viewer, layer
        gc.collect()
    qtbot.waitUntil(lambda: not reads.held(Group.PICTURE), timeout=WAIT)


def test_the_thread_that_waits_for_layers_ends_with_the_last() -> None:
    class Thing:
        """Something that is collected as soon as nothing refers to it."""

    before, dropped = set(threading.enumerate()), Dropped()
    for _ in range(2):  # once it has ended, the next layer begins another
        first, second, ends = Thing(), Thing(), queue.SimpleQueue[threading.Thread]()
        for thing in (first, second):
            dropped.watch(thing, lambda ends=ends: ends.put(threading.current_thread()))
        del first
        thread = ends.get(timeout=20)
        assert thread.is_alive(), "one layer is still there"
        assert thread not in before
        del second, thing
        assert ends.get(timeout=20) is thread
        thread.join(20)
        assert not thread.is_alive()


def test_a_viewer_as_widgets_are_handed_it(engine: Any) -> None:
    viewer = ViewerModel()
    layer = add_view(PublicOnlyProxy(viewer), plus_one(), engine)
    assert live_of(layer)._home() is viewer
    assert picture(viewer.layers[0])


def test_one_engine_for_all_until_the_last_layer_goes() -> None:
    viewers = ViewerModel(), ViewerModel()
    first, second = (add_view(viewer, plus_one()) for viewer in viewers)
    shared = live_of(first).engine
    assert live_of(second).engine is shared
    viewers[0].layers.remove(first)
    assert not shared.closed
    viewers[1].layers.clear()
    assert shared.closed
    assert Lease._shared is None
    third = add_view(viewers[0], plus_one())
    assert live_of(third).engine is not shared
    viewers[0].layers.append(first)
    assert live_of(first).engine is live_of(third).engine
    viewers[0].layers.clear()
    assert live_of(third).engine.closed


def test_an_engine_that_was_given_is_left_alone(engine: Any) -> None:
    viewer = ViewerModel()
    add_view(viewer, plus_one(), engine)
    viewer.layers.clear()
    assert not engine.closed


def test_a_closed_engine_is_refused() -> None:
    engine = nm.Engine(slots=1)
    engine.close()
    viewer = ViewerModel()
    with pytest.raises(EngineClosed, match="make a new one"):
        add_view(viewer, plus_one(), engine)
    assert not viewer.layers


def test_wrong_arguments_leave_nothing_behind() -> None:
    viewer = ViewerModel()
    with pytest.raises(TypeError, match="no_such_argument"):
        add_view(viewer, plus_one(), no_such_argument=1)
    assert not viewer.layers
    assert Lease._shared is None


# ---------------------------------------------------------------------- failures


def test_failed_chunks_are_holes_and_one_notification(
    make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any
) -> None:
    array = RecordingArray(np.ones((8, 128, 128), "u2"), (2, 32, 32))
    for index in [(z, y, 1) for z in range(4) for y in range(4)]:
        array.broken[index] = RuntimeError(f"block {index} is bad")
    told: list[str] = []

    def notice(event: Any) -> None:
        told.append(str(event.message))

    notification_manager.notification_ready.connect(notice)
    try:
        viewer = make_napari_viewer(show=True)
        layer = add_view(viewer, array.view(), engine, contrast_limits=(0, 1), name="torn")
        settle(qtbot, layer)
        viewer.dims.set_current_step(0, 0)
        settle(qtbot, layer)
    finally:
        notification_manager.notification_ready.disconnect(notice)
    assert len(told) == 1
    assert "torn" in told[0]
    assert "is bad" in told[0]
    expected = np.ones((128, 128), "u2")
    expected[:, 32:64] = 0
    np.testing.assert_array_equal(layer._slice.image.raw, expected[_corners(layer)])


def test_views_that_a_slider_passes_and_that_fail_alike_are_told_of_once(
    make_napari_viewer: Any, qtbot: Any, engine: Any
) -> None:
    array = RecordingArray(np.ones((8, 64, 64), "i8"), (2, 32, 32))
    places = [(z, y, x) for z in range(4) for y in range(2) for x in range(2)]
    source = array.view()
    told: list[str] = []

    def breaks(error: type[Exception]) -> None:
        array.broken |= {index: error(f"block {index} is bad") for index in places}

    def steps(*numbers: int) -> None:
        for number in numbers:
            plus = ops.Function(
                partial(np.add, number), dtype="i8", name="plus", version=f"{number}"
            )
            live_of(layer).show(source.then([plus]))
            settle(qtbot, layer)

    def notice(event: Any) -> None:
        told.append(str(event.message))

    breaks(RuntimeError)
    notification_manager.notification_ready.connect(notice)
    try:
        viewer = make_napari_viewer(show=True)
        layer = add_view(viewer, source, engine, contrast_limits=(0, 1), name="torn")
        settle(qtbot, layer)
        steps(1, 2, 3)
        assert len(told) == 1
        breaks(ValueError)  # another reason is told
        for index in places:
            if engine.state(source, 0, index) is ChunkState.FAILED:
                engine.retry(source, 0, index)
        steps(4, 5)
        assert len(told) == 2
        array.broken.clear()
        live_of(layer).retry()
        settle(qtbot, layer)
        assert len(told) == 2
    finally:
        notification_manager.notification_ready.disconnect(notice)


# ---------------------------------------------------------------------- what a view becomes


def test_where_a_layer_lies(engine: Any) -> None:
    viewer = ViewerModel()
    view = nm.open_view(
        volume(), scale=(4, 0.5, 0.5), translation=(10, 20, 30), units=("um", "um", None)
    )
    layer = add_view(viewer, view, engine)
    assert tuple(layer.scale) == (4, 0.5, 0.5)
    assert tuple(layer.translate) == (10, 20, 30)
    assert layer.axis_labels == ("z", "y", "x")
    assert [str(unit) for unit in layer.units] == ["micrometer", "micrometer", "pixel"]
    assert layer.metadata["progressive_loader"]
    assert [array.shape for array in layer.data] == [level.shape for level in view.levels]


def test_a_unit_napari_does_not_know(engine: Any) -> None:
    viewer = ViewerModel()
    layer = add_view(viewer, nm.open_view(volume(), units="smoot"), engine)
    assert {str(unit) for unit in layer.units} == {"pixel"}
    assert tuple(layer.scale) == (1, 1, 1)


def test_what_is_given_goes_first(engine: Any) -> None:
    viewer = ViewerModel()
    given = {"name": "mine", "scale": (1, 2, 3), "units": "nm", "metadata": {"a": 1}, "rgb": False}
    layer = add_view(viewer, plus_one(), engine, contrast_limits=(3, 4), **given)
    assert (layer.name, tuple(layer.scale), layer.metadata["a"]) == ("mine", (1, 2, 3), 1)
    assert tuple(layer.contrast_limits) == (3, 4)
    assert {str(unit) for unit in layer.units} == {"nanometer"}


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "kind", "expected"),
    [
        ("u2", "image", Image),
        ("f4", "image", Image),
        ("?", "image", Image),
        ("u8", "label", Labels),
        ("u1", "mask", Labels),
        ("?", "mask", Labels),
    ],
)
def test_the_layer_of_each_kind(
    engine: Any, dtype: str, kind: Any, expected: type, levels: int
) -> None:
    arrays = [np.ones((8, 8, 8), dtype), np.ones((4, 4, 4), dtype)][:levels]
    viewer = ViewerModel()
    layer = add_view(viewer, nm.open_view(arrays, kind=kind), engine)
    assert type(layer) is expected
    assert layer.multiscale
    assert len(layer.data) == levels
    np.testing.assert_array_equal(np.asarray(layer.data[0]), arrays[0])


def test_three_voxels_along_x_are_not_colours(engine: Any) -> None:
    view = nm.open_view(np.zeros((40, 40, 3), "u1"))
    layer = add_view(ViewerModel(), view, engine)
    assert (layer.rgb, layer.ndim) == (False, 3)
    coloured = add_view(ViewerModel(), view, engine, rgb=True)
    assert (coloured.rgb, coloured.ndim) == (True, 2)


def test_channels_as_layers_of_their_own(make_napari_viewer: Any, qtbot: Any, engine: Any) -> None:
    stack = np.stack([volume()[0], 2 * volume()[0]])
    view = nm.open_view(stack, chunks=(1, 4, 32, 32), axes="czyx", scale=(1, 3, 1, 1), name="em")
    viewer = make_napari_viewer(show=True)
    layers = add_view(viewer, view, engine, channel_axis=0, contrast_limits=[(0, 9), (0, 8)])
    assert [layer.name for layer in layers] == ["em [0]", "em [1]"]
    assert [tuple(layer.scale) for layer in layers] == [(3, 1, 1)] * 2
    assert [layer.contrast_limits for layer in layers] == [[0, 9], [0, 8]]
    assert [layer.blending for layer in layers] == ["translucent_no_depth", "additive"]
    assert [layer.colormap.name for layer in layers] == ["magenta", "green"]
    settle(qtbot, *layers)
    for layer, channel in zip(layers, stack, strict=True):
        z = viewer.dims.current_step[0]
        np.testing.assert_array_equal(layer._slice.image.raw, channel[z][_corners(layer)])
        np.testing.assert_array_equal(np.asarray(layer.data[0][2]), channel[2])
    layers[0].visible = False
    assert nothing_held(layers[0])
    assert not nothing_held(layers[1])


def test_channels_of_a_mask_are_labels(engine: Any) -> None:
    view = nm.open_view(np.ones((2, 8, 8), "u1"), kind="mask", axes="cyx", name="cells")
    layers = add_view(ViewerModel(), view, engine, channel_axis=-3)
    assert [type(layer) for layer in layers] == [Labels, Labels]
    assert [layer.name for layer in layers] == ["cells [0]", "cells [1]"]


@pytest.mark.parametrize("axis", [3, -4])
def test_a_channel_axis_that_is_not_there(engine: Any, axis: int) -> None:
    with pytest.raises(OptionError, match=f"3 axes.*got {axis}"):
        add_view(ViewerModel(), plus_one(), engine, channel_axis=axis)


# ---------------------------------------------------------------------- contrast limits


@pytest.mark.parametrize(
    ("array", "chain", "limits"),
    [
        (np.zeros((4, 8, 8), "u1"), [], (0, 255)),
        (np.zeros((4, 8, 8), "u2"), ["rescale:low=0,high=9"], (0, 1)),
    ],
)
def test_limits_that_are_known_cost_nothing(
    engine: Any, array: np.ndarray, chain: list[str], limits: tuple[float, float]
) -> None:
    layer = add_view(ViewerModel(), nm.open_view(array, chain), engine)
    assert tuple(layer.contrast_limits) == limits
    assert not live_of(layer).reads.held(Group.SAMPLE)


@pytest.mark.parametrize("dtype", ["u2", "f4"])
def test_limits_from_a_sample(make_napari_viewer: Any, qtbot: Any, engine: Any, dtype: str) -> None:
    viewer = make_napari_viewer(show=True)
    coarsest = volume(dtype=dtype)[2]
    layer = add_view(viewer, nm.open_view(volume(dtype=dtype), chunks=(4, 32, 32)), engine)
    settle(qtbot, layer)
    assert tuple(layer.contrast_limits) == (coarsest.min(), coarsest.max())
    assert not live_of(layer).reads.held(Group.SAMPLE)


def test_limits_that_somebody_sets_meanwhile_stay(
    make_napari_viewer: Any, qtbot: Any, engine: Any
) -> None:
    gate = Gate(shut=True)
    view = nm.open_view([a.astype("i8") for a in volume()], [gate.op], chunks=(4, 32, 32))
    viewer = make_napari_viewer(show=True)
    layer = add_view(viewer, view, engine)
    assert live_of(layer).reads.held(Group.SAMPLE)
    layer.contrast_limits = (5, 50)
    gate.open.set()
    settle(qtbot, layer)
    assert tuple(layer.contrast_limits) == (5, 50)
    assert not live_of(layer).reads.held(Group.SAMPLE)
