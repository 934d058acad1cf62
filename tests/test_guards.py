"""Counts per chunk that must not grow: reads, copies, changes of state, hand-overs, files touched.

Speed is measured in bench/; what makes for it is counted here, so that a loss is seen at once.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter

import numcodecs
import numpy as np
import pytest
import zarr

from doubles import RecordingArray
from napari_materialize import DirectoryStore, Engine, MemoryStore, materialize, open_view, ops
from napari_materialize.sources.lasting import probed
from napari_materialize.workers import DaemonWorkers

CHUNK = 8
SIDE = 4
CHUNKS = SIDE**3
CHAINS = {"no op": [], "threshold": ["threshold:low=40"], "gaussian": ["gaussian:sigma=0.5"]}


def image() -> np.ndarray:
    return np.random.default_rng(3).integers(1, 99, (SIDE * CHUNK,) * 3).astype("u1")


ALONE = {"block_bytes": 1}
"""For an engine without blocks: those grow by the clock, and a count must not."""


@pytest.fixture
def stored(tmp_path):
    """A zarr array of plain chunks on the disk."""
    array = zarr.create_array(
        tmp_path / "image.zarr",
        shape=image().shape,
        chunks=(CHUNK,) * 3,
        dtype="u1",
        zarr_format=2,
        compressors=numcodecs.GZip(1),
        chunk_key_encoding={"name": "v2", "separator": "/"},
    )
    array[...] = image()
    return tmp_path / "image.zarr"


# ---------------------------------------------------------------------- reads


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("chain", CHAINS)
def test_each_source_chunk_is_read_once(chain, concurrency):
    source = RecordingArray(image(), (CHUNK,) * 3)
    with Engine(slots=3, **ALONE) as engine:
        engine.materialize(source.view(CHAINS[chain]), MemoryStore(), concurrency=concurrency)
    assert len(source.reads) == CHUNKS
    assert set(Counter(source.reads).values()) == {1}


# ---------------------------------------------------------------------- copies


def root(block: np.ndarray) -> object:
    """Return what an array's memory belongs to."""
    found: object = block
    while isinstance(found, np.ndarray) and found.base is not None:
        found = found.base
    return found.obj if isinstance(found, memoryview) else found


def test_what_was_decoded_is_not_copied_on_its_way_to_the_op(stored):
    seen = []

    def look(block: np.ndarray) -> np.ndarray:
        seen.append(root(block))
        return block

    with Engine(slots=2) as engine:
        engine.materialize(
            open_view(stored, ops.Function(look, dtype="uint8")), MemoryStore(), compression=None
        )
    assert len(seen) == CHUNKS
    assert {type(each) for each in seen} == {bytearray}  # what the decoder returned: no array's own


def test_what_was_computed_is_not_copied_on_its_way_to_the_encoder(monkeypatch):
    made, encoded = [], []

    def add(block: np.ndarray) -> np.ndarray:
        made.append(block + 1)
        return made[-1]

    from napari_materialize.codecs import Compression

    plain = Compression.encode

    def encode(self, data, dtype):
        encoded.append(np.frombuffer(data, "u1"))
        return plain(self, data, dtype)

    monkeypatch.setattr(Compression, "encode", encode)
    view = open_view(image(), ops.Function(add, dtype="uint8"), chunks=(CHUNK,) * 3)
    with Engine(slots=2) as engine:
        engine.materialize(view, MemoryStore())
    assert len(encoded) == CHUNKS
    for data in encoded:
        assert sum(np.shares_memory(data, block) for block in made) == 1


# ---------------------------------------------------------------------- states and threads


@pytest.mark.parametrize(("chain", "most"), [("no op", 4), ("threshold", 8), ("gaussian", 8)])
def test_changes_of_state(chain, most):
    """A chunk is asked for, begun, there and let go, once; so is each source chunk."""
    view = open_view(image(), CHAINS[chain], chunks=(CHUNK,) * 3)
    with Engine(slots=3, **ALONE) as engine:
        engine.materialize(view, MemoryStore())
        assert engine.events()[-1].number <= most * CHUNKS


class CountingWorkers:
    """The engine's threads, and how often work was handed to them, by lane."""

    def __init__(self) -> None:
        background = ("background", "background read")
        lanes = {("read", "compute"): 4, background: 4, "write": 2}
        self.threads = DaemonWorkers(lanes)
        self.quick = self.threads.quick
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def busy(self, *lanes) -> int:
        return self.threads.busy(*lanes)

    def submit(self, lane, work) -> None:
        with self._lock:
            self.counts[lane] += 1
        self.threads.submit(lane, work)

    def close(self) -> None:
        self.threads.close()


@pytest.mark.parametrize(("chain", "most"), [("no op", 2), ("threshold", 3), ("gaussian", 3)])
def test_hand_overs_between_threads(chain, most):
    """To a reader, to whoever computes, to a writer: never more often than that."""
    workers = CountingWorkers()
    view = open_view(image(), CHAINS[chain], chunks=(CHUNK,) * 3)
    with Engine(slots=3, workers=workers) as engine:
        done = engine.materialize(view, MemoryStore())
    assert done.written == CHUNKS
    assert sum(workers.counts.values()) <= most * CHUNKS


# ---------------------------------------------------------------------- files

_watched: list[tuple[str, str]] | None = None


def _audit(event: str, arguments: tuple) -> None:
    if _watched is not None and event in ("open", "os.rename", "os.mkdir", "os.scandir"):
        _watched.append((event, str(arguments[0])))


@pytest.fixture(scope="module")
def audited():
    """Python's own record of files that are touched; a hook cannot be taken back."""
    sys.addaudithook(_audit)


def test_files_touched(stored, tmp_path, audited):
    global _watched  # noqa: PLW0603 - what the hook writes to
    out = tmp_path / "out.zarr"
    materialize(stored, tmp_path / "first.zarr")  # what is imported is not counted
    _watched = []
    materialize(stored, out)
    events, _watched = _watched, None
    source = [path for event, path in events if event == "open" and str(stored) in path]
    read = [path for path in source if path.rpartition("/")[2].isdecimal()]
    written = [(event, path) for event, path in events if f"{out}/0/" in path]
    new = [path for event, path in written if event == "open"]
    moved = [path for event, path in written if event == "os.rename"]
    made = [path for event, path in events if event == "os.mkdir" and str(out) in path]
    level = 4  # .zarray and .zattrs, at the beginning and at the end
    # once for the job, and those that the record knows the source by
    looked_at = len(list(probed(open_view(stored).levels[0])))
    assert CHUNKS <= len(read) <= CHUNKS + looked_at
    assert CHUNKS <= len(new) <= CHUNKS + level
    assert CHUNKS <= len(moved) <= CHUNKS + level
    # the folder, its level, and one for each first and second index: each made once
    assert len(made) == len(set(made)) <= 2 + SIDE + SIDE**2


def test_each_folder_is_made_once(tmp_path, audited):
    global _watched  # noqa: PLW0603 - what the hook writes to
    store = DirectoryStore(tmp_path / "out")
    _watched = []
    for k in range(5):
        store.put(f"0/0/{k}", b"x")
    events, _watched = _watched, None
    counts = Counter(event for event, _ in events)
    assert counts == {"os.mkdir": 3, "open": 5, "os.rename": 5}
