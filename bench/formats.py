"""What shards and a pyramid cost, and whether any gzip library is faster than ours.

    ./dev bench formats

Goals: a sharded result in at most 1.5 times the time of an unsharded one, a pyramid in at most 1.4
times that of the single level (by the clock; in processor time it is told as well), gzip at least
as fast as the fastest library that is installed and packs as small as zlib (isal, which packs less,
and deflate come with this project, zlib-ng only if somebody has it). Each job is run several times,
in turn with the one it is compared with, and the quickest of each counts. The source is in memory;
results go to a folder that is removed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

# `queue.py` beside this file must not be taken for the standard library's.
sys.path = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

import numpy as np  # noqa: E402
from scipy import ndimage  # noqa: E402

from napari_materialize import Engine, open_view  # noqa: E402
from napari_materialize.codecs import Compression  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPE, CHUNK, ROUNDS = (256, 256, 512), 64, 3


def image() -> np.ndarray:
    """Return blobs with noise, as microscopes have them."""
    random = np.random.default_rng(0)
    blobs = ndimage.zoom(random.normal(0, 1, [n // 16 for n in SHAPE]), 16, order=1)
    return (110 + 40 * blobs + random.normal(0, 6, SHAPE)).clip(0, 255).astype("u1")


def seconds(
    engine: Engine, view: Any, folder: Path, options: dict[str, Any]
) -> tuple[float, float]:
    """Return the seconds that a job takes, by the clock and of the processors."""
    began, worked = time.perf_counter(), time.process_time()
    done = engine.materialize(view, folder / "out.zarr", **options)
    took = time.perf_counter() - began, time.process_time() - worked
    assert done.written + done.skipped == done.chunks
    shutil.rmtree(folder / "out.zarr")
    return took


def jobs(folder: Path) -> None:
    voxels = image()
    ids = ndimage.label(voxels > 150)[0]
    # bodies as a segmentation has them, most of a chunk inside of one
    cells = ndimage.label(ndimage.gaussian_filter(voxels.astype("f4"), 1.5) > 115)[0]
    sources = {
        "image": open_view(voxels, chunks=(CHUNK,) * 3),
        "gaussian": open_view(voxels, "gaussian:sigma=1.5", chunks=(CHUNK,) * 3),
        "mask": open_view(voxels, "threshold:low=150", chunks=(CHUNK,) * 3),
    }
    for title, made in {
        "noisy labels, uint32": ids.astype("u4"),
        "labels, uint8": cells.astype("u1"),
        "labels, uint32": cells.astype("u4"),
        "labels, uint64": cells.astype("u8"),
    }.items():
        sources[title] = open_view(made, chunks=(CHUNK,) * 3, kind="label")
    kinds: dict[str, dict[str, Any]] = {
        "single": {"format": "zarr3"},
        "sharded": {"format": "zarr3", "shards": (2, 2, 2)},
        "pyramid": {"format": "zarr3", "pyramid": "auto"},
        "both": {"format": "zarr3", "shards": (2, 2, 2), "pyramid": "auto"},
    }
    heads = ("single level, s", "sharded (goal 1.5)", "pyramid (goal 1.4)", "both", "pyramid, CPU")
    print(f"| job | codec | {' | '.join(heads)} |")
    print(f"| --- | --- |{' ---: |' * len(heads)}")
    for name, view in sources.items():
        for codec in ("gzip", "zstd"):
            best = dict.fromkeys(kinds, (float("inf"), float("inf")))
            with Engine(nice=0) as engine:
                for _ in range(ROUNDS):
                    for kind, options in kinds.items():
                        took = seconds(engine, view, folder, options | {"compression": codec})
                        best[kind] = (min(best[kind][0], took[0]), min(best[kind][1], took[1]))
            wall, work = best["single"]
            ratios = [f"{best[kind][0] / wall:.2f}" for kind in list(kinds)[1:]]
            ratios.append(f"{best['pyramid'][1] / work:.2f}")
            print(f"| {name} | {codec} | {wall:.2f} | {' | '.join(ratios)} |", flush=True)


def gzip_encoders() -> dict[str, Callable[[bytes], bytes]]:
    import deflate
    from isal import isal_zlib
    from numcodecs.gzip import GZip

    ours = {f"this project, gzip:{n}": Compression("gzip", n) for n in (1, 6, 9)}
    kind = np.dtype("u1")
    found: dict[str, Callable[[bytes], bytes]] = {
        name: lambda data, codec=codec: codec.encode(data, kind)  # type: ignore[misc]
        for name, codec in ours.items()
    }
    found |= {f"isal {n}": lambda data, n=n: isal_zlib.compress(data, n) for n in (0, 1, 2, 3)}  # type: ignore[misc]
    found |= {f"deflate {n}": lambda data, n=n: deflate.gzip_compress(data, n) for n in (1, 6)}  # type: ignore[misc]
    found["zlib 6"] = lambda data: zlib.compress(data, 6)
    found["numcodecs 6"] = GZip(6).encode
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        return found
    return found | {"zlib-ng 6": lambda data: zlib_ng.compress(data, 6)}


def gzips() -> None:
    voxels = image()[:CHUNK, :CHUNK, :CHUNK]
    smooth = ndimage.gaussian_filter(voxels.astype("f4"), 2).astype("u1")
    samples = {"image": voxels, "smoothed": smooth, "mask": (smooth > 120).astype("u1")}
    print("\n| gzip, MB per CPU second (ratio) | " + " | ".join(samples) + " |")
    print("| --- |" + " ---: |" * len(samples))
    for name, encode in gzip_encoders().items():
        cells = []
        for chunk in samples.values():
            data, best, size = np.ascontiguousarray(chunk).tobytes(), float("inf"), 0
            for _ in range(5):
                began = time.process_time()
                size = len(encode(data))
                best = min(best, time.process_time() - began)
            cells.append(f"{len(data) / best / 1e6:.0f} ({len(data) / size:.2f})")
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="bench-formats-"))
    try:
        jobs(folder)
    finally:
        shutil.rmtree(folder)
    gzips()


if __name__ == "__main__":
    main()
