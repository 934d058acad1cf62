"""The contract of a store, run on both; then what only a folder has: links, disks, threads."""

from __future__ import annotations

import errno
import pickle
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zarr

import napari_materialize as nm
from napari_materialize.errors import InputError, StoreError, TargetError
from napari_materialize.stores import (
    DirectoryStore,
    MemoryStore,
    ReadableStore,
    WritableStore,
    open_store,
)

BAD_PATHS = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../out",
    "0/../../out",
    ".",
    "./0",
    "0/.",
    "0//1",
    "0/",
    "0\\1",
    "..\\out",
    "0/\0",
    ".napari-materialize-writing-1-2-3",
    "0/.napari-materialize-writing-1-2-3",
]


@pytest.fixture(params=["directory", "memory"])
def store(request, tmp_path):
    return DirectoryStore(tmp_path / "out.zarr") if request.param == "directory" else MemoryStore()


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


class TestContract:
    def test_satisfies_both_protocols(self, store):
        assert isinstance(store, WritableStore)
        assert isinstance(store, ReadableStore)

    def test_is_empty_until_something_is_put(self, store):
        assert (store.exists(), store.is_empty()) == (False, True)
        store.put("0/c/0", b"voxels")
        assert (store.exists(), store.is_empty()) == (True, False)

    @pytest.mark.parametrize(
        "data", [b"", b"one", bytearray(b"two"), memoryview(b"three"), memoryview(np.arange(5))]
    )
    def test_gives_back_what_was_put(self, store, data):
        store.put("0/.zarray", data)
        assert store.get("0/.zarray") == bytes(data)

    def test_replaces(self, store):
        store.put(".zattrs", b"first and longer")
        store.put(".zattrs", b"second")
        assert store.get(".zattrs") == b"second"

    def test_keeps_a_copy(self, store):
        data = bytearray(b"before")
        store.put("0", data)
        data[:] = b"after!"
        assert store.get("0") == b"before"

    def test_missing_is_none(self, store):
        store.put("0/1/2", b"voxels")
        assert [store.get(path) for path in ("1", "0/1/3", "0/1", "0/1/2/3")] == [None] * 4

    @pytest.mark.parametrize("path", BAD_PATHS)
    def test_refuses_a_path_that_is_not_inside(self, store, path):
        with pytest.raises(TargetError, match=r"path in a store: it must"):
            store.put(path, b"voxels")
        with pytest.raises(TargetError, match=r"path in a store: it must"):
            store.get(path)
        assert (store.exists(), store.is_empty()) == (False, True)

    @pytest.mark.parametrize("path", ["...", ".zarray", "a..b", "0/..c", "0/a b\u00b5"])
    def test_takes_names_that_only_look_odd(self, store, path):
        store.put(path, b"voxels")
        assert store.get(path) == b"voxels"

    def test_refuses_what_is_not_bytes(self, store):
        with pytest.raises(TypeError):
            store.put("0/1", "text")
        assert store.get("0/1") is None

    def test_takes_many_threads(self, store):
        paths = [f"{index % 7}/{index % 13}/{index}" for index in range(300)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda path: store.put(path, path.encode() * 50), paths))
        assert [store.get(path) for path in paths] == [path.encode() * 50 for path in paths]


class TestZip:
    def test_zarr_opens_it_as_it_is(self, tmp_path):
        voxels = np.arange(24, dtype="u1").reshape(2, 3, 4)
        target = MemoryStore()
        nm.materialize(voxels, target, format="zarr3")
        target.write_zip(tmp_path / "a b.zarr.zip")
        store = zarr.storage.ZipStore(tmp_path / "a b.zarr.zip", mode="r")
        np.testing.assert_array_equal(zarr.open_group(store, mode="r")["0"][:], voxels)
        store.close()
        assert [path.name for path in tmp_path.iterdir()] == ["a b.zarr.zip"]

    def test_the_same_files_are_the_same_bytes(self, tmp_path):
        target = MemoryStore()
        target.put("0/0", b"voxels")
        for name in ("a", "b"):
            target.write_zip(tmp_path / name)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_replaces_nothing_and_leaves_nothing_behind(self, tmp_path):
        (tmp_path / "a").write_bytes(b"mine")
        with pytest.raises(TargetError, match="must not be there yet"):
            MemoryStore().write_zip(tmp_path / "a")
        with pytest.raises(StoreError, match="No such file"):
            MemoryStore().write_zip(tmp_path / "gone" / "a")
        assert files_in(tmp_path) == {"a": b"mine"}


class TestDirectoryStore:
    def test_creates_nothing_before_the_first_put(self, tmp_path):
        store = DirectoryStore(tmp_path / "a" / "out.zarr", root=tmp_path)
        assert (store.exists(), store.is_empty(), store.get("0")) == (False, True, None)
        assert list(tmp_path.iterdir()) == []

    def test_leaves_nothing_but_the_files(self, tmp_path):
        store = DirectoryStore(tmp_path)
        store.put("0/0/0", b"a")
        store.put("0/0/0", b"b")
        store.put(".zgroup", b"c")
        assert files_in(tmp_path) == {"0/0/0": b"b", ".zgroup": b"c"}

    def test_stays_where_it_was_opened(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        store = DirectoryStore("out.zarr")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.put("0", b"voxels")
        assert store.location == str(tmp_path / "out.zarr")
        assert files_in(tmp_path) == {"out.zarr/0": b"voxels"}

    def test_a_folder_that_somebody_removed_is_an_error(self, tmp_path: Path) -> None:
        store = DirectoryStore(tmp_path / "out.zarr")
        store.put("0/0/0", b"a")
        shutil.rmtree(tmp_path / "out.zarr")
        for path in ("0/0/1", "0/1/0", ".zattrs"):
            with pytest.raises(StoreError, match="No such file"):
                store.put(path, b"b")
        assert list(tmp_path.iterdir()) == []

    def test_one_job_at_a_time_takes_a_folder(self, tmp_path: Path) -> None:
        one, other = (DirectoryStore(tmp_path / "out.zarr") for _ in range(2))
        one.begin()
        with pytest.raises(TargetError, match="another job writes there"):
            other.begin()
        one.put("0/0", b"a")
        one.end()
        with pytest.raises(TargetError, match="has written there meanwhile"):
            other.begin()
        assert sorted(p.name for p in (tmp_path / "out.zarr").iterdir()) == ["0"]

    def test_a_reader_never_sees_half_a_file(self, tmp_path):
        store = DirectoryStore(tmp_path)
        whole = [bytes([value]) * 500_000 for value in (1, 2)]
        store.put("0/0", whole[0])
        with ThreadPoolExecutor(1) as writer:
            done = writer.submit(lambda: [store.put("0/0", whole[i % 2]) for i in range(60)])
            seen = {store.get("0/0") for _ in range(5)}
            while not done.done():
                seen.add(store.get("0/0"))
        assert seen <= set(whole)

    def test_goes_to_another_process(self, tmp_path):
        store = DirectoryStore(tmp_path / "out.zarr", root=tmp_path)
        again = pickle.loads(pickle.dumps(store))
        again.put("0", b"voxels")
        assert (repr(again), store.get("0")) == (repr(store), b"voxels")

    @pytest.mark.parametrize("path", ["", "a\0b"])
    def test_refuses_no_path(self, path):
        with pytest.raises(TargetError, match="a folder's path is needed"):
            DirectoryStore(path)

    def test_refuses_a_file(self, tmp_path):
        (tmp_path / "out.zarr").write_bytes(b"mine")
        with pytest.raises(TargetError, match="found a file"):
            DirectoryStore(tmp_path / "out.zarr")

    def test_refuses_a_link_that_leads_nowhere(self, tmp_path):
        (tmp_path / "out.zarr").symlink_to(tmp_path / "gone")
        with pytest.raises(TargetError, match="leads nowhere"):
            DirectoryStore(tmp_path / "out.zarr")
        assert not (tmp_path / "gone").exists()

    def test_root_holds_through_links(self, tmp_path):
        outside, root = tmp_path / "outside", tmp_path / "root"
        outside.mkdir()
        root.mkdir()
        (root / "link").symlink_to(outside)
        for path in (outside, root / "link", root / ".." / "outside", root / "link" / "new"):
            with pytest.raises(TargetError, match="must stay within"):
                DirectoryStore(path, root=root)
        assert list(outside.iterdir()) == []

    def test_root_holds_for_a_link_inside_the_store(self, tmp_path):
        outside, root = tmp_path / "outside", tmp_path / "root"
        outside.mkdir()
        (root / "out.zarr").mkdir(parents=True)
        (root / "out.zarr" / "0").symlink_to(outside)
        store = DirectoryStore(root / "out.zarr", root=root)
        for path in ("0/1", "0/1/2"):
            with pytest.raises(TargetError, match="must stay within"):
                store.put(path, b"voxels")
        assert list(outside.iterdir()) == []
        store.put("1/1", b"voxels")
        assert store.get("1/1") == b"voxels"

    def test_replaces_a_link_and_not_what_it_leads_to(self, tmp_path):
        (tmp_path / "precious").write_bytes(b"precious")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "0").symlink_to(tmp_path / "precious")
        DirectoryStore(tmp_path / "out").put("0", b"voxels")
        assert (tmp_path / "precious").read_bytes() == b"precious"
        assert (tmp_path / "out" / "0").read_bytes() == b"voxels"

    def test_names_a_folder_in_the_way(self, tmp_path):
        store = DirectoryStore(tmp_path)
        store.put("0/1/2", b"voxels")
        with pytest.raises(StoreError, match=r"writing .*0/1 failed: a folder is in its place"):
            store.put("0/1", b"voxels")
        assert files_in(tmp_path) == {"0/1/2": b"voxels"}

    def test_names_a_file_in_the_way(self, tmp_path):
        store = DirectoryStore(tmp_path)
        store.put("0/1", b"voxels")
        with pytest.raises(StoreError, match=r"writing .*0/1/2 failed: a file is where a folder"):
            store.put("0/1/2", b"voxels")
        assert files_in(tmp_path) == {"0/1": b"voxels"}

    def test_names_what_the_file_system_cannot_name(self, tmp_path):
        with pytest.raises(StoreError, match="the name is too long") as caught:
            DirectoryStore(tmp_path).put("a" * 300, b"voxels")
        assert caught.value.errno == errno.ENAMETOOLONG
        assert isinstance(caught.value, OSError)
        assert not isinstance(caught.value, InputError)


def run_python(code: str, *arguments: object) -> str:
    """Run code in a process of its own, whose limits and user it may change."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="limits and users are POSIX")
class TestFailingDisk:
    def test_a_write_that_fails_half_way_leaves_the_old_file_and_no_other(self, tmp_path):
        out = run_python(
            """
            import resource, sys
            from napari_materialize.errors import StoreError
            from napari_materialize.stores import DirectoryStore

            store = DirectoryStore(sys.argv[1])
            store.put("0/0", b"old")
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            try:
                store.put("0/0", b"x" * 1_000_000)
            except StoreError as error:
                print(error.errno, error)
            store.put("0/1", b"small enough")
            """,
            tmp_path,
        )
        assert f"{errno.EFBIG} writing {tmp_path}/0/0 failed: the file would be larger" in out
        assert files_in(tmp_path) == {"0/0": b"old", "0/1": b"small enough"}

    def test_names_the_folder_that_may_not_be_written_to(self, tmp_path):
        (tmp_path / "locked").mkdir(mode=0o555)
        out = run_python(
            """
            import os, sys
            from napari_materialize.errors import StoreError
            from napari_materialize.stores import DirectoryStore

            store = DirectoryStore(sys.argv[1])
            if os.geteuid() == 0:  # the rules do not hold for root
                os.setuid(65534)
            try:
                store.put("0/0", b"voxels")
            except StoreError as error:
                print(error)
            """,
            tmp_path / "locked",
        )
        assert out.strip() == f"writing {tmp_path}/locked/0/0 failed: permission denied"
        assert list((tmp_path / "locked").iterdir()) == []

    def test_a_killed_writer_leaves_nothing_under_the_name(self, tmp_path):
        out = run_python(
            """
            import os, sys
            from napari_materialize.stores import DirectoryStore

            class Dies:
                # killed by its own data: a buffer is asked for once the file is open
                def __buffer__(self, flags):
                    os._exit(0)

            DirectoryStore(sys.argv[1]).put("0/.zarray", Dies())
            """,
            tmp_path,
        )
        assert out == ""
        (left,) = files_in(tmp_path)
        assert left.startswith("0/.napari-materialize-writing-")
        assert DirectoryStore(tmp_path).get("0/.zarray") is None


class TestOpenStore:
    @pytest.mark.parametrize("as_path", [str, Path])
    def test_takes_a_path(self, tmp_path, as_path):
        store = open_store(as_path(tmp_path / "50% #1?.zarr"))
        assert isinstance(store, DirectoryStore)
        assert store.location == str(tmp_path / "50% #1?.zarr")

    @pytest.mark.parametrize("prefix", ["file://", "FILE://", "file://localhost", "file:"])
    def test_takes_a_file_url(self, tmp_path, prefix):
        store = open_store(f"{prefix}{tmp_path}/a%20b%23%C2%B5.zarr")
        assert store.location == f"{tmp_path}/a b#\u00b5.zarr"

    def test_takes_what_pathlib_makes_of_a_path(self, tmp_path):
        path = tmp_path / "50% #1?\u00b5.zarr"
        assert open_store(path.as_uri()).location == str(path)

    def test_returns_anything_that_can_put(self):
        class Recording:
            def put(self, path, data, /):
                raise AssertionError("opening writes nothing")

        for store in (MemoryStore(), Recording()):
            assert open_store(store) is store

    @pytest.mark.parametrize(
        ("where", "sentence"),
        [
            ("https://host/out.zarr", "a web server is only read from"),
            ("memory://out.zarr", "memory:// URLs cannot be written to"),
            ("s3://", "it names no bucket"),
            ("s3://bucket/a/../b", "its path has an empty segment"),
            ("gs://bucket//out.zarr", "its path has an empty segment"),
            ("s3://key:secret@bucket/out.zarr", "credentials have their place"),
            ("file://host/out.zarr", "got the host 'host'"),
            ("file:///out.zarr?version=1", "must be a path alone"),
            ("file:///out.zarr#1", "must be a path alone"),
            ("file://", "must be a path alone"),
            ("file:///", "must be a path alone"),
            ("file:///out%00.zarr", "a folder's path is needed"),
            ("", "a folder's path is needed"),
            (b"out.zarr", "got bytes"),
            (None, "got NoneType"),
            ({}, "got dict"),
        ],
    )
    def test_refuses_the_rest_in_one_sentence(self, where, sentence, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(TargetError) as caught:
            open_store(where)
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_repeats_no_password(self):
        with pytest.raises(TargetError) as caught:
            open_store("s3://user:secret@bucket/out.zarr?token=secret")
        assert "secret" not in str(caught.value)
