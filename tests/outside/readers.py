"""Read a corpus with zarr over the zarrs pipeline, and with ngff-zarr. Runs outside the project.

python readers.py FOLDER
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import zarr
from ngff_zarr import from_ngff_zarr

warnings.simplefilter("ignore")
folder = Path(sys.argv[1])
manifest = json.loads((folder / "manifest.json").read_text())


def judge(read, entry):
    """Compare what a reader gives with what was written."""
    try:
        array = np.asarray(read())
    except Exception as error:  # noqa: BLE001 - what a reader says is the result
        return f"{type(error).__name__}: {error}".splitlines()[0][:120]
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    same = hashlib.sha256(plain.tobytes()).hexdigest() == entry["sha256"]
    return "equal" if same and list(array.shape) == entry["shape"] else "differs"


results = {"zarrs": {}, "ngff-zarr": {}}
for name, entry in manifest.items():
    if entry["layout"] != "n5":
        results["ngff-zarr"][name] = judge(
            lambda name=name: from_ngff_zarr(str(folder / name)).images[0].data.compute(), entry
        )
zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
for name, entry in manifest.items():
    if entry["layout"] != "n5":
        results["zarrs"][name] = judge(
            lambda name=name: zarr.open_group(folder / name, mode="r")["0"][...], entry
        )
sys.stdout.write(json.dumps(results))
