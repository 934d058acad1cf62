"""Voxels to bytes and back: the bytes of a whole chunk, compressors, their metadata fragments.

Owns what a chunk's bytes are. It does not name chunks or write documents (`layout` is handed
the fragments) and opens nothing (`stores`).

gzip is encoded by libdeflate, two to four times as fast as zlib at the same level and ratio; a
gzip stream is a gzip stream, and the metadata names the level that was asked for. Every encoder
lets other Python threads run meanwhile and gives the same bytes for the same voxels.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from napari_materialize.errors import ChunkError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Compression", "CompressionName", "chunk_bytes", "is_fill"]

type CompressionName = Literal["gzip", "zstd", "blosc", "none"]
"""The compressors a result can be written with."""

_DEFAULT = {"gzip": 6, "zstd": 3, "blosc": 5, "none": None}
"""Each library's own middle: gzip's and zstd's default level, and Blosc's in numcodecs and zarr."""

_LEVELS = {"gzip": (0, 9), "zstd": (1, 22), "blosc": (0, 9)}
"""What the zarr specifications let a level be; libdeflate's 10 to 12 have no name there."""

_BLOSC_CODEC = "zstd"
"""Inside Blosc: on noisy images lz4 stores what it cannot compress (ratio 1.0 against 1.2)."""

_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
"""Blosc's names, in the order of its numbers."""


def _shuffle(dtype: np.dtype) -> int:
    """Return the number of Blosc's shuffle for ``dtype``.

    Bytes of one significance next to each other help where a voxel has several. Bits next to each
    other made a mask of bools 1.4 times smaller and three times as fast to encode, but a smoothed
    uint8 image 1.3 times larger, so whole bytes are left as they are.
    """
    if dtype.kind == "b":
        return 2
    return 1 if dtype.itemsize > 1 else 0


@dataclass(frozen=True, slots=True)
class Compression:
    """How the bytes of a chunk are compressed.

    Parameters
    ----------
    name : {"gzip", "zstd", "blosc", "none"}
        The compressor. Blosc is zstd inside, with the shuffle that suits the dtype.
    level : int, optional
        gzip 0 to 9 (6 if left out), zstd 1 to 22 (3), blosc 0 to 9 (5); none has no level.

    Raises
    ------
    OptionError
        If there is no such compressor or no such level.

    Examples
    --------
    >>> Compression.parse("zstd"), str(Compression.parse("gzip:9"))
    (Compression(name='zstd', level=3), 'gzip:9')
    >>> voxels = np.zeros((8, 8), np.uint16)
    >>> data = Compression().encode(chunk_bytes(voxels, (8, 8), 0), voxels.dtype)
    >>> len(data) < voxels.nbytes, Compression().decode(data, voxels.nbytes) == bytes(128)
    (True, True)
    """

    name: CompressionName = "gzip"
    """The compressor."""

    level: int | None = None
    """How hard it tries, in its own numbers; None for ``none``."""

    def __post_init__(self) -> None:
        if self.name not in _DEFAULT:
            names = ", ".join(get_args(CompressionName.__value__))
            raise OptionError(f"compression: must be one of {names}, got {self.name!r}")
        if self.level is None:
            object.__setattr__(self, "level", _DEFAULT[self.name])
            return
        if self.name == "none":
            raise OptionError(
                f"compression: none has no level, got {self.level!r}; leave the level out"
            )
        low, high = _LEVELS[self.name]
        whole = isinstance(self.level, int) and not isinstance(self.level, bool)
        if not whole or not low <= self.level <= high:
            raise OptionError(
                f"compression: the level of {self.name} must be a whole number from {low} to "
                f"{high}, got {self.level!r}"
            )

    @classmethod
    def parse(cls, value: str | Sequence[Any] | Compression | None) -> Compression:
        """Return the compression that somebody asked for.

        Parameters
        ----------
        value : str, sequence, Compression or None
            ``"gzip"``, ``"gzip:6"``, ``("gzip", 6)``, ``"none"`` or None.

        Raises
        ------
        OptionError
            If it is none of these.
        """
        if isinstance(value, Compression):
            return value
        if value is None:
            return cls("none")
        if isinstance(value, str):
            name, colon, level = value.strip().lower().partition(":")
            if not colon:
                return cls(cast(CompressionName, name))
            # anything but digits stays text and is refused with the range that is allowed
            whole = level.strip().isdecimal()
            return cls(cast(CompressionName, name), int(level) if whole else cast(int, level))
        if isinstance(value, (tuple, list)) and len(value) in {1, 2} and isinstance(value[0], str):
            return cls(*value)
        raise OptionError(
            'compression: must be a name such as "gzip", a name with a level such as "gzip:6", or '
            f"None, got {value!r}"
        )

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return self.name if self.level is None else f"{self.name}:{self.level}"

    def encode(self, data: bytes | memoryview, dtype: np.dtype) -> bytes:
        """Compress the bytes of a whole chunk. May be called from any thread.

        Parameters
        ----------
        data : bytes or memoryview
            Contiguous; what `chunk_bytes` returns.
        dtype : numpy.dtype
            Of the voxels; Blosc shuffles by it.
        """
        if self.name == "none":
            return bytes(data)
        level = cast(int, self.level)
        if self.name == "gzip":
            import deflate

            return bytes(deflate.gzip_compress(data, level))
        if self.name == "zstd":
            from numcodecs import zstd  # type: ignore[import-untyped]

            return cast(bytes, zstd.compress(data, level))
        from numcodecs import blosc

        # Blosc takes the size of a voxel from the buffer
        voxels = np.frombuffer(data, np.dtype(f"u{dtype.itemsize}"))
        return cast(bytes, blosc.compress(voxels, _BLOSC_CODEC.encode(), level, _shuffle(dtype)))

    def decode(self, data: bytes | memoryview, size: int) -> bytes:
        """Return the bytes of the chunk that ``data`` holds: to verify what is stored.

        gzip is decoded by zlib, as most readers do, and not by the library that encoded it.

        Parameters
        ----------
        data : bytes or memoryview
            A chunk as stored.
        size : int
            Bytes of the whole chunk, uncompressed.

        Raises
        ------
        ChunkError
            If ``data`` is damaged or holds another number of bytes.
        """
        try:
            chunk = self._decode(data)
        except (RuntimeError, ValueError, EOFError, OSError, zlib.error) as error:
            raise ChunkError(
                f"chunk: {len(data)} bytes are not whole {self.name} data: {error}"
            ) from error
        if len(chunk) != size:
            raise ChunkError(f"chunk: must hold {size} bytes, got {len(chunk)}")
        return chunk

    def _decode(self, data: bytes | memoryview) -> bytes:
        if self.name == "none":
            return bytes(data)
        if self.name == "gzip":
            return gzip.decompress(data)
        if self.name == "zstd":
            from numcodecs import zstd

            return bytes(zstd.decompress(data))
        from numcodecs import blosc

        return bytes(blosc.decompress(data))

    def zarr2_config(self, dtype: np.dtype) -> dict[str, Any] | None:
        """Return the ``compressor`` of a ``.zarray``, in numcodecs' words."""
        if self.name == "none":
            return None
        if self.name == "blosc":
            return {
                "id": "blosc",
                "cname": _BLOSC_CODEC,
                "clevel": self.level,
                "shuffle": _shuffle(dtype),
                "blocksize": 0,
            }
        return {"id": self.name, "level": self.level}

    def zarr3_codecs(self, dtype: np.dtype) -> list[dict[str, Any]]:
        """Return the codecs that come after ``bytes`` in the ``zarr.json`` of an array."""
        if self.name == "none":
            return []
        configuration: dict[str, Any] = {"level": self.level}
        if self.name == "zstd":
            configuration["checksum"] = False
        elif self.name == "blosc":
            configuration = {
                "typesize": dtype.itemsize,
                "cname": _BLOSC_CODEC,
                "clevel": self.level,
                "shuffle": _SHUFFLES[_shuffle(dtype)],
                "blocksize": 0,
            }
        return [{"name": self.name, "configuration": configuration}]


def chunk_bytes(
    block: np.ndarray, chunk_shape: Sequence[int], fill: float | int | bool
) -> memoryview:
    """Return the bytes of a whole chunk: C order, little-endian, every voxel of the chunk.

    Parameters
    ----------
    block : numpy.ndarray
        The chunk's voxels inside the array; smaller than the chunk at the array's far edges.
    chunk_shape : sequence of int
        A whole chunk's voxels along each axis.
    fill : float, int or bool
        What the voxels beyond the array are set to.

    Returns
    -------
    memoryview
        Of the block itself where its bytes are the chunk's already, else of a copy.

    Raises
    ------
    ValueError
        If the block has another number of axes than the chunk or does not fit into it.

    Examples
    --------
    >>> list(chunk_bytes(np.array([[1, 2]], ">u2"), (2, 2), 9))
    [1, 0, 2, 0, 9, 0, 9, 0]
    """
    shape = tuple(chunk_shape)
    dtype = block.dtype.newbyteorder("<")
    if len(block.shape) != len(shape) or any(map(int.__gt__, block.shape, shape)):
        raise ValueError(f"a block of shape {block.shape} does not fit into a chunk of {shape}")
    if block.shape == shape:
        chunk = np.ascontiguousarray(block, dtype)
    else:
        chunk = np.full(shape, fill, dtype)
        chunk[tuple(map(slice, block.shape))] = block
    return chunk.reshape(-1).view(np.uint8).data


def is_fill(block: np.ndarray, fill: float | int | bool) -> bool:
    """Whether every voxel is the fill value, so that leaving the chunk out loses nothing.

    NaN is NaN, whatever its payload; -0.0 is not 0.0.

    Examples
    --------
    >>> is_fill(np.zeros(4, np.float32), 0), is_fill(-np.zeros(4, np.float32), 0)
    (True, False)
    >>> is_fill(np.full(4, np.nan), float("nan"))
    True
    """
    if block.size == 0:
        return True
    value = np.asarray(fill, block.dtype)
    if block.dtype.kind != "f":
        # most blocks differ in the first voxel already
        return bool(block.flat[0] == value) and bool((block == value).all())
    if np.isnan(value):
        return bool(np.isnan(block.flat[0])) and bool(np.isnan(block).all())
    bits = np.dtype(f"u{block.dtype.itemsize}").newbyteorder(block.dtype.byteorder)
    same = value.view(bits)
    return bool(block.flat[0] == value) and bool((block.view(bits) == same).all())
