"""What `throughput.py` measures, and the made-up images that it is measured on.

Imported by this project's interpreter and by the peers' own; needs numpy alone, and scipy and zarr
to make an image.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOW = 120
SIGMA = 1.5
REACH = int(4 * SIGMA + 0.5)
"""Voxels that a gaussian of `SIGMA` needs on each side, cut off at 4 sigma."""


@dataclass(frozen=True)
class Case:
    """One row: an image, an op, and how the result is stored."""

    name: str
    op: str = "none"
    """``none``, ``threshold``, ``gaussian`` or ``net``."""

    shape: tuple[int, ...] = (512, 512, 512)
    chunks: tuple[int, ...] = (64, 64, 64)
    compression: str = "gzip"
    format: str = "zarr2"
    shards: tuple[int, ...] | None = None
    """Chunks of a shard."""

    @property
    def halo(self) -> int:
        """Voxels of context that the op needs on each side."""
        return REACH if self.op == "gaussian" else 0

    @property
    def bytes(self) -> int:
        """Voxels of the image, one byte each."""
        return int(np.prod(self.shape))

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True))

    def to_json(self) -> str:
        """Return the case as text, for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        """Return a case that `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        for name in ("shape", "chunks", "shards"):
            fields[name] = fields[name] and tuple(fields[name])
        return cls(**fields)


def cases(side: int) -> list[Case]:
    """Return all rows, for images of ``side`` voxels along each axis."""
    shape = (side,) * 3
    tiny = (min(side, 256),) * 3
    planes = (side // 8, 1024, 1024)
    return [
        Case("no op", "none", shape),
        Case("threshold", "threshold", shape),
        Case("gaussian", "gaussian", shape),
        Case("no op, zstd", "none", shape, compression="zstd"),
        Case("threshold, zstd", "threshold", shape, compression="zstd"),
        Case("no op, blosc", "none", shape, compression="blosc"),
        Case("threshold, blosc", "threshold", shape, compression="blosc"),
        Case("gaussian, blosc", "gaussian", shape, compression="blosc"),
        Case("no op, uncompressed", "none", shape, compression="none"),
        Case("no op, zarr3", "none", shape, format="zarr3"),
        Case("threshold, zarr3", "threshold", shape, format="zarr3"),
        Case("no op, zarr3 sharded", "none", shape, format="zarr3", shards=(2, 2, 2)),
        Case("no op, N5", "none", shape, format="n5"),
        Case("no op, chunks of 16^3", "none", tiny, (16, 16, 16)),
        Case("threshold, chunks of 16^3", "threshold", tiny, (16, 16, 16)),
        Case("no op, planes", "none", planes, (1, 1024, 1024)),
        Case("gaussian, planes", "gaussian", planes, (1, 1024, 1024)),
    ]


def blobs(shape: tuple[int, ...]) -> np.ndarray:
    """Return blobs and noise, uint8: gzip makes it 1.7 times smaller, and its mask 38 times."""
    from scipy.ndimage import gaussian_filter

    generator = np.random.default_rng(zlib.crc32(repr(shape).encode()))
    tile = tuple(min(n, 128) for n in shape)
    smooth = gaussian_filter(generator.standard_normal(tile, np.float32), 12, mode="wrap")
    smooth *= 40 / smooth.std()
    image = np.empty(shape, np.uint8)
    for corner in np.ndindex(*(-(-n // t) for n, t in zip(shape, tile, strict=True))):
        place = tuple(slice(i * t, (i + 1) * t) for i, t in zip(corner, tile, strict=True))
        part = image[place]
        noise = generator.standard_normal(part.shape, np.float32) * 0.5
        shown = smooth[tuple(map(slice, part.shape))] + noise + 100
        part[...] = np.clip(shown, 0, 255)
    return image


def make_source(case: Case, folder: Path) -> Path:
    """Write the image of a case as a zarr array, unless it is there; return where."""
    import numcodecs
    import zarr

    words = ["x".join(map(str, (*case.shape, *case.chunks))), case.compression]
    place = folder / f"{'-'.join(words)}.zarr"
    if place.exists():
        return place
    compressors = {
        "gzip": numcodecs.GZip(6),
        "zstd": numcodecs.Zstd(3),
        "blosc": numcodecs.Blosc("zstd", 3, numcodecs.Blosc.NOSHUFFLE),
        "none": None,
    }
    array = zarr.create_array(
        place.with_suffix(".part"),
        shape=case.shape,
        chunks=case.chunks,
        dtype="u1",
        zarr_format=2,
        compressors=compressors[case.compression],
        filters=None,
        chunk_key_encoding={"name": "v2", "separator": "/"},
        fill_value=0,
    )
    image = blobs(case.shape)
    for start in range(0, case.shape[0], case.chunks[0]):
        array[start : start + case.chunks[0]] = image[start : start + case.chunks[0]]
    place.with_suffix(".part").rename(place)
    return place


def boxes(
    case: Case, counts: tuple[int, ...]
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Walk blocks of so many chunks: the chunks of each, and its voxels."""
    for corner in np.ndindex(*(-(-n // c) for n, c in zip(case.grid, counts, strict=True))):
        chunks, voxels = [], []
        for i, count, size, n, total in zip(
            corner, counts, case.chunks, case.grid, case.shape, strict=True
        ):
            chunks.append(slice(i * count, min(n, (i + 1) * count)))
            voxels.append(slice(i * count * size, min(total, (i + 1) * count * size)))
        yield tuple(chunks), tuple(voxels)
