"""The demo's picture: source, result and box, side by side, as a PNG.

Owns the drawing. It reads stored images and computes nothing that is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

    from napari_materialize.geometry import Box

__all__ = ["draw"]

SIDE, GAP, MARGIN = 512, 28, 36
HEAD, LABEL, FOOT = 64, 54, 58
"""Pixels: a panel's side, between panels, around all; heights of title, captions and legend."""

type Colour = tuple[int, int, int]

PAPER: Colour = (250, 250, 248)
INK: Colour = (28, 32, 38)
QUIET: Colour = (104, 110, 118)
SMALL: Colour = (255, 170, 30)
LARGE: Colour = (60, 180, 255)
FRAME: Colour = (255, 255, 255)
UNWRITTEN: Colour = (58, 62, 68)

DASH = 7
"""Pixels of a dash, and of the gap after it."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One square image with its caption."""

    title: str
    caption: str
    pixels: np.ndarray
    """(y, x, rgb) uint8, `SIDE` pixels along each axis."""

    pixel: float
    """Micrometres along a pixel's side."""

    bar: int
    """Micrometres that the scale bar is long."""

    solid: Box | None = None
    """A box to outline, y and x in pixels."""

    dashed: Box | None = None
    """Another one."""


def draw(path: Path, source: Path, target: Path, *, asked: Box, written: Box) -> Path:
    """Draw the source, the result and the box.

    Parameters
    ----------
    path : Path
        Where to write the PNG.
    source : Path
        The sample as OME-Zarr, (z, y, x) uint8, `SIDE` voxels along y and x.
    target : Path
        The result, (c, z, y, x) uint8: masks of the small and of the large blobs.
    asked : Box
        The box somebody drew, z, y, x.
    written : Box
        The box of whole chunks that was written, c, z, y, x.

    Returns
    -------
    Path
        ``path``.
    """
    depth, plane = written.slices[1], written.slices[2:]
    bright = _grey(np.max(_level(source)[depth], axis=0))
    small, large = np.max(_level(target)[:, depth], axis=1) > 0
    enlarge = _enlarger(bright[plane].shape)
    width = _micrometres()
    frames = {"solid": _flat(written), "dashed": _flat(asked)}
    panels = (
        Panel("Source", "the brightest voxel along z", _rgb(bright), width, 50, **frames),
        Panel(
            "Result, as stored",
            "the chunks around the box, and nothing else",
            _result(small, large, plane),
            width,
            50,
            **frames,
        ),
        Panel(
            "The box",
            "outlines of what was found, over the source",
            _outlines(enlarge(bright[plane]), enlarge(small[plane]), enlarge(large[plane])),
            width * max(bright[plane].shape) / SIDE,
            20,
        ),
    )
    _compose(panels, _title(asked, written)).save(path)
    return path


def _level(store: Path) -> Any:
    """Return the finest array of a stored image."""
    import zarr

    return zarr.open_group(store, mode="r")["0"]


def _micrometres() -> float:
    from napari_materialize.samples import SCALE

    return SCALE[2]


def _title(asked: Box, written: Box) -> str:
    count = f"{written.size / 1e6:.1f} million voxels"
    low, high = (",".join(map(str, corner)) for corner in (asked.start, asked.stop))
    return f"napari-materialize: blobs found by a network, box {low} to {high}, {count} written"


def _flat(box: Box) -> Box:
    """Return the box along y and x alone."""
    return type(box)(box.start[-2:], box.stop[-2:])


def _grey(image: np.ndarray) -> np.ndarray:
    """Stretch an image to 0..255, its darkest and brightest voxels clipped."""
    low, high = np.percentile(image, (1, 99.8))
    stretched = (image.astype(np.float32) - low) * (255 / max(1.0, high - low))
    grey: np.ndarray = np.clip(stretched, 0, 255).astype(np.uint8)
    return grey


def _rgb(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[..., np.newaxis], 3, axis=-1)


def _result(small: np.ndarray, large: np.ndarray, plane: tuple[slice, ...]) -> np.ndarray:
    """Colour what is found on black, and what was not written in grey."""
    pixels = np.full((*small.shape, 3), UNWRITTEN, np.uint8)
    pixels[plane] = 0
    pixels[large], pixels[small] = LARGE, SMALL
    return pixels


def _enlarger(shape: Sequence[int]) -> Callable[[np.ndarray], np.ndarray]:
    """Return what makes an image of ``shape`` fill a panel, each voxel a square."""
    times = SIDE // max(shape)

    def enlarge(image: np.ndarray) -> np.ndarray:
        grown = image.repeat(times, axis=0).repeat(times, axis=1)
        rest = [SIDE - size for size in grown.shape]
        return np.pad(grown, [(size // 2, size - size // 2) for size in rest])

    return enlarge


def _outlines(grey: np.ndarray, small: np.ndarray, large: np.ndarray) -> np.ndarray:
    pixels = _rgb(grey)
    for mask, colour in ((large, LARGE), (small, SMALL)):
        around = ~mask
        pixels[around & ~_eroded(_eroded(around))] = colour
    return pixels


def _eroded(mask: np.ndarray) -> np.ndarray:
    """Return a mask without its outermost pixels; the image's own edge is none."""
    framed = np.pad(mask, 1, mode="edge")
    inner = framed[1:-1, 1:-1].copy()
    for neighbour in (framed[:-2, 1:-1], framed[2:, 1:-1], framed[1:-1, :-2], framed[1:-1, 2:]):
        inner &= neighbour
    return inner


def _compose(panels: Sequence[Panel], title: str) -> Image:
    """Put the panels on a sheet with title, captions, scale bars and legend."""
    from PIL import Image, ImageDraw

    width = 2 * MARGIN + len(panels) * SIDE + (len(panels) - 1) * GAP
    sheet = Image.new("RGB", (width, HEAD + LABEL + SIDE + FOOT), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, HEAD // 2 + 4), title, INK, _font(24), anchor="lm")
    top = HEAD + LABEL
    for number, panel in enumerate(panels):
        left = MARGIN + number * (SIDE + GAP)
        pen.text((left, HEAD + 14), panel.title, INK, _font(19), anchor="lm")
        pen.text((left, HEAD + 38), panel.caption, QUIET, _font(15), anchor="lm")
        sheet.paste(Image.fromarray(panel.pixels), (left, top))
        for box, gap in ((panel.dashed, DASH), (panel.solid, 0)):
            if box is not None:
                _outline(pen, box, (left, top), gap)
        _scale_bar(pen, panel, (left + 18, top + SIDE - 20))
    _legend(pen, (MARGIN, top + SIDE + FOOT // 2))
    return sheet


def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _outline(pen: ImageDraw, box: Box, corner: tuple[int, int], gap: int) -> None:
    """Outline a box, in dashes if there is a gap between them."""
    (y0, x0), (y1, x1) = box.start, box.stop
    dash = DASH if gap else SIDE
    for x in range(x0, x1, dash + gap):
        for y in (y0, y1 - 2):
            _bar(pen, corner, (x, y, min(x + dash, x1), y + 2))
    for y in range(y0, y1, dash + gap):
        for x in (x0, x1 - 2):
            _bar(pen, corner, (x, y, x + 2, min(y + dash, y1)))


def _bar(pen: ImageDraw, corner: tuple[int, int], bar: tuple[int, int, int, int]) -> None:
    """Fill a rectangle, its right and lower edge excluded."""
    left, top = corner
    x0, y0, x1, y1 = bar
    pen.rectangle((left + x0, top + y0, left + x1 - 1, top + y1 - 1), FRAME)


def _scale_bar(pen: ImageDraw, panel: Panel, corner: tuple[int, int]) -> None:
    left, bottom = corner
    length = round(panel.bar / panel.pixel)
    font = _font(15)
    label = f"{panel.bar} micrometres"  # Pillow's own font has no letter mu
    # a dark ground: the bar may lie on something bright
    pen.rectangle((left - 9, bottom - 31, left + length + 8, bottom + 10), (0, 0, 0))
    pen.rectangle((left, bottom, left + length - 1, bottom + 3), FRAME)
    pen.text((left + length / 2, bottom - 6), label, FRAME, font, anchor="ms")


def _legend(pen: ImageDraw, corner: tuple[int, int]) -> None:
    left, middle = corner
    font = _font(15)
    entries: tuple[tuple[str, Colour], ...] = (
        ("small bright blobs", SMALL),
        ("large dim blobs", LARGE),
        ("not written", UNWRITTEN),
    )
    for text, colour in entries:
        pen.rectangle((left, middle - 7, left + 14, middle + 7), colour)
        pen.text((left + 22, middle), text, INK, font, anchor="lm")
        left += 22 + round(pen.textlength(text, font)) + 28
    told = "dashed: the box that was asked for; solid: the chunks that were computed and written"
    pen.text((left, middle), told, QUIET, font, anchor="lm")
