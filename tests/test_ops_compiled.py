"""The filters call scipy's compiled module by itself: it is the same, and it is looked at first."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.ndimage

from napari_materialize import ops
from napari_materialize.arrays import Level
from napari_materialize.ops import _ndimage

ALONE = """
import sys
import numpy as np
from napari_materialize import ops
from napari_materialize.arrays import Level
image = np.random.default_rng(1).integers(0, 256, (9, 12, 15), "u1")
level = Level(image.shape, image.dtype, image.shape)
smooth = ops.Gaussian((0.8, 1.5, 0)).compute(image, level)
middle = ops.Median((3, 2, 3)).compute(image, level)
loaded = [name for name in ("scipy.ndimage", "scipy.linalg", "numpy.f2py") if name in sys.modules]
assert not loaded, loaded
assert "scipy" in sys.modules  # a record tells its version

import scipy.ndimage
from scipy.ndimage import gaussian_filter, median_filter
whole = gaussian_filter(image.astype("f4"), (0.8, 1.5, 0), mode="nearest")[3:-3, 6:-6]
np.testing.assert_array_equal(smooth, np.rint(whole).astype("u1"))
whole = median_filter(image, (3, 2, 3), mode="nearest")[1:-1, 1:-1, 1:-1]
np.testing.assert_array_equal(middle, whole)
assert scipy.ndimage.label(image > 128)[1] > 1
"""


def test_a_filter_loads_one_module_of_scipy() -> None:
    command = [sys.executable, "-W", "error", "-c", ALONE]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_module_is_used_where_it_answers_as_known() -> None:
    assert _ndimage.compiled() is scipy.ndimage._nd_image  # it is there: no second one is loaded


def wrong(values: np.ndarray, *_: object) -> None:
    values[...] = 7


@pytest.mark.parametrize(
    "module",
    [
        SimpleNamespace(),
        SimpleNamespace(correlate1d=lambda values: None, rank_filter=lambda values: None),
        SimpleNamespace(correlate1d=wrong, rank_filter=wrong),
        SimpleNamespace(correlate1d=scipy.ndimage._nd_image.correlate1d, rank_filter=wrong),
    ],
    ids=["gone", "called otherwise", "answers otherwise", "one answers otherwise"],
)
def test_another_module_is_not_used(
    module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.ndimage._nd_image", module)
    _ndimage.compiled.cache_clear()
    try:
        assert _ndimage.compiled() is None
        image = np.random.default_rng(2).integers(0, 256, (8, 9, 10), "u1")
        level = Level(image.shape, image.dtype, image.shape)
        smooth = ops.Gaussian(0.5).compute(image, level)
        whole = scipy.ndimage.gaussian_filter(image.astype("f4"), 0.5, mode="nearest")
        np.testing.assert_array_equal(smooth, np.rint(whole)[2:-2, 2:-2, 2:-2].astype("u1"))
        middle = ops.Median(3).compute(image, level)
        whole = scipy.ndimage.median_filter(image, 3, mode="nearest")
        np.testing.assert_array_equal(middle, whole[1:-1, 1:-1, 1:-1])
    finally:
        _ndimage.compiled.cache_clear()
