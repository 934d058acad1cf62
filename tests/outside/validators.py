"""Judge images with three validators, none of which sees everything. Runs outside the project.

python validators.py FOLDER
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import yaozarrs
import zarr
from ngff_zarr import from_ngff_zarr
from ome_zarr_models import open_ome_zarr

warnings.simplefilter("ignore")
folder = Path(sys.argv[1])
VALIDATORS = {
    "yaozarrs": yaozarrs.validate_zarr_store,
    "ome-zarr-models": lambda path: open_ome_zarr(zarr.open_group(path, mode="r")),
    "ngff-zarr": lambda path: from_ngff_zarr(path, validate=True),
}
results = {name: {} for name in VALIDATORS}
for image in json.loads((folder / "images.json").read_text()):
    for name, validate in VALIDATORS.items():
        try:
            validate(str(folder / image))
        except Exception as error:  # noqa: BLE001 - what a reader says is the result
            results[name][image] = f"{type(error).__name__}: {error}"[:300]
        else:
            results[name][image] = "valid"
sys.stdout.write(json.dumps(results))
