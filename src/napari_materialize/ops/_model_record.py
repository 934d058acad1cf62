"""What a result says of a model, and numbers in words.

Owns the record's form. What is in it is the op's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.arrays import Level
    from napari_materialize.geometry import Index
    from napari_materialize.ops._model_op import ModelOp
    from napari_materialize.ops._model_scale import Constants
    from napari_materialize.ops._model_session import Runtime

__all__ = ["in_words", "one_if_equal", "record_of"]


def record_of(op: ModelOp, runtime: Runtime, taken: Mapping[Level, Constants]) -> dict[str, Any]:
    """Return what a result says of a model: no folder, and everything that decided its voxels.

    Parameters
    ----------
    op, runtime
        The op and what it runs on.
    taken
        The constants of each level it was shown.
    """
    model: dict[str, Any] = {"file": op.model.name, "sha256": op.file.sha256}
    if op.file.external:
        model["external"] = dict(op.file.external)
    record: dict[str, Any] = {
        "name": op.name,
        "parameters": {
            **op.parameters,
            "model": op.model.name,
            "description": Path(op.description).name,
        },
        "model": model,
        "device": runtime.device,
        "providers": list(runtime.providers),
        "input": {"layout": op.ports.layout.letters, "dtype": str(op.ports.takes)},
    }
    if op.found is not None:
        record["measured"] = op.found.record
    if taken:
        record["constants"] = [_constants(level, each) for level, each in taken.items()]
    if op.notes:
        record["notes"] = list(op.notes)
    return record


def _constants(level: Level, constants: Constants) -> dict[str, Any]:
    return {
        "scale": list(level.scale),
        "shift": constants.shift,
        "divisor": constants.scale,
        "of": "all voxels" if constants.every else "chunks spread over the level",
    }


def one_if_equal(values: Index) -> int | Index:
    """Return one number where all are equal.

    Examples
    --------
    >>> one_if_equal((8, 8)), one_if_equal((1, 8))
    (8, (1, 8))
    """
    return values[0] if len(set(values)) == 1 else values


def in_words(values: Index) -> str:
    """Return numbers as a person writes them.

    Examples
    --------
    >>> in_words((8, 8)), in_words((1, 8))
    ('8', '1,8')
    """
    one = one_if_equal(values)
    return ",".join(map(str, one)) if isinstance(one, tuple) else str(one)
