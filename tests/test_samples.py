"""The sample volume and its detector: the same every time, and the blobs are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
import scipy.ndimage

from napari_materialize import samples
from napari_materialize.geometry import Box
from napari_materialize.ops import Onnx
from napari_materialize.samples import make_detector

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def sample() -> tuple[np.ndarray, samples.Blobs]:
    return samples.volume()


def test_the_volume_is_generated_the_same(
    sample: tuple[np.ndarray, samples.Blobs],
) -> None:
    data, blobs = sample
    assert (data.shape, data.dtype) == ((64, 512, 512), np.uint8)
    assert len(blobs.small) > 200
    assert len(blobs.large) > 100
    assert 20 < data.mean() < 60
    assert data.max() < 255  # nothing saturates
    small = samples.volume((16, 64, 64), seed=3)[0]
    np.testing.assert_array_equal(small, samples.volume((16, 64, 64), seed=3)[0])
    assert (small != samples.volume((16, 64, 64), seed=4)[0]).any()


def test_blobs_are_where_they_are_said_to_be(sample: tuple[np.ndarray, samples.Blobs]) -> None:
    data, blobs = sample
    smooth = scipy.ndimage.gaussian_filter(data.astype("f4"), (0.5, 1, 1))
    for centres in (blobs.small, blobs.large):
        at = smooth[tuple(np.rint(centres).astype(int).T)]
        assert np.median(at) > 80
        assert at.min() > 50
        assert (centres >= 0).all()
        assert (centres < data.shape).all()


def test_the_pyramid_is_the_mean_and_stays_in_place() -> None:
    data = samples.volume((20, 66, 70))[0]
    arrays, levels = samples.pyramid(data)
    assert arrays[0].shape == data.shape
    expected = data[:, :66, :70].reshape(20, 33, 2, 35, 2).mean((2, 4))
    assert np.abs(arrays[1] - expected).max() <= 0.5
    expected = data[:20, :64, :68].reshape(10, 2, 16, 4, 17, 4).mean((1, 3, 5))
    assert np.abs(arrays[2] - expected).max() <= 0.5
    for array, level in zip(arrays, levels, strict=True):
        assert (array.shape, array.dtype) == (level.shape, level.dtype)
        assert [axis.unit for axis in level.axes] == ["micrometer"] * 3
        # the outer face of voxel 0 is at the same place at every level
        corner, _ = level.world_corners(Box.whole(level.shape))
        assert corner == pytest.approx((-0.5, -0.2, -0.2))


def test_the_shipped_detector_is_what_its_script_makes() -> None:
    path = samples.detector_path()
    assert path.stat().st_size < 100_000
    assert onnx.load(path) == make_detector.make()
    onnx.checker.check_model(onnx.load(path), full_check=True)


def test_the_script_writes_the_shipped_bytes(tmp_path: Path) -> None:
    target = tmp_path / "detector.onnx"
    make_detector.main([str(target)])
    assert target.read_bytes() == samples.detector_path().read_bytes()


def test_the_detector_finds_the_blobs(sample: tuple[np.ndarray, samples.Blobs]) -> None:
    """Rule: a detection is a connected region above 0.5, at its centre of mass; it is right if the
    nearest blob of its kind is less than 1.5 of the blob's sigma away, in micrometres, and is the
    nearest blob of no other detection.
    """
    data, blobs = sample
    data = data[:, :256, :256]
    level = samples.pyramid(data)[1][0]
    op = Onnx(samples.detector_path(), samples.DETECTOR_HALO)
    assert op.describe(level, "image").limits == (0, 1)
    box = Box.whole((2, *data.shape))
    need = op.reach(box, level)
    margins = [
        (-low, high - n) for low, high, n in zip(need.start, need.stop, data.shape, strict=True)
    ]
    found = op.run(np.pad(data, margins, mode="edge"), box, level)
    for channel, centres, sigma in (
        (found[0], blobs.small, samples.SMALL_SIGMA),
        (found[1], blobs.large, samples.LARGE_SIGMA),
    ):
        regions, count = scipy.ndimage.label(channel > 0.5)
        middles = scipy.ndimage.center_of_mass(channel, regions, range(1, count + 1))
        truth = centres[(centres < (64, 255.5, 255.5)).all(1)]
        gaps = np.linalg.norm((np.array(middles)[:, np.newaxis] - truth) * samples.SCALE, axis=-1)
        right = {int(gap.argmin()) for gap in gaps if gap.min() < 1.5 * sigma}
        assert len(truth) > 20
        assert len(right) / count >= 0.9  # precision
        assert len(right) / len(truth) >= 0.9  # recall


def test_the_halo_makes_chunks_of_the_detector_exact(
    sample: tuple[np.ndarray, samples.Blobs],
) -> None:
    data = sample[0][:, :160, :160]
    level = samples.pyramid(data)[1][0]
    op = Onnx(samples.detector_path(), samples.DETECTOR_HALO)
    large, small = Box((0, 16, 32, 32), (2, 48, 128, 128)), Box((0, 20, 40, 50), (2, 40, 120, 110))
    whole = op.run(data[op.reach(large, level).slices], large, level)
    part = op.run(data[op.reach(small, level).slices], small, level)
    np.testing.assert_allclose(
        part, whole[small.relative_to(large.start).slices], rtol=0, atol=1e-5
    )
    shorter = Onnx(samples.detector_path(), tuple(n - 1 for n in samples.DETECTOR_HALO))
    cut = shorter.run(data[shorter.reach(small, level).slices], small, level)
    assert np.abs(cut - part).max() > 1e-3  # no smaller halo would do
