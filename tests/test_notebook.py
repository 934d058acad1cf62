"""The panel without a browser: messages in, messages out; pictures, boxes, claims, the fallback."""

from __future__ import annotations

import base64
import io
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from PIL import Image
from psygnal import EmitLoopError
from scipy import ndimage

import napari_materialize as nm
from doubles import Gate, RecordingArray
from napari_materialize.errors import BoxError, OptionError, SourceError
from napari_materialize.looking import Lease
from napari_materialize.notebook._camera import first_look, frame_of, turned
from napari_materialize.notebook._cells import Table
from napari_materialize.notebook._desk import Desk
from napari_materialize.notebook._pixels import blend, colour, grey

PACKAGE = Path(nm.__file__).parent / "notebook"
SECONDS = 30.0


class Front:
    """A front end that keeps what it is told, and waits for what it wants to hear."""

    def __init__(self) -> None:
        self.heard: list[tuple[dict[str, Any], list[bytes]]] = []
        self.more = threading.Condition()

    def __call__(self, message: dict[str, Any], buffers: list[bytes]) -> None:
        with self.more:
            self.heard.append((message, buffers))
            self.more.notify_all()

    def wait(self, kind: str, **values: Any) -> tuple[dict[str, Any], list[bytes]]:
        """Return the newest message of a kind with these values, once there is one."""

        def found() -> tuple[dict[str, Any], list[bytes]] | None:
            for message, buffers in reversed(self.heard):
                if message["kind"] == kind and all(message.get(k) == v for k, v in values.items()):
                    return message, buffers
            return None

        with self.more:
            assert self.more.wait_for(lambda: found() is not None, SECONDS), (kind, values)
            result = found()
        assert result is not None
        return result

    def last(self, kind: str) -> dict[str, Any]:
        return self.wait(kind)[0]


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


def desk_of(view: nm.View, engine: nm.Engine) -> tuple[Desk, Front]:
    front = Front()
    desk = Desk(view, engine, front)
    desk.receive({"kind": "hello", "display": "a", "size": [80, 80]})
    return desk, front


@pytest.fixture
def volume() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 4000, (12, 40, 40)).astype("u2")


@pytest.fixture
def engine() -> Any:
    with nm.Engine(slots=2) as engine:
        yield engine


def test_a_picture_is_the_slice_voxel_for_voxel(volume: np.ndarray, engine: nm.Engine) -> None:
    view = nm.open_view(volume, "gaussian:sigma=1", chunks=(4, 16, 16))
    desk, front = desk_of(view, engine)
    desk.receive({"kind": "window", "window": [500, 3500]})
    desk.receive({"kind": "look", "display": "a", "at": {"z": 3}, "turn": 1})
    mark = desk._mark
    message, (png,) = front.wait("picture", complete=True, mark=mark)
    whole = engine.array(view)[3]
    np.testing.assert_array_equal(pixels(png), grey(whole, 500, 3500))
    assert message["rect"] == (0, 40, 0, 40)
    assert message["level"] == 0
    desk.close()


def test_another_plane_and_the_source(volume: np.ndarray, engine: nm.Engine) -> None:
    view = nm.open_view(volume, "invert", chunks=(4, 16, 16), scale=(3, 1, 1))
    desk, front = desk_of(view, engine)
    desk.receive({"kind": "show", "show": "source"})
    desk.receive({"kind": "window", "window": [0, 4000]})
    desk.receive({"kind": "look", "display": "a", "plane": ["z", "x"], "at": {"y": 7}, "turn": 1})
    _, (png,) = front.wait("picture", complete=True, mark=desk._mark)
    np.testing.assert_array_equal(pixels(png), grey(volume[:, 7], 0, 4000))
    assert front.last("look")["shows"] == ["computed", "source"]
    desk.close()


def test_a_mask_is_shown_over_its_source(volume: np.ndarray, engine: nm.Engine) -> None:
    view = nm.open_view(volume, "threshold:low=2000", chunks=(4, 16, 16))
    desk, front = desk_of(view, engine)
    desk.receive({"kind": "window", "window": [0, 4000]})
    _, (png,) = front.wait("picture", complete=True, mark=desk._mark)
    mask = (volume[6] >= 2000).astype("u1")
    expected = blend(grey(volume[6], 0, 4000), colour(mask, "mask"))
    np.testing.assert_array_equal(pixels(png), expected)
    desk.close()


def test_what_is_not_there_shows_a_coarser_level_first(engine: nm.Engine) -> None:
    fine = np.random.default_rng(1).integers(0, 255, (128, 128)).astype("u1")
    levels = [fine, fine[::4, ::4].copy()]
    # reads are held back and not computations: those hold the slots that the coarse chunk needs,
    # and begin before it where its own read takes longer than theirs
    gate = threading.Event()
    op = nm.ops.Function(np.copy, name="as it is", version="1")
    view = nm.View.of(_Mixed(levels, gate), [op])
    desk = Desk(view, engine, front := Front())
    desk.receive({"kind": "hello", "display": "a", "size": [256, 256]})
    front.wait("picture", complete=False)
    desk.receive({"kind": "window", "window": [0, 255]})
    _, (png,) = front.wait("picture", complete=False, mark=desk._mark)
    np.testing.assert_array_equal(pixels(png), np.kron(levels[1], np.ones((4, 4), "u1")))
    gate.set()
    _, (png,) = front.wait("picture", complete=True, mark=desk._mark)
    np.testing.assert_array_equal(pixels(png), fine)
    desk.close()


class _Mixed:
    """A source whose coarser level is one chunk, and whose finest has many, read from a gate on."""

    def __init__(self, levels: list[np.ndarray], gate: threading.Event) -> None:
        opened = nm.open_view(levels, chunks=(16, 16)).source
        self._source, self._arrays, self._gate = opened, levels, gate
        self.levels = (opened.levels[0], replace(opened.levels[1], chunks=(32, 32)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, level: int, box: nm.Box) -> np.ndarray:
        if level == 0:
            assert self._gate.wait(SECONDS)
        return self._arrays[level][box.slices].copy()


def test_a_job_from_drawing_to_result(
    volume: np.ndarray, engine: nm.Engine, tmp_path: Path
) -> None:
    view = nm.open_view(volume, "gaussian:sigma=1", chunks=(4, 16, 16), name="cells")
    desk, front = desk_of(view, engine)
    desk.receive({"kind": "box", "box": {"z": [2, 9], "y": [5, 30], "x": [0, 21]}})
    asked = {"extent": "box", "format": "zarr3", "folder": str(tmp_path), "target": "mine.zarr"}
    desk.receive({"kind": "change", "fields": asked})
    state = front.last("state")
    assert state["box"] == {"z": [2, 9], "y": [5, 30], "x": [0, 21]}
    assert state["written"] == {"z": [2, 9], "y": [5, 30], "x": [0, 21]}
    assert state["blocked"] is None
    desk.receive({"kind": "run"})
    assert desk.ended.wait(SECONDS)
    assert desk.session.job.state == "done"
    assert front.last("state")["job"]["text"].startswith("Done: ")
    stored = zarr.open_array(tmp_path / "mine.zarr" / "0", mode="r")[...]
    expected = ndimage.gaussian_filter(volume.astype("f4"), 1, mode="nearest", truncate=4)
    np.testing.assert_array_equal(stored, np.rint(expected).astype("u2")[2:9, 5:30, 0:21])
    desk.close()


def test_cancel_is_an_abort(engine: nm.Engine, tmp_path: Path) -> None:
    gate = Gate(shut=True)
    view = nm.open_view(np.arange(64).reshape(8, 8), [gate.op], chunks=(2, 2))
    front = Front()
    desk = Desk(view, engine, front)
    desk.receive({"kind": "change", "fields": {"folder": str(tmp_path)}})
    desk.receive({"kind": "run"})
    assert gate.entered.acquire(timeout=SECONDS)
    desk.receive({"kind": "run"})
    assert "a job is running" in front.last("said")["text"]
    desk.receive({"kind": "cancel"})
    gate.open.set()
    assert desk.ended.wait(SECONDS)
    assert front.wait("state")[0]["job"]["state"] == "aborted"
    desk.close()


def test_whoever_waits_for_a_job_is_not_kept_by_somebody_who_listens(engine: nm.Engine) -> None:
    desk = Desk(nm.open_view(np.zeros((8, 8))), engine, Front())
    desk.ended.clear()

    def listener(_: object) -> None:
        raise LookupError("not mine")

    desk.session.changed.connect(listener)
    with pytest.raises(EmitLoopError):
        desk._on_finished(desk.session.job)
    assert desk.ended.is_set()
    desk.close()


def test_the_last_display_gone_frees_claims_and_thread(engine: nm.Engine) -> None:
    gate = Gate(shut=True)
    view = nm.open_view(np.arange(256).reshape(16, 16), [gate.op], chunks=(2, 2))
    front = Front()
    desk = Desk(view, engine, front)
    for display in "ab":
        desk.receive({"kind": "hello", "display": display, "size": [64, 64]})
    assert gate.entered.acquire(timeout=SECONDS)
    desk.receive({"kind": "bye", "display": "a"})
    assert desk.painter.alive
    thread = desk.painter._thread
    desk.receive({"kind": "bye", "display": "b"})
    assert not desk.painter.alive
    assert thread is not None
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert engine.stats()["waiting"] == {"client": {}, "background": {}}
    gate.open.set()
    desk.receive({"kind": "hello", "display": "c", "size": [64, 64]})
    front.wait("picture", complete=True)
    desk.close()


def test_a_failed_chunk_is_told_and_tried_again(engine: nm.Engine) -> None:
    array = RecordingArray(np.arange(64, dtype="u1").reshape(8, 8), (4, 4))
    array.broken[1, 0] = OSError("the disk is gone")
    desk, front = desk_of(array.view("invert"), engine)
    message, _ = front.wait("picture", settled=True)
    assert any("the disk is gone" in text for text in message["failures"])
    assert not message["complete"]
    array.broken.clear()
    desk.receive({"kind": "retry"})
    message, (png,) = front.wait("picture", complete=True)
    assert message["failures"] == ()
    desk.receive({"kind": "window", "window": [0, 255]})
    _, (png,) = front.wait("picture", complete=True, mark=desk._mark)
    np.testing.assert_array_equal(pixels(png), 255 - array.array)
    desk.close()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"kind": "nonsense"}, "no message 'nonsense'"),
        ({"kind": "look", "zoom": "wide"}, "look: axes, places and numbers"),
        ({"kind": "look", "plane": ["q", "x"]}, "look: axes"),
        ({"kind": "look", "centre": [float("nan"), 0]}, "look: axes"),
        ({"kind": "box", "box": {"y": [9, 2]}}, "at least one voxel"),
        ({"kind": "box", "box": {"y": ["a", None]}}, "whole numbers"),
        ({"kind": "change", "fields": {"engine": 1}}, "cannot be set"),
        ({"kind": "change", "fields": {"level": "x"}}, "cannot be set"),
        ({"kind": "change", "fields": {"level": 7}}, None),
        ({"kind": "window", "window": ["a"]}, "two numbers"),
        ({"kind": "show", "show": "both"}, "cannot show"),
    ],
)
def test_what_makes_no_sense_is_said(
    message: dict[str, Any], said: str | None, volume: np.ndarray, engine: nm.Engine
) -> None:
    desk, front = desk_of(nm.open_view(volume, chunks=(4, 16, 16)), engine)
    desk.receive(message)
    if said is None:
        assert "has levels 0 to 0" in front.last("state")["blocked"]
    else:
        assert said in front.last("said")["text"]
    desk.close()


def test_the_level_that_is_shown_follows_the_zoom() -> None:
    view = nm.open_view([np.zeros((256, 256)), np.zeros((128, 128)), np.zeros((64, 64))])
    look = turned(view, first_look(view), {"size": (64, 64)})
    frames = [frame_of(view, turned(view, look, {"zoom": zoom, "centre": (128, 128)}))
              for zoom in (0.25, 0.5, 1, 4)]  # fmt: skip
    assert [frame.level for frame in frames if frame] == [2, 1, 0, 0]
    assert frames[3] is not None
    assert frames[3].rect == (120, 136, 120, 136)
    far = frame_of(view, turned(view, look, {"zoom": 1, "centre": (9_999, 0)}))
    assert far is None


def test_a_plane_larger_than_the_canvas_is_read_in_steps() -> None:
    view = nm.open_view(np.zeros((1000, 1000)), chunks=(100, 100))
    frame = frame_of(view, turned(view, first_look(view), {"size": (100, 100)}))
    assert frame is not None
    assert frame.axes == (range(0, 1000, 10), range(0, 1000, 10))
    assert frame.rect == (0, 1000, 0, 1000)


def test_a_panel_without_a_notebook(volume: np.ndarray, tmp_path: Path) -> None:
    """The widget itself: its box, its job, its result, what is left where widgets do not run."""
    shown = nm.panel(volume, ops=["invert"], chunks=(4, 16, 16), name="cells")
    shown.change(folder=str(tmp_path))
    shown.box = nm.Box((0, 0, 0), (4, 20, 20))
    assert shown.box == nm.Box((0, 0, 0), (4, 20, 20))
    shown.box = nm.Box((3, 4), (9, 8))
    assert shown.box == nm.Box((0, 3, 4), (volume.shape[0], 9, 8))
    for wrong in (((0, 0, 0), (4, 20, 20)), nm.Box((0,) * 4, (1,) * 4)):
        with pytest.raises(BoxError, match=r"give one|leave out the first"):
            shown.box = wrong
    shown.box = nm.Box((0, 0, 0), (4, 20, 20))
    assert shown.result is None
    shown.run()
    assert shown.wait(SECONDS).state == "done"
    np.testing.assert_array_equal(np.asarray(shown.result), 65535 - volume[:4, :32, :32])
    data, _ = shown._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "data:image/png;base64," in data["text/html"]
    assert f"written: {tmp_path / 'cells-invert.ome.zarr'}" in data["text/plain"]
    assert Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).size == (
        40,
        40,
    )
    shown.close()
    shown.close()


def test_a_viewer_mirrors_the_box_and_the_result(volume: np.ndarray, tmp_path: Path) -> None:
    from napari.components import ViewerModel

    viewer = ViewerModel()
    viewer.add_image(volume, scale=(2, 1, 1))
    known = {"chunks": (4, 16, 16), "scale": (2, 1, 1), "name": "cells"}
    shown = nm.panel(volume, ["threshold:low=2000"], viewer=viewer, **known)
    shown.change(folder=str(tmp_path), extent="box")
    assert len(viewer.layers) == 1
    shown.box = nm.Box((2, 5, 8), (9, 25, 30))
    outline = viewer.layers[-1]
    viewer.dims.set_point(0, 10)  # slice 5, inside
    assert outline.visible
    corners = outline.data[0]
    assert corners.min(axis=0).tolist() == [10, 4.5, 7.5]
    assert corners.max(axis=0).tolist() == [10, 24.5, 29.5]
    viewer.dims.set_point(0, 20)  # slice 10, outside
    assert not outline.visible
    mirror = shown._mirror
    assert mirror is not None
    shown.run()
    assert shown.wait(SECONDS).state == "done"
    mirror._add_result()  # the kernel's event loop would call it
    layer = viewer.layers[-1]
    assert type(layer).__name__ == "Labels"
    assert tuple(layer.translate) == (4, 5, 8)
    np.testing.assert_array_equal(np.asarray(layer.data), volume[2:9, 5:25, 8:30] >= 2000)
    shown.close()
    viewer.dims.set_point(0, 10)
    assert not outline.visible, "a closed panel mirrors nothing more"


def test_panels_share_an_engine_that_ends_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "_shared", None)  # whatever else of this process shares one
    monkeypatch.setattr(Lease, "_users", 0)
    one, two = nm.panel(np.zeros((8, 8))), nm.panel(np.zeros((8, 8)))
    engine = one.engine
    assert two.engine is engine
    one.close()
    assert not engine.closed
    two.close()
    assert engine.closed


def test_what_cannot_be_opened_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        nm.panel(tmp_path / "nothing.zarr")
    with nm.Engine(slots=1) as engine:
        pass
    with pytest.raises(OptionError, match="closed"):
        nm.panel(np.zeros((8, 8)), engine=engine)


def test_running_a_cell_again_ends_what_it_made() -> None:
    class Made:
        closed = False

        def close(self) -> None:
            self.closed = True

    table, first, other, gone = Table(), Made(), Made(), Made()
    table.add("a", first)
    table.add("b", other)
    table.add("c", gone)
    table.begin("d", ["c"])
    assert (first.closed, other.closed, gone.closed) == (False, False, True)
    table.begin("a")
    assert (first.closed, other.closed) == (True, False)


def test_a_view_is_taken_apart_only_where_it_stays_the_same(engine: nm.Engine) -> None:
    """A panel and a live layer of one view share its chunks: it keeps its identity."""
    image = np.zeros((16, 16), "u1")
    views = [
        nm.open_view(image, ["gaussian:sigma=1", "threshold:low=9"]),
        nm.open_view(image, ["gaussian:sigma=1"]).then([nm.ops.Threshold(low=9)]),
        nm.open_view(image, [nm.ops.Function(np.negative)], boundary="zeros"),
    ]
    for view in views:
        desk = Desk(view, engine, Front())
        shown = desk.session.resolved.view
        assert shown is not None
        assert shown.identity == view.identity
        desk.close()


def test_the_javascript_stays_small() -> None:
    assert len((PACKAGE / "panel.js").read_text().splitlines()) < 600
