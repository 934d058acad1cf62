"""What is free where a folder lies, or will."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Volume", "volume_of"]

BLOCK = 4096
"""Bytes that a file takes at least, where the system does not say."""


@dataclass(frozen=True, slots=True)
class Volume:
    """The volume that a target lies on.

    Examples
    --------
    >>> Volume("/data", free=10**9, block=4096).taken(5000)
    8192
    """

    place: str
    """The folder that was looked at: the nearest one that exists."""

    free: int
    """Bytes that this user may still write. Quotas are not seen."""

    block: int
    """Bytes a file is rounded up to."""

    def taken(self, size: int) -> int:
        """Return the bytes that a file of some size takes."""
        return -(-size // self.block) * self.block


def volume_of(folder: str) -> Volume | None:
    """Return the volume that a folder lies on, there or not yet; None if the system tells nothing.

    Examples
    --------
    >>> volume_of("/there/is/nothing/of/this/name").place
    '/'
    """
    place = Path(folder)
    while not place.is_dir():
        if place == place.parent:
            return None
        place = place.parent
    try:
        if not hasattr(os, "statvfs"):
            return Volume(str(place), shutil.disk_usage(place).free, BLOCK)
        said = os.statvfs(place)
    except OSError:
        return None
    if not said.f_blocks:  # no disk behind it: it does not count its bytes
        return None
    return Volume(str(place), said.f_bavail * said.f_frsize, said.f_frsize or BLOCK)
