"""What the tests of the command line share: running it, in this process or another, and an image.

No test is here. Names are imported by `test_cli` and `test_bad_input`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from napari_materialize.cli import main

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

SCRIPT = Path(sys.executable).with_name("napari-materialize")
"""The command as it is installed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """The JSON object in the last line of standard output."""
        found = json.loads(self.out.splitlines()[-1])
        assert isinstance(found, dict)
        return found


def here(capfd: pytest.CaptureFixture[str], *arguments: str) -> Ended:
    """Run the command line in this process."""
    capfd.readouterr()
    code = main(arguments)
    return Ended(code, *capfd.readouterr())


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start the installed command without a display."""
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([SCRIPT, *arguments], env=environment, **pipes)


def apart(*arguments: str, **options: Any) -> Ended:
    """Run the installed command to its end."""
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=120)
    return Ended(process.returncode, out, err)


def write_image(
    path: Path,
    levels: Sequence[np.ndarray],
    chunks: tuple[int, ...],
    axes: str = "zyx",
    scale: Sequence[float] = (4.0, 2.0, 2.0),
) -> Path:
    """Write an OME-Zarr 0.4 image with zarr alone; each level is half as fine as the one before."""
    group = zarr.open_group(path, mode="w", zarr_format=2)
    datasets = []
    for number, data in enumerate(levels):
        group.create_array(
            str(number),
            data=data,
            chunks=chunks,
            chunk_key_encoding={"name": "v2", "separator": "/"},
        )
        steps = [1.0] * (data.ndim - len(scale)) + [each * 2**number for each in scale]
        datasets.append(
            {
                "path": str(number),
                "coordinateTransformations": [{"type": "scale", "scale": steps}],
            }
        )
    described = [
        {"name": name, "type": "channel"}
        if name == "c"
        else {"name": name, "type": "space", "unit": "micrometer"}
        for name in axes
    ]
    group.attrs["multiscales"] = [{"version": "0.4", "axes": described, "datasets": datasets}]
    return path


def ramp(*shape: int) -> np.ndarray:
    """Return voxels that differ from their neighbours: uint8, the same for the same shape."""
    return np.random.default_rng(7).integers(0, 256, shape).astype("u1")


def everything_in(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return what lies in a folder: each path's kind and mode, size and time of writing."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found
