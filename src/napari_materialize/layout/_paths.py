"""Which paths a result has, whatever its format, and where its record stands."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from napari_materialize.layout._image import RECORD_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["check_writable", "is_result_path", "read_record"]

_PATHS = re.compile(
    r"\.zgroup|\.zattrs|\.zmetadata|zarr\.json|attributes\.json"
    r"|\d+/(\.zarray|\.zattrs|zarr\.json)|s\d+/attributes\.json"
    r"|\d+(/c)?(/\d+)+|s\d+(/\d+)+"
)

_GROUPS = (
    ("zarr2", ".zattrs", ()),
    ("zarr3", "zarr.json", ("attributes",)),
    ("n5", "attributes.json", ()),
)


def is_result_path(path: str) -> bool:
    """Whether a result of any format can have a file of this path.

    Examples
    --------
    >>> is_result_path("0/c/1/2"), is_result_path("s1/attributes.json"), is_result_path("notes.txt")
    (True, True, False)
    """
    return _PATHS.fullmatch(path) is not None


def check_writable(value: Any) -> None:
    r"""Raise unless a value that was read from JSON can be written as JSON again.

    Python reads ``NaN`` and halves of letters, which no document of ours may hold.

    Raises
    ------
    ValueError
        If it cannot.

    Examples
    --------
    >>> check_writable(json.loads('{"a": NaN}'))
    Traceback (most recent call last):
        ...
    ValueError: Out of range float values are not JSON compliant: nan
    """
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


def read_record(get: Callable[[str], bytes | None]) -> Mapping[str, Any] | None:
    """Return the record in the attributes of a result, or None where there is none.

    Parameters
    ----------
    get : callable
        Returns the bytes under a path, or None.
    """
    for _, path, keys in _GROUPS:
        data = get(path)
        if data is None:
            continue
        try:
            value = json.loads(data)
            for key in (*keys, RECORD_KEY):
                value = value.get(key) if isinstance(value, dict) else None
            check_writable(value)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return None
