"""What the files of a stored image are called and what its metadata documents say.

Owns names and documents, one builder per format, for the writer and for whatever else shows a
view as zarr. It compresses nothing (`codecs` hands it fragments) and opens nothing (`stores`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from napari_materialize.errors import OptionError
from napari_materialize.layout._image import RECORD_KEY, CodecFragments, ImageDocument
from napari_materialize.layout.zarr2 import Zarr2Layout
from napari_materialize.layout.zarr3 import Zarr3Layout

if TYPE_CHECKING:
    from napari_materialize.geometry import Index

__all__ = [
    "RECORD_KEY",
    "CodecFragments",
    "ImageDocument",
    "Layout",
    "Zarr2Layout",
    "Zarr3Layout",
    "layout_for",
]


class Layout(Protocol):
    """One format: what it cannot hold, its metadata documents, and where a chunk goes."""

    @property
    def format(self) -> str:
        """The name in the option ``format``."""

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
        """Return the path of a chunk.

        Parameters
        ----------
        position : int
            Which of the written levels, counted from 0 whatever the source calls it.
        index : tuple of int
            The chunk's place in the level's grid.
        """


def layout_for(name: str) -> Layout:
    """Return the layout of the format ``name``.

    Parameters
    ----------
    name : {"zarr2", "zarr3"}
        zarr v2 with OME-Zarr 0.4, or zarr v3 with OME-Zarr 0.5.

    Raises
    ------
    OptionError
        If there is no such format, or it is not written yet (``n5``).

    Examples
    --------
    >>> layout_for("zarr2").chunk_key(0, (1, 2, 3)), layout_for("zarr3").chunk_key(0, (1, 2, 3))
    ('0/1/2/3', '0/c/1/2/3')
    """
    if name == "zarr2":
        return Zarr2Layout()
    if name == "zarr3":
        return Zarr3Layout()
    if name == "n5":
        raise OptionError("format: n5 cannot be written yet; use zarr2 or zarr3")
    raise OptionError(f"format: must be zarr2 or zarr3, got {name!r}")
