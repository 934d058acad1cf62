"""The sample in napari's File menu: the generated volume as a multiscale layer.

Owns how it is shown. What it is made of is `napari_materialize.samples`' business.
"""

from __future__ import annotations

from typing import Any

from napari_materialize import samples

__all__ = ["blobs"]

LIMITS = (15.0, 130.0)
"""Contrast limits in which both kinds of blobs are seen."""


def blobs() -> list[tuple[Any, dict[str, Any], str]]:
    """Return the sample as napari takes it: data, keywords, layer type."""
    arrays, levels = samples.pyramid(samples.volume()[0])
    finest = levels[0]
    keywords = {
        "name": "blobs",
        "multiscale": True,
        "scale": finest.scale,
        "translate": finest.translation,
        "units": [axis.unit or "pixel" for axis in finest.axes],
        "axis_labels": [axis.name for axis in finest.axes],
        "contrast_limits": LIMITS,
    }
    return [(list(arrays), keywords, "image")]
