"""One level of a view as something to index: numpy-like, exact, waiting for what is not there yet.

Owns the plan of a read: which chunks, which of their voxels, and where those go. Indexing rules
and their composition are zarr-indexing's. A read's chunks are client claims, made together and
held until the read is assembled, as far as they fit the reader's budget of memory.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from zarr_indexing import LazyArray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from zarr_indexing import Partition

    from napari_materialize.claims import ChunkClaim
    from napari_materialize.view import View

__all__ = ["LazyRead", "ViewArray"]

HELD_BYTES = 256 * 2**20
"""Chunks of one read that are asked for and held at a time; a larger read goes in portions."""


class ChunkClaims(Protocol):
    """Whoever gives chunks: the engine."""

    def claim_all(
        self, view: View, level: int, indices: Sequence[Sequence[int]]
    ) -> list[ChunkClaim]:
        """Ask for chunks."""

    def release_all(self, claims: Iterable[ChunkClaim]) -> None:
        """Let them go."""


class _Described:
    """The shape, dtype and chunks of a level, for zarr-indexing to plan with; holds no voxels."""

    def __init__(self, view: View, level: int) -> None:
        described = view.level(level)
        self.shape = described.shape
        self.dtype = described.dtype
        self.chunks = described.chunks

    def __getitem__(self, key: Any) -> Any:
        raise TypeError("a description holds no voxels; read through LazyRead.result")


class LazyRead:
    """A selection of a level that is not read yet.

    Further indexing composes and reads nothing; `result`, or numpy asking for an array, reads.
    """

    def __init__(self, claims: ChunkClaims, view: View, level: int, selection: LazyArray) -> None:
        self._claims = claims
        self._view = view
        self._level = level
        self._selection = selection

    @property
    def shape(self) -> tuple[int, ...]:
        """The selection's shape."""
        return self._selection.shape

    @property
    def ndim(self) -> int:
        """The selection's number of axes."""
        return self._selection.ndim

    @property
    def size(self) -> int:
        """The selection's number of voxels."""
        return self._selection.size

    @property
    def dtype(self) -> np.dtype:
        """The voxels' dtype."""
        return self._view.levels[self._level].dtype

    def __getitem__(self, key: Any) -> LazyRead:
        """Compose a basic selection, relative to this one."""
        return self._compose(self._selection[key])

    @property
    def oindex(self) -> Indexer[LazyRead]:
        """Compose an outer product of index arrays."""
        return Indexer(lambda key: self._compose(self._selection.oindex[key]))

    def _compose(self, selection: LazyArray) -> LazyRead:
        return LazyRead(self._claims, self._view, self._level, selection)

    def result(self) -> np.ndarray:
        """Read the selection: wait until its chunks are there and put it together.

        Raises
        ------
        ChunkError
            If one of the chunks could not be read or computed.
        """
        out = np.empty(self.shape, self.dtype)
        parts = deque(self._selection.parts())
        while parts:
            self._read(out, self._portion(parts))
        return out

    def _portion(self, parts: deque[Partition]) -> list[Partition]:
        level = self._view.levels[self._level]
        room = max(1, HELD_BYTES // max(1, int(np.prod(level.chunks)) * level.dtype.itemsize))
        return [parts.popleft() for _ in range(min(room, len(parts)))]

    def _read(self, out: np.ndarray, parts: Sequence[Partition]) -> None:
        claims = self._claims.claim_all(
            self._view, self._level, [part.base_coords for part in parts]
        )
        try:
            for part, claim in zip(parts, claims, strict=True):
                chunk = LazyArray.from_numpy(claim.result())
                out[part.out_selection] = chunk[part.projection.chunk_transform].result()
        finally:
            self._claims.release_all(claims)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Read the selection, for numpy."""
        if copy is False:
            raise ValueError("a view's voxels are computed: an array of them is always a copy")
        return np.asarray(self.result(), dtype=dtype)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a selection of one voxel has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"LazyRead(shape={self.shape}, dtype={self.dtype}, view={self._view.name!r})"


class Indexer[T]:
    """Something to index with square brackets."""

    def __init__(self, select: Callable[[Any], T]) -> None:
        self._select = select

    def __getitem__(self, key: Any) -> T:
        """Select."""
        return self._select(key)


class ViewArray:
    """One level of a view, read like a numpy array. Made by `Engine.array`.

    ``array[...]`` reads at once with basic indexing (integers, slices, an ellipsis),
    ``array.oindex[...]`` an outer product of index arrays, and ``array.lazy[...]`` composes and
    reads later.

    Examples
    --------
    >>> import numpy as np
    >>> import napari_materialize as nm
    >>> view = nm.open_view(np.arange(48).reshape(6, 8), chunks=(3, 4))
    >>> with nm.Engine(slots=1) as engine:
    ...     array = engine.array(view, level=0)
    ...     array[1:5, 2].tolist(), array.oindex[[5, 0], [7, 1]].tolist()
    ([10, 18, 26, 34], [[47, 41], [7, 1]])
    """

    def __init__(self, claims: ChunkClaims, view: View, level: int) -> None:
        self.lazy = LazyRead(claims, view, level, LazyArray(_Described(view, level)))
        """The whole level, composing and not read."""
        self.chunks = view.level(level).chunks
        """A whole chunk's voxels along each axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The level's shape."""
        return self.lazy.shape

    @property
    def dtype(self) -> np.dtype:
        """The voxels' dtype."""
        return self.lazy.dtype

    @property
    def ndim(self) -> int:
        """The level's number of axes."""
        return self.lazy.ndim

    @property
    def size(self) -> int:
        """The level's number of voxels."""
        return self.lazy.size

    def __getitem__(self, key: Any) -> Any:
        """Read a basic selection; a numpy scalar if it is one voxel."""
        return self.lazy[key].result()[()]

    @property
    def oindex(self) -> Indexer[np.ndarray]:
        """Read an outer product of index arrays."""
        return Indexer(lambda key: self.lazy.oindex[key].result())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Read the whole level, for numpy."""
        return self.lazy.__array__(dtype, copy)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"ViewArray(shape={self.shape}, dtype={self.dtype}, chunks={self.chunks})"
