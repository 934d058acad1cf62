"""A store in a folder."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from napari_materialize.errors import StoreError, TargetError
from napari_materialize.stores._lock import FolderLock, TakenError
from napari_materialize.stores._places import LOCK, TEMPORARY, segments
from napari_materialize.stores._volume import Volume, volume_of

if TYPE_CHECKING:
    from collections.abc import Buffer, Iterator

__all__ = ["DirectoryStore"]

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

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
"""How a file comes into being: Python's own file object costs as much again as a small file."""


_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
"""How a file is opened that may be none: a pipe that nobody writes to would be waited for."""

MOST_BYTES = 2**32
"""Bytes of the largest file that is read: no chunk, shard, document or journal has more."""


def _store_error(verb: str, place: str, error: OSError) -> StoreError:
    """Return an error that names ``place``, not the temporary name, and the reason."""
    reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
    failure = StoreError(f"{verb} {place} failed: {reason}")
    failure.errno = error.errno
    return failure


def _in_the_way(path: Path) -> str | None:
    """Return what keeps a path from being a folder, and what to do, or None."""
    try:
        os.fsencode(path)
        there = path.exists()
        if path.is_symlink() and not there:
            return "found a link that leads nowhere; remove the link or name another folder"
        return "found a file; name another folder" if there and not path.is_dir() else None
    except (OSError, UnicodeError) as error:  # a name that is too long, a folder that is closed
        reason = getattr(error, "strerror", None) or "a name that the disk cannot have"
        return f"looking there failed ({reason}); choose another folder"


def _is_left(name: str) -> bool:
    return name == LOCK or name.startswith(TEMPORARY)


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
            raise TargetError(f"target: a folder's path is needed, got {text!r}; name one")
        self._path = Path(os.path.abspath(text))  # noqa: PTH100 (Path.resolve would follow links)
        self._root = None if root is None else Path(root).resolve()
        self._text = str(self._path)
        self._lead = self._text.rstrip(os.sep)
        """What the path of a folder inside begins with; pathlib costs a tenth of a write."""
        if (found := _in_the_way(self._path)) is not None:
            raise TargetError(f"target {self._path}: must be a folder or nothing yet, {found}")
        self._check_inside(self._path)
        self._lock = threading.Lock()
        self._made: set[str] = set()
        self._token = secrets.token_hex(4)
        self._count = itertools.count()
        self._taken = FolderLock(f"{self._path}{os.sep}{LOCK}")
        self._appended: dict[str, int] = {}

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

        What a killed job leaves does not count: the file that stands for it, and what it was
        writing when it had written nothing yet.

        Raises
        ------
        StoreError
            If the folder cannot be looked into.
        """
        try:
            with os.scandir(self._path) as entries:
                return all(_is_left(entry.name) for entry in entries)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise _store_error("looking into", str(self._path), error) from error

    def volume(self) -> Volume | None:
        """Return what is free where the folder lies, or will; None if the system tells nothing."""
        return volume_of(self.location)

    def begin(self, *, fresh: bool = True) -> None:
        """Take the folder for one job: nobody else can take it until `end`.

        Parameters
        ----------
        fresh : bool
            Whether it has to be empty.

        Raises
        ------
        TargetError
            If somebody has taken it, or if it has to be empty and is not.
        StoreError
            If the folder or the lock's file in it cannot be made.
        """
        try:
            self._make(str(self._path))
            self._taken.take()
        except TakenError as held:
            raise TargetError(
                f"target {self._path}: another job writes there ({held}); wait for it, or choose "
                "another folder"
            ) from None
        except OSError as error:
            raise _store_error("writing", f"{self._path}{os.sep}{LOCK}", error) from error
        if fresh and not self.is_empty():
            self.end()
            raise TargetError(
                f"target {self._path}: another job has written there meanwhile; choose another "
                "folder"
            )

    def beat(self) -> None:
        """Give a sign of life, so that other machines know that the job goes on.

        Raises
        ------
        StoreError
            If the lock is gone, or another job has taken the folder meanwhile.
        """
        lock = f"{self._path}{os.sep}{LOCK}"
        try:
            self._taken.beat()
        except TakenError as held:
            raise StoreError(
                f"writing {self._path} cannot go on: another job took it over meanwhile ({held})"
            ) from None
        except OSError as error:
            raise _store_error("keeping", lock, error) from error

    def holder(self) -> str | None:
        """Return who has taken the folder now, for a sentence; None if nobody has."""
        try:
            held = self._taken.holder()
        except OSError as error:
            raise _store_error("reading", f"{self._path}{os.sep}{LOCK}", error) from error
        return None if held is None else str(held)

    def end(self) -> None:
        """Give the folder back."""
        with self._lock:
            files, self._appended = list(self._appended.values()), {}
        for file in files:
            os.close(file)
        self._taken.release()

    def listing(self, *, sweep: bool = False) -> Iterator[tuple[str, int]]:
        """Walk the path and the size of all that is in the folder, but for the lock.

        Links are not followed: what is no file has the size -1.

        Parameters
        ----------
        sweep : bool
            Remove what a killed process was writing; else that is left and not told.

        Raises
        ------
        StoreError
            If a folder cannot be looked into.
        """
        folders = [""]
        while folders:
            inside = folders.pop()
            place = os.path.join(self._path, inside)  # noqa: PTH118 - faster than Path
            try:
                with os.scandir(place) as entries:
                    found = sorted(entries, key=lambda entry: entry.name)
                for entry in found:
                    if entry.name.startswith(TEMPORARY):
                        if sweep:
                            os.unlink(entry.path)  # noqa: PTH108 - faster than Path
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(f"{inside}{entry.name}/")
                    elif inside or entry.name != LOCK:
                        plain = entry.is_file(follow_symlinks=False)
                        size = entry.stat(follow_symlinks=False).st_size if plain else -1
                        yield f"{inside}{entry.name}", size
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _store_error("looking into", place, error) from error

    def delete(self, path: str, /) -> None:
        """Remove a file; nothing happens if there is none.

        Raises
        ------
        TargetError
            If ``path`` is not a path inside a store.
        StoreError
            If it is there and cannot be removed.
        """
        file = self._path.joinpath(*segments(path))
        with self._lock:
            appended = self._appended.pop(path, None)
        if appended is not None:
            os.close(appended)
        try:
            file.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _store_error("removing", str(file), error) from error

    def tidy(self) -> None:
        """Remove folders in the folder that hold nothing."""
        with self._lock:
            for place, _, _ in os.walk(self._path, topdown=False):
                if place != str(self._path):
                    with contextlib.suppress(OSError):  # it holds something, and so stays
                        os.rmdir(place)  # noqa: PTH106 - faster than Path
            self._made.clear()

    def append(self, path: str, data: bytes, /) -> None:
        """Put ``data`` behind what a file holds, in one piece, unless the disk is full.

        Raises
        ------
        TargetError
            If ``path`` is not a path inside a store.
        StoreError
            If not all of it could be written.
        """
        try:
            with self._lock:
                file = self._appended.get(path)
                if file is None:
                    place = f"{self._path}{os.sep}{'/'.join(segments(path))}"
                    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
                    file = self._appended[path] = os.open(place, flags, 0o644)
                if os.write(file, data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if isinstance(error, TargetError):
                raise
            raise _store_error("writing", f"{self._path}{os.sep}{path}", error) from error

    def get(self, path: str, /) -> bytes | None:
        """Return the bytes of a file, or None if there is no such file.

        Raises
        ------
        TargetError
            If ``path`` is not a path inside a store.
        StoreError
            If the file is there and cannot be read.
        """
        file = self._path.joinpath(*segments(path))
        try:
            handle = os.open(file, _READ)
            try:
                there = os.fstat(handle)
                if stat.S_ISDIR(there.st_mode):
                    return None
                if not stat.S_ISREG(there.st_mode):
                    raise OSError(errno.EINVAL, "it is no regular file")
                if there.st_size > MOST_BYTES:
                    raise OSError(f"it has more than {MOST_BYTES} bytes")
                with os.fdopen(handle, "rb", closefd=False) as opened:
                    return opened.read()
            finally:
                os.close(handle)
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
        *folders, name = segments(path)
        folder = os.sep.join((self._lead, *folders)) if folders else self._text  # noqa: PTH118 - above
        target = f"{folder}{os.sep}{name}"
        # another process or a forked one must not meet this name: the counter alone would repeat
        unique = f"{os.getpid()}-{self._token}-{next(self._count)}"
        temporary = f"{folder}{os.sep}{TEMPORARY}{unique}"
        try:
            self._write_new(folder, temporary, data)
            os.replace(temporary, target)  # noqa: PTH105 - faster than Path
        except BaseException as error:
            with contextlib.suppress(OSError):  # it may not have come into being; `error` is told
                os.unlink(temporary)  # noqa: PTH108 - faster than Path
            if isinstance(error, OSError) and not isinstance(error, TargetError):
                raise _store_error("writing", target, error) from error
            raise

    def _write_new(self, folder: str, temporary: str, data: Buffer) -> None:
        """Write ``data`` to a new file, making its folder if need be."""
        self._make(folder)
        # a folder that was made and is gone is an error: what was in it is lost, and the rest of a
        # result must not look whole
        handle = os.open(temporary, _NEW, 0o666)
        try:
            written = os.write(handle, data)
            if written < memoryview(data).nbytes:  # some gigabytes, or all that a full disk took
                left = memoryview(data).cast("B")[written:]
                while left:
                    left = left[os.write(handle, left) :]
        finally:
            os.close(handle)

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
                    os.makedirs(root, exist_ok=True)  # noqa: PTH103 - faster than Path
                    self._made.add(root)
                missing = []
                while folder not in self._made:
                    missing.append(folder)
                    folder = os.path.dirname(folder)  # noqa: PTH120 - faster than Path
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
