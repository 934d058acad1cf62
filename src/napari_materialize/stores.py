"""Where bytes go: a folder, a dictionary in memory, or anything with one method, ``put``.

Owns paths inside a store, whole-file writes and the reading of a target as a person wrote it.
It knows no format and no chunk (`layout` names things), compresses nothing (`codecs`) and does
not decide whether a target may be written to (the job does).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from urllib.parse import urlsplit
from urllib.request import url2pathname

from napari_materialize.errors import StoreError, TargetError

if TYPE_CHECKING:
    from collections.abc import Buffer

__all__ = ["DirectoryStore", "MemoryStore", "ReadableStore", "WritableStore", "open_store"]

_LOCK = ".napari-materialize-job"
"""The file that stands for the one job that may write."""

_TEMPORARY = ".napari-materialize-writing-"
"""How a file that is not whole yet is called: no document and no chunk begins like this."""

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]+):(?=//)|(?P<file>(?i:file)):(?=/)")
"""A scheme of two letters or more, so that a Windows drive is not taken for one."""

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than this system allows",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENAMETOOLONG: "the name is too long for this file system",
    errno.EISDIR: "a folder is in its place",
    errno.ENOTDIR: "a file is where a folder has to be",
    errno.EEXIST: "a file is where a folder has to be",
}


@runtime_checkable
class WritableStore(Protocol):
    """Anything a result can be written to.

    A store is called from several threads at once, never twice for the same path at a time.
    """

    def put(self, path: str, data: Buffer, /) -> object:
        """Store ``data`` under ``path`` ("/" between segments), whole or not at all.

        What was there before is replaced; what is returned is not looked at.
        """


@runtime_checkable
class TakenStore(Protocol):
    """A store that one job at a time can take for itself."""

    def begin(self) -> None:
        """Take it, or raise a `TargetError`."""

    def end(self) -> None:
        """Give it back."""


@runtime_checkable
class ReadableStore(Protocol):
    """What a job can ask of a store before it writes there and when it resumes."""

    @property
    def location(self) -> str | None:
        """A place a person can go to, or None."""

    def get(self, path: str, /) -> bytes | None:
        """Return what is stored under ``path``, or None if nothing is."""

    def exists(self) -> bool:
        """Whether the place is there, empty or not."""

    def is_empty(self) -> bool:
        """Whether nothing is stored there, by us or by anybody."""


def _segments(path: str) -> list[str]:
    """Check a path inside a store and return its segments."""
    segments = path.split("/")
    if path.startswith("/") or os.path.splitdrive(path)[0]:
        rule = "must be relative to the store"
    elif "\\" in path or "\0" in path:
        rule = "must not hold a backslash or NUL; put / between segments"
    elif not {"", ".", ".."}.isdisjoint(segments):
        rule = 'must have segments other than "", "." and ".."'
    elif any(segment.startswith(_TEMPORARY) for segment in segments):
        rule = f"must not begin like a file that is being written, {_TEMPORARY!r}"
    else:
        return segments
    raise TargetError(f"path in a store: it {rule}, got {path!r}")


def _store_error(verb: str, place: str, error: OSError) -> StoreError:
    """Return an error that names ``place``, not the temporary name, and the reason."""
    reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
    failure = StoreError(f"{verb} {place} failed: {reason}")
    failure.errno = error.errno
    return failure


class DirectoryStore:
    """A store in a folder, which is created by the first `put` and not before.

    A file appears under its name when all its bytes are written: a reader, a crash or a full
    disk never meets half of it. (Nothing is forced to the disk: after a power failure the file
    system decides what it kept.) May be used from any thread.

    Parameters
    ----------
    path : str or os.PathLike
        The folder; a relative one counts from the working directory of now.
    root : str or os.PathLike, optional
        A folder that everything written must stay within once links are resolved.

    Raises
    ------
    TargetError
        If ``path`` is empty, something other than a folder, or outside ``root``. Nothing is
        created.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = DirectoryStore(folder + "/out.zarr")
    ...     print(store.exists())
    ...     store.put("0/.zarray", b"{}")
    ...     print(store.get("0/.zarray"), store.is_empty())
    False
    b'{}' False
    """

    def __init__(
        self, path: str | os.PathLike[str], root: str | os.PathLike[str] | None = None
    ) -> None:
        text = os.fspath(path)
        if not text or "\0" in text:
            raise TargetError(f"target: a folder's path is needed, got {text!r}")
        self._path = Path(os.path.abspath(text))  # noqa: PTH100 (Path.resolve would follow links)
        self._root = None if root is None else Path(root).resolve()
        if self._path.is_symlink() and not self._path.exists():
            raise TargetError(
                f"target {self._path}: must be a folder or nothing yet, found a link that leads "
                "nowhere; remove the link or name another folder"
            )
        if self._path.exists() and not self._path.is_dir():
            raise TargetError(
                f"target {self._path}: must be a folder or nothing yet, found a file; name "
                "another folder"
            )
        self._check_inside(self._path)
        self._lock = threading.Lock()
        self._made: set[str] = set()
        self._token = secrets.token_hex(4)
        self._count = itertools.count()

    def __repr__(self) -> str:
        root = "" if self._root is None else f", root={str(self._root)!r}"
        return f"DirectoryStore({str(self._path)!r}{root})"

    def __reduce__(self) -> tuple[type[DirectoryStore], tuple[str, str | None]]:
        # a worker elsewhere remembers its own folders and takes its own temporary names
        root = None if self._root is None else str(self._root)
        return DirectoryStore, (str(self._path), root)

    @property
    def location(self) -> str:
        """The folder's absolute path."""
        return str(self._path)

    def exists(self) -> bool:
        """Whether the folder is there."""
        return self._path.exists()

    def is_empty(self) -> bool:
        """Whether the folder is not there or has nothing in it, hidden files included.

        Raises
        ------
        StoreError
            If the folder cannot be looked into.
        """
        try:
            with os.scandir(self._path) as entries:
                return next(entries, None) is None
        except FileNotFoundError:
            return True
        except OSError as error:
            raise _store_error("looking into", str(self._path), error) from error

    def begin(self) -> None:
        """Take the folder for one job: nobody else can take it until `end`.

        A file that only one can make stands for it. One that a killed process left behind makes
        the folder not empty, and so is refused like anything else that is there.

        Raises
        ------
        TargetError
            If somebody else has taken it, or put something there, meanwhile.
        """
        lock = f"{self._path}{os.sep}{_LOCK}"
        try:
            self._make(str(self._path))
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            raise TargetError(
                f"target {self._path}: another job writes there; wait for it, or choose another "
                "folder"
            ) from None
        except OSError as error:
            raise _store_error("writing", lock, error) from error
        if any(entry.name != _LOCK for entry in self._path.iterdir()):
            self.end()
            raise TargetError(
                f"target {self._path}: another job has written there meanwhile; choose another "
                "folder"
            )

    def end(self) -> None:
        """Give the folder back."""
        with contextlib.suppress(FileNotFoundError):  # removed with the folder, and that is told
            os.unlink(f"{self._path}{os.sep}{_LOCK}")  # noqa: PTH108

    def get(self, path: str, /) -> bytes | None:
        """Return the bytes of a file, or None if there is no such file.

        Raises
        ------
        TargetError
            If ``path`` is not a path inside a store.
        StoreError
            If the file is there and cannot be read.
        """
        file = self._path.joinpath(*_segments(path))
        try:
            return file.read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise _store_error("reading", str(file), error) from error

    def put(self, path: str, data: Buffer, /) -> None:
        """Write a file whole or not at all.

        Parameters
        ----------
        path : str
            Relative to the folder, "/" between segments, none of them empty, "." or "..".
        data : bytes-like
            The whole file.

        Raises
        ------
        TargetError
            If ``path`` is not a path inside a store or leads out of ``root``.
        StoreError
            If the file could not be written; what was under its name before is still there.
        """
        *folders, name = _segments(path)
        folder = os.path.join(self._path, *folders)  # noqa: PTH118 (pathlib costs a tenth of a write)
        target = f"{folder}{os.sep}{name}"
        # another process or a forked one must not meet this name: the counter alone would repeat
        unique = f"{os.getpid()}-{self._token}-{next(self._count)}"
        temporary = f"{folder}{os.sep}{_TEMPORARY}{unique}"
        try:
            self._write_new(folder, temporary, data)
            os.replace(temporary, target)  # noqa: PTH105 (see above)
        except BaseException as error:
            with contextlib.suppress(OSError):  # it may not have come into being; `error` is told
                os.unlink(temporary)  # noqa: PTH108
            if isinstance(error, OSError) and not isinstance(error, TargetError):
                raise _store_error("writing", target, error) from error
            raise

    def _write_new(self, folder: str, temporary: str, data: Buffer) -> None:
        """Write ``data`` to a new file, making its folder if need be."""
        self._make(folder)
        # a folder that was made and is gone is an error: what was in it is lost, and the rest of a
        # result must not look whole
        with open(temporary, "xb") as file:  # noqa: PTH123 (see `put`)
            file.write(data)

    def _make(self, folder: str) -> None:
        """Make a folder and its parents, once."""
        if folder in self._made:
            return
        with self._lock:
            if folder not in self._made:  # another thread made it meanwhile
                # before and not after: nothing is created outside the root
                self._check_inside(Path(folder))
                root = str(self._path)
                if root not in self._made:
                    os.makedirs(root, exist_ok=True)  # noqa: PTH103
                    self._made.add(root)
                missing = []
                while folder not in self._made:
                    missing.append(folder)
                    folder = os.path.dirname(folder)  # noqa: PTH120
                for one in reversed(missing):
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(one)  # noqa: PTH102  (not its parents: see `_write_new`)
                    self._made.add(one)

    def _check_inside(self, folder: Path) -> None:
        """Refuse a folder that lies outside the root once links are resolved."""
        if self._root is not None and not folder.resolve().is_relative_to(self._root):
            raise TargetError(
                f"target {folder}: must stay within {self._root}, leads to {folder.resolve()}; "
                "name a folder inside"
            )


class MemoryStore:
    """A store in memory, for tests and for zipping a small result.

    Examples
    --------
    >>> store = MemoryStore()
    >>> store.put("0/c/0/0", b"voxels")
    >>> store.files
    {'0/c/0/0': b'voxels'}
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        """What was put, by path, in the order the paths were first put."""

    def __repr__(self) -> str:
        return f"<MemoryStore of {len(self.files)} files>"

    @property
    def location(self) -> None:
        """None: there is no place to go to."""
        return

    def exists(self) -> bool:
        """Whether anything was put: a place in memory begins with what is put there."""
        return bool(self.files)

    def is_empty(self) -> bool:
        """Whether nothing was put."""
        return not self.files

    def get(self, path: str, /) -> bytes | None:
        """Return what was put under ``path``, or None.

        Raises
        ------
        TargetError
            If ``path`` is not a path inside a store.
        """
        _segments(path)
        return self.files.get(path)

    def put(self, path: str, data: Buffer, /) -> None:
        """Keep a copy of ``data`` under ``path``. May be called from any thread.

        Raises
        ------
        TargetError
            If ``path`` is not a path inside a store.
        """
        _segments(path)
        # copied first: storing one object under one key is a single step for every other thread
        self.files[path] = bytes(data)


def open_store(where: str | os.PathLike[str] | WritableStore) -> WritableStore:
    """Return the store that ``where`` names. Nothing is created.

    Parameters
    ----------
    where : str, os.PathLike or WritableStore
        A folder's path, a ``file://`` URL (percent-encoded), or a store, returned as it is.

    Raises
    ------
    TargetError
        If it is something else, a URL of a kind that is not written to yet, a ``file://`` URL of
        another machine, or what `DirectoryStore` refuses.

    Examples
    --------
    >>> open_store("file:///tmp/a%20b.zarr").location
    '/tmp/a b.zarr'
    >>> open_store("s3://bucket/out.zarr")
    Traceback (most recent call last):
        ...
    napari_materialize.errors.TargetError: target: ...
    """
    if isinstance(where, WritableStore):
        return where
    if isinstance(where, os.PathLike):
        return DirectoryStore(where)
    if not isinstance(where, str):
        raise TargetError(
            "target: a path, a file:// URL or an object with a method put(path, data) is needed, "
            f"got {type(where).__name__}"
        )
    url = _URL.match(where)
    if url is None:
        return DirectoryStore(os.path.expanduser(where))  # noqa: PTH111  (an unknown ~user stays)
    scheme = (url["scheme"] or url["file"]).lower()
    if scheme != "file":
        # the rest of the URL may hold a password and is not repeated
        raise TargetError(
            f"target: {scheme}:// URLs cannot be written to yet; give a folder's path, a file:// "
            "URL, or an object with a method put(path, data)"
        )
    return DirectoryStore(_path_of(where))


def _path_of(url: str) -> str:
    """Return the path that a ``file://`` URL names on this machine."""
    parts = urlsplit(url)
    if parts.netloc.lower() not in {"", "localhost"}:
        raise TargetError(
            f"target: a file:// URL must name this machine (file:///folder), got the host "
            f"{parts.netloc!r}"
        )
    if parts.query or parts.fragment or not parts.path.strip("/"):
        raise TargetError(
            "target: a file:// URL must be a path alone, with ? and # written %3F and %23, got "
            f"{url!r}"
        )
    return url2pathname(parts.path)
