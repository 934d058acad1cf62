"""``info``: what an image is, and what made it if this project did.

Owns the listing. What is listed is a view's and its source's own description.
"""

from __future__ import annotations

import math
from functools import partial
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
from napari_materialize.cli.record import own_record
from napari_materialize.cli.run import boundary_option, notes_of, ops_option, source_argument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from napari_materialize.arrays import Level
    from napari_materialize.view import View

__all__ = ["info"]


@click.command()
@source_argument
@ops_option
@boundary_option
@json_option
@debug_option
def info(source: str, op: Sequence[str], boundary: str, json: bool, debug: bool) -> None:
    """Show what SOURCE is, or what it would be through ops."""
    conclude(partial(_info, source, op, boundary, json), as_json=json, debug=debug)


def _info(source: str, ops: Sequence[str], boundary: Any, as_json: bool, report: Report) -> int:
    from napari_materialize.recipe import open_view

    view = open_view(source, ops, boundary=boundary)
    report |= _describe(view)
    if not as_json:
        show(_lines(report))
    return DONE


def _describe(view: View) -> Report:
    """Return everything that is known of a view, as JSON."""
    from napari_materialize.recipe import op_text

    axes = [{"name": a.name, "type": a.type, "unit": a.unit} for a in view.levels[0].axes]
    return {
        "name": view.name,
        "kind": view.kind,
        "source": dict(view.source.record),
        "ops": [op_text(op) for op in view.ops],
        "boundary": view.boundary,
        "axes": axes,
        "levels": [_level(level) for level in view.levels],
        "storage": [dict(each) for each in getattr(view.source, "storage", ())],
        "notices": list(getattr(view.source, "notices", ())),
        "notes": notes_of(view),
        "identity": view.identity if view.stable else None,
        "record": own_record(view.source.location),
    }


def _level(level: Level) -> dict[str, Any]:
    return {
        "shape": list(level.shape),
        "dtype": level.dtype.name,
        "chunks": list(level.chunks),
        "scale": list(level.scale),
        "translation": list(level.translation),
        # JSON has no number for NaN and infinity
        "fill": level.fill if math.isfinite(level.fill) else str(level.fill),
        "bytes": level.nbytes,
    }


def _lines(report: Report) -> list[str]:
    source, axes = report["source"], report["axes"]
    heads = [
        ("name", report["name"]),
        ("kind", report["kind"]),
        ("source", f"{_format(source)}, {source['location']}"),
        ("axes", ", ".join(f"{a['name']} ({a['unit'] or a['type']})" for a in axes)),
    ]
    if report["ops"]:
        heads.insert(3, ("ops", "  ".join(report["ops"])))
    heads += [("stored", text) for text in _stored(report["storage"])]
    heads += [("notice", notice) for notice in report["notices"]]
    heads += [("note", note) for note in report["notes"]]
    if (record := report["record"]) is not None:
        heads.append(("made by", _made_by(record)))
    rows = [("level", "shape", "chunks", "dtype", "scale", "translation", "MB")]
    for number, level in enumerate(report["levels"]):
        rows.append(
            (
                str(number),
                _product(level["shape"]),
                _product(level["chunks"]),
                level["dtype"],
                _numbers(level["scale"]),
                _numbers(level["translation"]),
                f"{level['bytes'] / 1e6:.1f}",
            )
        )
    return [*table(heads), "", *table(rows)]


def _format(source: Mapping[str, Any]) -> str:
    """Say what a source is written in, such as ``ome-zarr 0.4 (zarr v2)``."""
    named = " ".join(str(source[key]) for key in ("type", "format") if source.get(key) is not None)
    version = source.get("zarr_format")
    return named if version is None else f"{named} (zarr v{version})"


def _shards(stored: Mapping[str, Any]) -> str:
    """Say how large a shard is, in chunks as the option ``--shards`` does, and in voxels.

    Examples
    --------
    >>> _shards({"shards": [64, 128], "chunks_per_shard": [2, 2]})
    '2 x 2 chunks (64 x 128 voxels)'
    """
    voxels = f"{_product(stored['shards'])} voxels"
    counts = stored.get("chunks_per_shard")
    return voxels if counts is None else f"{_product(counts)} chunks ({voxels})"


def _stored(storage: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say how levels are stored, once if all alike."""
    texts = []
    for each in storage:
        parts = [each["format"], ", ".join(each["codecs"])]
        if each.get("shards"):
            parts.append(f"in shards of {_shards(each)}")
        if each.get("byte_order") == "big":
            parts.append("big-endian")
        if each.get("order") == "F":
            parts.append("order F")
        texts.append("; ".join(parts))
    if len(set(texts)) == 1:
        return texts[:1]
    return [f"{each['path']}: {text}" for each, text in zip(storage, texts, strict=True)]


def _made_by(record: Mapping[str, Any]) -> str:
    """Say in one line what made a store of ours; ``--json`` has the whole record."""
    view = record.get("view")
    ops = view.get("ops", []) if isinstance(view, dict) else []
    names = [op.get("name", "?") for op in ops if isinstance(op, dict)]
    through = f", through {', '.join(names)}" if names else ""
    return (
        f"napari-materialize {record.get('version', '?')}{through}; "
        f"{record.get('status', 'unknown')}, started {record.get('started', '?')}"
    )


def _product(sizes: Iterable[int]) -> str:
    return " x ".join(map(str, sizes))


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
