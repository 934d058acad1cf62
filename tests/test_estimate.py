"""What a job will take, before it runs: from a few chunks, and nothing written."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from doubles import Gate
from napari_materialize import Box, DirectoryStore, Engine, MemoryStore, materialize, open_view, ops
from napari_materialize.cli import main
from napari_materialize.errors import EngineClosed, OptionError, TargetError
from napari_materialize.estimate import Estimate, may_be_tight
from napari_materialize.job import planned
from napari_materialize.session import Session
from napari_materialize.stores import Volume, _directory

WAIT = 60.0


class Small(MemoryStore):
    """A store on a volume with so much left."""

    def __init__(self, free, block=1):
        super().__init__()
        self.free, self.block = free, block

    def volume(self):
        return Volume("a small one", self.free, self.block)


class Told:
    """An engine's chunk service that keeps how chunks were asked for."""

    def __init__(self, engine):
        self._engine = engine
        self.asked = []

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def claim_all(self, view, level, indices, **options):
        self.asked += [(level, index, options["background"]) for index in indices]
        return self._engine.claim_all(view, level, indices, **options)


def noise(shape=(64, 64, 64), seed=0):
    return np.random.default_rng(seed).integers(1, 255, shape).astype("u1")


def mixed():
    """A volume whose chunks are of very different sizes once compressed."""
    voxels = noise((96, 96, 96))
    voxels[40:, :, :] = 7
    voxels[:, :30, :] = 0
    return voxels


# ---------------------------------------------------------------------- bytes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": None},
        {"format": "n5", "compression": "zstd"},
        {"format": "zarr3", "shards": (2, 2, 2)},
        {"pyramid": 2},
        {"skip_empty": False},
        {"extent": "box", "box": Box((5, 9, 11), (91, 80, 96))},
        {"box": Box((0, 0, 0), (30, 96, 96))},
    ],
    ids=str,
)
def test_the_bytes_are_those_of_the_job(options):
    view = open_view(mixed(), ["invert"], chunks=(16, 16, 16))
    with Engine(slots=3) as engine:
        told = engine.estimate(view, MemoryStore(), **options)
        done = engine.materialize(view, MemoryStore(), **options)
    assert told.chunks == done.chunks
    assert 0.6 * done.bytes < told.bytes < 1.6 * done.bytes
    assert told.most >= done.bytes
    assert 0 < told.measured <= 96
    assert told.seconds is not None
    assert told.free is told.fits is None


def test_without_compression_the_bytes_are_exact():
    view = open_view(noise(), chunks=(16, 16, 16))
    with Engine(slots=2) as engine:
        told = engine.estimate(view, MemoryStore(), compression=None)
    assert told.bytes == 64**3


def test_chunks_that_are_empty_take_nothing():
    view = open_view(np.zeros((64, 64), "u1"), chunks=(8, 8))
    with Engine(slots=2) as engine:
        told = engine.estimate(view, Small(free=10_000))
    assert (told.bytes, told.fits) == (0, True)
    assert "10.0 kB are free" in told.sentence


def test_levels_and_channels_are_counted():
    levels = [noise((2, 64, 64)), noise((2, 32, 32), 1)]
    view = open_view(levels, chunks=(1, 8, 8), axes="cyx")
    with Engine(slots=2) as engine:
        told = engine.estimate(view, MemoryStore(), levels=[0, 1], compression=None)
        done = engine.materialize(view, MemoryStore(), levels=[0, 1], compression=None)
    assert (told.chunks, told.bytes) == (done.chunks, done.bytes)


# ---------------------------------------------------------------------- few chunks, nothing written


def test_a_few_chunks_are_asked_for_as_background_work_and_let_go():
    gate = Gate()
    view = open_view(np.arange(128 * 128).reshape(128, 128), [gate.op], chunks=(2, 2))
    with Engine(slots=3) as engine:
        service = Told(engine)
        from napari_materialize.estimate import estimate

        told = estimate(service, view, MemoryStore())
        assert told.chunks == 4096
        assert len(service.asked) <= 96
        assert all(background for _, _, background in service.asked)
        assert len(gate.calls) <= 96
        assert engine.resident(view) == []


def test_of_a_small_job_few_chunks_are_computed():
    gate = Gate()
    view = open_view(np.arange(16).reshape(4, 4), [gate.op], chunks=(1, 1))
    with Engine(slots=2) as engine:
        told = engine.estimate(view, MemoryStore())
    assert len(gate.calls) <= 2 + 4
    assert told.seconds is not None


def test_nothing_is_created(tmp_path):
    view = open_view(noise(), chunks=(16, 16, 16))
    with Engine(slots=2) as engine:
        told = engine.estimate(view, tmp_path / "new" / "out.zarr")
    assert list(tmp_path.iterdir()) == []
    assert told.fits is True
    assert told.free is not None


def test_what_a_job_refuses_is_refused(tmp_path):
    view = open_view(noise(), chunks=(16, 16, 16))
    (tmp_path / "notes").write_text("mine")
    with Engine(slots=2) as engine:
        with pytest.raises(OptionError, match="colour"):
            engine.estimate(view, MemoryStore(), colour=3)
        with pytest.raises(TargetError, match="must be empty"):
            engine.estimate(view, tmp_path)
        with pytest.raises(TargetError, match="did not write"):
            engine.estimate(view, tmp_path, existing="overwrite")
    with pytest.raises(EngineClosed):
        engine.estimate(view, MemoryStore())


def test_what_is_not_there_in_time_is_given_up():
    gate = Gate(shut=True)
    view = open_view(np.arange(4096).reshape(64, 64), [gate.op], chunks=(4, 4))
    with Engine(slots=2) as engine:
        told = engine.estimate(view, MemoryStore(), within=0.02)
        assert told.seconds is None
        assert told.measured == 0
        assert told.bytes >= 4096 * 8
        assert "an unknown time and at most" in told.sentence
        gate.open.set()
    assert len(gate.calls) <= 4


def test_cancel_ends_it():
    gate, cancel = Gate(shut=True), threading.Event()
    view = open_view(np.arange(4096).reshape(64, 64), [gate.op], chunks=(4, 4))
    found = []
    with Engine(slots=2) as engine:
        thread = threading.Thread(
            target=lambda: found.append(
                engine.estimate(view, MemoryStore(), within=WAIT, cancel=cancel)
            )
        )
        thread.start()
        assert gate.entered.acquire(timeout=WAIT)
        cancel.set()
        thread.join(WAIT)
        gate.open.set()
    assert found[0].measured == 0


def test_what_fails_is_told():
    def fail(block):
        raise ValueError("no luck")

    view = open_view(noise(), [ops.Function(fail, dtype="uint8")], chunks=(16, 16, 16))
    with Engine(slots=2) as engine:
        told = engine.estimate(view, MemoryStore())
    assert told.failed > 0
    assert "no luck" in told.sentence


# ---------------------------------------------------------------------- what is there already


def test_a_job_that_goes_on_has_less_to_make():
    view = open_view(noise(), ["invert"], chunks=(16, 16, 16))
    store, cancel = MemoryStore(), threading.Event()
    with Engine(slots=2) as engine:
        engine.materialize(
            view, store, cancel=cancel, on_progress=lambda c: c["done"] > 30 and cancel.set()
        )
        told = engine.estimate(view, store, existing="resume")
        again = engine.materialize(view, store, existing="resume")
        assert (told.chunks, told.found) == (again.chunks, again.found)
        assert told.chunks < 64
        whole = engine.estimate(view, store, existing="resume")
    assert (whole.chunks, whole.sentence) == (0, "nothing is left to be made")


def test_what_is_overwritten_gives_its_room_back():
    view = open_view(noise(), chunks=(16, 16, 16))
    store = Small(free=1000)
    materialize(view, store, compression=None)
    with Engine(slots=2) as engine:
        told = engine.estimate(view, store, compression=None, existing="overwrite")
    assert told.free > 64**3
    assert told.bytes <= told.free


# ---------------------------------------------------------------------- whether it fits


@pytest.mark.parametrize(
    ("free", "block", "fits", "words"),
    [
        (100_000, 1, False, "will not fit: 100 kB are free"),
        (64**3 * 2, 1, True, "; 524 kB are free"),
        (64**3 + 1000, 1, False, "may not fit"),
        (64**3 * 2, 65536, False, "may not fit"),
    ],
)
def test_whether_it_fits(free, block, fits, words):
    view = open_view(noise(), chunks=(16, 16, 16))
    store = Small(free, block)
    with Engine(slots=2) as engine:
        told = engine.estimate(view, store, compression=None)
    assert told.fits is fits
    assert words in told.sentence
    assert may_be_tight(planned(view, store, {})) is not (free > 64**3 + 64 * (64 + block))


def test_what_compresses_well_may_fit_where_its_voxels_do_not():
    view = open_view(np.full((64, 64, 64), 9, "u1"), chunks=(16, 16, 16))
    store = Small(50_000)
    assert may_be_tight(planned(view, store, {}))
    with Engine(slots=2) as engine:
        assert engine.estimate(view, store).fits


def test_the_volume_of_a_folder_that_is_not_there_is_its_parents(tmp_path):
    volume = DirectoryStore(tmp_path / "a" / "b").volume()
    assert volume.place == str(tmp_path)
    assert volume.free > 0
    (tmp_path / "file").write_text("")
    assert _directory.volume_of(str(tmp_path / "file" / "x")).place == str(tmp_path)


# ---------------------------------------------------------------------- the command line


@pytest.fixture
def source(tmp_path):
    place = tmp_path / "source.zarr"
    materialize(open_view(noise(), chunks=(16, 16, 16)), place)
    return place


def test_the_command_line_tells_and_writes_nothing(source, tmp_path, capsys):
    run = ["run", str(source), str(tmp_path / "out.zarr"), "--op", "invert", "--estimate"]
    assert main(run) == 0
    assert "for 64 chunks" in capsys.readouterr().out
    assert main([*run, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["status"], told["chunks"], told["fits"]) == ("estimated", 64, True)
    assert {path.name for path in tmp_path.iterdir()} == {"source.zarr"}
    assert main(["run", str(source), str(source), "--estimate"]) == 2


def test_a_run_that_will_not_fit_is_warned_of(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_directory, "volume_of", lambda folder: Volume(folder, 10_000, 512))
    assert main(["run", str(source), str(tmp_path / "out.zarr")]) == 0
    err = capsys.readouterr().err
    assert err.count("warning") == 1
    assert "will not fit: 10.0 kB are free" in err
    assert main(["run", str(source), str(tmp_path / "none.zarr"), "--op", "threshold:low=300"]) == 0
    assert "warning" not in capsys.readouterr().err


# ---------------------------------------------------------------------- the session


class Heard:
    """Waits for a session's `estimated`."""

    def __init__(self, session):
        self.event = threading.Event()
        session.estimated.connect(self.event.set)


def asked(tmp_path, **fields):
    session = Session()
    session.change(source=noise(), folder=str(tmp_path), ops=("invert",), **fields)
    return session


def test_a_session_measures_in_the_background_until_the_next_change(tmp_path):
    session = asked(tmp_path)
    heard = Heard(session)
    assert session.estimate is None
    session.measure()
    assert heard.event.wait(WAIT)
    assert session.estimate.chunks == session.resolved.plan.chunks
    assert session.estimate_problem is None
    heard.event.clear()
    session.measure()  # it is known
    assert not heard.event.is_set()
    session.change(compression=None)
    assert session.estimate is None
    session.measure()
    assert heard.event.wait(WAIT)
    assert session.estimate.bytes == 64**3
    session.close()
    assert list(Path(tmp_path).iterdir()) == []


def test_an_answer_to_what_was_asked_before_is_dropped(tmp_path):
    gate = Gate(shut=True)
    session = asked(tmp_path)
    session.change(source=np.arange(64).reshape(8, 8), ops=(gate.op,))
    told = []
    session.estimated.connect(lambda: told.append(session.estimate))
    session.measure()
    assert gate.entered.acquire(timeout=WAIT)
    session.change(ops=("invert",))
    heard = Heard(session)
    session.measure()
    gate.open.set()
    assert heard.event.wait(WAIT)
    session.close()
    assert [type(each) for each in told] == [Estimate]


def test_why_nothing_was_found_is_told(tmp_path):
    session = asked(tmp_path, target=str(tmp_path / "out.zarr"))
    heard = Heard(session)
    (tmp_path / "out.zarr").mkdir()
    (tmp_path / "out.zarr" / "mine").write_text("")
    session.measure()
    assert heard.event.wait(WAIT)
    assert session.estimate is None
    assert "must be empty" in session.estimate_problem
    session.close()


def test_a_session_that_cannot_run_measures_nothing(tmp_path):
    session = Session()
    session.measure()
    assert session.estimate is None
    assert not [t for t in threading.enumerate() if "estimate" in t.name]


def test_an_estimate_is_values():
    told = Estimate(1, 0.5, 10, 20)
    assert json.loads(json.dumps(asdict(told)))["chunks"] == 1
    assert str(told) == told.sentence
