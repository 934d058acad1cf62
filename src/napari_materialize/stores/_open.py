"""The store that a person names."""

from __future__ import annotations

import os
import re

from napari_materialize.errors import TargetError
from napari_materialize.objects import is_object_url, local_path
from napari_materialize.stores._directory import DirectoryStore
from napari_materialize.stores._objects import ObjectStore
from napari_materialize.stores._places import WritableStore

__all__ = ["open_store"]

URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]+):(?=//)|(?P<file>(?i:file)):(?=/)")
"""A scheme of two letters or more, so that a Windows drive is not taken for one."""


def open_store(where: str | os.PathLike[str] | WritableStore) -> WritableStore:
    """Return the store that ``where`` names. Nothing is created.

    Parameters
    ----------
    where : str, os.PathLike or WritableStore
        A folder's path, a ``file://`` URL (percent-encoded), an ``s3://`` or ``gs://`` URL, or a
        store, returned as it is.

    Raises
    ------
    TargetError
        If it is something else, a URL of a kind that is not written to, a ``file://`` URL of
        another machine, or what `DirectoryStore` refuses.

    Examples
    --------
    >>> open_store("file:///tmp/a%20b.zarr").location
    '/tmp/a b.zarr'
    >>> open_store("s3://bucket/out.zarr")
    ObjectStore('s3://bucket/out.zarr')
    >>> open_store("https://host/out.zarr")
    Traceback (most recent call last):
        ...
    napari_materialize.errors.TargetError: target https://host/out.zarr: ...
    """
    if isinstance(where, WritableStore):
        return where
    if isinstance(where, os.PathLike):
        return DirectoryStore(where)
    if not isinstance(where, str):
        raise TargetError(
            "target: a path, a file:// URL or an object with a method put(path, data) is needed, "
            f"got {type(where).__name__}"
        )
    url = URL.match(where)
    if url is None:
        return DirectoryStore(os.path.expanduser(where))  # noqa: PTH111  (an unknown ~user stays)
    scheme = (url["scheme"] or url["file"]).lower()
    if is_object_url(where):
        return ObjectStore(where)
    if scheme != "file":
        # the rest of the URL may hold a password and is not repeated
        raise TargetError(
            f"target: {scheme}:// URLs cannot be written to; give a folder's path, a file://, "
            "s3:// or gs:// URL, or an object with a method put(path, data)"
        )
    try:
        return DirectoryStore(local_path(where))
    except ValueError as error:
        if isinstance(error, TargetError):
            raise
        raise TargetError(f"target: of this file:// URL {error}; correct it") from None
