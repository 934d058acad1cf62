"""The environments outside the project: made once, under ``.dev/outside``.

    python -m outside.tools

from the folder of the tests makes them. Versions are pinned here and nowhere else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PLACE = HERE.parents[1] / ".dev" / "outside"
PYTHON = PLACE / "python" / ("Scripts" if os.name == "nt" else "bin") / "python"
MODULES = PLACE / "node" / "node_modules"

PACKAGES = (
    "zarr==3.4.2",
    "zarrs==0.2.3",
    "yaozarrs==0.3.4",
    "ome-zarr-models==1.8.1",
    "ngff-zarr[validate]==0.50.0",
)
NODE_PACKAGES = ("zarrita@0.7.5",)

MUST = "NAPARI_MATERIALIZE_OUTSIDE"
"""Set by CI: the environments are made if they are not there, and nothing is skipped."""


def missing() -> str | None:
    """Return why nothing outside can be run, or None; makes what is missing where it must."""
    wanted = json.dumps([PACKAGES, NODE_PACKAGES])
    stamp = PLACE / "stamp.json"
    if stamp.is_file() and stamp.read_text() == wanted:
        return None
    if not os.environ.get(MUST):
        return f"readers outside the project: not set up, or others; set {MUST}=1 to have them made"
    set_up()
    stamp.write_text(wanted)
    return None


def set_up() -> None:
    """Make both environments, anew."""
    shutil.rmtree(PLACE, ignore_errors=True)
    (PLACE / "node").mkdir(parents=True)
    _make_python()
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("zarrita needs node and npm, and there is no npm on the PATH")
    quiet = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--silent")
    _run(npm, "install", *quiet, "--prefix", str(PLACE / "node"), *NODE_PACKAGES)


def _make_python() -> None:
    uv = HERE.parents[1] / ".dev" / "uv" / "bin" / "uv"  # what ./dev made, if it had to
    found = str(uv) if uv.is_file() else shutil.which("uv")
    if found is not None:
        try:
            _run(found, "venv", "--quiet", "--python", sys.executable, str(PLACE / "python"))
            _run(found, "pip", "install", "--quiet", "--python", str(PYTHON), *PACKAGES)
        except RuntimeError:  # a shim that is there and does not run: pip does the same, slowly
            shutil.rmtree(PLACE / "python", ignore_errors=True)
        else:
            return
    _run(sys.executable, "-m", "venv", str(PLACE / "python"))
    _run(str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def report(script: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Run one of the scripts beside this file on a corpus, and return what it says."""
    if script.endswith(".mjs"):
        node = shutil.which("node")
        if node is None:
            raise RuntimeError("zarrita needs node, and there is none on the PATH")
        text = _run(node, str(HERE / script), str(folder), str(MODULES))
    else:
        text = _run(str(PYTHON), str(HERE / script), str(folder))
    found: dict[str, dict[str, Any]] = json.loads(text.splitlines()[-1])
    return found


if __name__ == "__main__":
    os.environ[MUST] = "1"
    sys.stdout.write((missing() or f"ready: {PLACE}") + "\n")
