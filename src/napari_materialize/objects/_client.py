"""The client of one bucket or web server: requests, retries, and what an answer means."""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from napari_materialize.errors import AccessError, StoreError
from napari_materialize.objects._answers import (
    Patience,
    broke_off,
    hands_out_no_parts,
    is_elsewhere,
    is_refused,
    reason_of,
    status_of,
)
from napari_materialize.objects._credentials import Attempt, attempts, s3_endpoint
from napari_materialize.objects._encoded import is_packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Buffer, Callable

    from napari_materialize.objects._urls import ObjectURL

__all__ = ["Found", "Objects"]

_LATER = 3
"""How often a read whose answer broke off, beyond the client's own patience, is begun again."""


class Found(NamedTuple):
    """An object and what its server says of it."""

    data: bytes
    """All of it."""

    written: str
    """When it was last written, as the server says; empty where it does not say."""


@dataclass(eq=False)
class Objects:
    """The objects of one bucket or web server. May be used from any thread.

    Nothing is asked of the server before the first read or write. In another process it finds its
    credentials there, but for those in the URL, which it carries.
    """

    url: ObjectURL
    """Of the bucket or server; its path is not looked at."""

    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: list[Attempt] | None = None
        self._clients: dict[int, Any] = {}
        self._settled: Attempt | None = None
        self._region: str | None = None
        """The region that was found out; empty once it was asked for in vain."""
        self._answered: set[bool] = set()
        """Whether a read, and whether a write, was let in."""
        self._hides: dict[str, bool] = {}
        self._whole_only = False
        """Whether the server hands out no parts of what it has; Python's own one does not."""

    def __repr__(self) -> str:
        return f"Objects({self.url.root!r})"

    def __reduce__(self) -> tuple[type[Objects], tuple[ObjectURL, Patience]]:
        return Objects, (self.url, self.patience)

    def get(
        self, key: str, start: int = 0, stop: int | None = None, most: int | None = None
    ) -> bytes | None:
        """Return an object, or bytes ``start`` to ``stop`` of it; None if it is not there.

        A negative ``start`` counts from the object's end. More than ``most`` bytes are not taken.
        Of a server that hands out no parts, the whole object is taken, of at most ``most`` bytes;
        and of an object that is packed on top (``Content-Encoding``).

        Raises
        ------
        AccessError
            If the server refuses it: whether it is there is not known.
        StoreError
            If it could not be read, for whatever other reason.
        """
        options: Any = {}
        if start < 0:
            options = {"range": {"suffix": -start}}
        elif stop is not None:
            options = {"range": (start, stop)}
        elif start:
            options = {"range": {"offset": start}}

        def ask(client: Any) -> bytes | None:
            import obstore
            from obstore.exceptions import BaseError

            if options and self._whole_only:
                return self._part(client, key, slice(start, stop), most)
            try:
                answer = obstore.get(client, key, options=options)
            except BaseError as error:
                if not (options and hands_out_no_parts(error)):
                    raise
                self._whole_only = True
                return self._part(client, key, slice(start, stop), most)
            if options and is_packed(answer):  # a part of the stream is no part of the object
                return self._part(client, key, slice(start, stop), most)
            first, last = answer.range
            self._check_size(key, last - first, most)
            return self._bytes(key, answer, most)

        return self._ask("reading", key, ask, None)

    def _part(self, client: Any, key: str, part: slice, most: int | None) -> bytes:
        import obstore

        answer = obstore.get(client, key)
        self._check_size(key, answer.meta["size"], most)
        return self._bytes(key, answer, most)[part]

    def _bytes(self, key: str, answer: Any, most: int | None) -> bytes:
        data = bytes(answer.bytes())
        if not is_packed(answer):
            return data
        try:
            found = unpacked(data, most)
        except OSError as error:
            raise StoreError(
                f"reading {self.place(key)} failed: it is stored in gzip (Content-Encoding), which "
                f"is damaged ({error})"
            ) from None
        if found is None:
            raise StoreError(
                f"reading {self.place(key)} failed: at most {most} bytes are expected there, and "
                "the gzip that it is stored in (Content-Encoding) has more"
            )
        return found

    def find(self, key: str, most: int) -> Found | None:
        """Return a small object and when it was written; None if it is not there.

        Raises
        ------
        StoreError
            As `get`, and if it has more than ``most`` bytes.
        """

        def ask(client: Any) -> Found | None:
            import obstore

            answer = obstore.get(client, key)
            self._check_size(key, answer.meta["size"], most)
            written = answer.meta["last_modified"]
            return Found(self._bytes(key, answer, most), written.isoformat())

        return self._ask("reading", key, ask, None)

    def _check_size(self, key: str, size: int, most: int | None) -> None:
        if most is not None and size > most:
            raise StoreError(
                f"reading {self.place(key)} failed: at most {most} bytes are expected there, got "
                f"{size}"
            )

    def put(self, key: str, data: Buffer, *, new: bool = False) -> bool:
        """Store an object, whole or not at all; return False if ``new`` and there is one already.

        Raises
        ------
        AccessError, StoreError
            If it could not be written.
        """

        def ask(client: Any) -> bool:
            import obstore
            from obstore.exceptions import AlreadyExistsError

            try:
                # in parts an object cannot be made on condition that there is none
                mode: Any = {"mode": "create", "use_multipart": False} if new else {}
                obstore.put(client, key, bytes(data), **mode)
            except AlreadyExistsError:
                return False
            return True

        return self._ask("writing", key, ask, False)

    def delete(self, key: str) -> None:
        """Remove an object; nothing happens if it is not there.

        Raises
        ------
        AccessError, StoreError
            If it could not be removed.
        """

        def ask(client: Any) -> None:
            import obstore

            obstore.delete(client, key)

        self._ask("removing", key, ask, None)

    def folders(self, prefix: str) -> list[str]:
        """Return the names of what lies in a folder and is a folder itself.

        Raises
        ------
        AccessError, StoreError
            If the server does not list.
        """

        def ask(client: Any) -> list[str]:
            import obstore

            found = obstore.list_with_delimiter(client, prefix or None)["common_prefixes"]
            return [path.rstrip("/").rpartition("/")[2] for path in found]

        return self._ask("listing", prefix, ask, [])

    def keys(self, prefix: str, most: int | None = None) -> list[str]:
        """Return the keys in a folder, at any depth, up to about ``most``.

        Raises
        ------
        AccessError, StoreError
            If the server does not list.
        """

        def ask(client: Any) -> list[str]:
            import obstore

            found: list[str] = []
            for batch in obstore.list(client, prefix or None, chunk_size=min(most or 1000, 1000)):
                found += [entry["path"] for entry in batch]
                if most is not None and len(found) >= most:
                    break
            return found

        return self._ask("listing", prefix, ask, [])

    def sizes(self, prefix: str) -> list[tuple[str, int]]:
        """Return the key and the size of each object in a folder, at any depth.

        Raises
        ------
        AccessError, StoreError
            If the server does not list.
        """

        def ask(client: Any) -> list[tuple[str, int]]:
            import obstore

            batches = obstore.list(client, prefix or None, chunk_size=1000)
            return [(entry["path"], entry["size"]) for batch in batches for entry in batch]

        return self._ask("listing", prefix, ask, [])

    def hides(self, prefix: str) -> bool:
        """Whether the server refuses what is not there, so that missing and forbidden look alike.

        S3 answers 403 for a missing key to whoever may not list the bucket. A name that nobody can
        have used tells.
        """
        if prefix not in self._hides:
            try:
                self.get(f"{prefix}/{secrets.token_hex(12)}" if prefix else secrets.token_hex(12))
                self._hides[prefix] = False
            except AccessError:
                self._hides[prefix] = True
        return self._hides[prefix]

    def place(self, key: str) -> str:
        """Return the URL of an object, without credentials."""
        return self.url.at(key).text

    # ------------------------------------------------------------------ asking

    def _ask[T](self, verb: str, key: str, ask: Callable[[Any], T], missing: T) -> T:
        """Ask the server, in every way there is as long as it lets nobody in.

        The way that is answered first stays. Being refused says little by itself: some servers
        refuse whatever they do not have.
        """
        from obstore.exceptions import BaseError

        changes = verb in ("writing", "removing")
        refusal: Exception | None = None
        region = self._region
        ways = self._ways(changes)
        for way in ways:
            try:
                answer = self._again(verb, partial(ask, self._client(way)))
            except FileNotFoundError as error:
                self._settle(way, changes)
                if verb == "writing" or "NoSuchBucket" in str(error):
                    # everything in it would read as missing
                    raise StoreError(
                        f"{verb} {self.place(key)} failed: there is no {self.url.root}"
                    ) from None
                return missing
            except StoreError:
                raise
            except (BaseError, OSError, ValueError) as error:
                if is_elsewhere(error) and self._moves(region):
                    return self._ask(verb, key, ask, missing)
                # none is told as the cause: its text may hold a signed URL
                if is_refused(error):
                    refusal = error
                elif way.doubtful and refusal is not None:
                    self._drop(way)
                else:
                    reason = reason_of(error)
                    raise StoreError(f"{verb} {self.place(key)} failed: {reason}") from None
            else:
                self._settle(way, changes)
                return answer
        status = None if refusal is None else status_of(refusal)
        raise AccessError(
            f"{verb} {self.place(key)} failed: the server refuses it"
            f"{f' ({status})' if status else ''} with "
            f"{', then '.join(way.title for way in ways)}; check the credentials in the "
            "environment and what they allow"
        )

    def _ways(self, changes: bool) -> list[Attempt]:
        """Return the way that is let in, or all of them, the best first."""
        with self._lock:
            if self._attempts is None:
                self._attempts = attempts(
                    self.url, self.patience.client, self.patience.retry, self._region
                )
            if self._settled is not None and changes in self._answered:
                return [self._settled]
            return sorted(self._attempts, key=lambda way: way is not self._settled)

    def _settle(self, way: Attempt, changes: bool) -> None:
        with self._lock:
            self._settled = way
            self._answered.add(changes)

    def _moves(self, asked: str | None) -> bool:
        """Find out where a bucket lies that is not where it was asked for; whether that helps."""
        from napari_materialize.objects._region import bucket_region  # brings http and email along

        with self._lock:
            if self._region != asked:
                return bool(self._region)  # another thread found out
            if asked is not None or self.url.scheme != "s3":
                return False
            seconds = min(10.0, self.patience.silence)
            self._region = bucket_region(self.url.host, s3_endpoint(), seconds) or ""
            if self._region:
                self._attempts, self._settled = None, None
                self._clients.clear()
                self._answered.clear()
            return bool(self._region)

    def _drop(self, way: Attempt) -> None:
        """Forget a way that there turns out not to be; finding out took seconds."""
        with self._lock:
            self._attempts = [each for each in self._attempts or [] if each is not way]

    def _client(self, way: Attempt) -> Any:
        with self._lock:
            if id(way) not in self._clients:
                self._clients[id(way)] = way.open()
            return self._clients[id(way)]

    def _again[T](self, verb: str, ask: Callable[[], T]) -> T:
        """Ask once more where the connection broke in the middle of an answer.

        The client's own retries end where an answer begins.
        """
        for attempt in range(_LATER):
            try:
                return ask()
            except Exception as error:
                if verb not in ("reading", "listing") or not broke_off(error):
                    raise
                time.sleep(self.patience.first_wait * 2**attempt)
        return ask()
