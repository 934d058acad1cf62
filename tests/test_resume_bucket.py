"""Going on in a bucket, where files cannot grow and the lock is an object."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import napari_materialize as nm
from buckets import CREDENTIALS, Wrong, ask, proxy_to, s3_server, use_server
from napari_materialize.cli import main
from napari_materialize.errors import TargetError
from napari_materialize.stores import ObjectStore
from napari_materialize.stores._lock import Owner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VOXELS = np.random.default_rng(7).integers(1, 250, (40, 32, 32), "u1")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        ask("PUT", f"{url}/private")
        yield url


@pytest.fixture(autouse=True)
def credentials(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_server(monkeypatch, server, **CREDENTIALS)


def image() -> nm.View:
    return nm.open_view(VOXELS, chunks=(8, 8, 8))


def contents(url: str) -> dict[str, bytes | None]:
    store = ObjectStore(url)
    return {
        path: store.get(path) for path, _ in store.listing() if path.rpartition("/")[2].isdecimal()
    }


def test_an_aborted_job_goes_on_and_leaves_no_journal() -> None:
    stop = threading.Event()
    with nm.Engine(slots=4) as engine:
        engine.materialize(image(), "s3://private/whole.zarr", pyramid=1)
        target = "s3://private/out.zarr"
        done = engine.materialize(
            image(),
            target,
            pyramid=1,
            cancel=stop,
            on_progress=lambda counts: counts["done"] > 30 and stop.set(),
        )
        assert done.aborted
        store = ObjectStore(target)
        assert any("journal" in path for path, _ in store.listing())
        store.delete("0/0/0/0")
        again = engine.materialize(image(), target, pyramid=1, existing="resume")
    assert again.found > 10
    assert again.chunks + again.found == done.chunks
    assert contents(target) == contents("s3://private/whole.zarr")
    assert not any(".napari" in path for path, _ in store.listing())
    assert store.holder() is None
    assert main(["verify", target]) == 0


@pytest.mark.parametrize(("from_file", "code"), [(0, 2), (4, 1)])
def test_what_a_bucket_refuses_is_a_failed_job_once_something_is_there(
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    from_file: int,
    code: int,
) -> None:
    puts = itertools.count()

    def refuse(method: str, path: str, _: int) -> Wrong | None:
        mine = method == "PUT" and "refused" in path
        return Wrong(403) if mine and next(puts) >= from_file else None

    zarr.create_array(tmp_path / "in.zarr", data=VOXELS, chunks=(8, 8, 8))
    with proxy_to(server) as proxy:
        proxy.rule = refuse
        use_server(monkeypatch, proxy.url, **CREDENTIALS)
        target = f"s3://private/refused-{from_file}.zarr"
        assert main(["run", str(tmp_path / "in.zarr"), target]) == code
        assert ObjectStore(target).is_empty() == (code == 2)
    said = capsys.readouterr().err
    assert "the server refuses it (403)" in said, said
    assert "Traceback" not in said


def test_one_writer_and_a_dead_one_is_taken_over() -> None:
    target = "s3://private/taken.zarr"
    one = ObjectStore(target)
    one.begin()
    one.beat()
    with pytest.raises(TargetError, match=r"another job writes there \(process \d+ on"):
        nm.materialize(image(), target)
    key = one._key(".napari-materialize-job")
    me = Owner.me()
    dead = Owner(me.host, me.space, 2**22 + 7, me.started, me.since, "dead")
    one._objects.put(key, dead.dump())
    assert nm.materialize(image(), target).written == 80
    one.end()  # it is not its own any more, and nothing happens
    changed = nm.open_view(VOXELS // 2, chunks=(16, 16, 16))
    nm.materialize(changed, target, existing="overwrite", format="zarr3")
    assert len(contents(target)) == 12
    with nm.Engine(slots=2) as engine:
        np.testing.assert_array_equal(engine.array(nm.open_view(target))[:], VOXELS // 2)
