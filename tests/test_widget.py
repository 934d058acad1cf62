"""The dock widget in a real window, with real mouse events: draw, run, cancel, open, close."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from napari.layers import Image, Labels
from napari.settings import get_settings
from qtpy.QtCore import QPoint, Qt, QTimer
from qtpy.QtTest import QTest
from qtpy.QtWidgets import QApplication

import napari_materialize as nm
from napari_materialize import ops
from napari_materialize._napari import demo
from napari_materialize._napari.overlay import DRAWING, OUTLINE
from napari_materialize._napari.result import StoredBox, result_layer
from napari_materialize._napari.samples import blobs
from napari_materialize._napari.widget import MaterializeWidget
from napari_materialize.geometry import Box
from napari_materialize.session import JobState
from windows import WAIT, click

if TYPE_CHECKING:
    from pathlib import Path


SHAPE = (16, 96, 128)


class Gate:
    """An op's function that waits until it is let through, and notes what it was asked."""

    def __init__(self) -> None:
        self.opened, self.entered, self.calls = threading.Event(), threading.Event(), 0

    def __call__(self, block: np.ndarray) -> np.ndarray:
        self.calls += 1
        self.entered.set()
        assert self.opened.wait(WAIT / 1000)
        return block + 1


@pytest.fixture
def data() -> np.ndarray:
    return np.random.default_rng(0).integers(1, 250, SHAPE, "u1")


def add(widget: MaterializeWidget, operation: str) -> None:
    widget.ops.add(operation)
    QApplication.processEvents()  # Qt shows a new card a moment later


def canvas_point(viewer: Any, down: float, right: float) -> QPoint:
    """Return where a world position of the two displayed axes is on the canvas."""
    native, camera = viewer.window._qt_viewer.canvas.native, viewer.scene.camera
    middle = camera.center[-2:]
    return QPoint(
        round((right - middle[1]) * camera.zoom + native.width() / 2),
        round((down - middle[0]) * camera.zoom + native.height() / 2),
    )


def drag(viewer: Any, start: tuple[float, float], stop: tuple[float, float]) -> None:
    """Drag the mouse over the canvas between two world positions of the displayed axes."""
    native = viewer.window._qt_viewer.canvas.native
    QApplication.processEvents()  # the canvas may have been resized
    first, last = canvas_point(viewer, *start), canvas_point(viewer, *stop)
    QTest.mouseMove(native, first)
    QTest.mousePress(native, Qt.MouseButton.LeftButton, pos=first)
    QApplication.processEvents()
    for step in (0.3, 0.7, 1.0):
        QTest.mouseMove(native, first + (last - first) * step)
        QApplication.processEvents()
    QTest.mouseRelease(native, Qt.MouseButton.LeftButton, pos=last)
    QApplication.processEvents()


def draw(viewer: Any, widget: MaterializeWidget, start: Any, stop: Any) -> None:
    """Press Draw box and drag a rectangle between two voxel positions of the finest level."""
    click(widget.box.draw)
    level = widget.session.resolved.source_level
    assert level is not None
    shown = [axis - (viewer.dims.ndim - level.ndim) for axis in viewer.dims.displayed]
    places = [
        tuple(level.translation[a] + v * level.scale[a] for a, v in zip(shown, corner, strict=True))
        for corner in (start, stop)
    ]
    drag(viewer, *places)


def run(widget: MaterializeWidget, qtbot: Any) -> None:
    """Press Run and wait for the bar to finish: it was there while the job ran, however short."""
    seen: list[tuple[JobState, bool]] = []

    def look(_: object) -> None:
        seen.append((widget.session.job.state, widget.run_bar.bar.isHidden()))

    widget.session.changed.connect(look)
    click(widget.run_bar.run)  # QTest lets Qt run a little: the job may be over when it returns
    qtbot.waitUntil(lambda: widget.session.job.state is not JobState.RUNNING, timeout=WAIT)
    qtbot.waitUntil(widget.run_bar.bar.isHidden, timeout=WAIT)
    widget.session.changed.disconnect(look)
    assert (JobState.RUNNING, False) in seen


def run_and_open(viewer: Any, widget: MaterializeWidget, qtbot: Any) -> Any:
    run(widget, qtbot)
    assert widget.session.job.state is JobState.DONE, widget.session.job.reason
    click(widget.run_bar.open)
    return viewer.layers[-1]


def faces(layer: Any) -> np.ndarray:
    """Return the outer faces of a layer's voxels in the world, if it is not turned."""
    half = np.asarray(layer.scale) / 2
    return np.array([layer.extent.world[0] - half, layer.extent.world[1] + half])


# ---------------------------------------------------------------------- the whole path


def test_draw_run_open(dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path) -> None:
    viewer, widget = dock(show=True)
    placed = {"scale": (2.0, 0.5, 0.5), "translate": (10.0, 20.0, -30.0), "units": ["um"] * 3}
    viewer.add_image(data, contrast_limits=(5, 200), name="em", **placed)
    widget.session.change(ops=(("invert", {}),), folder=str(tmp_path))
    viewer.dims.set_point(0, 10.0 + 2.0 * 9)
    draw(viewer, widget, (20.0, 30.0), (60.0, 70.0))

    box = widget.session.resolved.source_box
    assert box is not None
    assert (box.start[0], box.stop[0]) == (9, 10)  # the slice it was drawn on
    # a screen pixel is a part of a voxel: the corners are off by one at most
    assert np.abs(np.array(box.start[1:]) - (20, 30)).max() <= 1
    assert np.abs(np.array(box.stop[1:]) - (61, 71)).max() <= 1
    state = widget.session.resolved
    assert state.plan is not None
    assert state.plan.box == Box((0, 0, 0), (16, 64, 128))
    assert "z 0\N{EN DASH}16, y 0\N{EN DASH}64, x 0\N{EN DASH}128" in widget.box.written.text()
    assert widget.box.cost.text() == "2 chunks, 131 kB uncompressed"

    layer = run_and_open(viewer, widget, qtbot)
    assert isinstance(layer, Image)
    assert state.corners is not None
    assert np.abs(faces(layer) - np.array(state.corners)).max() <= 0.25  # half a voxel, at worst
    np.testing.assert_array_equal(np.asarray(layer.data), (255 - data)[:, :64])
    assert [str(unit) for unit in layer.units] == ["micrometer"] * 3
    assert layer.contrast_limits == [5, 200]
    assert layer.name == "em-invert"
    assert viewer.layers[OUTLINE].visible


def test_the_store_is_the_reference(
    dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path
) -> None:
    viewer, widget = dock()
    viewer.add_image(data, contrast_limits=(0, 255))
    widget.session.change(ops=(("gaussian", {"sigma": "1.5"}),), folder=str(tmp_path))
    click(widget.box.whole)
    widget.session.change(extent="box")
    widget.box.take(Box((2, 3, 5), (11, 70, 100)))
    layer = run_and_open(viewer, widget, qtbot)
    view = widget.session.job.resolved.view
    with nm.Engine(slots=2) as engine:
        expected = engine.array(view, 0)[2:11, 3:70, 5:100]
    np.testing.assert_array_equal(np.asarray(layer.data), expected)
    target = widget.session.job.resolved.target
    np.testing.assert_array_equal(zarr.open_array(f"{target}/0", mode="r")[:], expected)
    np.testing.assert_allclose(layer.extent.world, [[2, 3, 5], [10, 69, 99]])


def test_rotated_source(dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path) -> None:
    """The box is larger than the rectangle; the result lies where the source's voxels lie."""
    viewer, widget = dock(show=True)
    source = viewer.add_image(
        data, contrast_limits=(0, 255), rotate=30.0, scale=(2, 0.5, 0.5), translate=(1, 5, 9)
    )
    widget.session.change(folder=str(tmp_path), extent="box")
    viewer.dims.set_point(0, 1.0 + 2 * 4)
    viewer.reset_view()
    click(widget.box.draw)
    centre = np.array(source.data_to_world((4, 48, 64)))[1:]
    drag(viewer, tuple(centre - 8), tuple(centre + 8))
    box = widget.session.resolved.source_box
    assert box is not None
    reach = 8 / 0.5 * (np.cos(np.pi / 6) + np.sin(np.pi / 6))
    assert np.abs(np.array(box.start) - (4, 48 - reach, 64 - reach)).max() <= 1.5
    assert np.abs(np.array(box.stop) - (5, 49 + reach, 65 + reach)).max() <= 1.5

    outline = viewer.layers[OUTLINE]
    shown = np.array([outline.data_to_world(corner) for corner in outline.data[0]])
    low, high = np.array(box.start) - 0.5, np.array(box.stop) - 0.5
    corner = source.data_to_world((4, low[1], low[2])), source.data_to_world((4, high[1], high[2]))
    np.testing.assert_allclose(shown[[0, 2]][:, 1:], np.array(corner)[:, 1:], atol=1e-3)

    layer = run_and_open(viewer, widget, qtbot)
    for voxel in ((0, 0, 0), (0, 7, 11)):
        there = source.data_to_world(np.add(voxel, box.start))
        np.testing.assert_allclose(layer.data_to_world(voxel), there, atol=1e-9)


def test_2d_source(dock: Any, qtbot: Any, tmp_path: Path) -> None:
    viewer, widget = dock(show=True)
    flat = np.arange(96 * 128, dtype="u2").reshape(96, 128)
    viewer.add_image(flat, contrast_limits=(0, 13000))
    widget.session.change(folder=str(tmp_path), extent="box")
    assert not widget.box.sliders
    draw(viewer, widget, (10.0, 20.0), (50.0, 100.0))
    box = widget.session.resolved.source_box
    assert box is not None
    layer = run_and_open(viewer, widget, qtbot)
    np.testing.assert_array_equal(np.asarray(layer.data), flat[box.slices])


@pytest.mark.parametrize(
    "place", [{}, {"rotate": 20.0}, {"scale": (-2, 1), "translate": (5, 7)}], ids=str
)
def test_a_coloured_source(dock: Any, qtbot: Any, tmp_path: Path, place: dict[str, Any]) -> None:
    """Colours are an axis of the result and none of the canvas; a mirror is kept for the result."""
    viewer, widget = dock(show=True)
    colours = np.random.default_rng(0).integers(0, 255, (96, 128, 3), "u1")
    layer = viewer.add_image(colours, rgb=True, name="stain", **place)
    viewer.reset_view()
    click(widget.box.draw)
    ends = [tuple(layer.data_to_world(corner)) for corner in ((10, 20), (40, 70))]
    drag(viewer, *ends)
    widget.session.change(folder=str(tmp_path), extent="box", ops=("invert",))
    box = widget.session.resolved.plan.box
    drawn = Box((0, 10, 20), (3, 41, 71))
    assert box == drawn or ("rotate" in place and box.shape[0] == 3 and not box.is_empty)
    assert list(widget.box.sliders) == [0], "one for the colours"
    result = run_and_open(viewer, widget, qtbot)
    want = 255 - np.moveaxis(colours, -1, 0)[box.slices]
    np.testing.assert_array_equal(np.asarray(result.data), want)
    for corner in np.ndindex(2, 2):
        there = np.array(corner) * 20
        shown = result.data_to_world((1, *there))[1:]
        np.testing.assert_allclose(shown, layer.data_to_world(there + box.start[1:]), atol=1e-9)


def test_labels_stay_labels(dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path) -> None:
    viewer, widget = dock()
    viewer.add_labels(data.astype("i4"))
    widget.session.change(folder=str(tmp_path))
    layer = run_and_open(viewer, widget, qtbot)
    assert isinstance(layer, Labels)
    np.testing.assert_array_equal(np.asarray(layer.data), data)


def test_transposed_axes(dock: Any, data: np.ndarray) -> None:
    """The rectangle spans what is shown; the axis that is not shown has the slider."""
    viewer, widget = dock(show=True)
    viewer.add_image(data, contrast_limits=(0, 255))
    viewer.dims.order = (1, 0, 2)
    viewer.dims.set_point(1, 33)
    viewer.reset_view()
    assert list(widget.box.sliders) == [1]
    draw(viewer, widget, (3.0, 20.0), (9.0, 90.0))
    box = widget.session.resolved.source_box
    assert box is not None
    assert (box.start[1], box.stop[1]) == (33, 34)
    assert np.abs(np.array(box.start) - (3, 33, 20)).max() <= 1
    assert np.abs(np.array(box.stop) - (10, 34, 91)).max() <= 1


# ---------------------------------------------------------------------- a job under way


def start_gated(
    viewer: Any, widget: MaterializeWidget, qtbot: Any, data: np.ndarray, folder: Path
) -> Gate:
    """Start a job of many chunks whose op waits."""
    gate = Gate()
    view = nm.open_view(data, chunks=(4, 32, 32), ops=[ops.Function(gate, dtype="u1")])
    widget.session.change(source=view, name="gated", folder=str(folder))
    click(widget.run_bar.run)
    qtbot.waitUntil(gate.entered.is_set, timeout=WAIT)
    return gate


def test_the_window_lives_while_chunks_are_blocked(
    dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path
) -> None:
    viewer, widget = dock(show=True)
    gate = start_gated(viewer, widget, qtbot, data, tmp_path)
    ticks: list[int] = []
    timer = QTimer()
    timer.timeout.connect(lambda: ticks.append(len(ticks)))
    timer.start(5)
    qtbot.waitUntil(lambda: len(ticks) >= 20, timeout=WAIT)
    assert widget.session.job.state is JobState.RUNNING
    assert not widget.run_bar.bar.isHidden()
    assert widget.run_bar.cancel.isEnabled()
    assert not widget.run_bar.run.isEnabled()
    assert "a job is running" in widget.run_bar.run.toolTip()
    gate.opened.set()
    qtbot.waitUntil(widget.run_bar.bar.isHidden, timeout=WAIT)
    timer.stop()
    assert widget.session.job.state is JobState.DONE
    assert "48 chunks" in widget.run_bar.message.text()


def test_cancel_in_mid_job(dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path) -> None:
    viewer, widget = dock()
    gate = start_gated(viewer, widget, qtbot, data, tmp_path)
    click(widget.run_bar.cancel)
    qtbot.waitUntil(widget.run_bar.bar.isHidden, timeout=WAIT)
    assert widget.session.job.state is JobState.ABORTED
    calls = gate.calls
    assert calls < 48
    gate.opened.set()
    # a reader's chunk goes through the same slots: whatever waited would have gone before it
    widget.session.engine.array(nm.open_view(data, chunks=SHAPE), 0)[0, 0, 0]
    assert gate.calls == calls
    assert "Cancelled" in widget.run_bar.message.text()
    assert widget.run_bar.run.isEnabled()  # another name is free


def test_an_ops_error_is_a_sentence(
    dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path
) -> None:
    def bad(block: np.ndarray) -> np.ndarray:
        raise ValueError("out of film")

    _, widget = dock()
    view = nm.open_view(data, ops=[ops.Function(bad, dtype="u1")])
    widget.session.change(source=view, folder=str(tmp_path))
    run(widget, qtbot)
    assert not widget.run_bar.problem.isHidden()
    text = widget.run_bar.problem.text()
    assert "out of film" in text
    assert "\n" not in text
    assert not widget.run_bar.open.isEnabled()


@pytest.mark.parametrize("how", ["dock", "viewer"])
def test_closing_in_mid_job_ends_it(
    dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path, how: str
) -> None:
    viewer, widget = dock()
    gate = start_gated(viewer, widget, qtbot, data, tmp_path)
    session = widget.session
    thread = session._thread
    assert thread is not None
    if how == "dock":
        viewer.window.remove_dock_widget(widget)
        assert OUTLINE not in viewer.layers
    else:
        viewer.close()
    qtbot.waitUntil(lambda: not thread.is_alive(), timeout=WAIT)
    assert session.job.state is JobState.ABORTED
    calls = gate.calls
    gate.opened.set()
    assert calls < 48


def test_a_widget_that_is_destroyed_closes_its_engine(dock: Any, qtbot: Any) -> None:
    viewer, widget = dock()
    engine, gone = widget.session.engine, weakref.ref(widget)
    viewer.window.remove_dock_widget(widget)
    del widget
    qtbot.waitUntil(lambda: gc.collect() >= 0 and gone() is None, timeout=WAIT)
    qtbot.waitUntil(lambda: engine.closed, timeout=WAIT)


# ---------------------------------------------------------------------- source


def test_layers_come_and_go(dock: Any, data: np.ndarray) -> None:
    viewer, widget = dock()
    assert widget.session.resolved.blocked == "source: choose a layer or a path"
    assert not widget.run_bar.run.isEnabled()
    first = viewer.add_image(data, contrast_limits=(0, 255), name="first")
    assert widget.session.intent.source is first
    viewer.add_labels(data, name="second")
    viewer.add_points(np.zeros((1, 3)))
    rows = [widget.source.combo.itemText(n) for n in range(widget.source.combo.count())]
    assert rows == ["first", "second", "A path\N{HORIZONTAL ELLIPSIS}"]
    first.name = "renamed"
    assert widget.source.combo.itemText(0) == "renamed"
    assert widget.session.intent.source is first
    viewer.layers.remove(first)
    assert widget.source.combo.itemText(0) == "second"


def test_nothing_keeps_a_removed_layer(dock: Any, qtbot: Any, data: np.ndarray) -> None:
    viewer, widget = dock()
    layer = viewer.add_image(data, contrast_limits=(0, 255))
    gone = weakref.ref(layer)
    widget.box.take(Box((0, 0, 0), (4, 4, 4)))
    viewer.layers.remove(layer)
    viewer.layers.clear()
    del layer
    # napari's own controls take a moment
    qtbot.waitUntil(lambda: gc.collect() >= 0 and gone() is None, timeout=WAIT)


def test_a_chosen_layer_that_is_removed_is_dropped(dock: Any, data: np.ndarray) -> None:
    viewer, widget = dock()
    layer = viewer.add_image(data, contrast_limits=(0, 255))
    widget.box.take(Box((0, 0, 0), (4, 4, 4)))
    assert OUTLINE in viewer.layers
    viewer.layers.remove(layer)
    assert widget.session.resolved.view is None
    assert OUTLINE not in viewer.layers
    assert not widget.box.draw.isEnabled()


def test_moving_the_layer_moves_the_source(dock: Any, data: np.ndarray) -> None:
    viewer, widget = dock()
    layer = viewer.add_image(data, contrast_limits=(0, 255))
    layer.scale = (3, 2, 1)
    level = widget.session.resolved.source_level
    assert level is not None
    assert level.scale == (3.0, 2.0, 1.0)
    layer.rotate = 45.0
    assert widget.session.intent.affine is not None


def test_a_path(dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path) -> None:
    zarr.save_array(tmp_path / "em.zarr", data)
    viewer, widget = dock()
    widget.source.choose_path(str(tmp_path / "em.zarr"))
    widget.session.change(folder=str(tmp_path), extent="box")
    widget.box.typed.setText("1,2,3:5,40,60")
    widget.box.typed.editingFinished.emit()
    assert widget.session.resolved.source_box == Box((1, 2, 3), (5, 40, 60))
    layer = run_and_open(viewer, widget, qtbot)
    np.testing.assert_array_equal(np.asarray(layer.data), data[1:5, 2:40, 3:60])
    widget.source.choose_path(str(tmp_path / "none.zarr"))
    assert "none.zarr" in widget.source.problem.text()


# ---------------------------------------------------------------------- operations


def test_operations_are_added_moved_and_removed(dock: Any, data: np.ndarray) -> None:
    viewer, widget = dock()
    viewer.add_image(data, contrast_limits=(0, 255))
    for name in ("gaussian", "threshold", "invert"):
        add(widget, name)
    assert [card.name for card in widget.ops.cards] == ["gaussian", "threshold", "invert"]
    click(widget.ops.cards[2].up)
    click(widget.ops.cards[0].remove)
    view = widget.session.resolved.view
    assert view is not None
    assert [op.name for op in view.ops] == ["invert", "threshold"]


def test_every_operation_starts_as_its_form_says(dock: Any, data: np.ndarray) -> None:
    """A card that the session does not know by its values would be made anew at every key."""
    viewer, widget = dock()
    viewer.add_image(data, contrast_limits=(0, 255))
    for name in ops.available():
        add(widget, name)
        card = widget.ops.cards[-1]
        widget.session.refresh()
        assert widget.ops.cards[-1] is card, name
        said = dict(widget.session.intent.ops[-1][1])
        assert {key: str(value) for key, value in said.items()} == card.values_as_text(), name
        widget.session.change(ops=())


@pytest.mark.parametrize(
    "choice",
    [
        ("cast", {}),
        ("cast", {"dtype": "int64"}),
        ("cast", {"dtype": "complex64"}),
        ("gaussian", {"sigma": "1", "dtype": "float16"}),
        ("select", {"channel": -1}),
        ("select", {"channel": "1"}),
        ("select", {"channel": "first"}),
        ("select", {"channel": 2**40}),
    ],
)
def test_a_value_that_no_field_offers_is_shown_all_the_same(
    dock: Any, data: np.ndarray, choice: tuple[str, dict[str, Any]]
) -> None:
    """A program chose it, or nobody yet."""
    viewer, widget = dock()
    viewer.add_image(data, contrast_limits=(0, 255))
    widget.session.change(ops=(choice,))
    (card,) = widget.ops.cards
    said = {key: str(value) for key, value in choice[1].items()}
    assert card.values_as_text() == said
    card.edited.emit()
    assert widget.ops.cards == [card]
    assert [choice[0] for choice in widget.session.intent.ops] == [choice[0]]


def test_typing_a_parameter_keeps_the_field_and_says_what_is_wrong(
    dock: Any, data: np.ndarray
) -> None:
    viewer, widget = dock()
    viewer.add_image(data, contrast_limits=(0, 255))
    add(widget, "gaussian")
    card = widget.ops.cards[0]
    field = card.fields["sigma"].line.native
    QTest.keyClicks(field, ",x")
    assert widget.ops.cards[0] is card
    assert "sigma" in card.problem.text()
    assert card.problem.isVisibleTo(widget)
    assert not widget.run_bar.run.isEnabled()
    field.clear()
    QTest.keyClicks(field, "0,2,2")
    assert not card.problem.isVisibleTo(widget)
    view = widget.session.resolved.view
    assert view is not None
    assert view.ops[0].parameters["sigma"] == [0.0, 2.0, 2.0]


def test_the_menu_lists_every_operation(dock: Any, data: np.ndarray) -> None:
    viewer, widget = dock()
    viewer.add_image(data, contrast_limits=(0, 255))
    widget.ops.menu.aboutToShow.emit()
    actions = {action.text(): action for action in widget.ops.menu.actions()}
    assert list(actions) == list(ops.available())
    actions["median"].trigger()
    assert [card.name for card in widget.ops.cards] == ["median"]


# ---------------------------------------------------------------------- box


def test_the_last_rectangle_counts_and_edits_follow(dock: Any, data: np.ndarray) -> None:
    viewer, widget = dock(show=True)
    viewer.add_image(data, contrast_limits=(0, 255))
    draw(viewer, widget, (10.0, 10.0), (20.0, 20.0))
    draw(viewer, widget, (40.0, 50.0), (60.0, 80.0))
    box = widget.session.resolved.source_box
    assert box is not None
    assert np.abs(np.array(box.start[1:]) - (40, 50)).max() <= 1
    layer = viewer.layers[DRAWING]
    layer.mode = "select"
    layer.selected_data = {1}
    drag(viewer, (50.0, 65.0), (60.0, 75.0))  # moves the rectangle
    moved = widget.session.resolved.source_box
    assert moved is not None
    assert np.abs(np.array(moved.start[1:]) - np.array(box.start[1:]) - 10).max() <= 1


def test_other_shapes_do_not_count(dock: Any, data: np.ndarray) -> None:
    viewer, widget = dock(show=True)
    viewer.add_image(data, contrast_limits=(0, 255))
    draw(viewer, widget, (10.0, 10.0), (20.0, 20.0))
    box = widget.session.resolved.source_box
    viewer.layers[DRAWING].mode = "add_ellipse"
    drag(viewer, (40.0, 50.0), (60.0, 80.0))
    assert widget.session.resolved.source_box == box
    assert "ellipse is ignored" in widget.box.problem.text()


def test_a_rectangle_outside_is_refused_in_place(dock: Any, data: np.ndarray) -> None:
    viewer, widget = dock(show=True)
    viewer.add_image(data, contrast_limits=(0, 255))
    viewer.scene.camera.zoom /= 3
    draw(viewer, widget, (-90.0, 10.0), (-40.0, 20.0))
    assert widget.session.intent.box is None
    assert "lies outside" in widget.box.problem.text()


def test_the_slider_keeps_its_range_where_the_next_rectangle_lies(
    dock: Any, data: np.ndarray
) -> None:
    viewer, widget = dock(show=True)
    viewer.add_image(data, contrast_limits=(0, 255))
    viewer.dims.set_point(0, 5)
    draw(viewer, widget, (10.0, 10.0), (20.0, 20.0))
    assert widget.box.sliders[0].value() == (5, 6)
    widget.box.sliders[0].setValue((2, 9))
    draw(viewer, widget, (30.0, 30.0), (50.0, 50.0))
    box = widget.session.resolved.source_box
    assert box is not None
    assert (box.start[0], box.stop[0]) == (2, 9)
    viewer.dims.set_point(0, 12)
    draw(viewer, widget, (30.0, 30.0), (50.0, 50.0))
    box = widget.session.resolved.source_box
    assert box is not None
    assert (box.start[0], box.stop[0]) == (12, 13)


def test_current_view_whole_level_and_typing(dock: Any, data: np.ndarray) -> None:
    viewer, widget = dock(show=True)
    viewer.add_image(data, contrast_limits=(0, 255))
    viewer.dims.set_point(0, 3)
    viewer.scene.camera.center = (0, 48, 64)
    viewer.scene.camera.zoom = viewer.canvas.size[0] / 40
    click(widget.box.view)
    box = widget.session.resolved.source_box
    assert box is not None
    assert (box.start[:2], box.stop[:2]) == ((3, 28), (4, 69))
    click(widget.box.whole)
    assert widget.session.intent.box is None
    outline = viewer.layers[OUTLINE]
    assert (outline.nshapes, outline.visible) == (0, False)
    click(widget.box.draw)
    click(widget.box.view)
    assert viewer.layers[OUTLINE] is outline
    assert (outline.nshapes, outline.visible) == (1, True)
    click(widget.box.whole)
    widget.box.typed.setText("5,5:4,4")
    widget.box.typed.editingFinished.emit()
    assert "swap them" in widget.box.problem.text()
    widget.box.typed.setText("10,20:30,40")
    widget.box.typed.editingFinished.emit()
    assert widget.session.resolved.source_box == Box((0, 10, 20), (16, 30, 40))


def test_the_outline_is_what_will_be_written_and_follows(dock: Any, data: np.ndarray) -> None:
    viewer, widget = dock(show=True)
    viewer.add_image(data, contrast_limits=(0, 255), scale=(2, 0.5, 0.5))
    widget.session.change(source=nm.open_view(data, chunks=(4, 32, 32), scale=(2, 0.5, 0.5)))
    widget.box.take(Box((5, 33, 40), (6, 34, 70)))
    outline = viewer.layers[OUTLINE]
    viewer.dims.set_point(0, 12)
    assert outline.data[0].min(axis=0).tolist() == [6.0, 31.5, 31.5]
    assert outline.data[0].max(axis=0).tolist() == [6.0, 63.5, 95.5]
    assert outline.edge_color[0][3] == 1
    viewer.dims.set_point(0, 20)  # beside the box
    assert outline.edge_color[0][3] < 0.5
    viewer.dims.ndisplay = 3
    assert outline.nshapes == 12
    viewer.dims.ndisplay = 2
    assert outline.nshapes == 1
    viewer.layers.remove(outline)  # somebody deletes it: the next change brings it back
    widget.box.take(Box((0, 0, 0), (1, 1, 1)))
    assert OUTLINE in viewer.layers


# ---------------------------------------------------------------------- output


def test_folder_name_and_options(dock: Any, data: np.ndarray, tmp_path: Path) -> None:
    viewer, widget = dock()
    viewer.add_image(data, contrast_limits=(0, 255), name="em")
    out = widget.output
    assert "choose a folder" in widget.run_bar.run.toolTip()
    out.folder.setText(str(tmp_path))
    out.folder.editingFinished.emit()
    assert out.name.text() == "em.ome.zarr"
    add(widget, "invert")
    assert out.name.text() == "em-invert.ome.zarr"
    out.name.setText("mine.zarr")
    out.name.editingFinished.emit()
    add(widget, "invert")
    assert widget.session.resolved.target == str(tmp_path / "mine.zarr")
    out.name.setText("")
    out.name.editingFinished.emit()
    assert widget.session.intent.target is None
    out.format.setCurrentIndex(2)
    out.format.activated.emit(2)
    assert out.name.text() == "em-invert-invert.n5"
    out.format.setCurrentIndex(1)
    out.format.activated.emit(1)
    out.compression.setCurrentIndex(1)
    out.compression.activated.emit(1)
    out.strength.setValue(7)
    out.skip_empty.click()
    intent = widget.session.intent
    assert (intent.format, intent.compression, intent.skip_empty) == ("zarr3", "zstd:7", False)


def test_every_format_opens_in_place(
    dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path
) -> None:
    viewer, widget = dock()
    viewer.add_image(data, contrast_limits=(0, 255))
    widget.session.change(folder=str(tmp_path))
    for fmt, compression in (("zarr2", "blosc:5"), ("zarr3", "zstd:3"), ("zarr3", None)):
        widget.session.change(format=fmt, compression=compression)
        layer = run_and_open(viewer, widget, qtbot)
        np.testing.assert_array_equal(np.asarray(layer.data), data)


def test_n5_opens_in_place(dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path) -> None:
    viewer, widget = dock()
    source = viewer.add_image(data, contrast_limits=(0, 255), scale=(4, 1, 1), translate=(1, 2, 3))
    box = nm.Box((2, 40, 40), (7, 90, 120))
    widget.session.change(folder=str(tmp_path), format="n5", box=box, extent="box")
    layer = run_and_open(viewer, widget, qtbot)
    np.testing.assert_array_equal(np.asarray(layer.data), data[box.slices])
    np.testing.assert_array_equal(np.asarray(layer.data[3, ::2, -1]), data[box.slices][3, ::2, -1])
    np.testing.assert_allclose(layer.data_to_world((0, 0, 0)), source.data_to_world(box.start))
    assert (layer.name, (tmp_path / "data.n5").is_dir()) == ("data [1]", True)


def test_it_fits_a_narrow_dock(dock: Any, data: np.ndarray, tmp_path: Path) -> None:
    viewer, widget = dock(show=True)
    viewer.add_image(data, contrast_limits=(0, 255))
    for name in ops.available():
        add(widget, name)
    widget.session.change(folder=str(tmp_path))
    QApplication.processEvents()
    assert widget.area.widget().minimumSizeHint().width() <= 320
    assert widget.minimumSizeHint().width() <= 350


# ---------------------------------------------------------------------- the result as a layer


def test_masks_become_labels_and_several_levels_a_multiscale(tmp_path: Path) -> None:
    pyramid = [np.zeros((8, 64, 64), "u1"), np.zeros((8, 32, 32), "u1")]
    pyramid[0][:, 20:40, 20:40], pyramid[1][:, 10:20, 10:20] = 9, 9
    view = nm.open_view(pyramid, ops=["threshold:low=5"], chunks=(4, 16, 16), scale=(1, 0.5, 0.5))
    target = str(tmp_path / "a.zarr")
    box = Box((0, 16, 16), (4, 48, 48))
    nm.materialize(view, target, levels=[0, 1], box=box)
    layer = result_layer(resolved_for(view, target, box, (0, 1)))
    assert isinstance(layer, Labels)
    assert layer.multiscale
    np.testing.assert_array_equal(np.asarray(layer.data[0]), pyramid[0][box.slices] // 9)
    np.testing.assert_allclose(layer.extent.world, [[0, 8, 8], [3, 23.5, 23.5]])


def resolved_for(view: Any, target: str, box: Box, levels: tuple[int, ...]) -> Any:
    """Return what a session would have resolved for a job of several levels."""
    from dataclasses import replace

    from napari_materialize.session import Intent, resolve

    state = resolve(Intent(view, box=box, target=target))
    return replace(state, options=replace(state.options, levels=levels))


def test_truth_values_are_read_as_labels_lazily(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "m.zarr", shape=(8, 8), chunks=(4, 4), dtype="bool")
    array[2:6, 2:6] = np.ones((4, 4), bool)
    stored = StoredBox.of(array, Box((4, 0), (8, 8)))
    assert (stored.dtype, stored.shape, stored.chunks) == (np.dtype("u1"), (4, 8), (4, 4))
    part = stored[1:3][:, 2:5]
    assert (part.shape, part.ndim, part.size, len(part)) == ((2, 3), 2, 6, 2)
    np.testing.assert_array_equal(np.asarray(part), [[1, 1, 1], [0, 0, 0]])
    assert Labels(stored).data is stored


class CountedArray:
    """An array that counts the voxels read of it."""

    def __init__(self, array: Any) -> None:
        self.array, self.read = array, 0
        self.shape, self.dtype, self.chunks = array.shape, array.dtype, array.chunks

    def __getitem__(self, key: Any) -> np.ndarray:
        block = np.asarray(self.array[key])
        self.read += block.size
        return block


@pytest.mark.parametrize("slicing", ["sync", "async"])
def test_napari_reads_only_the_slices_it_shows(
    make_napari_viewer: Any, qtbot: Any, slicing: str, tmp_path: Path
) -> None:
    get_settings().experimental.async_ = slicing == "async"
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=(64, 64, 64), chunks=(8, 32, 32), dtype="u2"
    )
    array[:] = np.arange(64**3, dtype="u4").reshape(64, 64, 64).astype("u2")
    counted = CountedArray(array)
    viewer = make_napari_viewer()
    box = Box((8, 0, 32), (56, 64, 64))
    layer = Image(StoredBox.of(counted, box), contrast_limits=(0, 65535), translate=box.start)
    viewer.add_layer(layer)
    viewer.dims.set_point(0, 30)
    qtbot.waitUntil(lambda: viewer.layers[0].loaded, timeout=WAIT)
    plane = 64 * 32
    assert 0 < counted.read <= 4 * plane
    voxel = (22, 5, 7)
    value = [layer.get_value((30, 5, 39), world=True)]
    qtbot.waitUntil(
        lambda: value.append(layer.get_value((30, 5, 39), world=True)) or value[-1] is not None,
        timeout=WAIT,
    )
    assert value[-1] == array[30, 5, 39] == np.asarray(layer.data[voxel])


def test_contrast_limits_of_a_float_result_are_found(
    dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path
) -> None:
    viewer, widget = dock()
    viewer.add_image(data, contrast_limits=(0, 255))
    ramp = ops.Function(lambda block: block.astype("f4") * 2 - 100, dtype="f4", name="ramp")
    widget.session.change(ops=(ramp,), folder=str(tmp_path))
    assert [card.name for card in widget.ops.cards] == [None]
    layer = run_and_open(viewer, widget, qtbot)
    assert layer.contrast_limits == [float(data.min()) * 2 - 100, float(data.max()) * 2 - 100]


# ---------------------------------------------------------------------- as a plugin, and the demo


def test_napari_makes_it_with_a_proxy(make_napari_viewer: Any, data: np.ndarray) -> None:
    viewer = make_napari_viewer()
    viewer.add_image(data, contrast_limits=(0, 255))
    _, widget = viewer.window.add_plugin_dock_widget("napari-materialize", "Materialize")
    assert isinstance(widget, MaterializeWidget)
    assert widget.session.intent.source is viewer.layers[0]
    widget.box.take(Box((0, 0, 0), (2, 2, 2)))
    assert OUTLINE in viewer.layers


def test_the_sample_is_a_layer_with_units() -> None:
    (pyramid, keywords, kind), *rest = blobs()
    assert (kind, rest) == ("image", [])
    layer = Image(pyramid, **keywords)
    assert [str(unit) for unit in layer.units] == ["micrometer"] * 3
    assert len(layer.data) == 3


def test_the_demo_is_ready_to_run(qtbot: Any, make_napari_viewer: Any, tmp_path: Path) -> None:
    viewer = make_napari_viewer()
    widget = demo.prepare(viewer, str(tmp_path), live=False)
    qtbot.waitUntil(lambda: widget.session.blocked is None, timeout=WAIT)  # the model is looked at
    assert OUTLINE in viewer.layers
    click(widget.run_bar.run)
    qtbot.waitUntil(lambda: widget.session.job.state is JobState.DONE, timeout=60_000)
    qtbot.waitUntil(widget.run_bar.open.isEnabled, timeout=WAIT)
    click(widget.run_bar.open)
    found = np.asarray(viewer.layers[-1].data)
    assert 0 < np.count_nonzero(found) < found.size / 20


def test_live_view_shares_the_engine(dock: Any, qtbot: Any, data: np.ndarray) -> None:
    from napari_materialize._napari.layer import reads_of

    viewer, widget = dock()
    viewer.add_image(data, contrast_limits=(0, 255), rotate=20.0)
    add(widget, "invert")
    click(widget.run_bar.live)
    layer = viewer.layers[-1]
    reads = reads_of(layer)
    assert reads is not None
    assert reads.engine is widget.session.engine
    there = viewer.layers[0].data_to_world((3, 20, 30))
    np.testing.assert_allclose(layer.data_to_world((3, 20, 30)), there)


def test_a_box_leaves_the_planes_of_the_slider_where_they_are(
    dock: Any, qtbot: Any, data: np.ndarray
) -> None:
    """A box ends between voxels; planes that are shown, and drawn on next, do not lie there."""
    viewer, widget = dock(show=True)
    source = viewer.add_image(data, contrast_limits=(0, 255), scale=(4, 1, 1), translate=(8, 0, 0))
    ranges, point = viewer.dims.range, viewer.dims.point
    widget.box.take(Box((0, 0, 0), SHAPE))
    assert (viewer.dims.range, viewer.dims.point) == (ranges, point)
    viewer.dims.ndisplay = 3  # the outline has all its faces
    assert (viewer.dims.range, viewer.dims.point) == (ranges, point)
    viewer.dims.ndisplay = 2
    viewer.dims.order = (1, 0, 2)  # z and x are shown, one plane of y is drawn on
    assert viewer.dims.range == ranges
    viewer.dims.set_point(1, 20)
    viewer.reset_view()
    draw(viewer, widget, (3.0, 30.0), (8.0, 70.0))
    box = widget.session.resolved.source_box
    assert box is not None
    assert np.abs(np.array(box.start) - (3, 0, 30)).max() <= 1  # along y the box was whole
    assert np.abs(np.array(box.stop) - (9, 96, 71)).max() <= 1
    assert viewer.dims.range == ranges
    outline = viewer.layers[OUTLINE]
    assert (outline.data[0][:, 0] % 1 == 0.5).all()  # it is drawn at the faces all the same
    assert outline.data[0][:, 0].min() < 0 or box.start[0] > 0
    np.testing.assert_array_equal(source.extent.world, [[8, 0, 0], [68, 95, 127]])
    assert outline.as_layer_data_tuple()[2] == "shapes"
