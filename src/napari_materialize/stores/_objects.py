"""A store in a bucket: ``s3://`` or ``gs://``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from napari_materialize.errors import StoreError, TargetError
from napari_materialize.objects import Objects, ObjectURL, Patience, parse_url
from napari_materialize.stores._lock import STALE, Owner
from napari_materialize.stores._places import LOCK, segments

if TYPE_CHECKING:
    from collections.abc import Buffer, Iterator

__all__ = ["ObjectStore"]

PATIENCE = Patience()
"""How long the server of a target is waited for."""


class ObjectStore:
    """A store below one key of a bucket. The bucket has to be there.

    A server shows an object when it has all of it: a reader never meets half of one. May be used
    from any thread, and each thread's request is on its way at the same time.

    Parameters
    ----------
    url : str
        ``s3://bucket/key`` or ``gs://bucket/key``. Credentials are found as the cloud's own
        libraries find them, and are not in it.
    patience : Patience, optional
        How long the server is waited for.

    Raises
    ------
    TargetError
        If ``url`` is not such a URL. The server is not asked.

    Examples
    --------
    >>> ObjectStore("s3://bucket/a/out.zarr").location
    's3://bucket/a/out.zarr'
    """

    def __init__(self, url: str, patience: Patience | None = None) -> None:
        try:
            parts = parse_url(url)
        except ValueError as error:
            scheme = url.partition(":")[0]
            raise TargetError(
                f"target: a URL such as {scheme}://bucket/out.zarr is needed, and of this one "
                f"{error}; correct it"
            ) from None
        if parts.scheme not in ("s3", "gs"):
            raise TargetError(
                f"target {parts.text}: a web server is only read from; give a folder, or an s3:// "
                "or gs:// URL"
            )
        self._url: ObjectURL = parts
        self._objects = Objects(parts.at(""), patience or PATIENCE)
        self._mine: Owner | None = None

    def __repr__(self) -> str:
        return f"ObjectStore({self.location!r})"

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[str, Patience]]:
        # another process finds its own credentials
        return ObjectStore, (self.location, self._objects.patience)

    @property
    def location(self) -> str:
        """The URL."""
        return self._url.text

    def _key(self, path: str) -> str:
        inside = "/".join(segments(path))
        return f"{self._url.path}/{inside}" if self._url.path else inside

    def exists(self) -> bool:
        """Whether anything is stored there: a place in a bucket begins with what is put there."""
        return not self.is_empty()

    def is_empty(self) -> bool:
        """Whether nothing is stored there, by us or by anybody.

        Raises
        ------
        TargetError
            If the server cannot be reached or does not tell.
        """
        lock = self._key(LOCK)
        return not [key for key in self._keys(2) if key != lock]

    def _keys(self, most: int) -> list[str]:
        try:
            return self._objects.keys(self._url.path, most)
        except StoreError as error:
            raise TargetError(
                f"target {self.location}: what is there already has to be known, and {error}"
            ) from error

    def begin(self, *, fresh: bool = True) -> None:
        """Take the place for one job: nobody else can take it until `end`.

        An object that only one can make stands for it, and says who. It is taken over from a dead
        process of this machine, and from another machine that gave no sign of life for minutes.

        Parameters
        ----------
        fresh : bool
            Whether nothing may be there.

        Raises
        ------
        TargetError
            If somebody has taken it, or if nothing may be there and something is.
        StoreError
            If it cannot be written to.
        """
        lock, owner = self._key(LOCK), Owner.me()
        while not self._objects.put(lock, owner.dump(), new=True):
            held, known = self._held()
            if held or not known:
                raise TargetError(
                    f"target {self.location}: another job writes there "
                    f"({held or 'another process'}); wait for it, or choose another place"
                )
            self._objects.delete(lock)
        if (now := self._owner()[0]) is None or now.token != owner.token:
            raise TargetError(
                f"target {self.location}: another job took it at the same moment ({now}); wait for "
                "it, or choose another place"
            )
        self._mine = owner
        if fresh and not self.is_empty():
            self.end()
            raise TargetError(
                f"target {self.location}: another job has written there meanwhile; choose another "
                "place"
            )

    def _owner(self) -> tuple[Owner | None, str]:
        """Return who the lock says has taken it, and when that was written."""
        found = self._objects.find(self._key(LOCK), 65536)
        return (None, "") if found is None else (Owner.parse(found.data), found.written)

    def _held(self) -> tuple[Owner | None, bool]:
        """Return who has taken it, as far as can be known, and whether anything is known."""
        owner, written = self._owner()
        if not written:
            return None, True  # given back meanwhile
        age = datetime.now(UTC) - datetime.fromisoformat(written)
        if owner is not None and owner.is_here:
            return (owner if owner.lives else None), True
        stale = age.total_seconds() >= STALE
        return (None if stale else owner), stale or owner is not None

    def beat(self) -> None:
        """Give a sign of life, so that other machines know that the job goes on.

        Raises
        ------
        StoreError
            If another job has taken the place meanwhile, or it cannot be written to.
        """
        if self._mine is None:
            return
        now = self._owner()[0]
        if now is None or now.token != self._mine.token:
            raise StoreError(
                f"writing {self.location} cannot go on: another job took it over meanwhile ({now})"
            )
        self._objects.put(self._key(LOCK), self._mine.dump())

    def holder(self) -> str | None:
        """Return who has taken the place now, for a sentence; None if nobody has."""
        held, known = self._held()
        return str(held) if held is not None else None if known else "another process"

    def end(self) -> None:
        """Give the place back."""
        if self._mine is None:
            return
        mine, self._mine = self._mine, None
        now = self._owner()[0]
        if now is not None and now.token == mine.token:
            self._objects.delete(self._key(LOCK))

    def listing(self, *, sweep: bool = False) -> Iterator[tuple[str, int]]:
        """Walk the path and the size of all that is stored there, but for the lock."""
        prefix = f"{self._url.path}/" if self._url.path else ""
        for key, size in self._objects.sizes(self._url.path):
            if (path := key.removeprefix(prefix)) != LOCK:
                yield path, size

    def delete(self, path: str, /) -> None:
        """Remove an object; nothing happens if there is none."""
        self._objects.delete(self._key(path))

    def tidy(self) -> None:
        """Do nothing: a bucket has no folders."""

    def get(self, path: str, /) -> bytes | None:
        """Return the bytes of an object, or None if it is not there.

        Raises
        ------
        TargetError
            If ``path`` is not a path inside a store.
        StoreError
            If it cannot be read, or the server refuses to say whether it is there.
        """
        return self._objects.get(self._key(path))

    def put(self, path: str, data: Buffer, /) -> None:
        """Store an object whole or not at all.

        Parameters
        ----------
        path : str
            Below the store's key, "/" between segments, none of them empty, "." or "..".
        data : bytes-like
            All of it.

        Raises
        ------
        TargetError
            If ``path`` is not a path inside a store.
        StoreError
            If it could not be stored, after as many attempts as the store has patience for.
        """
        self._objects.put(self._key(path), data)
