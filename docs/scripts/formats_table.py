"""Make the table of docs/reference/formats.md from real reads.

    NAPARI_MATERIALIZE_OUTSIDE=1 python docs/scripts/formats_table.py

Writes one result for every format, dtype, rank and codec into a temporary folder, has every reader
read each of them, and compares what it gives with what was written, voxel for voxel.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np  # noqa: E402
import tensorstore  # noqa: E402
import zarr  # noqa: E402

from outside import tools  # noqa: E402
from outside.corpus import CODECS, digest, layouts_and_dtypes, write_corpus  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = ROOT / "docs" / "reference" / "formats.md"
DRIVERS = {"zarr2": "zarr", "zarr3": "zarr3", "zarr3 sharded": "zarr3", "n5": "n5"}


def with_zarr(folder: Path, _entry: dict[str, Any]) -> np.ndarray:
    """Read a level with zarr."""
    found: np.ndarray = zarr.open_group(folder, mode="r")["0"][...]
    return found


def with_tensorstore(folder: Path, entry: dict[str, Any]) -> np.ndarray:
    """Read a level with tensorstore, axes in C order."""
    place = {"driver": "file", "path": f"{folder / entry['array']}/"}
    spec = {"driver": DRIVERS[entry["layout"]], "kvstore": place}
    found: np.ndarray = tensorstore.open(spec, read=True).result().read().result()
    return np.transpose(found) if entry["layout"] == "n5" else found


def judge(read: Callable[..., np.ndarray], folder: Path, entry: dict[str, Any]) -> str:
    """Say what comes of a read."""
    try:
        found = read(folder, entry)
    except Exception as error:  # noqa: BLE001 - what a reader says is the result
        return type(error).__name__
    same = digest(found) == entry["sha256"] and list(found.shape) == entry["shape"]
    return "equal" if same else "differs"


def results() -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, str]]]:
    """Return what is in each result, and what every reader makes of it."""
    if reason := tools.missing():
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = write_corpus(folder)
        in_zarr = {key for key, entry in manifest.items() if entry["layout"] != "n5"}
        found = {
            "zarr": {key: judge(with_zarr, folder / key, manifest[key]) for key in in_zarr},
            "tensorstore": {
                key: judge(with_tensorstore, folder / key, entry) for key, entry in manifest.items()
            },
        }
        found |= tools.report("readers.py", folder) | tools.report("read.mjs", folder)
    return manifest, found


def cell(read: dict[str, list[str]]) -> str:
    """Say with which codecs a dtype was read equal, whatever the number of axes."""
    if not any(read.values()):
        return ""
    equal = [codec for codec in CODECS if set(read[codec]) == {"equal"}]
    if len(equal) == len(CODECS):
        return "all"
    return ", ".join(equal) or "no"


def table() -> str:
    """Return the table."""
    manifest, found = results()
    lines = [
        "| format | dtype | " + " | ".join(found) + " |",
        "| --- | --- |" + " --- |" * len(found),
    ]
    for layout, dtype in layouts_and_dtypes():
        cells = []
        for read in found.values():
            said: dict[str, list[str]] = {codec: [] for codec in CODECS}
            for name, entry in manifest.items():
                if (entry["layout"], entry["dtype"]) == (layout, dtype) and name in read:
                    said[entry["codec"]].append(read[name])
            cells.append(cell(said))
        lines.append(f"| {layout} | {dtype} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    """Return the whole page."""
    here = f"zarr {version('zarr')}, tensorstore {version('tensorstore')}"
    elsewhere = ", ".join(each.replace("==", " ") for each in tools.PACKAGES if "ngff" in each)
    elsewhere = elsewhere.replace("[validate]", "")
    zarrs = next(each.replace("==", " ") for each in tools.PACKAGES if each.startswith("zarrs="))
    script = tools.NODE_PACKAGES[0].replace("@", " ")
    return f"""# Formats and readers

Which reader reads which result equal, voxel for voxel. Made by `docs/scripts/formats_table.py` from
real reads: images of 2 to 5 axes, 2 x 2 x 5 x 7 x 9 voxels in chunks of 1 x 1 x 2 x 4 x 5 and the
last axes of that, with the extremes of their dtype and an empty chunk, written in every format,
dtype and codec. *all*: with each of {", ".join(CODECS)}, whatever the number of axes.

Readers: {here}, {zarrs}, {elsewhere}, and {script} under node. An empty cell: the reader is not for
that format. zarrita needs JavaScript's `Float16Array` for float16, which node 20 lacks. N5 has no
bool and no float16: they are refused before anything is written.

{table()}
"""


if __name__ == "__main__":
    PAGE.write_text(page())
