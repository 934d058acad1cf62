"""Real models on real voxels: what is found out about each, and tiles against one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import napari_materialize as nm
import onnx_models as models
from napari_materialize import ops
from napari_materialize.errors import ModelError
from napari_materialize.geometry import Box

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real_data

UNET = "unet2d_nuclei_broad/unet2d_nuclei_broad"


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAPARI_MATERIALIZE_CACHE", "")


@pytest.fixture
def nuclei(shared_data: Path) -> np.ndarray:
    return np.load(shared_data / "volumes/nuclei_dsb2018/test_input.npy")[0, 0]


@pytest.mark.parametrize(
    ("name", "options", "halo", "stride"),
    [
        (f"{UNET}_dyn", {"normalise": "zscore"}, 56, 8),
        (UNET, {"normalise": "zscore"}, 56, 8),
        ("n2v_tobacco_leaf/n2v_tobacco_leaf", {"normalise": "zscore"}, 16, 4),
        ("espcn_x3/espcn_x3", {"normalise": "minmax"}, 5, 1),
    ],
)
def test_the_halo_of_a_real_model_is_found_and_is_exact(
    shared_data: Path,
    nuclei: np.ndarray,
    name: str,
    options: dict[str, Any],
    halo: int,
    stride: int,
) -> None:
    path = shared_data / "models" / f"{name}.onnx"
    view = nm.open_view(nuclei, ops.Onnx(path, "auto", **options), chunks=(100, 90))
    op = view.ops[0]
    assert isinstance(op, ops.Onnx)
    assert halo <= op.parameters["halo"] <= halo + stride
    assert op.multiple == stride
    scaling = op.scaling(view.stages[0].levels[0])
    image = ((nuclei - scaling.shift) / scaling.scale).astype("f4")
    last = op.ports.layout.letters == "byxc"
    made = models.run(path, image[None, ..., None] if last else image[None, None])
    whole = made[0, ..., 0] if last else made[0, 0]
    ratio = int(op.ports.grid[0].ratio)
    inner = Box.whole(whole.shape).grow((-halo * ratio,) * 2)
    box = Box((120 * ratio, 110 * ratio), (290 * ratio, 300 * ratio)).intersect(inner)
    np.testing.assert_allclose(view.look(0, box), whole[box.slices], rtol=0, atol=1e-5)


def test_the_fixed_unet_equals_its_twin_on_images_of_other_sizes(
    shared_data: Path, nuclei: np.ndarray
) -> None:
    for shape in ((250, 300), (700, 530)):
        image = np.pad(nuclei, [(0, 200), (0, 200)], mode="symmetric")[: shape[0], : shape[1]]
        views = [
            nm.open_view(
                image,
                ops.Onnx(shared_data / f"models/{UNET}{kind}.onnx", 56, normalise="zscore"),
                chunks=(128, 128),
            )
            for kind in ("", "_dyn")
        ]
        box = Box((0, 60), (shape[0], 200))
        fixed, free = (view.look(0, box) for view in views)
        np.testing.assert_allclose(fixed, free, rtol=0, atol=1e-4)


def test_the_brain_model_in_chunks_equals_one_run(shared_data: Path) -> None:
    source = nm.open_view(shared_data / "volumes/t1_head_256.v04.ome.zarr")
    head = source.look(0, Box((80, 80, 80), (168, 168, 168)))
    path = shared_data / "models/brainchop_meshnet/brainchop_model11_gw_ae.onnx"
    op = ops.Onnx(path, 24, normalise="percentile:2,98", after="argmax")
    view = nm.open_view(head, op, chunks=(32, 32, 32))
    assert view.kind == "label"
    low, high = np.percentile(head, [2, 98])
    scaled = ((head - low) / (high - low)).astype("f4")
    whole = models.run(path, scaled[None, None])[0].argmax(0)
    inner = Box.whole(head.shape).grow((-24,) * 3)
    np.testing.assert_array_equal(view.look(0, inner), whole[inner.slices])


def test_the_text_detector_depends_on_its_tile(shared_data: Path, nuclei: np.ndarray) -> None:
    path = shared_data / "models/ocr_det/PP-OCRv6_det_tiny.onnx"
    image = np.stack([nuclei] * 3)
    for halo in ("auto", 96):
        with pytest.raises(ModelError, match=r"depends on the whole tile .*GlobalAveragePool"):
            nm.open_view(image, ops.Onnx(path, halo), axes="cyx", chunks=(3, 128, 128))
