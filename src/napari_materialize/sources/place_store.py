"""A place as zarr-python sees it: a store that is only read from.

Owns the translation of zarr's requests. Which files are acceptable is the place's business.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from zarr.abc.store import (
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)

from napari_materialize.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

    from napari_materialize.sources.places import Place

__all__ = ["PlaceStore"]


class PlaceStore(Store):
    """The chunks of one array."""

    supports_writes = False
    supports_deletes = False
    supports_listing = False

    def __init__(self, place: Place, most: int) -> None:
        super().__init__(read_only=True)
        self.place = place
        self.most = most
        """Bytes that a file of the array can have at most."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlaceStore) and self.place.text == other.place.text

    __hash__ = Store.__hash__

    def __repr__(self) -> str:
        return f"PlaceStore({self.place.text!r})"

    def read(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        """Return a file or a part of it; None if there is none. In the calling thread."""
        match byte_range:
            case RangeByteRequest(start, end):
                return self.place.chunk(key, self.most, start, end)
            case OffsetByteRequest(offset):
                return self.place.chunk(key, self.most, offset)
            case SuffixByteRequest(suffix):
                return self.place.chunk(key, self.most, -suffix)
        return self.place.chunk(key, self.most)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return a file or a part of it; None if there is none."""
        data = await asyncio.to_thread(self.read, key, byte_range)
        return None if data is None else prototype.buffer.from_bytes(data)

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """Return parts of files."""
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    async def exists(self, key: str) -> bool:
        """Whether there is such a file."""
        return await asyncio.to_thread(self.place.chunk, key, self.most) is not None

    async def set(self, key: str, value: Buffer) -> None:
        """Refuse: a source is not written to."""
        raise StoreError(f"writing {self.place.text}/{key} failed: a source is only read from")

    async def delete(self, key: str) -> None:
        """Refuse: a source is not written to."""
        raise StoreError(f"removing {self.place.text}/{key} failed: a source is only read from")

    def _unlisted(self) -> StoreError:
        return StoreError(
            f"listing {self.place.text} failed: the chunks of a source are asked for by name"
        )

    def list(self) -> AsyncIterator[str]:
        """Refuse: nothing here asks for it."""
        raise self._unlisted()

    def list_prefix(self, prefix: str) -> AsyncIterator[Any]:
        """Refuse: nothing here asks for it."""
        raise self._unlisted()

    def list_dir(self, prefix: str) -> AsyncIterator[Any]:
        """Refuse: nothing here asks for it."""
        raise self._unlisted()
