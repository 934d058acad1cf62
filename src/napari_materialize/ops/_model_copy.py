"""An op that runs a model, made again: as a copy that shares the session, or in another process."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from napari_materialize.ops._model_scale import Constants, Pending

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.arrays import Level
    from napari_materialize.ops._model_findings import Findings
    from napari_materialize.ops._model_op import ModelOp

__all__ = ["again", "twin"]


def twin[O: ModelOp](op: O) -> O:
    """Return a copy of an op, without loading its model again."""
    copy = object.__new__(type(op))
    for each in fields(op):
        object.__setattr__(copy, each.name, getattr(op, each.name))
    return copy


def again(
    kind: type[ModelOp],
    given: tuple[Any, ...],
    options: Mapping[str, Any],
    found: Findings | None,
    taken: Mapping[Level, Constants],
) -> ModelOp:
    """Make the same op in another process, with what was found out in this one."""
    op = kind(*given, **options)
    op._restore(found, {level: Pending(partial(_same, each)) for level, each in taken.items()})
    return op


def _same(constants: Constants) -> Constants:
    return constants
