"""What shards and a pyramid cost, and whether any gzip library is faster than ours.

    ./dev bench formats [JOB]...

With names, only the jobs whose names begin with them (`labels`, `image`), and no table of gzips;
one that is whole, as in `"image, uint16"`, is that job alone.
Goals: a sharded result in at most 1.5 times the time of an unsharded one, a pyramid in at most 1.4
times that of the single level (by the clock; in processor time it is told as well), gzip at least
as fast as the fastest library that is installed and packs as small as zlib (isal, which packs less,
and deflate come with this project, zlib-ng only if somebody has it). Each job is run several times,
in turn with the one it is compared with, and the quickest of each counts. *Floor* is what a pyramid
costs in a bare loop around the same codecs and the same halving (`_bare.py`): where it is above the
goal, it is the halving and the further files that cost more than that, and not what lies between.
The source is in memory. Results are removed once a case is done, and not between its jobs: a file
system may take long to make files where it has just removed some.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import time
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

# `queue.py` beside this file must not be taken for the standard library's.
HERE = Path(__file__).resolve().parent
sys.path = [*(entry for entry in sys.path if Path(entry).resolve() != HERE), str(HERE)]

import numpy as np  # noqa: E402
from scipy import ndimage  # noqa: E402

from _bare import write as bare  # noqa: E402
from napari_materialize import Engine, open_view  # noqa: E402
from napari_materialize.codecs import Compression  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SHAPE, CHUNK, ROUNDS = (256, 256, 512), 64, 5
LEVELS = 4
"""Of ``pyramid="auto"`` for this shape."""


CODECS = ("gzip", "zstd", "blosc")


def intensities() -> np.ndarray:
    """Return blobs with noise, as microscopes have them, from 0 to 255."""
    random = np.random.default_rng(0)
    blobs = ndimage.zoom(random.normal(0, 1, [n // 16 for n in SHAPE]), 16, order=1)
    found: np.ndarray = (110 + 40 * blobs + random.normal(0, 6, SHAPE)).clip(0, 255)
    return found


def image() -> np.ndarray:
    """Return the same in 8 bits."""
    return intensities().astype("u1")


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds that work takes, by the clock and of the processors."""
    began, worked = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - worked


def job(engine: Engine, view: Any, out: Path, options: dict[str, Any]) -> None:
    done = engine.materialize(view, out, **options)
    assert done.written + done.skipped == done.chunks


def jobs(folder: Path) -> None:
    voxels = image()
    ids = ndimage.label(voxels > 150)[0]
    # bodies as a segmentation has them, most of a chunk inside of one
    cells = ndimage.label(ndimage.gaussian_filter(voxels.astype("f4"), 1.5) > 115)[0]
    sources: dict[str, tuple[Any, np.ndarray | None]] = {
        "image": (open_view(voxels, chunks=(CHUNK,) * 3), voxels),
        "gaussian": (open_view(voxels, "gaussian:sigma=1.5", chunks=(CHUNK,) * 3), None),
        "mask": (open_view(voxels, "threshold:low=150", chunks=(CHUNK,) * 3), None),
    }
    # a camera of 12 bits, and what a filter makes of it
    wide = intensities()
    for title, values in {
        "image, uint16": (16 * wide).astype("u2"),
        "image, float32": wide.astype("f4"),
    }.items():
        sources[title] = (open_view(values, chunks=(CHUNK,) * 3), values)
    for title, labels in {
        "noisy labels, uint8": ids.astype("u1"),
        "noisy labels, uint32": ids.astype("u4"),
        "labels, uint8": cells.astype("u1"),
        "labels, uint32": cells.astype("u4"),
        "labels, uint64": cells.astype("u8"),
    }.items():
        sources[title] = (open_view(labels, chunks=(CHUNK,) * 3, kind="label"), labels)
    kinds: dict[str, dict[str, Any]] = {
        "single": {"format": "zarr3"},
        "sharded": {"format": "zarr3", "shards": (2, 2, 2)},
        "pyramid": {"format": "zarr3", "pyramid": "auto"},
        "both": {"format": "zarr3", "shards": (2, 2, 2), "pyramid": "auto"},
    }
    heads = ("single level, s", "sharded (goal 1.5)", "pyramid (goal 1.4)", "both", "pyramid, CPU")
    heads += ("floor", "floor, CPU")
    print(f"| job | codec | {' | '.join(heads)} |")
    print(f"| --- | --- |{' ---: |' * len(heads)}")
    for name, (view, made) in sources.items():
        if not is_wanted(name, sources):
            continue
        for codec in CODECS:
            best = case(folder, view, made, kinds, codec)
            wall, work = best["single"]
            ratios = [f"{best[kind][0] / wall:.2f}" for kind in list(kinds)[1:]]
            ratios.append(f"{best['pyramid'][1] / work:.2f}")
            if made is not None:
                floors = zip(best["bare pyramid"], best["bare"], strict=True)
                ratios += [f"{pyramid / single:.2f}" for pyramid, single in floors]
            else:
                ratios += ["", ""]
            print(f"| {name} | {codec} | {wall:.2f} | {' | '.join(ratios)} |", flush=True)


def is_wanted(name: str, names: Iterable[str]) -> bool:
    """Whether a job was asked for, by its name or by what that begins with."""
    asked = sys.argv[1:]
    whole = [each for each in asked if each in names]
    return not asked or name in whole or name.startswith(tuple({*asked} - {*whole}) or "\0")


def case(
    folder: Path, view: Any, made: np.ndarray | None, kinds: dict[str, dict[str, Any]], codec: Any
) -> dict[str, tuple[float, float]]:
    """Return the quickest run of each kind of job, and of the loop where its voxels are given."""
    best: dict[str, tuple[float, float]] = {}
    method: Any = "mean" if view.kind == "image" else "mode"

    def note(kind: str, took: tuple[float, float]) -> None:
        wall, work = best.get(kind, took)
        best[kind] = (min(wall, took[0]), min(work, took[1]))

    with Engine(nice=0) as engine, tempfile.TemporaryDirectory(dir=folder) as name:
        places = (Path(name) / f"{number}.zarr" for number in itertools.count())
        for _ in range(ROUNDS):
            for kind, options in kinds.items():
                all_options = options | {"compression": codec}
                note(kind, timed(partial(job, engine, view, next(places), all_options)))
            if made is not None:
                for kind, levels in (("bare", 1), ("bare pyramid", LEVELS)):
                    out = next(places)
                    note(kind, timed(partial(bare, made, CHUNK, out, codec, method, levels=levels)))
    return best


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
    if not sys.argv[1:]:
        gzips()


if __name__ == "__main__":
    main()
