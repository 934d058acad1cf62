"""``demo``: the whole path on the sample volume, in napari or, without a display, as files.

Owns the headless half: the steps, what is said of them, and the check at the end. The window is
napari's half and is opened by its name: the two adapters do not know each other. The picture is
drawn in `picture`.
"""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from napari_materialize.cli.outcome import (
    DONE,
    FAILED,
    PROGRAM,
    Report,
    complain,
    conclude,
    debug_option,
    say,
    stopped_by,
)
from napari_materialize.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from napari_materialize.engine import Engine
    from napari_materialize.geometry import Box
    from napari_materialize.view import View

__all__ = ["demo"]

WINDOW = "napari_materialize._napari.demo"
"""The module whose ``run`` opens the demo in napari."""

BOX = ((8, 150, 90), (56, 330, 300))
"""What somebody could have drawn: voxels z, y, x of level 0, not on the chunks' faces."""

STEPS = (
    """\
1. A volume is generated: 64 x 512 x 512 voxels with a pyramid, small bright blobs, large dim
   ones, and noise. It is written as OME-Zarr.""",
    """\
2. A view of it is opened, through a small neural network that finds both kinds of blobs, and a
   threshold. Nothing is computed yet.""",
    """\
3. A box is chosen, voxels {low} to {high}. The chunks it touches are computed and
   written, no others.""",
    """\
4. The result is opened with zarr, and compared with what the engine computes of the view.""",
)


@click.command()
@click.option("--out", metavar="DIR", type=Path, help="Put the files here, and open no window.")
@click.option("--headless", is_flag=True, help="Open no window, even if one could be.")
@debug_option
def demo(out: Path | None, headless: bool, debug: bool) -> None:
    """Show the whole path on a generated volume.

    With a display, napari opens on it, ready to press Run. Without one, the same job is done
    step by step, and leaves the volume, the result and a picture of both.
    """
    conclude(partial(_demo, out, headless), debug=debug)


def _demo(out: Path | None, headless: bool, _: Report) -> int:
    if not headless and out is None and _has_display():
        try:
            window = import_module(WINDOW)
        except ImportError as error:
            complain(f"napari cannot open a window here ({error}); the demo goes on without one")
        else:
            window.run()
            return DONE
    return _headless(out)


def _has_display() -> bool:
    """Whether a window could be opened: on Linux a display says so, elsewhere there is one."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _headless(out: Path | None) -> int:
    """Do the job that the window would do, step by step."""
    from napari_materialize.cli.picture import draw
    from napari_materialize.engine import Engine
    from napari_materialize.geometry import Box
    from napari_materialize.recipe import open_view

    folder = _folder(out)
    source, target, box, chain = folder / "blobs.zarr", folder / "found.zarr", Box(*BOX), _chain()
    say(f"The same job as in the window, without one, in {folder}")
    with Engine(nice=0) as engine:
        say(STEPS[0])
        if (code := _write(engine, _sample(), source, {"levels": [0, 1, 2]})) is not None:
            return code
        say(STEPS[1])
        view = open_view(str(source), chain)
        say(STEPS[2].format(low=_text(box.start), high=_text(box.stop)))
        if (code := _write(engine, view, target, {"levels": [0], "box": box})) is not None:
            return code
        say(STEPS[3])
        equal, written = _check(engine, view, box, target)
    say(f"      {'equal, voxel for voxel' if equal else 'they differ'}")
    picture = draw(folder / "demo.png", source, target, asked=box, written=written)
    say("\n".join(("", "Written:", *(f"  {path}" for path in (source, target, picture)), "")))
    say(f"The same on the command line:\n  {_command(source, chain)}")
    if not equal:
        complain("the stored result is not what the engine computes: please report this as a bug")
        return FAILED
    return DONE


def _command(source: Path, chain: Sequence[str]) -> str:
    """Return the command that does what the demo did."""
    low, high = map(_text, BOX)
    ops = [word for op in chain for word in ("--op", op)]
    words = [PROGRAM, "run", str(source), "again.zarr", *ops, "--level", "0"]
    return shlex.join([*words, "--box", f"{low}:{high}"])


def _folder(out: Path | None) -> Path:
    """Return an empty folder to work in."""
    import tempfile  # not for the other commands: it brings what random numbers need along

    if out is None:
        return Path(tempfile.mkdtemp(prefix="napari-materialize-demo-"))
    try:
        out.mkdir(parents=True, exist_ok=True)
        full = any(out.iterdir())
    except OSError as error:
        raise TargetError(f"--out {out}: {error.strerror}; choose another folder") from error
    if full:
        raise TargetError(
            f"--out {out}: an empty folder or none yet, it holds something; choose another folder"
        )
    return out.resolve()


def _sample() -> View:
    """Generate the sample and open it from memory."""
    from napari_materialize import samples
    from napari_materialize.recipe import open_view

    arrays, _ = samples.pyramid(samples.volume()[0])
    return open_view(
        list(arrays),
        chunks=samples.CHUNKS,
        scale=samples.SCALE,
        axes=samples.AXES,
        name="blobs",
    )


def _chain() -> Sequence[str]:
    from napari_materialize import samples

    halo = ",".join(map(str, samples.DETECTOR_HALO))
    return (f"onnx:model={samples.detector_path()},halo={halo}", "threshold:low=0.5")


def _write(engine: Engine, view: View, target: Path, options: Mapping[str, Any]) -> int | None:
    """Run one job and say what it did; the exit code if it was stopped, else None."""
    from napari_materialize.cli.run import receipt
    from napari_materialize.cli.watch import materialize_watched
    from napari_materialize.plan import Options, make_plan

    plan = make_plan(view, target, Options(**options))
    done, signal_number = materialize_watched(engine, plan, options)
    say(f"      {receipt(done, target.name)}")
    return None if signal_number is None else stopped_by(signal_number)


def _check(engine: Engine, view: View, box: Box, target: Path) -> tuple[bool, Box]:
    """Compare the stored voxels with the engine's own reading; return the box of whole chunks."""
    import numpy as np
    import zarr

    from napari_materialize.plan import Options, plan_levels

    written = plan_levels(view, Options(box=box))[0].box
    array: Any = zarr.open_group(target, mode="r")["0"]
    stored, computed = array[written.slices], engine.array(view, level=0)[written.slices]
    return bool(np.array_equal(stored, computed)), written


def _text(index: Sequence[int]) -> str:
    return ",".join(map(str, index))
