"""Where a source is: a folder of this machine, or a URL of objects.

Owns the reading of small documents and of chunks by their path, the listing of what is inside, and
what leads out of a container. It knows no format: `folder` says which documents make an array.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from napari_materialize.errors import AccessError, SourceError, StoreError
from napari_materialize.objects import (
    Found,
    Objects,
    Patience,
    is_object_url,
    local_path,
    parse_url,
)
from napari_materialize.sources.rules import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LocalPlace", "Place", "RemotePlace", "around", "place_of", "unreadable_source"]

PATIENCE = Patience()
"""How long the server of a source is waited for."""

_LARGEST_DOCUMENT = 64 * 2**20
"""Bytes of the largest metadata document that is read."""


class Place(Protocol):
    """A folder, or what stands for one in a bucket or on a web server."""

    @property
    def text(self) -> str:
        """An absolute path, or a URL without credentials."""

    @property
    def name(self) -> str:
        """The last part of it."""

    @property
    def parent(self) -> Place | None:
        """What it is in; None at the top."""

    @property
    def near(self) -> bool:
        """Whether a look costs little."""

    def at(self, path: str) -> Place:
        """Return a place inside, by a path with ``/`` and without ``..``."""

    def path_in(self, outer: Place) -> str:
        """Return the path that leads from a place around this one to it."""

    def document(self, name: str) -> Found | None:
        """Return a small file; None if there is none.

        Raises
        ------
        SourceError
            If it is there and cannot be read.
        """

    def chunk(self, key: str, most: int, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return a file of at most ``most`` bytes, or a part of any; None if there is none.

        Raises
        ------
        StoreError
            If it cannot be read, or whether it is there is not known.
        """

    def folders(self) -> list[Place] | None:
        """Return what is inside and is a folder; None where that cannot be listed.

        Raises
        ------
        SourceError
            If listing failed.
        """

    def missing(self) -> str | None:
        """Return why nothing can be there, or None if something may be."""


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A folder, links followed."""

    folder: Path
    """Absolute."""

    container: Path | None = None
    """What no link may lead out of; the folder itself if left out."""

    _seen: set[str] = field(default_factory=set, init=False, compare=False, repr=False)
    """Folders of chunks that were found to lie in it."""

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The path."""
        return str(self.folder)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def parent(self) -> LocalPlace | None:
        """The folder it is in."""
        up = self.folder.parent
        return None if up == self.folder else LocalPlace(up)

    @property
    def near(self) -> bool:
        """It is on this machine."""
        return True

    @property
    def _container(self) -> Path:
        return self.container or self.folder

    def at(self, path: str) -> LocalPlace:
        """Return a folder inside."""
        return LocalPlace(self.folder.joinpath(*path.split("/")), self._container)

    def path_in(self, outer: Place) -> str:
        """Return the relative path."""
        path = self.folder.relative_to(outer.text).as_posix()
        return "" if path == "." else path

    def within(self, container: Path) -> LocalPlace:
        """Return the same folder, whose links may lead anywhere in ``container``."""
        return LocalPlace(self.folder, container)

    @property
    def stays(self) -> bool:
        """Whether it lies in its container once links are followed."""
        return _inside(os.path.realpath(self.folder), str(self._container))

    def document(self, name: str) -> Found | None:
        """Return a small file."""
        path = self.folder / name
        try:
            there = path.stat()
            if not stat.S_ISREG(there.st_mode) or there.st_size > _LARGEST_DOCUMENT:
                raise SourceError(
                    f"{path}: this metadata file cannot be read: a regular file of at most "
                    f"{_LARGEST_DOCUMENT} bytes is expected, got {stat.filemode(there.st_mode)} of "
                    f"{there.st_size}; write it again"
                )
            return Found(path.read_bytes(), str(there.st_mtime_ns))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SourceError(
                f"{path}: this metadata file cannot be read ({one_line(error)}); check its "
                "permissions"
            ) from error

    def chunk(self, key: str, most: int, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return a file or a part of it."""
        path = f"{self.folder}/{key}"
        try:
            handle, linked = _open(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(path, error.strerror or str(error), error.errno) from error
        try:
            there = os.fstat(handle)
            if not stat.S_ISREG(there.st_mode):
                raise _unreadable(path, "it is no regular file")
            inner = path.rpartition("/")[0]
            if linked or inner not in self._seen:
                real = _real(path, handle)
                if real != path and not _inside(real, str(self._container)):
                    raise _unreadable(path, f"a link leads out of {self._container}")
                if not linked:
                    self._remember(inner)
            begin = max(0, there.st_size + start) if start < 0 else start
            end = there.st_size if stop is None else min(stop, there.st_size)
            if end - begin > most:
                size = f"{most} bytes make a chunk of this array, got {end - begin}"
                raise _unreadable(path, f"at most {size}")
            return _read(handle, begin, max(0, end - begin))
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise _unreadable(path, error.strerror or str(error), error.errno) from error
        finally:
            os.close(handle)

    def _remember(self, inner: str) -> None:
        """Take note of a folder inside that no link leads out through: one look at it is enough."""
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(inner)

    def folders(self) -> list[Place]:
        """Return the folders inside."""
        try:
            return [self.at(path.name) for path in self.folder.iterdir() if path.is_dir()]
        except OSError as error:
            raise SourceError(
                f"{self}: cannot be listed ({one_line(error)}); check its permissions"
            ) from error

    def missing(self) -> str | None:
        """Return why there is no folder."""
        if not self.folder.exists():
            return "nothing is there"
        return None if self.folder.is_dir() else "it is a file"


_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""How a file is opened: a pipe that nobody writes to would be waited for."""

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)

_MOST_SEEN = 4096
"""Folders of chunks that are remembered."""


def _open(path: str) -> tuple[int, bool]:
    """Open a file; return its handle, and whether it may be a link that leads anywhere."""
    if _NO_LINK:
        try:
            return os.open(path, os.O_RDONLY | _AT_ONCE | _NO_LINK), False
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EMLINK):  # the second is FreeBSD's
                raise
    return os.open(path, os.O_RDONLY | _AT_ONCE), True


def _real(path: str, handle: int) -> str:
    """Return an open file's path with all links followed.

    On Linux the system knows it; to look at every folder of the path takes longer than reading a
    small chunk.
    """
    if sys.platform == "linux":
        try:
            if os.readlink(f"/proc/self/fd/{handle}") == path:  # noqa: PTH115 (a third of the time)
                return path
        except OSError:  # no /proc here
            return os.path.realpath(path)
    return os.path.realpath(path)


def _inside(path: str, container: str) -> bool:
    real = os.path.realpath(container)
    return path == real or path.startswith(real.rstrip(os.sep) + os.sep)


def _unreadable(path: str, reason: str, errno: int | None = None) -> StoreError:
    failure = StoreError(f"reading {path} failed: {reason}")
    failure.errno = errno
    return failure


def _read(handle: int, begin: int, size: int) -> bytes:
    """Read up to ``size`` bytes of an open file."""
    if begin:
        os.lseek(handle, begin, os.SEEK_SET)
    data = os.read(handle, size)
    if len(data) == size:
        return data
    parts = [data]  # a read of some gigabytes comes in parts; a file that was cut ends sooner
    while size > (found := sum(map(len, parts))) and parts[-1]:
        parts.append(os.read(handle, size - found))
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class RemotePlace:
    """A key of a bucket, or a path of a web server."""

    objects: Objects
    path: str
    """Without slashes at its ends; empty at the top."""

    refused: list[str] = field(default_factory=list, compare=False, repr=False)
    """Documents that the server refused, of this place and those that came from it."""

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The URL without credentials."""
        return self.objects.place(self.path)

    @property
    def name(self) -> str:
        """The last part of the path, or the bucket."""
        return self.path.rpartition("/")[2] or self.objects.url.host

    @property
    def parent(self) -> RemotePlace | None:
        """What is above it."""
        if not self.path:
            return None
        return RemotePlace(self.objects, self.path.rpartition("/")[0], self.refused)

    @property
    def near(self) -> bool:
        """It is elsewhere."""
        return False

    def at(self, path: str) -> RemotePlace:
        """Return a place below."""
        return RemotePlace(self.objects, f"{self.path}/{path}".strip("/"), self.refused)

    def path_in(self, outer: Place) -> str:
        """Return the relative path."""
        above = outer.path if isinstance(outer, RemotePlace) else ""
        return self.path[len(above) :].strip("/")

    def document(self, name: str) -> Found | None:
        """Return a small object.

        Where a server refuses what it does not have as well, what it refuses is taken as missing:
        of the documents that a format may have, most are. Chunks are not (`chunk`).
        """
        key = f"{self.path}/{name}".strip("/")
        try:
            return self.objects.find(key, _LARGEST_DOCUMENT)
        except AccessError as error:
            if self.objects.hides(self.path):
                self.refused.append(key)
                return None
            raise unreadable_source(error) from error
        except StoreError as error:
            raise unreadable_source(error) from error

    def chunk(self, key: str, most: int, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return an object or a part of it."""
        return self.objects.get(f"{self.path}/{key}".strip("/"), start, stop, most=most)

    def folders(self) -> list[Place] | None:
        """Return what is below and holds something."""
        try:
            return [self.at(name) for name in self.objects.folders(self.path)]
        except StoreError:
            return None  # a web server has no list, a bucket may not show it: paths still work

    def missing(self) -> str | None:
        """Return why nothing can be there."""
        if not self.refused:
            return None
        return "the server refuses to say what is there"


def unreadable_source(error: StoreError) -> SourceError:
    """Return the error for metadata that a server did not hand out."""
    advice = "" if ";" in str(error) else "; check the URL"
    return SourceError(f"source: its metadata has to be readable, and {error}{advice}")


def place_of(what: str | os.PathLike[str]) -> Place:
    """Return the place that a path or a URL means: links followed, nothing asked of a server.

    Raises
    ------
    SourceError
        If it is a URL of a kind that is not read, malformed, or no path at all.

    Examples
    --------
    >>> place_of("s3://bucket/a.zarr/0").text
    's3://bucket/a.zarr/0'
    """
    text = os.fspath(what)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise SourceError(f"source: a path or a URL, got {text!r:.80}; name a folder")
    if is_object_url(text):
        try:
            url = parse_url(text)
        except ValueError as error:
            raise SourceError(
                f"source: of this {text.partition(':')[0].lower()}:// URL {error}; correct it"
            ) from None
        return RemotePlace(Objects(url.at(""), PATIENCE), url.path)
    if _FILE.match(text):
        try:
            text = local_path(text)
        except ValueError as error:
            raise SourceError(f"source: of this file:// URL {error}; correct it") from None
    elif "://" in text:
        raise _unknown_kind(text)
    else:
        text = os.path.expanduser(text)  # noqa: PTH111 (an unknown ~user stays)
    try:
        folder = Path(text).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise SourceError(
            f"source: a path to a folder, got one that leads nowhere ({one_line(error)}); check it"
        ) from error
    return LocalPlace(folder)


_FILE = re.compile("file:/", re.IGNORECASE)


def _unknown_kind(url: str) -> SourceError:
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return SourceError(
            "source: a path or a file://, s3://, gs:// or http(s):// URL, got a malformed one; "
            "correct it"
        )
    # without user, password and query: those can be credentials
    return SourceError(
        "source: folders of this machine and file://, s3://, gs:// and http(s):// URLs are "
        f"read, got {parts.scheme}://{host}{parts.path}; copy it to this machine, or open its "
        "array with a library and pass that"
    )


def around(place: Place) -> Iterator[Place]:
    """Walk the places around one, nearest first."""
    up = place.parent
    while up is not None:
        yield up
        up = up.parent
