"""What the files of a stored image are called and what its metadata documents say.

Owns names and documents, one builder per format, for the writer and for whatever else shows a
view as zarr. It compresses nothing (`codecs` hands it fragments) and opens nothing (`stores`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from napari_materialize.errors import OptionError
from napari_materialize.layout._image import RECORD_KEY, CodecFragments, Frame, ImageDocument
from napari_materialize.layout._paths import check_writable, is_result_path, read_record
from napari_materialize.layout.n5 import N5Layout
from napari_materialize.layout.zarr2 import Zarr2Layout
from napari_materialize.layout.zarr3 import Zarr3Layout

if TYPE_CHECKING:
    from napari_materialize.arrays import Level
    from napari_materialize.geometry import Index

__all__ = [
    "RECORD_KEY",
    "CodecFragments",
    "ImageDocument",
    "Layout",
    "N5Layout",
    "Zarr2Layout",
    "Zarr3Layout",
    "check_writable",
    "is_result_path",
    "layout_for",
    "read_record",
]


class Layout(Protocol):
    """One format: what it cannot hold, its metadata documents, and where a chunk goes."""

    @property
    def format(self) -> str:
        """The name in the option ``format``."""

    @property
    def frame(self) -> Frame:
        """How the bytes of a chunk are framed; `codecs` knows."""

    def stored(self, level: Level) -> Level:
        """Return a level as this format stores it: the fill value may be another."""

    def refusal(self, document: ImageDocument) -> str | None:
        """Return why this format cannot hold the image, as a sentence, or None if it can.

        To be asked before anything is created.
        """

    def documents(self, document: ImageDocument) -> dict[str, bytes]:
        """Return every metadata document by its path, in the order they should be put.

        Arrays come before the group that lists them, so that a reader who finds the group finds
        all of it.

        Raises
        ------
        OptionError
            If `refusal` has a reason.
        """

    def chunk_key(self, position: int, index: Index) -> str:
        """Return the path of the file of a chunk, or of a shard.

        Parameters
        ----------
        position : int
            Which of the written levels, counted from 0 whatever the source calls it.
        index : tuple of int
            The chunk's place in the level's grid; a shard's among the shards.
        """


def layout_for(name: str) -> Layout:
    """Return the layout of the format ``name``.

    Parameters
    ----------
    name : {"zarr2", "zarr3", "n5"}
        zarr v2 with OME-Zarr 0.4, zarr v3 with OME-Zarr 0.5, or N5.

    Raises
    ------
    OptionError
        If there is no such format.

    Examples
    --------
    >>> layout_for("zarr2").chunk_key(0, (1, 2, 3)), layout_for("zarr3").chunk_key(0, (1, 2, 3))
    ('0/1/2/3', '0/c/1/2/3')
    """
    layouts: dict[str, Layout] = {
        each.format: each for each in (Zarr2Layout(), Zarr3Layout(), N5Layout())
    }
    if name not in layouts:
        raise OptionError(f"format: must be one of {', '.join(layouts)}, got {name!r}; take one")
    return layouts[name]
