"""The script that takes the docs' pictures of a live layer, run as CI would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "scripts" / "live_series.py"


def detail(part: np.ndarray) -> float:
    """Return how much neighbouring pixels differ: more where a finer level is shown."""
    return float(np.abs(np.diff(part.astype(float), axis=1)).mean())


@pytest.mark.usefixtures("qapp")
def test_the_series_goes_from_coarse_to_complete(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    picture = np.asarray(Image.open(tmp_path / "live-series.png"))[..., 0]
    width = picture.shape[0]
    coarse, half, complete = (
        picture[:, start : start + width] for start in (0, width + 6, 2 * (width + 6))
    )
    middle = (slice(width // 3, -width // 3),) * 2
    assert coarse.any()
    assert detail(coarse) < detail(half) < detail(complete)
    np.testing.assert_array_equal(half[middle], complete[middle])  # from the middle out
    assert not np.array_equal(half, complete)
