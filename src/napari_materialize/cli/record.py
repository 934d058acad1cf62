"""What a result of ours says of itself, read back from its folder.

Owns the reading for a person or a program that asks. What the record holds is the job's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["own_record"]


def own_record(location: str | None) -> Mapping[str, Any] | None:
    """Return the record in the attributes of a folder's group, or None where there is none.

    Raises
    ------
    SourceError
        If the folder's metadata cannot be read.

    Examples
    --------
    >>> own_record(None), own_record("/nowhere")
    (None, None)
    """
    from napari_materialize.layout import RECORD_KEY
    from napari_materialize.sources.folder import node_at
    from napari_materialize.sources.places import place_of

    node = node_at(place_of(location)) if location is not None else None
    record = node.attributes.get(RECORD_KEY) if node is not None else None
    return record if isinstance(record, dict) else None
