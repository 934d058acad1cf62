"""How a model lays out its input and output: letters for axes, as in ``bcyx``.

Owns the guess of a layout from what a model declares, and the turning of a canonical tile (batch,
channel, space in the image's order) into the model's and back. It knows no level (`_model_axes`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from napari_materialize.errors import ModelError, OpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from napari_materialize.geometry import Index

__all__ = ["Layout", "check_letters", "guess_layout", "match_output"]

_SPACE = "zyx"

_DEPTHS = frozenset({"z", "d", "depth", "slices", "planes"})
"""Names of an axis that is a third one in space."""

FEW = 16
"""Sizes up to this are taken for a number of channels where nothing else tells."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The axes of an input or output, in order.

    Examples
    --------
    >>> import numpy as np
    >>> Layout("byxc").to_model(np.zeros((1, 3, 8, 9))).shape
    (1, 8, 9, 3)
    >>> Layout("cyx").from_model(np.zeros((2, 8, 9))).shape
    (1, 2, 8, 9)
    """

    letters: str
    """``b`` batch, ``c`` channel, ``z``, ``y``, ``x``; each at most once."""

    @property
    def space(self) -> str:
        """The space axes in the image's order."""
        return "".join(letter for letter in _SPACE if letter in self.letters)

    @property
    def rank(self) -> int:
        """The number of space axes."""
        return len(self.space)

    def sides(self, shape: Sequence[int]) -> Index:
        """Return the sizes of the space axes, in the image's order, of the model's array."""
        return tuple(shape[self.letters.index(letter)] for letter in self.space)

    def size(self, shape: Sequence[int], letter: str) -> int:
        """Return the size of one axis of the model's array; 1 where it has none."""
        return shape[self.letters.index(letter)] if letter in self.letters else 1

    def to_model(self, tile: np.ndarray) -> np.ndarray:
        """Return (batch, channel, space...) as the model takes it; batch must be 1 if it has none.

        Raises
        ------
        ValueError
            If an axis that the model has not is longer than 1.
        """
        full = "bc" + self.space
        for letter in "cb":
            if letter not in self.letters:
                tile = tile.squeeze(full.index(letter))
                full = full.replace(letter, "")
        return tile.transpose([full.index(letter) for letter in self.letters])

    def from_model(self, made: np.ndarray) -> np.ndarray:
        """Return what the model made as (batch, channel, space...)."""
        full = self.letters
        for letter in "cb":
            if letter not in full:
                made, full = made[None], letter + full
        return made.transpose([full.index(letter) for letter in "bc" + self.space])


def check_letters(layout: str) -> str:
    """Return a layout that a person wrote, or refuse it.

    Examples
    --------
    >>> check_letters("BCYX")
    'bcyx'
    """
    letters = layout.strip().lower()
    good = len(set(letters)) == len(letters) and set(letters) <= set("bczyx")
    if not good or not {"y", "x"} <= set(letters):
        raise OpError(
            "onnx: layout names the axes of the model's input with b, c, z, y, x, each at most "
            f"once, y and x among them, as in bcyx; got {layout!r}"
        )
    return letters


def guess_layout(
    shape: Sequence[int | str | None], windows: int | None, place: str, name: str
) -> Layout:
    """Return the layout that an input of ``shape`` most likely has.

    Parameters
    ----------
    shape
        As declared: a number where the size is fixed, a name where it is free.
    windows
        Space axes of the model's convolutions; None where it has none.
    place, name
        What a message calls the model and its input.

    Raises
    ------
    ModelError
        If it cannot be an image.

    Examples
    --------
    >>> [guess_layout(shape, 2, "", "").letters for shape in ((1, 1, 512, 512), (1, "h", "w", 1))]
    ['bcyx', 'byxc']
    >>> guess_layout(("h", "w"), None, "", "").letters
    'yx'
    """
    axes = len(shape)
    if not axes:
        raise ModelError(
            f"{place}: an image has 2 to 5 axes, its input {name} says none or leaves open how "
            "many; export it with that input's shape"
        )
    if 0 in shape:
        raise ModelError(
            f"{place}: an axis has 1 voxel or more, or a free number, its input {name} has "
            f"{tuple(shape)}; export it with other sizes"
        )
    if not 2 <= axes <= 5:
        raise ModelError(
            f"{place}: an image has 2 to 5 axes, its input {name} has {axes}, {tuple(shape)}; this "
            "op runs models of one image"
        )
    rank = min(windows or _likely_rank(shape), axes)
    if rank not in {2, 3} or axes - rank > 2:
        raise ModelError(
            f"{place}: an image has 2 or 3 space axes, its input {name} of {tuple(shape)} and "
            f"convolutions along {windows} axes do not; give layout=, as in layout=bcyx"
        )
    space = _SPACE[-rank:]
    extra = axes - rank
    first, last = shape[0], shape[-1]
    if extra == 0:
        return Layout(space)
    if extra == 1:
        if _fewer(last, first) and isinstance(last, int) and last <= FEW:
            return Layout(space + "c")
        return Layout(("c" if isinstance(first, int) else "b") + space)
    return Layout(f"b{space}c" if _fewer(last, shape[1]) else f"bc{space}")


def _likely_rank(shape: Sequence[int | str | None]) -> int:
    """Return the number of space axes where no convolution tells."""
    deep = any(isinstance(axis, str) and axis.lower() in _DEPTHS for axis in shape)
    return 3 if deep or len(shape) == 5 else 2


def _fewer(one: int | str | None, other: int | str | None) -> bool:
    """Whether ``one`` is rather a number of channels than ``other``."""
    if not isinstance(one, int):
        return False
    return not isinstance(other, int) or one < other


def match_output(
    given: Layout, runs: Sequence[tuple[Index, Index]], free_batch: bool
) -> Layout | None:
    """Return the layout of an output from what came out of one or two inputs of known shape.

    Parameters
    ----------
    given
        The input's layout.
    runs
        Pairs of the canonical input shape (batch, channel, space...) and the output's shape, as
        the model made it. In the second one every free side is longer, and the batch where it is
        free.
    free_batch
        Whether the second run has another batch than the first.
    """
    axes = len(runs[0][1])
    if any(len(made) != axes for _, made in runs):
        return None
    for letters in _candidates(given, axes):
        layout = Layout(letters)
        if all(_fits(layout, taken, made) for taken, made in runs) and (
            len(runs) < 2 or _grows(layout, runs[0], runs[1], free_batch)
        ):
            return layout
    return None


def _candidates(given: Layout, axes: int) -> list[str]:
    """Return the layouts an output may have, the most likely first."""
    space = given.space
    plain = [given.letters, f"bc{space}", f"b{space}c", f"c{space}", f"{space}c", f"b{space}"]
    turned = [
        "".join(order)
        for letters in ("bc" + space, "c" + space, "b" + space, space)
        for order in itertools.permutations(letters)
    ]
    return [letters for letters in dict.fromkeys([*plain, space, *turned]) if len(letters) == axes]


def _fits(layout: Layout, taken: Index, made: Index) -> bool:
    batch = layout.size(made, "b")
    if batch != taken[0]:
        return False
    ratios = [m / n for m, n in zip(layout.sides(made), taken[2:], strict=True)]
    return min(ratios) > 0 and max(ratios) <= 8 * min(ratios)


def _grows(
    layout: Layout, first: tuple[Index, Index], second: tuple[Index, Index], free_batch: bool
) -> bool:
    """Whether what came out grew where what went in did, and nowhere else."""
    (taken, before), (longer, after) = first, second
    rows = zip(taken[2:], longer[2:], layout.sides(before), layout.sides(after), strict=True)
    grown = all(d > c if b > a else d == c for a, b, c, d in rows)
    same = layout.size(before, "c") == layout.size(after, "c")
    return grown and same and (not free_batch or layout.size(after, "b") == 2)
