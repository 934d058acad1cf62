"""Compressors: what each is called in every format's metadata, its levels, and its encoder.

A gzip stream is a gzip stream, whoever wrote it, and the metadata names the level that was asked
for. From level 4 on, and so by default, libdeflate encodes: to zlib's size, two to four times as
fast. At level 6, the default, it searches less where a sample of the chunk says that searching
finds little, and more where it would end up larger than zlib; where there is hardly anything to
find ISA-L takes its place, as it does for levels 1 to 3: on images with noise seven to ten times as
fast as zlib and to the same size, on smooth ones a tenth larger, on masks up to twice. Every
encoder lets other Python threads run meanwhile and gives the same bytes for the same voxels on the
same processor.
"""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from napari_materialize.errors import ChunkError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Compression", "CompressionName"]

type CompressionName = Literal["gzip", "zstd", "blosc", "none"]
"""The compressors a result can be written with."""

_DEFAULT: dict[str, Any] = {"gzip": 6, "zstd": 3, "blosc": 3, "none": None}
"""gzip's and zstd's own default, and Blosc's level that is zstd's 5 inside.

Blosc's 5, the default of numcodecs and zarr, is zstd's 9: on images with noise half as fast,
and 7 % smaller.
"""

_LEVELS = {"gzip": (0, 9), "zstd": (1, 22), "blosc": (0, 9)}
"""What the zarr specifications let a level be; libdeflate's 10 to 12 have no name there."""

_FAST = range(1, 4)
"""gzip's levels for whoever would rather be fast than small."""

_ISAL_LEVEL = 2
"""Of ISA-L's 0 to 3: 3 is slower and no smaller, 0 and 1 are larger and hardly faster."""

_DEFAULT_EFFORT, _LESS_EFFORT, _MORE_EFFORT = 6, 4, 7
"""libdeflate's levels for gzip's 6: for what a search makes smaller, for noise, and for what is
nearly nothing."""

_LEAST_EFFORT, _HARDLY_LARGER = 1, 1.02
"""libdeflate's level for noise in which a search finds a little, and how much larger than with 4 a
sample of it may be. Its 1 took half to two thirds of 4's time, for 1.003 to 1.025 of its size and
at most 1.024 of zlib's."""

_SAMPLE_PIECES, _SAMPLE_BYTES = 8, 512
"""A sample of a chunk: pieces spread over it, and the bytes of each. It takes 15 to 50 us."""

_WORTH_SAMPLING = 1 << 15
"""Bytes of the smallest chunk that is sampled: what is to be won from smaller ones is no more than
the sample costs."""

_NOISE = 0.45
"""What is left of a sample of noise, at ISA-L's first level. Above it libdeflate's 4 was at most
1.02 of the size of its 6, and never above 1.02 of zlib's, for a quarter to a half less time;
below it, for labels and masks, up to 1.9 times the size."""

_PURE_NOISE, _AS_SMALL = 0.7, 1.002
"""What is left of a sample in which there is nothing to find, and how much larger at most ISA-L
makes that than libdeflate's 4. With both ISA-L's 2 was 0.95 to 1.02 of zlib's size (of 791 chunks
seven above 1.03, made up: slopes with noise), in a quarter to a half of 4's time: cameras' 12 bits,
electron microscopy, floats. Where grey values repeat, as in images with little noise, it makes a
tenth more than zlib."""

_NEARLY_AS_SMALL, _LITTLE_FOUND = 1.015, 0.967
"""How much larger than libdeflate's 4 ISA-L may make a sample, and what it leaves of the whole
chunk at least, of what a code for each byte would without any search. So the coarser levels of
images with noise are: where ISA-L finds no more, zlib finds little more, and ISA-L's 2 was 1.00 to
1.027 of its size, in two fifths of the time of libdeflate's 1. Only rows with the same slope in
each made it 1.033."""

_EVERY = 17
"""Of so many bytes one is counted to tell how long that code is: odd, so that bytes of each
significance are. It takes 20 us."""

_NEARLY_NOTHING = 0.065
"""What is left of a sample of masks and labels with few edges. Below it libdeflate's 6 was up to
1.2 of zlib's size (uint32 1.4), its 7 0.9 to 1.04, for a fifth to a half more time, still less
than zlib's. Above it 6 was mostly within 1.03, and 7 takes twice as long."""

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


def _gzip(data: bytes | memoryview, level: int) -> bytes:
    import deflate

    if level == _DEFAULT_EFFORT:
        return _by_default(data)
    if level not in _FAST:
        return bytes(deflate.gzip_compress(data, level))
    return _isal(data)


def _isal(data: bytes | memoryview) -> bytes:
    from isal import igzip_lib

    # with less room than it takes by itself it makes codes anew more often: up to a tenth smaller
    # where values drift through a chunk, in the same time; with still less it is slower for floats
    room = igzip_lib.MEM_LEVEL_MEDIUM
    return igzip_lib.compress(data, _ISAL_LEVEL, igzip_lib.COMP_GZIP, room)


def _by_default(data: bytes | memoryview) -> bytes:
    """Return a chunk at gzip's default, by the encoder that suits it."""
    import deflate
    from isal import isal_zlib

    voxels = memoryview(data).cast("B")
    effort = _DEFAULT_EFFORT
    if voxels.nbytes >= _WORTH_SAMPLING:
        step = voxels.nbytes // _SAMPLE_PIECES
        starts = range(step // 2, voxels.nbytes - _SAMPLE_BYTES, step)
        sample = b"".join([voxels[start : start + _SAMPLE_BYTES] for start in starts])
        size = len(isal_zlib.compress(sample, 1))
        left = size / len(sample)
        if left > _PURE_NOISE:
            return _noise(voxels, sample, size)
        if left > _NOISE:
            effort = _LESS_EFFORT
        elif left < _NEARLY_NOTHING:
            effort = _MORE_EFFORT
    return bytes(deflate.gzip_compress(data, effort))


def _noise(voxels: memoryview, sample: bytes, size: int) -> bytes:
    """Return a chunk of which a sample is noise, with the size that ISA-L makes of that."""
    import deflate

    least, less = (len(deflate.zlib_compress(sample, n)) for n in (_LEAST_EFFORT, _LESS_EFFORT))
    if size <= _NEARLY_AS_SMALL * less:
        found = _isal(voxels)
        if size <= _AS_SMALL * less or len(found) >= _LITTLE_FOUND * _unsearched(voxels):
            return found
    effort = _LEAST_EFFORT if least <= _HARDLY_LARGER * less else _LESS_EFFORT
    return bytes(deflate.gzip_compress(voxels, effort))


def _unsearched(voxels: memoryview) -> float:
    """Return the size of a chunk with each byte in as few bits as it is often."""
    counts = np.bincount(np.frombuffer(voxels, np.uint8)[::_EVERY])
    counts = counts[counts > 0]
    number = int(counts.sum())
    bits = math.log2(number) - float(counts @ np.log2(counts)) / number
    # few bytes seem to need less than all do, by about so much
    bits += (len(counts) - 1) / (2 * math.log(2) * number)
    return bits * voxels.nbytes / 8


@dataclass(frozen=True, slots=True)
class Compression:
    """How the bytes of a chunk are compressed.

    Parameters
    ----------
    name : {"gzip", "zstd", "blosc", "none"}
        The compressor. Blosc is zstd inside, with the shuffle that suits the dtype.
    level : int, optional
        gzip 0 to 9 (6 if left out), zstd 1 to 22 (3), blosc 0 to 9 (3); none has no level.

    Raises
    ------
    OptionError
        If there is no such compressor or no such level.

    Examples
    --------
    >>> Compression.parse("zstd"), str(Compression.parse("gzip:9"))
    (Compression(name='zstd', level=3), 'gzip:9')
    >>> voxels = memoryview(bytes(128))
    >>> data = Compression().encode(voxels, np.dtype("u2"))
    >>> len(data) < 128, Compression().decode(data, 128) == voxels
    (True, True)
    """

    name: CompressionName = "gzip"
    """The compressor."""

    level: int | None = None
    """How hard it tries, in its own numbers; None for ``none``."""

    def __post_init__(self) -> None:
        if self.name not in _DEFAULT:
            names = ", ".join(get_args(CompressionName.__value__))
            raise OptionError(f"compression: must be one of {names}, got {self.name!r}; take one")
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
                f"{high}, got {self.level!r}; take one of these, or leave it out"
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
            f"None, got {value!r}; write it so"
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
            return _gzip(data, level)
        if self.name == "zstd":
            from numcodecs import zstd

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

    def n5_config(self, dtype: np.dtype) -> dict[str, Any]:
        """Return the ``compression`` of an N5 dataset, as N5's codecs and their ports read it."""
        if self.name == "none":
            return {"type": "raw"}
        if self.name == "blosc":
            return {
                "type": "blosc",
                "cname": _BLOSC_CODEC,
                "clevel": self.level,
                "shuffle": _shuffle(dtype),
                "blocksize": 0,
            }
        if self.name == "gzip":
            return {"type": "gzip", "level": self.level, "useZlib": False}
        return {"type": self.name, "level": self.level}
