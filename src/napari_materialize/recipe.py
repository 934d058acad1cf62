"""The serialisable description of a view and a job, and the text a person writes for it.

Owns what a user typed (``name:key=value``, ``lo:hi``), which it opens views from, and what a record
says of one. What an op's parameters mean is the registry's business (`ops`), what a box may be the
plan's (`plan`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import BoxError, OpError, OptionError, SourceError
from napari_materialize.geometry import Box
from napari_materialize.ops import Op, create
from napari_materialize.sources import open_source
from napari_materialize.view import View

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from napari_materialize.arrays import Axis, Kind
    from napari_materialize.blocks import Boundary
    from napari_materialize.geometry import Index

__all__ = [
    "changed_source",
    "lasting_identity",
    "names_view",
    "op_text",
    "open_view",
    "parse_box",
    "parse_op",
    "parse_world_box",
    "split_parameters",
    "unread",
    "view_record",
]

type OpLike = Op | str | tuple[str, Mapping[str, Any]]


def parse_op(text: str) -> Op:
    """Return the op that ``name:key=value,key=value`` describes.

    A piece between commas that has no ``=`` belongs to the value before it, so that a value may be
    a list: ``gaussian:sigma=1,2,2``.

    Raises
    ------
    OpError
        If there is no such op, or a parameter is unknown, missing, twice there, or wrong.

    Examples
    --------
    >>> parse_op("threshold:low=10,high=20")
    Threshold(low=10, high=20)
    """
    name, _, rest = text.strip().partition(":")
    if not name:
        raise OpError(f"op {text!r}: a name comes first, as in threshold:low=120; write it so")
    return create(name, split_parameters(name, rest))


def split_parameters(name: str, text: str) -> dict[str, str]:
    """Return the parameters of the op ``name`` that ``key=value,key=value`` gives.

    Raises
    ------
    OpError
        If one is given twice, or a piece is none.

    Examples
    --------
    >>> split_parameters("gaussian", "sigma=1,2,2,dtype=float32")
    {'sigma': '1,2,2', 'dtype': 'float32'}
    """
    parameters: dict[str, str] = {}
    last = None
    for piece in text.split(",") if text else ():
        key, equals, value = piece.partition("=")
        key = key.strip()
        if equals and key:
            if key in parameters:
                raise OpError(f"op {name}: parameter {key} is given twice in {text!r}; drop one")
            parameters[key], last = value.strip(), key
        elif last is not None and not equals:
            parameters[last] += f",{piece.strip()}"
        else:
            raise OpError(
                f"op {name}: parameters are written key=value, got {piece!r} in "
                f"{text!r}; correct it"
            )
    return parameters


def op_text(op: Op) -> str:
    """Return the text that `parse_op` makes the same op of, defaults included.

    Examples
    --------
    >>> op_text(parse_op("gaussian:sigma=1,2,2"))
    'gaussian:sigma=1.0,2.0,2.0'
    """
    pieces = []
    for key, value in op.parameters.items():
        if value is not None:
            values = value if isinstance(value, list) else [value]
            pieces.append(f"{key}={','.join(map(str, values))}")
    return f"{op.name}:{','.join(pieces)}" if pieces else op.name


def _corners(text: str, kind: type[int] | type[float]) -> tuple[list[Any], list[Any]]:
    low, colon, high = text.partition(":")
    what = "whole numbers" if kind is int else "numbers"
    try:
        if not colon:
            raise ValueError("no colon")
        return [kind(v) for v in low.split(",")], [kind(v) for v in high.split(",")]
    except ValueError as error:
        raise BoxError(
            f"box {text!r}: two corners of {what} are expected, as in "
            "40,60,80:140,190,230; correct it"
        ) from error


def parse_box(text: str) -> Box:
    """Return the voxel box that ``lo:hi`` describes, ``z,y,x:z,y,x``, half open.

    Examples
    --------
    >>> parse_box("40,60:140,190")
    Box(start=(40, 60), stop=(140, 190))
    """
    return Box(*map(tuple, _corners(text, int)))


def parse_world_box(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the two corners of the world box that ``lo:hi`` describes.

    Examples
    --------
    >>> parse_world_box("0.5,1:2,3.25")
    ((0.5, 1.0), (2.0, 3.25))
    """
    low, high = _corners(text, float)
    return tuple(low), tuple(high)


def open_view(
    source: Any,
    ops: OpLike | Iterable[OpLike] = (),
    *,
    boundary: Boundary | None = None,
    chunks: Sequence[int] | None = None,
    scale: Sequence[float] | None = None,
    translation: Sequence[float] | None = None,
    units: str | Sequence[str | None] | None = None,
    axes: str | Sequence[str | Axis] | None = None,
    kind: Kind | None = None,
    name: str | None = None,
    views: Mapping[str, View] | None = None,
) -> View:
    """Open a view: a source through a chain of ops, not computed yet.

    Parameters
    ----------
    source : path, URL, array, list of arrays, napari layer, or View
        What to read. A view goes on where it ends, and so does text such as ``"view:smooth"``, of
        one of ``views``. A list of arrays is a multiscale image, finest first.
    ops : op or sequence of ops
        In order. Each an op, text such as ``"gaussian:sigma=1.5"``, or ``(name, parameters)``.
    boundary : {"edge", "zeros"}, optional
        What an op with a halo sees past the volume's edge: the outermost voxels repeated, or
        zeros. ``edge`` if left out; a view has its own already.
    chunks, scale, translation, units, axes, kind, name
        What the source does not say, or says wrongly; scale and translation are the finest
        level's, in world units, C order.
    views : mapping of str to View, optional
        Views by name, an engine's ``engine.views``.

    Returns
    -------
    View
        Its levels are known; nothing was read but metadata.

    Raises
    ------
    SourceError
        If the source is not there, is not an image, or cannot be read.
    OpError, ModelError
        If an op does not exist, has wrong parameters, or does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> view = open_view(np.zeros((64, 64), "u1"), ops=["gaussian:sigma=1.5", "threshold:low=120"])
    >>> view.levels[0].shape, view.kind
    ((64, 64), 'mask')
    """
    chain = [_op(op) for op in _listed(ops)]
    source = _computed(_by_name(source, views))
    if isinstance(source, View):
        described = (chunks, scale, translation, units, axes, kind, name)
        if any(value is not None for value in described):
            raise OptionError(
                "chunks, scale, translation, units, axes, kind and name are what the view says; "
                "leave them out, or give them where the view is opened"
            )
        if boundary not in (None, source.boundary):
            raise OptionError(
                f"boundary: the view says {source.boundary!r} itself, got {boundary!r}; leave it "
                "out, or give it where the view is opened"
            )
        return source.then(chain)
    opened = open_source(
        source,
        chunks=chunks,
        scale=scale,
        translation=translation,
        units=units,
        axes=axes,
        kind=kind,
        name=name,
    )
    return View.of(opened, chain, boundary="edge" if boundary is None else boundary)


_BY_NAME = "view:"


def names_view(source: object) -> TypeIs[str]:
    """Whether a source is text that names a view, such as ``view:smooth``."""
    return isinstance(source, str) and source.startswith(_BY_NAME)


def _by_name(source: Any, views: Mapping[str, View] | None) -> Any:
    """Return the view that text such as ``view:smooth`` names, else the source as it is."""
    if not names_view(source):
        return source
    if views is None:
        raise SourceError(
            f"{source}: a view by name is one of an engine's in the same program, and here is no "
            f"engine; give views=engine.views, or ./{source} for a folder of that name"
        )
    name = source.removeprefix(_BY_NAME)
    if name not in views:
        known = ", ".join(map(repr, views)) or "none"
        raise SourceError(
            f"{source}: a view of that name has to be registered, registered are {known}; do so "
            f"with engine.views[{name!r}] = view"
        )
    return views[name]


def _computed(source: Any) -> Any:
    """Return the view that a live layer or its data shows, else the source as it is.

    Read as an array it would be computed inside the engine's threads for reading, which wait for
    nothing; as a view its chunks are inputs like any others.
    """
    data = getattr(source, "data", source) if hasattr(source, "multiscale") else source
    first = data[0] if isinstance(data, Sequence) and data and not isinstance(data, str) else data
    view = getattr(first, "computed_view", None)
    return view if isinstance(view, View) else source


def _listed(ops: OpLike | Iterable[OpLike]) -> list[OpLike]:
    if isinstance(ops, Op | str) or (
        isinstance(ops, tuple)
        and len(ops) == 2
        and isinstance(ops[0], str)
        and isinstance(ops[1], Mapping)
    ):
        return [ops]
    if not isinstance(ops, Iterable):
        raise OpError(f"ops: an op or several are expected, got {ops!r}; give [] for none")
    return list(ops)


def _op(op: OpLike) -> Op:
    if isinstance(op, Op):
        return op
    if isinstance(op, str):
        return parse_op(op)
    if isinstance(op, tuple) and len(op) == 2:
        return create(op[0], op[1])
    raise OpError(f"op: an op, a text, or a name with parameters is expected, got {op!r}; give one")


def view_record(view: View, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what a result says of the view it was computed from, as JSON, without credentials.

    Chunks of the source that could not be read are left out of its identity and named, under
    ``unread``. To be compared with an earlier record, ``before``, it leaves out what that one did.
    """
    left_out = unread(before)
    record: dict[str, Any] = {
        "source": dict(view.source.record),
        "ops": [dict(op.record) for op in view.ops],
        "boundary": view.boundary,
        "identity": lasting_identity(view, left_out),
    }
    if record["identity"] is not None:
        left_out |= set(getattr(getattr(view.source, "lasting", None), "unread", ()))
    if left_out:
        record["unread"] = sorted(map(list, left_out))
    return record


def unread(record: Mapping[str, Any] | None) -> set[Index]:
    """Return the source's chunks that a record of a view, from anywhere, names as left out.

    Examples
    --------
    >>> unread({"unread": [[0, 1], "x", [None]]}), unread(None)
    ({(0, 1)}, set())
    """
    named = record.get("unread") if isinstance(record, Mapping) else None
    return {
        tuple(each)
        for each in (named if isinstance(named, list) else ())
        if isinstance(each, list) and all(isinstance(n, int) for n in each)
    }


def lasting_identity(view: View, without: Collection[Index] = ()) -> str | None:
    """Return what a record knows a view by, in another process; None if it cannot be known there.

    It is not what chunks are kept by (`View.identity`): a source that was touched or copied is the
    same here, as far as a look at some of its chunks tells, those ``without`` left out.
    """
    if not view.stable:
        return None
    lasting = getattr(view.source, "lasting", None)
    digest = view.source.identity if lasting is None else lasting(without)
    for op in view.ops:
        digest = sha256(f"{digest}\n{view.boundary}\n{op.identity}".encode()).hexdigest()
    return str(digest)


def changed_source(view: View) -> str | None:
    """Return why a view's stored source is not what was opened any more, or None if it is.

    A chunk whose file is gone reads as the fill value, by the rules of zarr; a whole source that
    was removed or rewritten meanwhile would read so without a word.
    """
    source = view.source
    if source.location is None or not source.stable or "layer" in source.record:
        return None
    try:
        reopen = getattr(source, "reopen", None)
        now = (
            reopen()
            if reopen is not None
            else open_source(source.location, **source.record.get("options", {}))
        )
    except SourceError as error:
        return str(error)
    if now.identity != source.identity:
        return f"{source.location}: its metadata is not what it was when it was opened"
    return None
