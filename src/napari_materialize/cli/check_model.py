"""``check-model``: what a model takes, makes and needs, before anybody runs a job with it.

Owns the listing, and the measurement of what one chunk costs. What is listed is the op's own
knowledge of the model.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from napari_materialize.cli.outcome import (
    DONE,
    Report,
    conclude,
    debug_option,
    json_option,
    show,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from napari_materialize.arrays import Level
    from napari_materialize.geometry import Box
    from napari_materialize.ops import Onnx
    from napari_materialize.view import View

__all__ = ["check_model"]

SIDES = {2: 256, 3: 64}
"""Sides of the chunk that is tried where there is no source."""


@click.command("check-model")
@click.argument("model", metavar="MODEL", help="The .onnx file, or a folder with its description.")
@click.option("--source", help="What it is to run on: an image to measure the halo on.")
@click.option(
    "--with", "parameters", help="Parameters of the op onnx, as in normalise=percentile:2,98."
)
@json_option
@debug_option
def check_model(
    model: str, source: str | None, parameters: str | None, json: bool, debug: bool
) -> None:
    """Show what MODEL takes, makes and needs: layout, halo, stride, device, cost of a chunk."""
    conclude(partial(_check, model, source, parameters, json), as_json=json, debug=debug)


def _check(model: str, source: str | None, text: str | None, as_json: bool, report: Report) -> int:
    from napari_materialize.recipe import open_view, split_parameters

    given = {"allow_tile_dependent": "true", "halo": "auto"}
    given |= split_parameters("onnx", text or "") | {"model": model}
    view = _shown(given) if source is None else open_view(source, [("onnx", given)])
    op: Any = view.ops[-1]
    report |= _describe(op, source is not None)
    report["chunk"] = _cost(view)
    if not as_json:
        show(_lines(report))
    return DONE


def _shown(given: Mapping[str, Any]) -> View:
    """Return a view of noise that the model takes."""
    import numpy as np

    from napari_materialize.ops import create
    from napari_materialize.recipe import open_view

    op: Any = create("onnx", given)
    ports = op.ports
    sides = [axis.fixed or 4 * SIDES[ports.rank] for axis in ports.grid]
    chunks = [SIDES[ports.rank]] * ports.rank
    axes = "zyx"[-ports.rank :]
    if ports.channels > 1:
        sides, chunks, axes = [ports.channels, *sides], [ports.channels, *chunks], f"c{axes}"
    noise = np.random.default_rng(0).random(sides, np.float32)
    dtype = ports.takes
    values = (
        noise.astype(dtype) if dtype.kind == "f" else (noise * np.iinfo(dtype).max).astype(dtype)
    )
    return open_view(values, op, chunks=chunks, axes=axes)


def _describe(op: Onnx, real: bool) -> Report:
    """Return everything that is known of a model, as JSON."""
    ports, found = op.ports, op.found
    dependent = found is not None and found.context.tile_dependent
    halo: Any = op.extent
    return {
        "model": op.model.name,
        "sha256": op.file.sha256,
        "layout": ports.layout.letters,
        "output_layout": ports.layout_out.letters,
        "input": {"name": ports.input, "dtype": str(ports.takes), "channels": ports.channels},
        "output": {"name": ports.output, "dtype": str(ports.gives), "channels": ports.made},
        "batch": "any" if ports.batch is None else ports.batch,
        "sides": [
            axis.fixed or f"{axis.stride}n{f'+{axis.rest}' * bool(axis.rest)}"
            for axis in ports.grid
        ],
        "stride": _plain(op.multiple),
        "halo": None if dependent else _plain(halo),
        "residual": None if found is None else found.context.residual,
        "height": None if found is None else found.context.height,
        "measured_on": None if found is None else (found.on if real else "noise"),
        "tile_dependent": dependent,
        "ratio": [str(axis.ratio) for axis in ports.grid],
        "smaller_by": [axis.lost for axis in ports.grid],
        "normalise": op.normalise,
        "after": op.after,
        "device": op.device_used,
        "providers": list(op.providers),
        "threads": op.threads,
        "warnings": _warnings(op, dependent),
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _warnings(op: Onnx, dependent: bool) -> list[str]:
    """Return what a person should know before running a job with the model."""
    found = list(op.notes)
    if dependent and op.found is not None:
        found = [note for note in found if op.found.sentence not in note]
        found.append(
            f"{op.found.sentence}; a job refuses it unless allow_tile_dependent=true, and then has "
            "seams between chunks"
        )
    fixed = any(axis.fixed for axis in op.ports.grid)
    if fixed:
        found.append("the model has fixed sides: a chunk asked for alone costs a whole tile")
    if op.ports.takes.kind in "iu" and op.normalise == "none":
        found.append(
            f"the model takes {op.ports.takes}: other dtypes are rounded and saturated to it; "
            "normalise=scale maps the image's range to the model's"
        )
    return found


def _cost(view: View) -> dict[str, Any]:
    """Return what one chunk costs, in a process of its own, so that its memory can be told."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    op: Any = view.ops[-1]
    stage = view.stages[-1]
    grid = view.levels[0].grid
    middle = tuple(count // 2 for count in grid.counts)
    made = stage.makes(0, [middle])
    # what it would warn of when it loads the model was said here
    quiet: dict[str, Any] = {"initializer": warnings.simplefilter, "initargs": ("ignore",)}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), **quiet) as pool:
        level = view.stages[-2].levels[0]
        seconds, size, work = pool.submit(_run_chunk, op, level, grid.box(middle)).result()
    return {
        "shape": list(view.levels[0].chunks),
        "made_together": len(made),
        "voxels_per_voxel": round(work, 2),
        "seconds": round(seconds, 4),
        "bytes": size,
    }


def _run_chunk(op: Onnx, level: Level, box: Box) -> tuple[float, int | None, float]:
    """Run a model on what makes one chunk.

    Returns
    -------
    float, int or None, float
        The seconds, the bytes that it took, and the voxels that go in for each that is kept.
    """
    import numpy as np

    inside = op.inputs(box, level)
    made = op.outputs(inside, level).clip(op.describe(level, "image").level.shape)
    block = np.random.default_rng(0).random(op.reach(made, level).shape, np.float32)
    block = block.astype(level.dtype)
    before = _held()
    op.run(block, made, level)
    began = time.perf_counter()
    op.run(block, made, level)
    seconds = time.perf_counter() - began
    after = _peak()
    taken = None if before is None or after is None else max(0, after - before)
    return seconds, taken, block.size / inside.size


def _held() -> int | None:
    """Return the memory that this process holds now, in bytes; the most it held where only that
    can be told.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux
        return _peak()
    return pages * os.sysconf("SC_PAGE_SIZE")


def _peak() -> int | None:
    """Return the most memory that this process ever held, in bytes; None where nobody can tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _lines(report: Report) -> Iterable[str]:
    """Show a report to a person."""
    given, made, chunk = report["input"], report["output"], report["chunk"]
    yield f"{report['model']} ({report['sha256'][:12]})"
    rows = [
        ("input", f"{given['name']}: {report['layout']}, {given['dtype']}", _channels(given)),
        ("output", f"{made['name']}: {report['output_layout']}, {made['dtype']}", _channels(made)),
        ("sides", ", ".join(map(str, report["sides"])), f"batch {report['batch']}"),
        ("grid", f"{', '.join(report['ratio'])} output voxels per voxel", ""),
        ("stride", _words(report["stride"]), ""),
        (
            "halo",
            "none is enough" if report["halo"] is None else _words(report["halo"]),
            _on(report),
        ),
        ("normalise", report["normalise"], f"after: {report['after']}"),
        ("device", report["device"], ", ".join(report["providers"])),
        ("chunk", " x ".join(map(str, chunk["shape"])), _chunk_words(chunk)),
    ]
    yield from table(rows, indent="  ")
    for warning in report["warnings"]:
        yield f"  warning: {warning}"


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _channels(port: dict[str, Any]) -> str:
    return f"{port['channels']} channel{'s' * (port['channels'] != 1)}"


def _on(report: Report) -> str:
    if report["residual"] is None:
        return "as given"
    left = f"tiles differ by {report['residual']:.2g} of {report['height']:.3g}"
    return f"measured on {report['measured_on']}: {left}"


def _chunk_words(chunk: dict[str, Any]) -> str:
    memory = "" if chunk["bytes"] is None else f", {chunk['bytes'] / 2**20:.0f} MiB"
    work = f", {chunk['voxels_per_voxel']:g} voxels run per voxel kept"
    return f"{chunk['seconds']:.3f} s{memory}{work}, {chunk['made_together']} made together"
