"""Memory for large blocks: used again when nobody refers to it, and never before."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from napari_materialize import Engine, MemoryStore, buffers, open_view, ops
from napari_materialize.buffers import buffer, give_back, held

BYTE = np.dtype("u1")
MIB = 2**20


@pytest.fixture(autouse=True)
def _nothing_remembered():
    give_back()
    yield
    give_back()


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_a_small_array_is_numpys_own():
    assert buffer((10, 10), BYTE).flags.owndata
    assert held()[0] == 0


def test_memory_is_used_again_once_nothing_refers_to_it():
    first = buffer((2, MIB), BYTE)
    place = address(first)
    assert held() == (2 * MIB, 2 * MIB)
    del first
    assert held() == (2 * MIB, 0)
    again = buffer((MIB // 2,), np.dtype("f4"))  # of other shape and dtype, as many bytes
    assert address(again) == place
    assert again.flags.c_contiguous
    assert again.flags.writeable


@pytest.mark.parametrize(
    "part",
    [
        lambda whole: whole[3:5],
        lambda whole: whole[..., ::7][1:],
        lambda whole: whole.T.view("i1"),
        lambda whole: whole.reshape(-1)[5:9].reshape(2, 2),
        memoryview,
    ],
)
def test_a_view_of_it_holds_it(part):
    whole = buffer((8, MIB), BYTE)
    place, view = address(whole), part(whole)
    del whole
    other = buffer((8, MIB), BYTE)
    assert address(other) != place
    del view
    assert address(buffer((8, MIB), BYTE)) == place


def test_what_is_much_too_large_is_not_taken():
    large, small = buffer((8 * MIB,), BYTE), buffer((3 * MIB,), BYTE)
    place = address(large)
    del large
    other = buffer((3 * MIB,), BYTE)
    assert address(other) != place
    del small, other
    assert address(buffer((5 * MIB,), BYTE)) != place  # it went, since no more was ever in use


def test_no_more_is_remembered_than_was_in_use_at_once():
    two = [buffer((size * MIB,), BYTE) for size in (4, 5)]
    assert held() == (9 * MIB, 9 * MIB)
    del two
    for size in (8, 2, 9, 1, 6):  # a job's blocks are smaller at the faces of its box
        buffer((size * MIB,), BYTE)
        assert held()[0] <= 9 * MIB


def test_the_smallest_that_is_large_enough_is_taken():
    arrays = [buffer((size * MIB,), BYTE) for size in (4, 3, 2)]
    places = [address(array) for array in arrays]
    del arrays
    assert address(buffer((3 * MIB,), BYTE)) == places[1]


def test_only_so_much_is_remembered(monkeypatch):
    monkeypatch.setattr(buffers, "KEPT_BYTES", 6 * MIB)
    used, free = buffer((3 * MIB,), BYTE), buffer((3 * MIB,), BYTE)
    used[:], place = 7, address(used)
    del free
    other = buffer((7 * MIB // 2,), BYTE)  # the free one goes; then there is no room for `used`
    assert held() == (7 * MIB // 2, 7 * MIB // 2)
    other[:] = 8
    del other
    give_back()
    assert held() == (0, 0)
    assert address(used) == place  # forgotten, and still its user's
    assert (used == 7).all()


def test_threads_never_share_what_they_hold():
    start, wrong = threading.Barrier(4), []

    def work(number: int) -> None:
        start.wait()
        for turn in range(50):
            block = buffer((MIB,), BYTE)
            block[::4096] = number
            other = buffer((MIB + turn,), BYTE)  # none that is there is large enough
            other[::4096] = number + 100
            if (block[::4096] != number).any() or (other[::4096] != number + 100).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert (
        held()[0] < 17 * MIB
    )  # eight at a time, and a name is bound anew before its old one is gone


def test_a_job_holds_a_few_blocks_and_gives_them_back():
    """Whatever its length; and what comes out is what scipy says of the whole."""
    from scipy.ndimage import gaussian_filter

    voxels = np.random.default_rng(1).integers(0, 255, (512, 128, 128), dtype="u1")
    seen = []

    def look(block: np.ndarray) -> np.ndarray:
        seen.append(held()[0])
        return block

    chain = ["gaussian:sigma=1.5", ops.Function(look, name="look", version="1")]
    store = MemoryStore()
    with Engine(slots=3) as engine:
        view = open_view(voxels, chain, chunks=(64, 64, 64))
        engine.materialize(view, store, compression=None)
    # two computations at a time: a block of 140^3, in uint8 and in float32, and what comes out
    assert 0 < max(seen) <= 2 * 2 * (140**3 * 5 + 128**3)
    assert held()[0] == 0
    expected = gaussian_filter(voxels.astype("f4"), 1.5, mode="nearest", truncate=4)
    found = np.frombuffer(store.files["0/7/1/1"], "u1").reshape(64, 64, 64)
    assert np.array_equal(found, np.rint(expected)[-64:, 64:, 64:].astype("u1"))


FORKED = """
import errno
import mmap
import os
import numpy as np
from napari_materialize.buffers import buffer
block = buffer((2**20,), np.dtype("u1"))
block[:] = 1
child = os.fork()
if child == 0:
    block[:] = 2
    os._exit(0)
os.waitpid(child, 0)
print(int(block.max()))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_what_a_forked_process_writes_is_its_own():
    """In a process without threads, which can be forked."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked for large pages")
def test_a_large_block_asks_for_large_pages_and_a_small_one_does_not(monkeypatch):
    asked = []

    class Pages(mmap.mmap):
        def madvise(self, advice: int, *where: int) -> None:
            asked.append((len(self), advice))
            raise OSError(errno.EINVAL, "a kernel without such pages")

    monkeypatch.setattr(mmap, "mmap", Pages)
    small, large = buffer((3, MIB), BYTE), buffer((5, MIB), BYTE)
    large[:] = 7
    assert asked == [(5 * MIB, mmap.MADV_HUGEPAGE)]
    assert small.nbytes + int(large.sum()) == (3 + 35) * MIB
