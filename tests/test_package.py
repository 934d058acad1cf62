"""The package as a whole: its names, what importing it costs, its manifest, what a wheel holds."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from npe2 import PluginManifest

import napari_materialize as nm

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "napari_materialize"
NAME = "napari-materialize"

GUI = {"napari", "qtpy", "PyQt5", "PyQt6", "PySide6", "superqt", "magicgui", "vispy"}
NOTEBOOK_AND_CLUSTER = {"dask", "distributed", "ipywidgets", "anywidget"}


def loaded_by(code: str, folder: Path) -> set[str]:
    """Run ``code`` in a new process; return the top-level packages that it loaded."""
    code += "\nimport json, sys; print(json.dumps([n for n in sys.modules if '.' not in n]))"
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    output = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert output.returncode == 0, output.stderr
    return set(json.loads(output.stdout.splitlines()[-1]))


def test_importing_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = loaded_by("import napari_materialize", tmp_path)
    heavy = {"onnxruntime", "zarr", "scipy", "tensorstore", "click", "rich", "pydantic"}
    assert not loaded & (GUI | NOTEBOOK_AND_CLUSTER | heavy)
    assert "napari_materialize" in loaded


def test_importing_the_command_line_loads_no_gui(tmp_path: Path) -> None:
    loaded = loaded_by("import napari_materialize.cli.app", tmp_path)
    assert not loaded & (GUI | NOTEBOOK_AND_CLUSTER | {"onnxruntime", "zarr", "scipy"})


JOB = """
import numpy as np
import napari_materialize as nm
image = np.arange(32 * 32, dtype="u2").reshape(32, 32)
view = nm.open_view(image, chunks=(16, 16), ops=["gaussian:sigma=1", "threshold:low=120"])
assert nm.materialize(view, "out.zarr").written
"""


def test_a_job_runs_without_a_gui_or_a_model_runtime(tmp_path: Path) -> None:
    loaded = loaded_by(JOB, tmp_path)
    assert (tmp_path / "out.zarr" / ".zattrs").is_file()
    assert not loaded & (GUI | NOTEBOOK_AND_CLUSTER | {"onnxruntime"})


def test_a_job_on_the_command_line_runs_without_a_gui(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(JOB)
    subprocess.run([sys.executable, "make.py"], cwd=tmp_path, check=True)
    arguments = ["run", "out.zarr", "again.zarr", "--op", "invert", "--json"]
    code = (
        "import sys\nfrom napari_materialize.cli import main\n"
        f"sys.argv[1:] = {arguments}\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    loaded = loaded_by(code, tmp_path)
    assert (tmp_path / "again.zarr" / ".zattrs").is_file()
    # zarr takes longer to import than all the rest, and has nothing to judge in a usual array;
    # typer brings pydantic, and metadata of packages email: as long as the job's own modules
    slow = {"onnxruntime", "zarr", "numcodecs", "obstore", "scipy", "PIL", "typer", "pydantic"}
    slow |= {"rich", "asyncio", "email", "http", "ssl", "xml", "tempfile", "zipfile", "difflib"}
    assert not loaded & (GUI | NOTEBOOK_AND_CLUSTER | slow)


PROGRAM = """
import gc
from napari_materialize.cli import main
before = gc.get_threshold(), gc.get_freeze_count()
assert main(["--version"]) == 0
assert (gc.get_threshold(), gc.get_freeze_count()) == before
sys.argv[1:] = ["--version"]
assert main() == 0
assert gc.get_freeze_count() > 10_000, gc.get_freeze_count()
assert gc.isenabled()
"""


def test_only_a_program_keeps_what_it_loaded_out_of_the_garbage_collection(tmp_path: Path) -> None:
    loaded_by(f"import sys\n{PROGRAM}", tmp_path)


def documented_names() -> list[str]:
    """Names in the first column of the table of public names, docs/reference/python.md."""
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    table = page.partition("## Names")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(?:nm\.)?(\w+)` ", table, re.MULTILINE)


def test_public_names_are_the_documented_ones() -> None:
    assert sorted(nm.__all__) == sorted(documented_names())
    assert len(set(nm.__all__)) == len(nm.__all__)


def test_every_public_name_is_there_and_documented() -> None:
    for name in nm.__all__:
        assert name in dir(nm)
        thing = getattr(nm, name)
        assert isinstance(thing, str) or thing.__doc__, name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = nm.no_such_name


def test_version() -> None:
    assert nm.__version__ == importlib.metadata.version(NAME)


def test_manifest_is_valid_and_its_names_exist() -> None:
    manifest = PluginManifest.from_distribution(NAME)
    assert manifest.name == NAME
    commands = manifest.contributions.commands or []
    assert len(commands) >= 2
    assert all(command.id.startswith(f"{NAME}.") for command in commands)
    manifest.validate_imports()


def test_an_editable_install_reads_the_manifest_of_the_top_level() -> None:
    installed = importlib.resources.files(nm) / "napari.yaml"
    assert installed.read_bytes() == (ROOT / "napari.yaml").read_bytes()


def test_a_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [path] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.startswith(PACKAGE.name + "/")]
        manifest = wheel.read(f"{PACKAGE.name}/napari.yaml")
        entry_points = wheel.read(
            next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
        ).decode()
    files = {
        file.relative_to(PACKAGE.parent).as_posix()
        for file in PACKAGE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert sorted(names) == sorted(files)
    assert manifest == (ROOT / "napari.yaml").read_bytes()
    assert f"{PACKAGE.name}/py.typed" in names
    assert "[napari.manifest]\nnapari-materialize = napari_materialize:napari.yaml" in entry_points
