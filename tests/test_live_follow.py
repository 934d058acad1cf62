"""A live layer that shows another computation in place, and what the widget says of live layers."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from napari.components import ViewerModel
from napari.layers import Image, Labels
from qtpy.QtWidgets import QApplication

import napari_materialize as nm
from doubles import Gate, RecordingArray
from napari_materialize import ops
from napari_materialize._napari.holding import Counts, Group
from napari_materialize._napari.live import add_view
from napari_materialize._napari.live_bar import live_text
from napari_materialize.errors import OptionError
from windows import WAIT, click, live_of, settle

if TYPE_CHECKING:
    from napari.layers import Layer

    from napari_materialize._napari.widget import MaterializeWidget

SHAPE = (4, 128, 128)
CHUNKS = (2, 32, 32)


def shown(layer: Layer) -> np.ndarray:
    return layer._slice.image.raw


def plus(number: int) -> ops.Function:
    return ops.Function(
        lambda block: block + number, dtype="int64", name=f"plus {number}", version="1"
    )


def base() -> np.ndarray:
    return np.arange(np.prod(SHAPE)).reshape(SHAPE) % 1000


# ---------------------------------------------------------------------- another view in place


def test_views_cut_elsewhere_are_the_same_view(engine: Any) -> None:
    source = nm.open_view(base(), chunks=CHUNKS)
    one, two = source.then([plus(1), plus(2)]), source.then([plus(1)]).then([plus(2)])
    assert one.identity == two.identity
    assert len(two.stages) == len(one.stages) + 1
    assert one.identity != source.then([plus(2), plus(1)]).identity
    np.testing.assert_array_equal(engine.array(one), base() + 3)
    before = engine.stats()["computed"]
    np.testing.assert_array_equal(engine.array(two), base() + 3)
    assert engine.stats()["computed"] == before


def test_another_view_in_the_same_layer(
    make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any
) -> None:
    first = Gate()
    source = nm.open_view(base().astype("i8"), [first.op], chunks=CHUNKS)
    viewer = make_napari_viewer(show=True)
    layer = add_view(viewer, source.then([plus(10)]), engine, contrast_limits=(0, 1100))
    data = layer.data
    settle(qtbot, layer)
    z = viewer.dims.current_step[0]
    np.testing.assert_array_equal(shown(layer), base()[z] + 11)
    done = len(first.calls)
    live_of(layer).show(source.then([plus(20)]))
    settle(qtbot, layer)
    assert layer.data is data
    np.testing.assert_array_equal(shown(layer), base()[z] + 21)
    np.testing.assert_array_equal(np.asarray(layer.data[0][z]), base()[z] + 21)
    # what comes before the op that changed was there already
    assert len(first.calls) == done
    assert live_of(layer).reads.complete


def test_nothing_of_the_view_before_is_painted(
    make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any
) -> None:
    old, new = Gate(), Gate()
    viewer = make_napari_viewer(show=True)
    view = nm.open_view(base().astype("i8"), [old.op], chunks=CHUNKS)
    layer = add_view(viewer, view, engine, contrast_limits=(0, 1100))
    viewer.dims.set_current_step(0, 0)
    settle(qtbot, layer)
    old.open.clear()
    viewer.dims.set_current_step(0, 3)
    qtbot.waitUntil(lambda: old.running == 2, timeout=WAIT)
    chain = [new.op, plus(5000)]
    live_of(layer).show(nm.open_view(base().astype("i8"), chain, chunks=CHUNKS))
    pictures: list[np.ndarray] = []
    layer.events.set_data.connect(lambda: pictures.append(shown(layer).copy()))
    old.open.set()
    settle(qtbot, layer)
    np.testing.assert_array_equal(shown(layer), base()[3] + 5001)
    late = [picture for picture in pictures[1:] if np.any((picture > 0) & (picture < 5001))]
    assert pictures
    assert not late
    assert old.running == 0


def test_a_view_that_differs_in_more_is_refused(engine: Any) -> None:
    viewer = ViewerModel()
    layer = add_view(viewer, nm.open_view(base(), chunks=CHUNKS), engine)
    other = nm.open_view(base()[:2], chunks=CHUNKS, name="half")
    with pytest.raises(OptionError, match=r"'half' has another kind, shape, dtype or place"):
        live_of(layer).show(other)
    np.testing.assert_array_equal(np.asarray(layer.data[0]), base())


def test_limits_that_follow_from_the_view_are_changed_with_it(engine: Any) -> None:
    viewer = ViewerModel()
    array = np.zeros(SHAPE, "u2")
    layer = add_view(viewer, nm.open_view(array, ["rescale:low=0,high=9,dtype=uint8"]), engine)
    assert tuple(layer.contrast_limits) == (0, 255)
    layer.contrast_limits = (3, 77)
    live_of(layer).show(nm.open_view(array, ["rescale:low=0,high=5,dtype=uint8"]))
    assert tuple(layer.contrast_limits) == (3, 77)


# ---------------------------------------------------------------------- the widget's layer


def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, SHAPE, "u1")


def follows(widget: MaterializeWidget) -> bool:
    """Whether the widget's layer shows what the widget says."""
    layer, view = widget.following.layer, widget.session.resolved.view
    return layer is not None and view is not None and live_of(layer).view.identity == view.identity


def test_a_slider_changes_what_is_shown(dock: Any, qtbot: Any) -> None:
    viewer, widget = dock(show=True)
    first, array = Gate(), image()
    source = nm.open_view(array.astype("i8"), chunks=CHUNKS)
    chain = (first.op, ("threshold", {"low": "100"}))
    widget.session.change(source=source, name="em", ops=chain)
    click(widget.run_bar.live)
    layer, z = widget.following.layer, viewer.dims.current_step[0]
    assert isinstance(layer, Labels)
    assert layer.name.startswith("em \u203a gate")
    settle(qtbot, layer)
    np.testing.assert_array_equal(shown(layer), array[z].astype("i8") + 1 >= 100)

    field = widget.ops.cards[1].fields["low"]
    field.value = "120"
    qtbot.waitUntil(lambda: follows(widget), timeout=WAIT)
    settle(qtbot, layer)
    done = len(first.calls)
    for place in (60, 140):
        field.slider.setValue(place)
        qtbot.waitUntil(lambda: follows(widget), timeout=WAIT)
        settle(qtbot, layer)
        low = float(field.value)
        np.testing.assert_array_equal(shown(layer), array[z].astype("i8") + 1 >= low)
    assert widget.following.layer is layer
    assert len(first.calls) == done  # what comes before the threshold was kept
    # and a reader of the session's own view finds the very chunks
    engine = live_of(layer).engine
    before = engine.stats()["computed"]
    engine.array(widget.session.resolved.view, 0)[z]
    assert engine.stats()["computed"] == before


def test_another_kind_takes_the_layers_place(dock: Any, qtbot: Any) -> None:
    viewer, widget = dock(show=True)
    viewer.add_image(image(), name="em")
    widget.session.change(ops=(("invert", {}),))
    click(widget.run_bar.live)
    first = widget.following.layer
    assert isinstance(first, Image)
    first.visible = False
    viewer.add_points(np.zeros((1, 3)), name="above")
    widget.ops.add("threshold")
    qtbot.waitUntil(lambda: widget.following.layer is not first, timeout=WAIT)
    second = widget.following.layer
    assert isinstance(second, Labels)
    assert first not in viewer.layers
    assert not second.visible
    assert [layer.name for layer in viewer.layers] == [
        "em",
        "em \u203a invert \u203a threshold",
        "above",
    ]
    assert not live_of(first).reads.held(Group.PICTURE)


def test_an_image_of_another_dtype_keeps_its_looks(dock: Any, qtbot: Any) -> None:
    viewer, widget = dock(show=True)
    viewer.add_image(image(), name="em")
    widget.session.change(ops=(("invert", {}),))
    click(widget.run_bar.live)
    first = widget.following.layer
    first.colormap, first.blending, first.gamma = "magenta", "additive", 0.5
    widget.session.change(ops=(("rescale", {"low": "0", "high": "255", "dtype": "float32"}),))
    qtbot.waitUntil(lambda: widget.following.layer is not first, timeout=WAIT)
    second = widget.following.layer
    assert second.dtype == np.float32
    assert (second.colormap.name, second.blending, second.gamma) == ("magenta", "additive", 0.5)
    assert tuple(second.contrast_limits) != tuple(first.contrast_limits)


def test_only_the_last_live_layer_follows_and_only_its_own_source(dock: Any, qtbot: Any) -> None:
    viewer, widget = dock(show=True)
    viewer.add_image(image(), name="em")
    other = viewer.add_image(image()[:, ::-1].copy(), name="other")
    widget.session.change(
        source=viewer.layers["em"], name="em", ops=(("gaussian", {"sigma": "1"}),)
    )
    click(widget.run_bar.live)
    first = widget.following.layer
    click(widget.run_bar.live)
    second = widget.following.layer
    assert first is not None
    assert second is not None
    assert first is not second
    before = live_of(first).view.identity
    widget.ops.cards[0].fields["sigma"].value = "2"
    qtbot.waitUntil(lambda: follows(widget), timeout=WAIT)
    assert live_of(first).view.identity == before
    last = live_of(second).view.identity
    widget.session.change(source=other, name="other")
    assert widget.following.layer is None
    widget.ops.cards[0].fields["sigma"].value = "3"
    assert live_of(second).view.identity == last
    viewer.layers.remove(second)
    viewer.layers.remove(first)


def test_a_value_that_is_wrong_still_leaves_the_layer_alone(dock: Any, qtbot: Any) -> None:
    viewer, widget = dock(show=True)
    viewer.add_image(image(), name="em")
    widget.session.change(ops=(("gaussian", {"sigma": "1"}),))
    click(widget.run_bar.live)
    layer = widget.following.layer
    assert layer is not None
    before = live_of(layer).view.identity
    field = widget.ops.cards[0].fields["sigma"]
    place = field.slider.value()
    field.value = "1.x"
    assert widget.session.resolved.view is None
    assert field.slider.value() == place
    field.value = "1"
    qtbot.waitUntil(lambda: follows(widget), timeout=WAIT)
    assert live_of(layer).view.identity == before


def test_a_field_with_a_slider(qtbot: Any) -> None:
    from napari_materialize._napari.op_fields import STEPS, SlidingField

    field, told = SlidingField("2", 0.0, 10.0), list[str]()
    qtbot.addWidget(field.native)
    field.changed.connect(told.append)
    assert field.slider.value() == STEPS // 5
    field.slider.setValue(STEPS)
    assert (field.value, told) == ("10", ["10"])
    field.value = "0,2,2"  # several numbers: typed, and the slider stays
    assert (field.value, field.slider.value()) == ("0,2,2", STEPS)
    field.value = "25"
    assert (field.value, field.slider.value()) == ("25", STEPS)
    field.value = "inf"
    assert told[-1] == "inf"
    whole = SlidingField("100", 0.0, 65535.0)
    qtbot.addWidget(whole.native)
    whole.slider.setValue(1)
    assert whole.value == "328"


# ---------------------------------------------------------------------- the line that says it


def test_what_the_line_says() -> None:
    assert live_text(Counts(ready=3), 2_000_000) == "Live: 3 ready \u00b7 2.0 MB cached"
    both = Counts(1, 2, 3, 4) + Counts(ready=1)
    assert both == Counts(1, 2, 4, 4)
    expected = "Live: 1 computing \u00b7 2 waiting \u00b7 4 failed \u00b7 4 ready \u00b7 0 B cached"
    assert live_text(both, 0) == expected


def test_the_line_follows_the_layers(dock: Any, qtbot: Any) -> None:
    viewer, widget = dock(show=True)
    bar, gate = widget.live_bar, Gate(shut=True)
    assert bar.isHidden()
    with nm.Engine(slots=2) as engine:
        view = nm.open_view(image().astype("i8"), [gate.op], chunks=CHUNKS)
        layer = add_view(viewer, view, engine, contrast_limits=(0, 256))
        qtbot.waitUntil(lambda: "2 computing" in bar.text.text(), timeout=WAIT)
        assert "waiting" in bar.text.text()
        assert not bar.isHidden()
        assert bar.retry.isHidden()
        gate.open.set()
        qtbot.waitUntil(lambda: "16 ready" in bar.text.text(), timeout=WAIT)
        qtbot.waitUntil(lambda: "computing" not in bar.text.text(), timeout=WAIT)
        assert "waiting" not in bar.text.text()
        assert "kB cached" in bar.text.text()
        viewer.layers.remove(layer)
        qtbot.waitUntil(bar.isHidden, timeout=WAIT)


def test_what_failed_is_a_hole_until_it_is_retried(dock: Any, qtbot: Any, slicing: str) -> None:
    viewer, widget = dock(show=True)
    bar = widget.live_bar
    fine = RecordingArray(np.full(SHAPE, 7, "u2"), CHUNKS)
    for z in range(2):
        fine.broken[z, 1, 2] = OSError("the disk is gone")
    coarse = np.full((2, 64, 64), 9, "u2")
    with nm.Engine(slots=2) as engine:
        view = nm.open_view([fine, coarse], chunks=CHUNKS)
        engine.array(view, 1)[...]  # a coarser level is there, and hides no hole
        layer = add_view(viewer, view, engine, contrast_limits=(0, 10), locked_data_level=0)
        qtbot.waitUntil(lambda: "1 failed" in bar.text.text(), timeout=WAIT)
        settle(qtbot, layer)
        expected = np.full(SHAPE[1:], 7, "u2")
        expected[32:64, 64:96] = 0
        np.testing.assert_array_equal(shown(layer), expected)
        assert "the disk is gone" in bar.retry.toolTip()
        click(bar.retry)  # it is still gone
        qtbot.waitUntil(lambda: live_of(layer).settled, timeout=WAIT)
        qtbot.waitUntil(lambda: "1 failed" in bar.text.text(), timeout=WAIT)
        reads = len(fine.reads)
        fine.broken.clear()
        click(bar.retry)
        settle(qtbot, layer)
        qtbot.waitUntil(bar.retry.isHidden, timeout=WAIT)
        np.testing.assert_array_equal(shown(layer), np.full(SHAPE[1:], 7, "u2"))
        assert len(fine.reads) == reads + 1
        viewer.layers.remove(layer)


# ---------------------------------------------------------------------- beside a job, and alone


def test_a_job_and_a_viewer_share_chunks(
    make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any
) -> None:
    gate = Gate(shut=True)
    array = np.arange(64)[:, None, None] + np.zeros((64, 64, 64), "i8")
    view = nm.open_view(array, [gate.op], chunks=(1, 32, 64))
    viewer = make_napari_viewer(show=True)
    store = nm.MemoryStore()
    done: list[Any] = []
    job = threading.Thread(target=lambda: done.append(engine.materialize(view, store)))
    job.start()
    qtbot.waitUntil(lambda: gate.running >= 1, timeout=WAIT)
    layer = add_view(viewer, view, engine, contrast_limits=(0, 64))
    viewer.dims.set_current_step(0, 50)
    qtbot.waitUntil(
        lambda: {i[0] for _, i in live_of(layer).reads.held(Group.PICTURE)} == {50}, timeout=WAIT
    )
    gate.open.set()
    settle(qtbot, layer)
    np.testing.assert_array_equal(shown(layer), array[50] + 1)
    assert gate.calls.index(50) < 20  # ahead of the job
    qtbot.waitUntil(lambda: not job.is_alive(), timeout=WAIT)
    job.join()
    assert done[0].written == 128
    assert set(gate.counts.values()) == {2}  # a plane has two chunks, each computed once
    viewer.dims.set_current_step(0, 49)
    viewer.dims.set_current_step(0, 50)
    settle(qtbot, layer)
    assert gate.counts[50] == 2


def test_a_slow_source_alone_does_not_hold_up_the_window(
    make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any
) -> None:
    class Slow(RecordingArray):
        opened = threading.Event()

        def __getitem__(self, key: Any) -> np.ndarray:
            assert self.opened.wait(WAIT / 1000)
            return super().__getitem__(key)

    array = Slow(base().astype("u2"), CHUNKS)
    viewer = make_napari_viewer(show=True)
    layer = add_view(viewer, array.view(), engine, contrast_limits=(0, 1000))
    for z in range(4):  # would wait for ever if any of it read
        viewer.dims.set_current_step(0, z)
        QApplication.processEvents()
    assert not live_of(layer).settled
    assert array.reads == []
    array.opened.set()
    settle(qtbot, layer)
    np.testing.assert_array_equal(shown(layer), base()[3])


def test_closing_in_mid_computation_leaks_nothing(
    make_napari_viewer: Any, qtbot: Any, slicing: str, engine: Any
) -> None:
    gate = Gate(shut=True)
    viewer = make_napari_viewer(show=True)
    layer = add_view(viewer, nm.open_view(base(), [gate.op], chunks=CHUNKS), engine)
    qtbot.waitUntil(lambda: gate.running == 2, timeout=WAIT)
    viewer.dims.set_current_step(0, 3)
    live = live_of(layer)
    gone = weakref.ref(layer), weakref.ref(live.reads)
    viewer.close()
    assert not engine.stats()["waiting"]["client"]
    assert not any(live.reads.held(group) for group in Group)
    del layer, live
    gate.open.set()
    qtbot.waitUntil(lambda: gc.collect() >= 0 and not any(ref() for ref in gone), timeout=WAIT)
    assert [ref() for ref in gone] == [None, None]
    assert len(gate.calls) == 2  # what ran when the window closed, and nothing more
