"""Sources that are edited where they are: painted labels, arrays and folders written anew."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from napari.components import ViewerModel
from napari.layers import Image, Labels

import napari_materialize as nm
from napari_materialize._napari.edits import Edits
from napari_materialize.errors import OptionError, SourceError
from napari_materialize.session import JobState, Session
from napari_materialize.sources import open_source
from windows import WAIT, click, live_of, settle

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = (4, 64, 64)


def written(session: Session, target: Path) -> np.ndarray:
    """Run a job and read what it wrote."""
    over = threading.Event()
    session.finished.connect(lambda _: over.set(), check_nargs=False)
    session.change(target=str(target))
    session.run()
    assert over.wait(WAIT / 1000)
    assert session.job.state is JobState.DONE, session.job.reason
    return np.asarray(zarr.open_group(target, mode="r")["0"][...])


def test_a_job_writes_what_an_array_holds_when_run_is_pressed(
    session: Session, tmp_path: Path
) -> None:
    data = np.zeros(SHAPE, "u1")
    session.change(source=data, ops=("threshold:low=1",))
    session.engine.array(session.resolved.view)[...]  # somebody looked: its chunks are kept
    assert not written(session, tmp_path / "before.zarr").any()
    data[1, 8:20, 8:20] = 3
    np.testing.assert_array_equal(written(session, tmp_path / "after.zarr"), data > 0)


def test_a_job_writes_what_a_folder_holds_when_run_is_pressed(
    session: Session, tmp_path: Path
) -> None:
    source = str(tmp_path / "em.zarr")
    data = np.full(SHAPE, 7, "u1")
    zarr.save_array(source, data, zarr_format=2)
    session.change(source=source, ops=("invert",))
    session.engine.array(session.resolved.view)[...]
    np.testing.assert_array_equal(written(session, tmp_path / "before.zarr"), 255 - data)
    shutil.rmtree(source)
    zarr.save_array(source, data[:, :32] + 1, zarr_format=2)
    np.testing.assert_array_equal(written(session, tmp_path / "after.zarr"), 254 - data[:, :32])


def test_a_folder_that_is_gone_when_run_is_pressed_is_said(
    session: Session, tmp_path: Path
) -> None:
    source = tmp_path / "em.zarr"
    zarr.save_array(str(source), np.ones(SHAPE, "u1"), zarr_format=2)
    session.change(source=str(source), target=str(tmp_path / "out.zarr"))
    source.rename(tmp_path / "moved.zarr")
    with pytest.raises(OptionError, match="nothing is there"):
        session.run()
    assert not (tmp_path / "out.zarr").exists()


def test_what_does_not_change_keeps_its_chunks(session: Session, tmp_path: Path) -> None:
    session.change(source=np.ones(SHAPE, "u1"), ops=("invert",))
    view = session.resolved.view
    session.engine.array(view)[...]
    before = session.engine.stats()["computed"]
    assert (written(session, tmp_path / "out.zarr") == 254).all()
    assert session.resolved.view is view
    assert session.engine.stats()["computed"] == before


def test_stored_labels_may_be_painted_so_each_opening_is_another() -> None:
    layer = Labels(zarr.array(np.zeros((8, 8), "u4")))
    first, second = open_source(layer), open_source(layer)
    assert first.identity != second.identity


def test_stored_labels_are_found_again_by_their_voxels(tmp_path: Path) -> None:
    zarr.save_array(str(tmp_path / "em.zarr"), np.ones((8, 8), "u4"))
    layer = Labels(zarr.open_array(str(tmp_path / "em.zarr"), mode="r+"))
    one, two = open_source(layer), open_source(layer)
    assert one.identity != two.identity
    assert one.stable
    assert one.lasting is not None
    assert two.lasting is not None
    assert one.lasting() == two.lasting()
    layer.data_setitem((np.array([1]), np.array([2])), 9)
    again = open_source(layer)
    assert again.lasting is not None
    assert again.lasting() != one.lasting()


def test_strokes_are_told_once_the_hand_rests(qtbot: Any) -> None:
    layer, told = Labels(np.zeros(SHAPE, "u1")), list[int]()
    parent = Edits(None)
    parent.edited.connect(lambda: told.append(1))
    parent.watch(layer)
    layer.refresh()
    assert not parent.pending
    layer.paint((1, 20, 20), 3)
    layer.paint((1, 30, 30), 3)
    assert parent.pending
    assert not told
    qtbot.waitUntil(lambda: len(told) == 1, timeout=WAIT)
    layer.undo()
    qtbot.waitUntil(lambda: len(told) == 2, timeout=WAIT)
    layer.redo()
    qtbot.waitUntil(lambda: len(told) == 3, timeout=WAIT)
    layer.fill((0, 0, 0), 5)
    assert parent.pending
    parent.watch(None)
    layer.paint((1, 40, 40), 3)
    assert not parent.pending


def test_anything_that_opens_is_shown_live(tmp_path: Path) -> None:
    viewer, data = ViewerModel(), np.arange(64, dtype="u1").reshape(8, 8)
    zarr.save_array(str(tmp_path / "em.zarr"), data)
    for source in (data, str(tmp_path / "em.zarr"), Image(data)):
        layer = nm.add_view(viewer, source)
        assert not isinstance(layer, list)
        np.testing.assert_array_equal(np.asarray(layer.data[0]), data)
        viewer.layers.remove(layer)
    with pytest.raises(SourceError, match="got NoneType"):
        nm.add_view(viewer, None)


def test_a_live_layer_and_a_job_show_what_was_painted(
    dock: Any, qtbot: Any, tmp_path: Path
) -> None:
    viewer, widget = dock(show=True)
    painted = viewer.add_labels(np.zeros(SHAPE, "u1"), name="cells")
    widget.session.change(ops=("threshold:low=1",))
    click(widget.run_bar.live)
    layer, z = widget.following.layer, viewer.dims.current_step[0]
    settle(qtbot, layer)
    assert not np.asarray(layer.data[0]).any()
    before = live_of(layer).view.identity
    painted.brush_size = 9
    painted.paint((z, 30, 30), 2)
    qtbot.waitUntil(lambda: live_of(layer).view.identity != before, timeout=WAIT)
    settle(qtbot, layer)
    assert layer is widget.following.layer
    assert painted.data.any()
    np.testing.assert_array_equal(layer._slice.image.raw, painted.data[z] > 0)
    # no time for the stroke to be told: Run looks for itself
    painted.paint((z, 50, 50), 2)
    widget.session.change(target=str(tmp_path / "out.zarr"))
    click(widget.run_bar.run)
    qtbot.waitUntil(lambda: widget.session.job.state is JobState.DONE, timeout=WAIT)
    stored = zarr.open_group(tmp_path / "out.zarr", mode="r")["0"][...]
    np.testing.assert_array_equal(stored, painted.data > 0)
