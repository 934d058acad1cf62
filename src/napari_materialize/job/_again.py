"""A job once more, from what its record says: nothing else is needed, but the source and models."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import InputError, OptionError
from napari_materialize.geometry import Box
from napari_materialize.ops import create
from napari_materialize.recipe import lasting_identity, open_view, unread

if TYPE_CHECKING:
    from napari_materialize.ops import Op
    from napari_materialize.view import View

__all__ = ["recorded_jobs", "recorded_view"]

MOST_VOXELS = 2**63
"""No level is as long as this: a number of 400 digits would be the whole sentence."""


def recorded_view(record: Mapping[str, Any], models: Sequence[str] = ()) -> View:
    """Open the view that a record was made of.

    Parameters
    ----------
    record : mapping
        As a result's attributes have it.
    models : sequence of str
        Where models may be: a record has a model's file name and digest, and no folder.

    Raises
    ------
    InputError
        If it says too little, or the source or a model is not what it was made of.
    """
    try:
        described = record["view"]
        source, ops = described["source"], described["ops"]
        location, boundary = source.get("location"), described["boundary"]
        options = dict(source.get("options") or {})
        names = [(str(op["name"]), dict(op["parameters"]), op.get("model")) for op in ops]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(
            f"record: it has to say what the result was made of, and does not ({error}); run the "
            "job again by hand"
        ) from error
    if not isinstance(location, str) or "layer" in source:
        raise OptionError(
            "record: the source was an array in memory or a layer, and cannot be opened again; run "
            "the job again where it is"
        )
    view = open_view(location, [_op(*each, models) for each in names], boundary=boundary, **options)
    known = described.get("identity")
    if known is not None and lasting_identity(view, unread(described)) != known:
        raise OptionError(
            f"record: the source {location} is not what the result was made of: it has other "
            "voxels or another description, or an op computes something else by now; run the job "
            "again by hand"
        )
    return view


def _op(
    name: str, parameters: dict[str, Any], model: Mapping[str, Any] | None, models: Sequence[str]
) -> Op:
    if name == "function":
        raise OptionError(
            f"record: the op {parameters.get('name')!r} is a Python function, which a record does "
            "not hold; run the job again in Python"
        )
    if isinstance(model, Mapping):
        parameters["model"] = _model(str(model.get("file")), str(model.get("sha256")), models)
    return create(name, {key: value for key, value in parameters.items() if value is not None})


def _model(name: str, digest: str, places: Sequence[str]) -> str:
    """Return where the model of a name and a digest is."""
    for place in places:
        path = Path(place)
        file = path / name if path.is_dir() else path
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == digest:
            return str(file)
    tried = ", ".join(places) if places else "nowhere to look"
    raise OptionError(
        f"record: the model {name} with the sha256 {digest[:12]}... is needed, and was not found "
        f"({tried}); say where it is with --model"
    )


def recorded_jobs(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the options of the jobs that made a result, in order, as `Options` takes them.

    Raises
    ------
    InputError
        If the record says too little.
    """
    earlier = record.get("earlier", [])
    try:
        shared = {
            "extent": record["extent"],
            "format": record["format"],
            "compression": record["compression"],
            "shards": record["shards"],
            "pyramid": _pyramid(record["pyramid"]),
            "skip_empty": record["skip_empty"],
            "attributes": record["attributes"],
        }
        return [{**shared, **_where(job)} for job in (*earlier, record)]
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(
            f"record: it has to say how the result was written, and does not ({error}); run the "
            "job again by hand"
        ) from error


def _pyramid(made: Mapping[str, Any] | None) -> int:
    return len(made["factors"]) if made is not None and made["made"] == "derived" else 0


def _where(job: Mapping[str, Any]) -> dict[str, Any]:
    box = job["box"]
    return {
        "levels": [int(each["level"]) for each in job["levels"]],
        "box": None if box is None else Box(*map(_corner, box)),
        "box_level": int(job["box_level"]),
    }


def _corner(numbers: Sequence[int]) -> tuple[int, ...]:
    corner = tuple(numbers)
    if any(isinstance(each, int) and abs(each) >= MOST_VOXELS for each in corner):
        raise ValueError("a corner of its box is farther away than any level is long")
    return corner
