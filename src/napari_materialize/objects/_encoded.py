"""Objects that were compressed on top of their format, and of which only HTTP's header says so.

Owns the unpacking of ``Content-Encoding: gzip``. Some programs upload files so, trusting that
whoever fetches them unpacks them, as browsers do. Other encodings are not looked at: some servers
keep there how an upload was sent (``aws-chunked``).
"""

from __future__ import annotations

import zlib
from typing import Any

__all__ = ["is_packed", "unpacked"]

_MAGIC = b"\x1f\x8b"
_GZIP = 31
"""zlib's ``wbits`` for gzip with the largest window."""


def is_packed(answer: Any) -> bool:
    """Whether a server's answer, one of obstore's, says that its bytes are gzip of the object."""
    said = str(answer.attributes.get("Content-Encoding", ""))
    return "gzip" in {each.strip().lower().removeprefix("x-") for each in said.split(",")}


def unpacked(data: bytes, most: int | None) -> bytes | None:
    """Return what was packed; None if that is more than ``most`` bytes.

    What does not begin like gzip was not packed, whatever was said.

    Raises
    ------
    OSError
        If it is damaged.

    Examples
    --------
    >>> import gzip
    >>> unpacked(gzip.compress(b"chunk"), 5), unpacked(b"chunk", 5)
    (b'chunk', b'chunk')
    >>> unpacked(gzip.compress(b"chunk"), 4) is None
    True
    """
    if not data.startswith(_MAGIC):
        return data
    stream = zlib.decompressobj(_GZIP)
    try:
        found = stream.decompress(data, 0 if most is None else most + 1)
    except zlib.error as error:
        raise OSError(str(error)) from error
    if most is not None and len(found) > most:
        return None
    if not stream.eof:
        raise OSError("it ends too early")
    return found
