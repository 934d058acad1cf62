"""Python functions as ops."""

from __future__ import annotations

import json

import numpy as np
import pytest

import napari_materialize as nm
from napari_materialize.arrays import Level
from napari_materialize.errors import OpError
from napari_materialize.ops import Function

LEVEL = Level((8, 8), "u1", (4, 4))
BLOCK = np.full((4, 6), 200, "u1")


class Recording:
    """A function that keeps what it was given."""

    def __init__(self, dtype: str = "f4") -> None:
        self.dtype = dtype
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, block: np.ndarray) -> np.ndarray:
        self.shapes.append(block.shape)
        assert not block.flags.writeable
        return block.astype(self.dtype)


def test_the_dtype_is_found_by_one_call_on_a_small_block() -> None:
    function = Recording()
    op = Function(function, halo=2)
    for _ in range(3):
        assert op.describe(LEVEL, "image").level.dtype == np.float32
    assert function.shapes == [(8, 8)]


def test_a_given_dtype_needs_no_call() -> None:
    function = Recording()
    found = Function(function, dtype=np.uint8).describe(LEVEL, "label")
    assert (found.level.dtype, found.kind, function.shapes) == (np.uint8, "image", [])


def test_bool_makes_a_mask() -> None:
    found = Function(lambda block: block > 3).describe(LEVEL, "image")
    assert (found.kind, found.limits, found.level.dtype) == ("mask", (0, 1), np.bool_)


def test_results_are_converted_saturating_where_that_loses_no_meaning() -> None:
    narrowed = Function(lambda block: block.astype("u2") * 2, dtype="uint8")
    assert narrowed.compute(BLOCK, LEVEL).max() == 255
    floats = Function(lambda block: block / 3, dtype="float32")
    assert floats.compute(BLOCK, LEVEL).dtype == np.float32
    with pytest.raises(OpError, match="must return uint8, but returned float64"):
        Function(lambda block: block / 3, dtype="uint8").compute(BLOCK, LEVEL)


def test_a_wrong_shape_names_both() -> None:
    op = Function(lambda block: block[0], halo=1, dtype="uint8", name="first row")
    with pytest.raises(
        OpError, match=r"function first row: .*\(4, 6\) or, .*\(2, 4\), but returned \(6,\)"
    ):
        op.compute(BLOCK, LEVEL)


def test_a_function_that_fails_on_the_trial_block_is_refused_with_its_reason() -> None:
    def fail(block: np.ndarray) -> np.ndarray:
        raise RuntimeError("no zeros please")

    with pytest.raises(
        OpError, match=r"function fail: .*RuntimeError: no zeros please.*give dtype"
    ):
        Function(fail).describe(LEVEL, "image")
    with pytest.raises(OpError, match=r"dtype of the result: .*complex"):
        Function(lambda block: block * 1j).describe(LEVEL, "image")


def test_a_function_that_nobody_can_know_says_so_in_the_record() -> None:
    def double(block: np.ndarray) -> np.ndarray:
        return block * 2

    store = nm.MemoryStore()
    nm.materialize(np.ones((4, 4), "u1"), store, ops=Function(double))
    (op,) = json.loads(store.files[".zattrs"])["napari_materialize"]["view"]["ops"]
    (note,) = op["notes"]
    assert "double" in note
    assert "cannot be resumed" in note
    assert Function(double, name="twice", version="1").notes == ()


def test_only_a_name_and_a_version_give_an_identity() -> None:
    def double(block: np.ndarray) -> np.ndarray:
        return block * 2

    assert Function(double).identity is None
    assert Function(double).name == "double"
    assert Function(double, name="twice").identity is None
    first = Function(double, name="twice", version="1")
    assert first.identity == Function(abs, name="twice", version="1").identity
    assert first.identity != Function(double, name="twice", version="2").identity
    assert first.identity != Function(double, halo=1, name="twice", version="1").identity
    assert first.record == {
        "name": "function",
        "parameters": {"name": "twice", "halo": 0, "dtype": None, "version": "1"},
    }
