"""Ops by name: text and JSON to parameters, other packages' ops, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from napari_materialize import ops
from napari_materialize.errors import OpError

if TYPE_CHECKING:
    from collections.abc import Iterator

BUILT_IN = [
    *("threshold", "rescale", "gaussian", "median", "invert"),
    *("cast", "select", "argmax", "onnx"),
]


def test_the_built_in_ops_are_those_of_the_contract() -> None:
    assert list(ops.available())[:9] == BUILT_IN
    for name, op in ops.available().items():
        assert op.name == name
        assert all(each.help for each in ops.describe_parameters(op))


def test_parameters_say_type_default_and_whether_they_are_needed() -> None:
    sigma, dtype = ops.describe_parameters(ops.Gaussian)
    assert (sigma.name, sigma.type, sigma.required) == ("sigma", float | tuple[float, ...], True)
    assert (dtype.name, dtype.type, dtype.required) == ("dtype", str | None, False)
    assert dtype.default is None
    onnx = {each.name: each for each in ops.describe_parameters(ops.Onnx)}
    assert list(onnx)[:3] == ["model", "halo", "normalise"]
    assert {"multiple", "output", "device", "allow_tile_dependent"} <= set(onnx)
    assert [name for name, each in onnx.items() if each.required] == ["model"]
    assert (onnx["model"].type, onnx["multiple"].default) == (Path, None)


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [
        ("threshold", {"low": "120"}, ops.Threshold(120)),
        ("threshold", {"low": "1.5", "high": "none"}, ops.Threshold(1.5)),
        ("threshold", {"low": str(2**63 + 1)}, ops.Threshold(2**63 + 1)),
        ("threshold", {"low": np.float32(2), "high": np.int64(3)}, ops.Threshold(2, 3)),
        ("gaussian", {"sigma": "1,2,2"}, ops.Gaussian((1, 2, 2))),
        ("gaussian", {"sigma": [1, 2.5], "dtype": "float32"}, ops.Gaussian((1, 2.5), "float32")),
        ("gaussian", {"sigma": " 2 ", "dtype": ""}, ops.Gaussian(2)),
        ("median", {"size": "3,1"}, ops.Median((3, 1))),
        ("cast", {"dtype": np.uint8}, ops.Cast("uint8")),
        ("cast", {"dtype": np.dtype("f4")}, ops.Cast("float32")),
        ("rescale", {"low": 0, "high": "255", "dtype": "uint16"}, ops.Rescale(0, 255, "uint16")),
        ("select", {"channel": "2"}, ops.Select(2)),
        ("invert", {}, ops.Invert()),
    ],
)
def test_text_and_values_become_parameters(
    name: str, parameters: dict[str, Any], expected: ops.Op
) -> None:
    assert ops.create(name, parameters) == expected


def test_whole_numbers_stay_whole() -> None:
    op = ops.create("threshold", {"low": "3", "high": "4.5"})
    assert [type(value) for value in op.parameters.values()] == [int, float]


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("tresh", {}, r"no op is called 'tresh', did you mean 'threshold'\?; known are threshold,"),
        ("zzz", {}, "no op is called 'zzz'; known are"),
        ("gaussian", {"sigmas": 1}, r"no parameter 'sigmas', did you mean 'sigma'\?; it takes sig"),
        ("invert", {"x": 1}, "no parameter 'x'; it takes none"),
        ("gaussian", {}, r"needs sigma \(standard deviation.*give sigma="),
        ("gaussian", {"sigma": "wide"}, "sigma: must be a number or several .* got 'wide'"),
        ("gaussian", {"sigma": "1,,2"}, "got '1,,2'"),
        ("gaussian", {"sigma": True}, "sigma: must be .* got True"),
        ("gaussian", {"sigma": "-1"}, "0 or more, got -1"),
        ("select", {"channel": "1.5"}, "channel: must be a whole number, got '1.5'"),
        ("select", {"channel": None}, "must be a whole number, got None"),
        ("cast", {"dtype": 8}, "dtype: must be text, got 8"),
        ("onnx", {"model": 3, "halo": 1}, "model: must be a path, got 3"),
        ("threshold", {"low": "5", "high": "4"}, "swap them"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(
    name: str, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(OpError, match=message) as caught:
        ops.create(name, parameters)
    assert "\n" not in str(caught.value)


MODULE = """
from dataclasses import dataclass, field
from napari_materialize import ops

@dataclass(frozen=True, slots=True)
class Shift(ops.Op):
    name = "shift"
    by: int
    wrap: bool = False
    tags: tuple[str, ...] = field(default_factory=tuple)

    def describe(self, level, kind):
        return ops.Description(level, kind)

    def compute(self, block, level, abandoned=ops.never):
        return block + self.by
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another package, as far as Python can tell: a module and the metadata of a distribution."""
    (tmp_path / "shift_plugin.py").write_text(MODULE)
    info = tmp_path / "shift_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shift-plugin\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield info / "entry_points.txt"
    sys.modules.pop("shift_plugin", None)


def test_another_package_brings_an_op(plugin: Path) -> None:
    plugin.write_text("[napari_materialize.ops]\nshift = shift_plugin:Shift\n")
    assert "shift" in ops.available()
    op = ops.create("shift", {"by": "3", "wrap": "yes"})
    assert op.parameters == {"by": 3, "wrap": True, "tags": []}
    assert [each.default for each in ops.describe_parameters(type(op))] == [None, False, ()]
    assert ops.create("shift", {"by": 1, "tags": "a,b"}).parameters["tags"] == ["a", "b"]
    with pytest.raises(OpError, match="wrap: must be true or false, got 'maybe'"):
        ops.create("shift", {"by": 3, "wrap": "maybe"})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("bad = shift_plugin:Missing", "bad of shift_plugin:Missing is left out: AttributeError"),
        ("bad = no_such_module:Op", "is left out: ModuleNotFoundError"),
        ("bad = shift_plugin:dataclass", "is left out: it is not an Op that is a dataclass"),
        ("gaussian = shift_plugin:Shift", "gaussian of .* left out: the name is taken"),
    ],
)
def test_a_broken_one_is_reported_and_the_rest_works(plugin: Path, line: str, reason: str) -> None:
    plugin.write_text(f"[napari_materialize.ops]\n{line}\n")
    with pytest.warns(UserWarning, match=reason):
        found = ops.available()
    assert list(found) == BUILT_IN
    assert found["gaussian"] is ops.Gaussian


def test_built_in_ops_load_no_other_package(plugin: Path) -> None:
    plugin.write_text("[napari_materialize.ops]\nshift = shift_plugin:Shift\n")
    ops.create("gaussian", {"sigma": 1})
    assert "shift_plugin" not in sys.modules
