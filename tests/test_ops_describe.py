"""What ops say before they compute: output, halo, identity, and what they refuse."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from napari_materialize import ops
from napari_materialize.arrays import Axis, Level
from napari_materialize.errors import OpError
from napari_materialize.geometry import Box

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari_materialize.arrays import Kind

CZYX = (Axis("c", "channel"), Axis("z", unit="nanometer"), Axis("y"), Axis("x"))
PLAIN = Level((10, 20, 30), "u2", (4, 5, 6), scale=(4, 2, 2), translation=(1, 2, 3))
CHANNELS = Level((3, 10, 20, 30), "u2", (1, 4, 5, 6), CZYX, (1, 4, 2, 2), (0, 1, 2, 3), fill=9)


@pytest.mark.parametrize(
    ("op", "kind", "dtype", "expected_kind", "limits"),
    [
        (ops.Threshold(low=1), "image", "u1", "mask", (0, 1)),
        (ops.Rescale(0, 10), "image", "f4", "image", (0, 1)),
        (ops.Rescale(0, 10, "int8"), "image", "i1", "image", (-128, 127)),
        (ops.Gaussian(1), "image", "u2", "image", None),
        (ops.Gaussian(1), "mask", "u2", "mask", (0, 1)),
        (ops.Gaussian(1, "float32"), "mask", "f4", "image", (0, 1)),
        (ops.Median(3), "label", "u2", "label", None),
        (ops.Median(3, "float32"), "label", "f4", "image", None),
        (ops.Invert(), "image", "u2", "image", None),
        (ops.Invert(), "mask", "u2", "mask", (0, 1)),
        (ops.Cast("uint8"), "label", "u1", "label", None),
        (ops.Cast("float32"), "label", "f4", "image", None),
        (ops.Cast("bool"), "image", "?", "mask", (0, 1)),
    ],
)
def test_a_description_keeps_the_place_and_says_the_rest(
    op: ops.Op, kind: Kind, dtype: str, expected_kind: Kind, limits: tuple[float, float] | None
) -> None:
    found = op.fit(PLAIN, kind).describe(PLAIN, kind)
    assert found.level == replace(PLAIN, dtype=np.dtype(dtype))
    assert found.kind == expected_kind
    assert found.limits == limits


@pytest.mark.parametrize(
    ("op", "kind", "dtype"), [(ops.Select(1), "mask", "u2"), (ops.Argmax(), "label", "u1")]
)
def test_the_channel_axis_goes(op: ops.Op, kind: Kind, dtype: str) -> None:
    found = op.describe(CHANNELS, "mask")
    assert found.kind == kind
    assert found.level == replace(
        PLAIN, dtype=np.dtype(dtype), axes=CZYX[1:], fill=0
    )  # and its scale and translation


def test_argmax_of_many_channels_is_uint16() -> None:
    axes = (Axis("c", "channel"), Axis("y"))
    level = Level((300, 1), "f4", (1, 1), axes)
    values = np.zeros((300, 1), "f4")
    values[299] = 1
    assert ops.Argmax().describe(level, "image").level.dtype == np.uint16
    assert ops.Argmax().compute(values, level).tolist() == [299]
    with pytest.raises(OpError, match="at most 65536 channels, the image has 65537"):
        ops.Argmax().describe(Level((65537, 1), "f4", (1, 1), axes), "image")


def test_halos_are_of_space_alone() -> None:
    assert ops.Gaussian(1.5).halo(CHANNELS) == (0, 6, 6, 6)
    assert ops.Gaussian((0, 1, 2)).halo(CHANNELS) == (0, 0, 4, 8)
    assert ops.Median(4).halo(CHANNELS) == (0, 2, 2, 2)
    assert ops.Function(np.abs, halo=3, dtype="u2").halo(CHANNELS) == (0, 3, 3, 3)
    assert ops.Function(np.abs, halo=(1, 0, 2, 3), dtype="u2").halo(CHANNELS) == (1, 0, 2, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (ops.Threshold, "needs low or high"),
        (lambda: ops.Threshold(5, 4), "low must not lie above high, got 5 and 4"),
        (lambda: ops.Threshold(float("nan")), "low: a number, got nan"),
        (lambda: ops.Threshold(low=True), "low: a number, got True"),
        (lambda: ops.Threshold(high="bright"), "high: a number, got 'bright'"),
        (lambda: ops.Rescale(3, 3), "low below high, got 3 and 3"),
        (lambda: ops.Rescale(0, float("inf")), "must be finite"),
        (lambda: ops.Rescale(0, 1, "bool"), "got bool; use threshold"),
        (lambda: ops.Rescale(0, 1, "complex64"), "got 'complex64'"),
        (lambda: ops.Gaussian(-1), "sigma must be a finite number, 0 or more, got -1"),
        (lambda: ops.Gaussian((1, float("nan"))), "got nan"),
        (lambda: ops.Gaussian(()), "got none"),
        (lambda: ops.Gaussian("wide"), "got 'wide'"),
        (lambda: ops.Gaussian(1, "uint8"), "a float dtype, or left out .* got uint8"),
        (lambda: ops.Median(0), "size must be a whole number of voxels, 1 or more, got 0"),
        (lambda: ops.Median(2.5), "got 2.5"),
        (lambda: ops.Cast("colour"), "got 'colour'"),
        (lambda: ops.Cast("longdouble"), "got 'longdouble'"),
        (lambda: ops.Select(-1), "counted from 0, got -1"),
        (lambda: ops.Function(3), "fn must be callable, got 3"),
        (lambda: ops.Function(abs, halo=-1), "halo must be a whole number .* got -1"),
        (lambda: ops.Function(abs, version="1"), "version '1' needs a name"),
        (lambda: ops.Gaussian((1, 2)).describe(PLAIN, "image"), "3 axes z, y, x, got 2"),
        (lambda: ops.Median((3, 3)).halo(PLAIN), "3 axes z, y, x, got 2"),
        (lambda: ops.Gaussian(1).describe(PLAIN, "label"), "got labels"),
        (lambda: ops.Invert().describe(PLAIN, "label"), "got labels"),
        (lambda: ops.Invert().describe(PLAIN, "mask"), "call fit"),
        (lambda: ops.Select(3).describe(CHANNELS, "image"), "3 channels, .* got channel 3"),
        (lambda: ops.Select(0).describe(PLAIN, "image"), "has the axes z, y, x"),
        (lambda: ops.Argmax().describe(PLAIN, "image"), "needs a channel axis"),
        (lambda: ops.Function(abs, halo=(1,), dtype="u1").halo(PLAIN), "3 axes z, y, x, got 1"),
    ],
)
def test_refusals_say_what_was_found(make: Callable[[], object], message: str) -> None:
    with pytest.raises(OpError, match=message):
        make()


def test_parameters_are_json_and_make_the_same_op_again() -> None:
    for op in (
        ops.Threshold(low=120.0),
        ops.Rescale(0.5, 3, "uint8"),
        ops.Gaussian((0, 1, 2.5), "float32"),
        ops.Median(3),
        ops.Invert(),
        ops.Cast(np.int16),
        ops.Select(2),
        ops.Argmax(),
    ):
        again = ops.create(op.name, json.loads(json.dumps(op.parameters)))
        assert again == op
        assert again.identity == op.identity
        assert op.record == {"name": op.name, "parameters": op.parameters}
        assert pickle.loads(pickle.dumps(op)) == op


def test_identity_tells_apart_what_computes_something_else() -> None:
    identities = [
        ops.Threshold(low=120).identity,
        ops.Threshold(high=120).identity,
        ops.Gaussian(1).identity,
        ops.Gaussian(1.5).identity,
        ops.Gaussian(1, "float32").identity,
        ops.Median(1).identity,
    ]
    assert len(set(identities)) == len(identities)
    assert ops.Threshold(low=120).identity == ops.Threshold(low=120.0).identity
    assert ops.Gaussian(1).identity == ops.Gaussian(1.0).identity


def test_ops_do_not_write_to_their_block_and_stop_when_abandoned() -> None:
    block = np.arange(81.0).reshape(9, 9)
    block.flags.writeable = False
    level = Level(block.shape, block.dtype, block.shape)
    for op in (ops.Rescale(0, 80), ops.Gaussian(1), ops.Median(3), ops.Invert(), ops.Cast("u1")):
        op.compute(block, level)
    with pytest.raises(ops.Abandoned):
        ops.Gaussian(1).compute(block, level, lambda: True)


def test_rescale_sees_a_window_that_float32_cannot_resolve() -> None:
    values = np.array([[2**30, 2**30 + 5, 2**30 + 10]], "i4")
    level = Level(values.shape, values.dtype, values.shape)
    op = ops.Rescale(2**30, 2**30 + 10)
    assert op.compute(values, level).tolist() == [[0.0, 0.5, 1.0]]
    narrow = ops.Rescale(0, 1e-50)
    floats = np.array([[0.0, 1.0]], "f4")
    assert narrow.compute(floats, Level((1, 2), "f4", (1, 2))).tolist() == [[0.0, 1.0]]


@dataclass(frozen=True, slots=True)
class Blocks(ops.Op):
    """Each voxel becomes the sum of the 4-voxel block it lies in, counted from the block's start:
    right only on blocks that begin on multiples of 4.
    """

    name = "blocks"
    halo_x: int

    def describe(self, level: Level, kind: Kind) -> ops.Description:
        return ops.Description(level, kind)

    def halo(self, level: Level) -> tuple[int, ...]:
        return (0, self.halo_x)

    def align(self, level: Level) -> tuple[int, ...]:
        return (1, 4)

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = ops.never
    ) -> np.ndarray:
        assert block.shape[1] % 4 == 0
        sums = block.reshape(len(block), -1, 4).sum(-1).repeat(4, axis=1)
        return sums[:, self.halo_x : block.shape[1] - self.halo_x]


@pytest.mark.parametrize("halo", [0, 1, 4, 6])
def test_blocks_begin_on_multiples_of_the_volume_and_come_back_exact(halo: int) -> None:
    array = np.arange(46).reshape(2, 23)
    level = Level(array.shape, array.dtype, (2, 5))
    op = Blocks(halo)
    padded = np.pad(array, [(0, 0), (16, 17)], mode="edge")  # 16 keeps multiples of 4 in place
    sums = padded.reshape(2, -1, 4).sum(-1).repeat(4, axis=1)
    for start in range(23):
        for stop in range(start + 1, 24):
            box = Box((0, start), (2, stop))
            need = op.reach(box, level)
            assert need.start[1] % 4 == need.stop[1] % 4 == 0
            assert need.contains(box.grow((0, halo)))
            result = op.run(padded[need.shift((0, 16)).slices], box, level)
            np.testing.assert_array_equal(result, sums[box.shift((0, 16)).slices])


def test_an_op_that_returns_another_shape_is_an_error_naming_both() -> None:
    class Shrinking(Blocks):
        def compute(self, block: np.ndarray, *_: object) -> np.ndarray:
            return block[:, 1:]

    level = Level((1, 8), "u1", (1, 8))
    with pytest.raises(OpError, match=r"must become \(1, 8\), but became \(1, 7\)"):
        Shrinking(0).run(np.zeros((1, 8), "u1"), Box.whole((1, 8)), level)


def test_importing_ops_loads_neither_scipy_nor_onnxruntime() -> None:
    code = (
        "import sys, napari_materialize.ops as ops; ops.available(); "
        "print([m for m in ('scipy', 'onnxruntime', 'zarr', 'napari') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_op_is_imported_when_it_is_named() -> None:
    code = (
        "import sys, napari_materialize.ops as ops\n"
        "def loaded(): print(*sorted(m for m in sys.modules if m.startswith(ops.__name__ + '.')\n"
        "    and m.rpartition('.')[2] in ('channel', 'filters', 'function', 'onnx', 'point')))\n"
        "loaded(); ops.create('invert', {}); loaded(); ops.Select; loaded()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    point, channel = f"{ops.__name__}.point", f"{ops.__name__}.channel"
    assert done.stdout.splitlines() == ["", point, f"{channel} {point}"]


def test_each_built_in_op_has_the_name_it_is_found_by() -> None:
    assert [op.name for op in ops.available().values()] == list(ops.available())
    assert {op.__name__ for op in ops.available().values()} <= set(ops.__all__)
    assert all(hasattr(ops, name) for name in ops.__all__)
