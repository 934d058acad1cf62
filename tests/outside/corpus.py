"""One result of every kind, written with this project, and what its voxels are."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize import Engine, open_view

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = ("bool", *(f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64)), "float16")
DTYPES = (*DTYPES, "float32", "float64")
CODECS = ("gzip", "zstd", "blosc", "none")
RANKS = (2, 3, 4, 5)
SHAPE, CHUNKS, SHARDS = (2, 2, 5, 7, 9), (1, 1, 2, 4, 5), (1, 2, 2, 1, 2)
"""Of five axes; an image of fewer has the last ones."""

LAYOUTS = ("zarr2", "zarr3", "zarr3 sharded", "n5")


def layouts_and_dtypes() -> list[tuple[str, str]]:
    """Return what is written: N5 has no bool and no float16."""
    return [
        (layout, dtype)
        for layout in LAYOUTS
        for dtype in DTYPES
        if not (layout == "n5" and dtype in {"bool", "float16"})
    ]


def voxels(dtype: str, shape: tuple[int, ...], empty: tuple[int, ...]) -> Any:
    """Return voxels with the extremes of their dtype, and a first chunk of zeros."""
    kind = np.dtype(dtype)
    random = np.random.default_rng(len(dtype))
    array = random.integers(0, 100, shape).astype(kind)
    if kind.kind == "b":
        array = random.random(shape) < 0.5
    elif kind.kind in "iu":
        array.flat[-1], array.flat[-2] = np.iinfo(kind).max, np.iinfo(kind).min
    else:
        array.flat[-1], array.flat[-2] = np.finfo(kind).max, -1.5
    array[tuple(map(slice, empty))] = 0
    return array


def digest(array: np.ndarray) -> str:
    """Return the sha256 of the voxels, little-endian, in C order."""
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(plain.tobytes()).hexdigest()


def write_corpus(folder: Path) -> dict[str, dict[str, Any]]:
    """Write a result of every layout, dtype, rank and codec; return and store what each holds."""
    manifest: dict[str, dict[str, Any]] = {}
    with Engine(slots=2) as engine:
        for (layout, dtype), rank in itertools.product(layouts_and_dtypes(), RANKS):
            chunks = CHUNKS[-rank:]
            array = voxels(dtype, SHAPE[-rank:], chunks)
            for codec in CODECS:
                name = f"{layout.replace(' ', '-')}-{dtype}-{codec}-{rank}d"
                engine.materialize(
                    open_view(array, chunks=chunks, kind="image"),
                    folder / name,
                    format=layout.split()[0],
                    shards=SHARDS[-rank:] if layout.endswith("sharded") else None,
                    compression=codec,
                )
                manifest[name] = {
                    "layout": layout,
                    "dtype": dtype,
                    "codec": codec,
                    "array": "s0" if layout == "n5" else "0",
                    "shape": list(array.shape),
                    "sha256": digest(array),
                }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return manifest


def _image_cases() -> dict[str, tuple[Any, dict[str, Any], dict[str, Any]]]:
    random = np.random.default_rng(0)
    five = random.integers(0, 999, (2, 3, 4, 10, 12)).astype("u2")
    space = {"scale": (0.5, 0.1, 0.1), "translation": (-10.0, 0.0, 3.25), "units": ("um",) * 3}
    ids = random.integers(0, 5, (8, 10, 12)).astype("u8") + np.uint64(2**63)
    return {
        "2d": (five[0, 0, 0], {"chunks": (4, 5)}, {"pyramid": "auto"}),
        "3d": (five[0, 0], {"chunks": (2, 4, 5), **space}, {"pyramid": 2}),
        "4d-channels": (five[0], {"chunks": (1, 2, 4, 5)}, {"pyramid": 1}),
        "4d-time": (five[:, 0], {"chunks": (1, 2, 4, 5), "axes": "tzyx"}, {}),
        "5d": (five, {"chunks": (1, 1, 2, 4, 5)}, {"pyramid": "auto"}),
        "labels": (ids, {"chunks": (4, 4, 5), "kind": "label"}, {"pyramid": 1}),
        "mask": (five[0, 0], {"chunks": (2, 4, 5), "ops": ["threshold:low=500"]}, {"pyramid": 1}),
        "nan": (np.full((4, 5), np.nan, "f4"), {"chunks": (2, 2)}, {}),
        "viewed-levels": (
            [five[0, 0], five[0, 0, ::2, ::2, ::2].copy()],
            {"chunks": (2, 4, 5)},
            {"levels": [0, 1]},
        ),
        "box": (five[0, 0], {"chunks": (2, 4, 5), **space}, {"pyramid": 1, "extent": "box"}),
        "attributes": (five[0, 0, 0], {"name": "cells"}, {"attributes": {"sample": "7b"}}),
    }


def write_images(folder: Path) -> dict[str, str]:
    """Write every kind of OME-Zarr image; return the folders' names with their layouts."""
    from napari_materialize import Box

    written: dict[str, str] = {}
    with Engine(slots=2) as engine:
        for layout in ("zarr2", "zarr3", "zarr3 sharded"):
            for case, (array, opening, options) in _image_cases().items():
                opened = dict(opening)
                view = open_view(array, opened.pop("ops", []), **opened)
                more: dict[str, Any] = dict(options)
                if case == "box":
                    more["box"] = Box((1, 3, 2), (3, 9, 11))
                if layout.endswith("sharded"):
                    more["shards"] = (2, 2)
                name = f"{layout.replace(' ', '-')}-{case}.ome.zarr"
                engine.materialize(view, folder / name, format=layout.split()[0], **more)
                written[name] = layout.split()[0]
    (folder / "images.json").write_text(json.dumps(written))
    return written
