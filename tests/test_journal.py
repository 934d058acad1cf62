"""The journal: what it says is what was noted, whatever happened to its last line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from napari_materialize import Box, DirectoryStore, MemoryStore
from napari_materialize.journal import (
    JOURNAL,
    FileState,
    Journal,
    Ledger,
    Sums,
    checksum,
    read_journal,
)

FILES = Box((1, 0), (5, 6))

notes = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.tuples(st.integers(1, 4), st.integers(0, 5)),
        st.sampled_from([FileState.WRITTEN, FileState.EMPTY, FileState.FAILED]),
        st.integers(0, 2**40),
        st.integers(0, 2**32 - 1),
    ),
    max_size=80,
)


def tell(journal, told):
    for position, file, state, size, crc in told:
        journal.note(position, file, state, size, crc)
    journal.flush()


def last(told):
    """Return what was noted last of each file."""
    return {
        (position, file): (state, size, crc) if state is FileState.WRITTEN else (state, 0, 0)
        for position, file, state, size, crc in told
    }


@given(told=notes)
def test_what_was_noted_is_read_back_the_last_word_counting(told):
    store = MemoryStore()
    journal = Journal(store)
    journal.begin({"job": {"a": 1}})
    tell(journal, told)
    found = read_journal(store, [FILES, FILES])
    assert found.key == {"job": {"a": 1}}
    for (position, file), what in last(told).items():
        assert found.ledgers[position].at(file) == what
    known = sum(int((each.states != FileState.OPEN).sum()) for each in found.ledgers.values())
    assert known == len(last(told))
    journal.remove()
    assert store.files == {}


@given(told=notes, cut=st.integers(0, 4000), more=notes)
def test_a_torn_line_is_passed_over_and_what_comes_after_is_not(told, cut, more):
    text = MemoryStore()
    journal = Journal(text)
    journal.begin({"job": {}})
    tell(journal, told)
    whole = b"".join(text.files.values())
    head = whole.index(b"\n") + 1
    torn = whole[: max(head, len(whole) - cut)]
    grown = MemoryStore()
    grown.files = {f"{JOURNAL}/{0:08}": torn}
    tell(Journal(grown, 1), more)
    found = read_journal(grown, [FILES, FILES])
    # a line that lacks nothing but its end is whole
    kept = told[: torn.count(b"\n") - 1 + whole[len(torn) :].startswith(b"\n")]
    for (position, file), what in last(kept + more).items():
        assert found.ledgers[position].at(file) == what


def test_a_file_grows_line_by_line_and_goes_on_behind_a_torn_one(tmp_path):
    store = DirectoryStore(tmp_path)
    journal = Journal(store)
    journal.begin({"job": {}})
    journal.note(0, (1, 0), FileState.WRITTEN, 7, 8)
    place = tmp_path / JOURNAL
    assert read_journal(store, [FILES]).ledgers[0].at((1, 0)) == (FileState.WRITTEN, 7, 8)
    place.write_bytes(place.read_bytes() + b"w 0 1,1 5")  # killed here
    store.end()
    Journal(DirectoryStore(tmp_path)).note(0, (2, 0), FileState.EMPTY)
    found = read_journal(store, [FILES]).ledgers[0]
    assert found.at((2, 0))[0] is FileState.EMPTY
    assert found.at((1, 1))[0] is FileState.OPEN


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0" * 500,
        b"j {} 00000000\n",
        b"j [1] c2d7ab83\nw 0",
        b"\xff\xfe j {\n" * 20,
        b"not a journal at all",
    ],
)
def test_a_journal_of_rubbish_says_nothing(text):
    store = MemoryStore()
    store.files[JOURNAL] = text
    found = read_journal(store, [FILES])
    assert found is not None
    assert not found.key
    assert all((each.states == FileState.OPEN).all() for each in found.ledgers.values())


def test_what_is_noted_together_is_added_in_one_piece(tmp_path):
    pieces = []

    class Told(DirectoryStore):
        def append(self, path, data, /):
            pieces.append(data)
            super().append(path, data)

    store = Told(tmp_path / "out.zarr")
    journal = Journal(store)
    journal.begin({"job": {}})

    def work():
        for at in range(1, 4):
            journal.note(0, (at, 0), FileState.WRITTEN, at, at)
        with journal.together():  # another thread's, say: at its end all that waits is added
            journal.note(0, (4, 0), FileState.EMPTY)
        assert [piece.count(b"\nw ") for piece in pieces] == [3]
        journal.note(0, (4, 1), FileState.EMPTY)
        assert len(pieces) == 1
        raise KeyError("what is noted until then is kept")

    with pytest.raises(KeyError), journal.together():
        work()
    assert len(pieces) == 2
    journal.note(0, (4, 2), FileState.EMPTY)
    assert len(pieces) == 3
    found = read_journal(store, [FILES]).ledgers[0]
    assert [found.at((at, 0))[1] for at in range(1, 4)] == [1, 2, 3]
    assert {found.at((4, at))[0] for at in range(3)} == {FileState.EMPTY}
    journal.remove()


def test_lines_of_files_that_are_nowhere_are_passed_over():
    store = MemoryStore()
    journal = Journal(store)
    journal.begin({"job": {}})
    for file in ((0, 0), (5, 0), (1, -1), (1, 2, 3)):
        journal.note(0, file, FileState.EMPTY)
    journal.note(9, (1, 1), FileState.EMPTY)
    journal.flush()
    assert (read_journal(store, [FILES]).ledgers[0].states == FileState.OPEN).all()


@given(data=st.data())
def test_sums_tell_a_file_that_is_lost_changed_or_elsewhere(data):
    shape = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 60)))
    files = Box((3, 1), (3 + shape[0], 1 + shape[1]))
    ledger = Ledger(files)
    places = [(z + 3, y + 1) for z in range(shape[0]) for y in range(shape[1])]
    for place in places:
        ledger.note(place, FileState.WRITTEN, 100, checksum(str(place).encode()))

    def summed(skip=(), exchanged=()):
        sums = Sums(files)
        for place in data.draw(st.permutations(places)) if len(places) < 50 else places:
            told = exchanged[1 - exchanged.index(place)] if place in exchanged else place
            if place not in skip:
                sums.add(place, *ledger.at(told)[1:])
        return sums

    whole = summed()
    assert Sums.parse(whole.record()) == whole == summed()
    assert list(whole.differing(summed())) == []
    one = data.draw(st.sampled_from(places))
    assert one in set(whole.differing(summed(skip=[one])))
    other = data.draw(st.sampled_from(places))
    if other != one:
        found = set(whole.differing(summed(exchanged=[one, other])))
        assert {one, other} & found or whole.group > 1
    assert len(whole.record()["sums"]) < 6000


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"files": [[0], [2]], "written": 1, "sums": "AAAA"},
        {"files": [[0], [2]], "written": 1, "sums": "?"},
        {"files": [[-1], [2]], "written": 1, "sums": ""},
        {"files": [[0, 0], [2**40, 2**40]], "written": 1, "sums": ""},
        {"files": "ab", "written": 1, "sums": ""},
    ],
)
def test_sums_that_are_none_are_refused(value):
    with pytest.raises(ValueError, match=r"sums|place|files"):
        Sums.parse(value)
