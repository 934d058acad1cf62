"""What `open_source` hands back: a multiscale image, described and ready to be read.

Owns `OpenedSource` and how an identity is made of a description. It knows no file, no library
and no metadata document: the modules beside it do, one per kind of source, and each gives one
`BlockReader` per level.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.errors import BoxError, LevelError
from napari_materialize.geometry import Box
from napari_materialize.sources.plain import PlainReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Index
    from napari_materialize.sources.lasting import Lasting

__all__ = ["BlockReader", "OpenedSource", "fingerprint"]

type BlockReader = Callable[[Box], np.ndarray]
"""Reads the voxels of a box of one level, from any thread: the only place where voxels are read."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenedSource:
    """A multiscale image that exists. Its methods may be called from any thread, several at once.

    Examples
    --------
    >>> from napari_materialize.sources import open_source
    >>> source = open_source(np.arange(12, dtype="u1").reshape(3, 4), scale=(2, 0.5))
    >>> source.read(0, Box((1, 1), (3, 3)))
    array([[ 5,  6],
           [ 9, 10]], dtype=uint8)
    """

    name: str
    """Short, for layer names and the name of a result."""

    identity: str
    """Text that is equal for sources with equal content, cut into equal chunks: what chunks are
    kept by. Of a stored source, its place and the times of its documents are in it."""

    stable: bool
    """Whether ``identity`` means the same in another process."""

    kind: Kind
    """What the voxels mean."""

    levels: tuple[Level, ...]
    """The levels, finest first."""

    location: str | None
    """An absolute local path; None for arrays in memory."""

    record: Mapping[str, Any]
    """What a result says of its source, as JSON values."""

    readers: tuple[BlockReader, ...] = field(repr=False)
    """How each level is read."""

    notices: tuple[str, ...] = ()
    """What is odd about it and does not keep it from being read, a sentence each."""

    storage: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """How each level is stored, as JSON values; empty for arrays in memory."""

    reopen: Callable[[], OpenedSource] | None = field(default=None, repr=False)
    """Opens it again as it is now, with the credentials it was opened with; None for arrays."""

    current: Callable[[], str] | None = field(default=None, repr=False)
    """Returns the identity it would have if it were opened now; None where that cannot be told, or
    not without asking a server. Raises what opening does."""

    lasting: Lasting | None = field(default=None, repr=False)
    """Returns what a record knows the source by, whenever it was touched and wherever it is copied
    to; None where that is ``identity``. Reads a few chunks when it is first called."""

    def read(self, level: int, box: Box) -> np.ndarray:
        """Read exactly the voxels of ``box``.

        Parameters
        ----------
        level : int
            0 is the finest.
        box : Box
            In voxels of that level, inside it.

        Returns
        -------
        numpy.ndarray
            Of ``box.shape`` and the level's dtype, C order, machine byte order.

        Raises
        ------
        LevelError, BoxError
            If there is no such level, or ``box`` is not inside it.
        Exception
            Whatever went wrong below: an unreadable chunk is an error. A chunk that is stored
            nowhere is none: it reads as the fill value.
        """
        if not 0 <= level < len(self.levels):
            raise LevelError(
                f"source {self.name!r}: its levels are 0 to {len(self.levels) - 1}, got level "
                f"{level}; choose one of them"
            )
        described = self.levels[level]
        if box.ndim != described.ndim or not Box.whole(described.shape).contains(box):
            raise BoxError(
                f"source {self.name!r}, level {level}: a box inside shape {described.shape}, got "
                f"{box.start} to {box.stop}; clip it"
            )
        block = np.asarray(self.readers[level](box))
        if block.shape != box.shape or block.dtype.newbyteorder("=") != described.dtype:
            # The array's description is wrong. Casting would hide that in every result.
            raise TypeError(
                f"source {self.name!r}, level {level}: described as {described.dtype}, gave "
                f"{block.dtype} of shape {block.shape} for the box {box.start} to {box.stop}"
            )
        return np.ascontiguousarray(block, dtype=described.dtype)

    def read_chunk(self, level: int, index: Index) -> np.ndarray | None:
        """Read the chunk at a place of a level's grid, where it is stored as one; else None.

        The shortest way to the voxels: a dozen boxes less than `read` makes of the same chunk.
        """
        reader, described = self.readers[level], self.levels[level]
        if not isinstance(reader, PlainReader) or reader.grid != described.grid:
            return None
        block = reader.whole(index)
        if block.dtype.newbyteorder("=") != described.dtype:
            return None
        return np.ascontiguousarray(block, dtype=described.dtype)

    def lend(self, level: int) -> np.ndarray | None:
        """Return all voxels of a level, if they are an array in memory; else None.

        They are their owner's: not to be written to, and to be copied if they are kept.
        """
        voxels, described = getattr(self.readers[level], "array", None), self.levels[level]
        if type(voxels) is not np.ndarray:  # a memmap, which is one too, is read from a disk
            return None
        same = voxels.dtype.newbyteorder("=") == described.dtype
        return voxels if same and voxels.shape == described.shape else None


def fingerprint(levels: Sequence[Level], kind: Kind, *parts: str) -> str:
    """Return a digest of ``parts`` and of all that is known of ``levels``.

    The description belongs to a source's identity: chunks are cached by it, and they depend on the
    chunk shape and on the scale that ops are told.
    """
    description = [
        {
            "shape": level.shape,
            "dtype": level.dtype.name,
            "chunks": level.chunks,
            "scale": level.scale,
            "translation": level.translation,
            "fill": repr(level.fill),
            "axes": [(axis.name, axis.type, axis.unit) for axis in level.axes],
        }
        for level in levels
    ]
    text = json.dumps([description, kind, *parts])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
