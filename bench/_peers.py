"""The peers: other projects' ways to the same result. Runs in their own interpreter.

Each writes the case's array by its own means, as its documentation shows, with as many threads as
there are cores. A case that one of them cannot do it leaves out, and says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from _cases import LOW, REACH, SIGMA, boxes

if TYPE_CHECKING:
    from _cases import Case

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CannotError(Exception):
    """The peer has no such format, codec or op."""


def operation(case: Case, block: np.ndarray) -> np.ndarray:
    """Run the op on a block; a gaussian's halo stays on."""
    if case.op == "none":
        return block
    if case.op == "threshold":
        return (block >= LOW).view(np.uint8)
    from scipy.ndimage import gaussian_filter

    smooth = gaussian_filter(block.astype(np.float32), SIGMA, truncate=4, mode="nearest")
    return np.rint(smooth).astype(np.uint8)


CHUNKMIRAGE = {
    "none": [],
    "threshold": [f"threshold:low={LOW}"],
    "gaussian": [f"gaussian:sigma={SIGMA},truncate=4", "cast:dtype=uint8"],
}


def chunkmirage(case: Case, source: Path, out: Path) -> None:
    from chunkmirage.cli import build_registry
    from chunkmirage.materialize import materialize

    options = chunkmirage_options(case)
    registry = build_registry(str(source), "processed", CHUNKMIRAGE[case.op], None)
    materialize(registry.get("processed"), str(out), **options)


def chunkmirage_options(case: Case) -> dict[str, str]:
    if case.shards:
        raise CannotError("writes no shards")
    if case.format == "n5" and case.compression not in ("gzip", "none"):
        raise CannotError("N5 with gzip or nothing")
    names = {"zarr2": "zarr", "zarr3": "zarr3", "n5": "n5"}
    compressor = "raw" if case.compression == "none" else case.compression
    return {"format": names[case.format], "compressor": compressor}


def chunkmirage_command(case: Case, source: Path, out: Path) -> None:
    """Run `chunkmirage materialize`: with starting Python and importing."""
    command = [str(Path(sys.executable).with_name("chunkmirage")), "materialize"]
    command += [str(source), str(out)]
    for spec in CHUNKMIRAGE[case.op]:
        command += ["--op", spec]
    for name, value in chunkmirage_options(case).items():
        command += [f"--{name}", value]
    subprocess.run(command, check=True, capture_output=True)


def _zarr_target(case: Case, out: Path) -> Any:
    import numcodecs
    import zarr
    from zarr import codecs

    if case.format == "n5":
        raise CannotError("writes no N5")
    two = {
        "gzip": numcodecs.GZip(6),
        "zstd": numcodecs.Zstd(3),
        "blosc": numcodecs.Blosc("zstd", 3, numcodecs.Blosc.NOSHUFFLE),
        "none": None,
    }
    three = {
        "gzip": codecs.GzipCodec(level=6),
        "zstd": codecs.ZstdCodec(level=3),
        "blosc": codecs.BloscCodec(cname="zstd", clevel=3, shuffle="noshuffle"),
        "none": None,
    }
    version = 2 if case.format == "zarr2" else 3
    shards = case.shards and tuple(n * c for n, c in zip(case.shards, case.chunks, strict=True))
    return zarr.create_array(
        out,
        shape=case.shape,
        chunks=case.chunks,
        shards=shards,
        dtype="u1",
        zarr_format=version,
        compressors=(two if version == 2 else three)[case.compression],
        filters=None,
        fill_value=0,
        chunk_key_encoding={"name": "v2" if version == 2 else "default", "separator": "/"},
        config={"write_empty_chunks": False},
    )


def zarr_python(case: Case, source: Path, out: Path) -> None:
    import zarr

    image, target = zarr.open_array(source, mode="r"), _zarr_target(case, out)
    counts = case.shards or (1,) * len(case.shape)

    def one(place: tuple[tuple[slice, ...], tuple[slice, ...]]) -> None:
        _, voxels = place
        target[voxels] = _with_halo(case, voxels, lambda reach: image[reach])

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, boxes(case, counts)))


def _with_halo(case: Case, voxels: tuple[slice, ...], read: Any) -> np.ndarray:
    """Read a box with its halo, run the op, and cut the halo off."""
    halo = case.halo
    if not halo:
        return operation(case, read(voxels))
    reach = tuple(
        slice(max(0, part.start - halo), min(total, part.stop + halo))
        for part, total in zip(voxels, case.shape, strict=True)
    )
    made = operation(case, np.asarray(read(reach)))
    cut = tuple(
        slice(part.start - whole.start, part.stop - whole.start)
        for part, whole in zip(voxels, reach, strict=True)
    )
    return made[cut]


def _dask_image(case: Case, source: Path) -> Any:
    import dask.array as da

    image = da.from_zarr(str(source))
    if case.op == "threshold":
        image = image.map_blocks(lambda block: operation(case, block), dtype="u1")
    elif case.op == "gaussian":
        image = image.map_overlap(
            lambda block: operation(case, block), depth=REACH, boundary="nearest", dtype="u1"
        )
    return image


def dask(case: Case, source: Path, out: Path) -> None:
    import dask as library
    import dask.array as da

    if case.shards:
        raise CannotError("would write parts of one shard from several threads")
    with library.config.set(scheduler="threads", num_workers=THREADS):
        da.to_zarr(_dask_image(case, source), _zarr_target(case, out))


def ngff_zarr(case: Case, source: Path, out: Path) -> None:
    import dask as library
    import ngff_zarr as library_of_images
    import numcodecs
    from zarr import codecs

    if case.format == "n5":
        raise CannotError("writes no N5")
    if case.format == "zarr2":
        options: dict[str, Any] = {"version": "0.4"}
        compressors: Any = {"gzip": numcodecs.GZip(6), "zstd": numcodecs.Zstd(3)}
        compressors["blosc"] = numcodecs.Blosc("zstd", 3, numcodecs.Blosc.NOSHUFFLE)
    else:
        options = {"version": "0.5"}
        compressors = {"gzip": [codecs.GzipCodec(level=6)]}
    if case.shards:
        options["chunks_per_shard"] = case.shards
    word = "compressor" if case.format == "zarr2" else "compressors"
    options[word] = None if case.compression == "none" else compressors[case.compression]
    image = library_of_images.to_ngff_image(_dask_image(case, source), dims=["z", "y", "x"])
    scales = library_of_images.to_multiscales(
        image, scale_factors=[], chunks=dict(zip("zyx", case.chunks, strict=True)), cache=False
    )
    with library.config.set(scheduler="threads", num_workers=THREADS):
        library_of_images.to_ngff_zarr(str(out), scales, **options)


def tensorstore(case: Case, source: Path, out: Path) -> None:
    """Write a `virtual_chunked` array by the driver of the format."""
    import tensorstore as ts

    image = ts.open({"driver": "zarr", "kvstore": {"driver": "file", "path": str(source)}}).result()
    size = [n * c for n, c in zip(case.shards or (1,) * 3, case.chunks, strict=True)]

    def read(domain: Any, array: np.ndarray, _: Any) -> Any:
        voxels = tuple(slice(part.inclusive_min, part.exclusive_max) for part in domain)
        reach = tuple(
            slice(max(0, part.start - case.halo), min(total, part.stop + case.halo))
            for part, total in zip(voxels, case.shape, strict=True)
        )
        cut = tuple(
            slice(part.start - whole.start, part.stop - whole.start)
            for part, whole in zip(voxels, reach, strict=True)
        )
        promise, future = ts.Promise.new()

        def made(found: Any) -> None:
            try:
                array[...] = operation(case, np.asarray(found.result()))[cut]
            except Exception as error:  # noqa: BLE001 - told to whoever waits
                promise.set_exception(error)
            else:
                promise.set_result(None)

        # not read here and now: its threads would wait for each other
        image[reach].read().add_done_callback(made)
        return future

    view = ts.virtual_chunked(
        read,
        dtype=ts.uint8,
        shape=case.shape,
        chunk_layout=ts.ChunkLayout(read_chunk_shape=size),
    )
    target = ts.open(_tensorstore_spec(case, out), create=True, dtype=ts.uint8).result()
    target.write(view).result()


def _tensorstore_spec(case: Case, out: Path) -> dict[str, Any]:
    kvstore = {"driver": "file", "path": str(out)}
    blosc = {"cname": "zstd", "clevel": 3, "shuffle": 0}
    if case.format == "zarr2":
        two: dict[str, Any] = {
            "gzip": {"id": "gzip", "level": 6},
            "zstd": {"id": "zstd", "level": 3},
            "blosc": {"id": "blosc", **blosc},
            "none": None,
        }
        metadata: dict[str, Any] = {
            "shape": case.shape,
            "chunks": case.chunks,
            "dtype": "|u1",
            "fill_value": 0,
            "compressor": two[case.compression],
            "dimension_separator": "/",
        }
        return {"driver": "zarr", "kvstore": kvstore, "metadata": metadata}
    if case.format == "n5":
        metadata = {
            "dimensions": case.shape[::-1],
            "blockSize": case.chunks[::-1],
            "dataType": "uint8",
            "compression": {"type": "gzip", "level": 6},
        }
        raise CannotError(
            "N5 counts its axes the other way round; its own axes would be another job"
        )
    codecs: list[dict[str, Any]] = [
        {"name": "bytes"},
        {"name": "gzip", "configuration": {"level": 6}},
    ]
    chunks = case.chunks
    if case.shards:
        inner = {"chunk_shape": case.chunks, "codecs": codecs}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
        chunks = tuple(n * c for n, c in zip(case.shards, case.chunks, strict=True))
    metadata = {
        "shape": case.shape,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "data_type": "uint8",
        "fill_value": 0,
        "codecs": codecs,
    }
    return {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}


def zarrista(case: Case, source: Path, out: Path) -> None:
    """Read and write whole chunks through zarrs, in as many threads as there are cores."""
    import zarrista as library
    from zarrista.store import FilesystemStore

    if case.format == "n5" or case.shards:
        raise CannotError("its bindings write chunks of zarr v3")
    import json

    out.mkdir(parents=True)
    codecs: list[dict[str, Any]] = [{"name": "bytes"}]
    configuration = {
        "gzip": {"level": 6},
        "zstd": {"level": 3, "checksum": False},
        "blosc": {
            "cname": "zstd",
            "clevel": 3,
            "shuffle": "noshuffle",
            "typesize": 1,
            "blocksize": 0,
        },
    }
    if case.compression != "none":
        codecs.append({"name": case.compression, "configuration": configuration[case.compression]})
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": case.shape,
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": case.chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": codecs,
        "attributes": {},
    }
    (out / "zarr.json").write_text(json.dumps(metadata))
    target = library.Array.open(FilesystemStore(str(out)))
    image = library.Array.open(FilesystemStore(str(source)))

    def one(place: tuple[tuple[slice, ...], tuple[slice, ...]]) -> None:
        chunks, voxels = place

        def read(box: tuple[slice, ...]) -> np.ndarray:
            return np.from_dlpack(image.retrieve_array_subset(box))

        if case.halo:
            made = _with_halo(case, voxels, read)
        else:
            found = image.retrieve_chunk([part.start for part in chunks])
            made = operation(case, np.from_dlpack(found))
        target.store_chunks(tuple(part.start for part in chunks), np.ascontiguousarray(made))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, boxes(case, (1, 1, 1))))


SYSTEMS = {
    "chunkmirage": chunkmirage,
    "chunkmirage's command line": chunkmirage_command,
    "tensorstore": tensorstore,
    "zarrista": zarrista,
    "ngff-zarr": ngff_zarr,
    "zarr-python": zarr_python,
    "dask": dask,
}
