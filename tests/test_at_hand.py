"""Blocks of an array in memory are copied from it, without chunks in between."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from doubles import RecordingArray
from napari_materialize import Engine, MemoryStore, open_view
from napari_materialize.cache import ChunkState
from readback import opened

VOXELS = np.random.default_rng(4).integers(0, 255, (30, 44), np.uint8)


@pytest.mark.parametrize("boundary", ["edge", "zeros"])
@pytest.mark.parametrize("dtype", ["u1", ">u2", "f4"])
def test_a_job_over_an_array_reads_no_chunks_and_equals_the_whole(dtype, boundary):
    voxels = VOXELS.astype(dtype)
    view = open_view(voxels, "gaussian:sigma=1.5", chunks=(8, 11), boundary=boundary)
    store = MemoryStore()
    with Engine(slots=2) as engine:
        done = engine.materialize(view, store)
        stats = engine.stats()
    assert done.written == done.chunks >= 16
    assert stats["read"] == 0
    mode = "nearest" if boundary == "edge" else "constant"
    wide = ndimage.gaussian_filter(voxels.astype("f4"), 1.5, mode=mode)
    whole = wide if dtype == "f4" else np.rint(wide)
    np.testing.assert_allclose(opened(store)[:], whole, rtol=1e-5)


def test_a_clients_chunk_is_kept_as_it_was_when_its_array_is_changed():
    voxels = VOXELS.copy()
    view = open_view(voxels, "median:size=3", chunks=(8, 11))
    with Engine(slots=2) as engine:
        before = engine.array(view)[:8, :11]
        voxels[:] = 0
        np.testing.assert_array_equal(engine.array(view)[:8, :11], before)
        assert engine.state(open_view(VOXELS, chunks=(8, 11)), 0, (0, 0)) is ChunkState.NEW
    assert before.any()


def test_what_is_not_all_in_memory_or_needs_no_more_than_its_chunk_is_read(tmp_path):
    stored = np.memmap(tmp_path / "voxels", np.uint8, "w+", shape=VOXELS.shape)
    stored[:] = VOXELS
    recording = RecordingArray(VOXELS, (8, 11))
    near = [open_view(each, "gaussian:sigma=1", chunks=(8, 11)) for each in (stored, recording)]
    alone = open_view(VOXELS, "invert", chunks=(8, 11))
    reads = []
    for view in (*near, alone):
        with Engine(slots=2) as engine:
            engine.materialize(view, MemoryStore())
            reads.append(engine.stats()["read"])
    assert min(reads) >= 16  # its chunks, and perhaps a look at the values before
    assert set(recording.reads) == set(np.ndindex(4, 4))
