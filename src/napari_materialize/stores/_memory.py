"""A store in memory."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from napari_materialize.errors import StoreError, TargetError
from napari_materialize.stores._places import TEMPORARY, segments

if TYPE_CHECKING:
    from collections.abc import Buffer, Iterator

__all__ = ["MemoryStore"]


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
        self._taken = threading.Lock()
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

    def begin(self, *, fresh: bool = True) -> None:
        """Take it for one job: no other can take it until `end`.

        Raises
        ------
        TargetError
            If another job has taken it, or if it has to be empty and is not.
        """
        if not self._taken.acquire(blocking=False):
            raise TargetError(
                "target MemoryStore: another job writes there (of this process); wait for it, or "
                "give another store"
            )
        if fresh and self.files:
            self.end()
            raise TargetError(
                "target MemoryStore: another job has written there meanwhile; give another store"
            )

    def beat(self) -> None:
        """Do nothing: the store lives and dies with its process."""

    def holder(self) -> str | None:
        """Return who has taken it now, for a sentence; None if nobody has."""
        return "this process" if self._taken.locked() else None

    def end(self) -> None:
        """Give it back."""
        if self._taken.locked():
            self._taken.release()

    def listing(self, *, sweep: bool = False) -> Iterator[tuple[str, int]]:
        """Walk the path and the size of all that was put."""
        yield from [(path, len(data)) for path, data in self.files.items()]

    def delete(self, path: str, /) -> None:
        """Forget what was put under ``path``, if anything was."""
        segments(path)
        self.files.pop(path, None)

    def tidy(self) -> None:
        """Do nothing: there are no folders."""

    def get(self, path: str, /) -> bytes | None:
        """Return what was put under ``path``, or None.

        Raises
        ------
        TargetError
            If ``path`` is not a path inside a store.
        """
        segments(path)
        return self.files.get(path)

    def put(self, path: str, data: Buffer, /) -> None:
        """Keep a copy of ``data`` under ``path``. May be called from any thread.

        Raises
        ------
        TargetError
            If ``path`` is not a path inside a store.
        """
        segments(path)
        # copied first: storing one object under one key is a single step for every other thread
        self.files[path] = bytes(data)

    def write_zip(self, path: str | os.PathLike[str]) -> None:
        """Write everything that was put into a zip file, which zarr opens as it is.

        Nothing is compressed again. The file appears when it is whole; the same files give the
        same bytes.

        Parameters
        ----------
        path : str or os.PathLike
            The file, which is not there yet.

        Raises
        ------
        TargetError
            If something is there.
        StoreError
            If it could not be written.

        Examples
        --------
        >>> import tempfile, zipfile
        >>> store = MemoryStore()
        >>> store.put("0/.zarray", b"{}")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store.write_zip(folder + "/out.zarr.zip")
        ...     zipfile.ZipFile(folder + "/out.zarr.zip").namelist()
        ['0/.zarray']
        """
        import zipfile  # for this alone

        target = Path(path)
        temporary = target.with_name(f"{TEMPORARY}{os.getpid()}-{id(self)}")
        if os.path.lexists(target):
            raise TargetError(
                f"zip {target}: must not be there yet, and something is; name another file"
            )
        try:
            with zipfile.ZipFile(temporary, "x", zipfile.ZIP_STORED) as archive:
                for name, data in list(self.files.items()):
                    # a time of its own would make each file another one
                    archive.writestr(zipfile.ZipInfo(name), data)
            temporary.replace(target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StoreError(f"writing {target} failed: {error.strerror or error}") from error
