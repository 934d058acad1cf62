"""Any Python callable of a block as an op. From Python only: text cannot name a callable."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.errors import OpError, named
from napari_materialize.ops._axes import along, crop, one_or_each, space_axes
from napari_materialize.ops._base import Description, Op, never
from napari_materialize.ops._convert import dtype_name, saturate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Index

__all__ = ["Function"]

_TRIAL = 4
"""Voxels along each axis, beside the halo, of the block that ``fn`` is tried on."""


@dataclass(frozen=True, slots=True, init=False)
class Function(Op):
    """``fn(block)`` as an op.

    Parameters
    ----------
    fn : callable
        Takes a block with all axes of the image, its halo included, read-only; returns the block,
        either of the same shape (the halo is then cut off here) or already without its halo.
        Called from worker threads, several at once, and it must give a voxel the same value
        whatever block that voxel is handed in.
    halo : int or sequence of int
        Voxels of context on each side: one number for the space axes, or one per axis.
    dtype : dtype, optional
        What ``fn`` returns. If left out, ``fn`` is called once, when the op is described, on a
        block of zeros of 4 voxels and the halo along each axis, and its result's dtype is taken.
        Results are converted where numpy calls that safe or of the same kind (float64 to
        float32), and refused otherwise.
    name, version : str, optional
        Name the computation. With both, equal names and versions count as the same computation:
        results can be resumed and kept chunks found again, so raise the version when ``fn``
        changes. Without, nobody can know, and `identity` is None.

    Raises
    ------
    OpError
        If ``fn`` cannot be called, a halo is not a whole number, or a version has no name.

    Examples
    --------
    >>> import numpy as np
    >>> from napari_materialize.arrays import Level
    >>> op = Function(lambda block: block * np.float32(2), name="double", version="1")
    >>> level = Level((2, 2), "u1", (2, 2))
    >>> op.describe(level, "image").level.dtype, op.compute(np.ones((2, 2), "u1"), level)[0]
    (dtype('float32'), array([2., 2.], dtype=float32))
    """

    fn: Callable[[np.ndarray], np.ndarray]
    """The callable."""

    extent: int | tuple[int, ...]
    """The halo: one number for the space axes, or one per axis."""

    dtype: str | None
    """The dtype of the result, if it was given."""

    name: str
    """The name given, or the callable's own."""

    version: str | None
    """The version given."""

    _found: dict[tuple[Any, ...], np.dtype] = field(repr=False, compare=False)
    """The dtypes found by trying, by the input's dtype, rank and halo."""

    def __init__(
        self,
        fn: Callable[[np.ndarray], np.ndarray],
        halo: int | tuple[int, ...] = 0,
        dtype: Any = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        if not callable(fn):
            raise OpError(f"function: fn must be callable, got {fn!r}")
        if version is not None and name is None:
            raise OpError(
                f"function: version {version!r} needs a name to be a version of; give name"
            )
        put = object.__setattr__
        put(self, "fn", fn)
        put(self, "extent", one_or_each(halo, _whole, "function: halo"))
        put(self, "dtype", None if dtype is None else dtype_name(dtype, "function: dtype"))
        put(self, "name", name or getattr(fn, "__name__", "function"))
        put(self, "version", version)
        put(self, "_found", {})

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The parameters but for ``fn``, which JSON cannot hold: not enough to make it again."""
        halo = list(self.extent) if isinstance(self.extent, tuple) else self.extent
        return {"halo": halo, "dtype": self.dtype, "version": self.version}

    @property
    def identity(self) -> str | None:
        """Name, version, halo and dtype; None where no version was given."""
        if self.version is None:
            return None
        return json.dumps(["function", self.name, dict(self.parameters)], sort_keys=True)

    @property
    def record(self) -> Mapping[str, Any]:
        """Name, version, halo and dtype, under the name ``function``, and `notes`."""
        told = {"notes": list(self.notes)} if self.notes else {}
        return {"name": "function", "parameters": {"name": self.name, **self.parameters}, **told}

    @property
    def notes(self) -> tuple[str, ...]:
        """That a result cannot be gone on with, where nobody can know what computed it."""
        if self.version is not None:
            return ()
        return (
            f"function {self.name}: has no version that says what it computes, so its results "
            "cannot be resumed or added to; give it a name and a version",
        )

    def halo(self, level: Level) -> Index:
        """Return the halo along every axis of ``level``."""
        if isinstance(self.extent, tuple):
            return along(self.extent, range(level.ndim), level, 0, f"function {self.name}: halo")
        return along(self.extent, space_axes(level), level, 0, f"function {self.name}: halo")

    def describe(self, level: Level, kind: Kind) -> Description:
        """Describe an image of the same shape, or a mask if the dtype is bool.

        Raises
        ------
        OpError
            If the dtype must be found and ``fn`` fails on a block of zeros.
        """
        dtype = np.dtype(self.dtype) if self.dtype else self._find_dtype(level)
        mask = dtype.kind == "b"
        return Description(
            replace(level, dtype=dtype, fill=0),
            "mask" if mask else "image",
            (0.0, 1.0) if mask else None,
        )

    def _find_dtype(self, level: Level) -> np.dtype:
        """Call ``fn`` once on a small block of zeros and return the dtype of its result."""
        halo = self.halo(level)
        key = (level.dtype, halo)
        if key not in self._found:
            block = np.zeros(tuple(_TRIAL + 2 * n for n in halo), level.dtype)
            block.flags.writeable = False
            try:
                result = self._call(block, halo)
            except OpError:
                raise
            except Exception as error:
                raise OpError(
                    f"function {self.name}: failed on a trial block of zeros, {block.shape} "
                    f"{block.dtype}, which finds its dtype ({named(error)}); "
                    "mend it, or give dtype"
                ) from error
            self._found[key] = np.dtype(
                dtype_name(result.dtype, f"function {self.name}: dtype of the result")
            ).newbyteorder("=")
        return self._found[key]

    def _call(self, block: np.ndarray, halo: Index) -> np.ndarray:
        """Call ``fn`` and return its result without halo."""
        result = np.asarray(self.fn(block))
        inner = tuple(size - 2 * n for size, n in zip(block.shape, halo, strict=True))
        if result.shape == inner:
            return result
        if result.shape == block.shape:
            return crop(result, halo)
        raise OpError(
            f"function {self.name}: must return the block's shape {block.shape} or, without the "
            f"halo, {inner}, but returned {result.shape}"
        )

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Call ``fn`` on a block.

        Raises
        ------
        OpError
            If the result has another shape, or a dtype that cannot be converted.
        """
        result = self._call(block, self.halo(level))
        dtype = np.dtype(self.dtype) if self.dtype else self._find_dtype(level)
        if not np.can_cast(result.dtype, dtype, "same_kind"):
            raise OpError(
                f"function {self.name}: must return {dtype}, but returned {result.dtype}; convert "
                f"in the function, or give dtype={result.dtype.name}"
            )
        return saturate(result, dtype)


def _whole(value: Any) -> int:
    """Check one halo."""
    try:
        halo = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        halo = -1
    if halo < 0:
        raise OpError(f"function: halo must be a whole number of voxels, 0 or more, got {value!r}")
    return halo
