"""What onnxruntime says when it does not take a model, in one clause with what to do about it.

Owns the reading of its messages. Who says them to a person, and of which file, is
`_model_session`'s business.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ["why_failed", "why_not_loaded"]

_LOADING: tuple[tuple[str, str], ...] = (
    (
        r"Opset (\d+) is under development.* till opset (\d+)",
        "it is written for opset {0}, and opsets up to {1} are known; export it again, for an "
        "older opset",
    ),
    (
        r"Unsupported model IR version: (\d+), max supported IR version: (\d+)",
        "its ir_version is {0}, and up to {1} are known; export it again, with an older one",
    ),
    (
        r"Missing opset in the model",
        "it says no opset, and every model must; export it again",
    ),
    (
        r"No Op registered for (\w+) with domain_version of (-?\d+)",
        "opset {1}, for which it is written, has no operator {0}; export it again, with operators "
        "of ONNX",
    ),
    (
        r"Fatal error: ([\w.]*):(\w+)\(-?\d+\) is not a registered function/op",
        "it has no operator {1} of {0}; export it again, with operators of ONNX",
    ),
)
"""Patterns of its messages, and what they mean to a person."""

_MISSING = re.compile(r"Could not find an implementation for ([\w.:]+?)\((\d+)\)")

_RARE = {11: "float64", 16: "bfloat16"}
"""Types, by ONNX's numbers, for which onnxruntime lacks many operators."""

_OLD = 7
"""Opsets before it are not kept up."""

_INVALID = re.compile(
    r"invalid model|TypeInferenceError|ShapeInferenceError|Type Error|acyclic", re.IGNORECASE
)


def why_not_loaded(error: Exception, kinds: Container[int] = ()) -> str:
    """Return why no session could be made, and what to do.

    Parameters
    ----------
    error
        What onnxruntime raised.
    kinds
        ONNX's numbers of the types that the model computes with.

    Examples
    --------
    >>> why_not_loaded(RuntimeError("Could not find an implementation for Conv(11) node"), {11})
    'it has no Conv for float64, which this model computes with; export it in float32'
    """
    first = _first_line(error)
    for pattern, sentence in _LOADING:
        if found := re.search(pattern, first):
            return sentence.format(*found.groups())
    if found := _MISSING.search(first):
        return _no_operator(found[1], int(found[2]), kinds)
    reason = _stripped(first) or type(error).__name__
    if _INVALID.search(first):
        return f"it is no valid model ({reason}); export it again"
    return f"{reason}; fetch or export it again"


def _no_operator(name: str, opset: int, kinds: Container[int]) -> str:
    """Say which operator has no code for the model's numbers."""
    for number, dtype in _RARE.items():
        if number in kinds:
            return (
                f"it has no {name} for {dtype}, which this model computes with; export it in "
                "float32"
            )
    if opset < _OLD:
        return f"it has no {name} of opset {opset}; export it again, for opset 13 or later"
    return f"it has no {name} for the numbers that this one is given; export it in float32"


def why_failed(error: Exception) -> str:
    """Return why a run failed, without onnxruntime's codes, source files and advice."""
    return _stripped(_first_line(error)) or type(error).__name__


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _stripped(line: str) -> str:
    """Return a message without what only its authors can use."""
    line = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", line)
    line = re.sub(r"Load model from .* failed:", "", line)
    line = re.sub(r"Non-zero status code .* while running (\w+) node.*Message: ", r"\1: ", line)
    line = re.sub(r"\S+\.(?:cc|h):\d+ (?:\w+ |.*?\) )", "", line)
    line = re.sub(r"^\s*This is an invalid model\.\s*|^\s*Invalid model\.\s*", "", line)
    return line.strip().rstrip(" .;")
