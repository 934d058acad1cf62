"""How the loops without a framework write a file: whole, through a temporary name."""

from __future__ import annotations

import itertools
import os

__all__ = ["Files"]


class Files:
    """A folder that files are written into, in any thread; each subfolder is made once."""

    def __init__(self, out: str) -> None:
        self._out, self._made = out, set[str]()
        self._number = itertools.count()

    def put(self, path: str, data: bytes) -> None:
        """Write a file."""
        folder = f"{self._out}/{path.rpartition('/')[0]}"
        if folder not in self._made:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103 (pathlib costs)
            self._made.add(folder)
        temporary = f"{folder}/.{next(self._number)}"
        with open(temporary, "xb") as file:  # noqa: PTH123 (pathlib costs)
            file.write(data)
        os.replace(temporary, f"{self._out}/{path}")  # noqa: PTH105 (pathlib costs)
