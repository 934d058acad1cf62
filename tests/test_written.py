"""Chunks that a job has written are read back for whoever looks at the same view."""

from __future__ import annotations

import gc
import shutil
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import napari_materialize as nm
from napari_materialize import Box
from napari_materialize.stages import ChunkKey
from napari_materialize.written import LEVELS, Places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from napari_materialize import Engine, View

SHAPE, CHUNKS = (40, 60), (8, 16)


class Counted:
    """An op's function that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, block: np.ndarray) -> np.ndarray:
        self.calls += 1
        return block * 3 + 1


@pytest.fixture
def engine() -> Iterator[Engine]:
    with nm.Engine(slots=2) as engine:
        yield engine


@pytest.fixture
def counted() -> Counted:
    return Counted()


def view_of(counted: Counted, dtype: str = "u2") -> View:
    rng = np.random.default_rng(3)
    data = rng.integers(0, 60, SHAPE).astype(dtype)
    op = nm.ops.Function(counted, dtype=dtype, name="counted", version="1")
    return nm.open_view(data, [op], chunks=CHUNKS)


def oracle(view: View) -> np.ndarray:
    return np.asarray(view.source.read(0, Box.whole(SHAPE))) * 3 + 1


def looked_at(engine: Engine, view: View, box: Box) -> np.ndarray:
    return np.asarray(engine.array(view, 0)[box.slices])


FORMS: dict[str, dict[str, Any]] = {
    "zarr2": {},
    "no compression": {"compression": None},
    "zarr3": {"format": "zarr3", "compression": "zstd"},
    "shards": {"format": "zarr3", "shards": (2, 2)},
    "n5": {"format": "n5"},
    "exactly the box": {"extent": "box", "format": "zarr3"},
    "a pyramid": {"pyramid": 2},
}


@pytest.mark.parametrize("form", FORMS)
def test_what_a_job_wrote_is_read_and_not_computed(
    engine: Engine, counted: Counted, tmp_path: Path, form: str
) -> None:
    view, box = view_of(counted), Box((3, 16), (37, 60))
    engine.materialize(view, tmp_path / "a.zarr", box=box, **FORMS[form])
    calls = counted.calls
    assert engine.resident(view) == []  # let go once written
    whole = Box((8, 16), (32, 60))  # chunks that lie in the box, whichever way it was rounded
    assert np.array_equal(looked_at(engine, view, whole), oracle(view)[whole.slices])
    assert counted.calls == calls
    everything = Box.whole(SHAPE)
    assert np.array_equal(looked_at(engine, view, everything), oracle(view))
    assert counted.calls > calls  # what was not written is computed


def test_floats_and_chunks_of_nothing(engine: Engine, tmp_path: Path) -> None:
    data = np.zeros(SHAPE, "f4")
    data[0, :4] = np.nan, 7, -0.0, 1e-30
    calls = Counted()
    op = nm.ops.Function(lambda b: (calls(b), b)[1], dtype="f4", name="same", version="1")
    view = nm.open_view(data, [op], chunks=CHUNKS)
    engine.materialize(view, tmp_path / "a.zarr")
    before = calls.calls
    again = looked_at(engine, view, Box.whole(SHAPE))
    assert np.array_equal(again, data, equal_nan=True)
    assert calls.calls == before


@pytest.mark.parametrize("accident", ["changed", "removed", "exchanged", "another view's"])
def test_what_is_not_there_any_more_is_computed(
    engine: Engine, counted: Counted, tmp_path: Path, accident: str
) -> None:
    view, folder = view_of(counted), tmp_path / "a.zarr"
    engine.materialize(view, folder, compression=None)
    calls, first, second = counted.calls, folder / "0" / "0" / "0", folder / "0" / "0" / "1"
    if accident == "changed":
        data = bytearray(first.read_bytes())
        data[5] ^= 1
        first.write_bytes(data)
    elif accident == "exchanged":
        other = second.read_bytes()
        second.write_bytes(first.read_bytes())
        first.write_bytes(other)
    elif accident == "removed":
        shutil.rmtree(folder)
    else:
        other_view = nm.open_view(np.ones(SHAPE, "u2"), ["invert"], chunks=CHUNKS)
        engine.materialize(other_view, folder, compression=None, existing="overwrite")
    assert np.array_equal(looked_at(engine, view, Box.whole(SHAPE)), oracle(view))
    lost = {"changed": 1, "exchanged": 2}.get(accident, 20)
    assert counted.calls - calls == lost
    assert engine.stats()["failures"] == 0


def test_a_view_that_goes_on_from_a_written_one(
    engine: Engine, counted: Counted, tmp_path: Path
) -> None:
    view = view_of(counted)
    engine.materialize(view, tmp_path / "a.zarr")
    calls = counted.calls
    further = nm.open_view(view, ["threshold:low=80"])
    expected = (oracle(view) >= 80).astype("u1")
    assert np.array_equal(looked_at(engine, further, Box.whole(SHAPE)), expected)
    assert counted.calls == calls


def test_another_job_computes(engine: Engine, counted: Counted, tmp_path: Path) -> None:
    """A job reads nothing back: its result rests on no other file."""
    view = view_of(counted)
    engine.materialize(view, tmp_path / "a.zarr")
    calls = counted.calls
    engine.materialize(view, tmp_path / "b.zarr")
    assert counted.calls == 2 * calls


def test_while_the_job_runs(engine: Engine, counted: Counted, tmp_path: Path) -> None:
    view = view_of(counted)
    index, seen = (0, 0), list[bool]()

    def look(counts: dict[str, int]) -> None:
        if counts["done"] < counts["total"] or seen:
            return
        calls = counted.calls
        with engine.claim(view, 0, index) as claim:
            assert np.array_equal(claim.result(60), oracle(view)[:8, :16])
        seen.append(counted.calls == calls)

    engine.materialize(view, tmp_path / "a.zarr", on_progress=look)
    assert seen == [True]


def test_an_aborted_job_leaves_what_it_wrote(
    engine: Engine, counted: Counted, tmp_path: Path
) -> None:
    view, cancel = view_of(counted), threading.Event()

    def stop(counts: dict[str, int]) -> None:
        if counts["written"] >= 5:
            cancel.set()

    folder = tmp_path / "a.zarr"
    engine.materialize(view, folder, cancel=cancel, on_progress=stop, concurrency=1)
    files = list((folder / "0").glob("[0-9]*/*"))
    calls = counted.calls
    for path in files:
        index = (int(path.parent.name), int(path.name))
        with engine.claim(view, 0, index) as claim:
            claim.result(60)
    assert len(files) >= 5
    assert counted.calls == calls


def test_nothing_is_kept_alive(engine: Engine, tmp_path: Path) -> None:
    class Source(np.ndarray):
        pass

    data = np.arange(600, dtype="u2").reshape(20, 30).view(Source)
    gone = weakref.ref(data)
    view = nm.open_view(data, ["invert"], chunks=(8, 8))
    engine.materialize(view, tmp_path / "a.zarr", on_progress=lambda _, v=view: None)
    del data, view
    for _ in range(3):
        gc.collect()
    assert gone() is None


def test_places_are_forgotten_in_the_end(engine: Engine) -> None:
    class Shelf:
        def holds(self, index: Any) -> bool:
            return True

        def read(self, index: Any) -> np.ndarray:
            raise AssertionError("nobody asks")

    stage = nm.open_view(np.zeros((4, 4), "u1"), ["invert"]).stages[-1]
    places = Places()
    for number in range(LEVELS + 1):
        places.add(f"view {number}", 0, Shelf())
    assert places.stage(stage, ChunkKey("view 0", 0, (0, 0))) is stage
    assert places.stage(stage, ChunkKey("view 1", 0, (0, 0))) is not stage
    places.add("view 1", 0, Shelf())  # written again: it is the last
    places.add("one more", 0, Shelf())
    assert places.stage(stage, ChunkKey("view 1", 0, (0, 0))) is not stage
    assert places.stage(stage, ChunkKey("view 2", 0, (0, 0))) is stage


def test_a_store_in_memory_is_not_read_back(engine: Engine, counted: Counted) -> None:
    view, store = view_of(counted), nm.MemoryStore()
    engine.materialize(view, store)
    calls = counted.calls
    assert np.array_equal(looked_at(engine, view, Box.whole(SHAPE)), oracle(view))
    assert counted.calls == 2 * calls
