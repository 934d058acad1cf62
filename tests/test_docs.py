"""What the README and the docs show is run: Python blocks, and lines that begin with our command.

Per page in one temporary folder, in order, with ``em.zarr`` in it; Python blocks of a page share
their names. Before a block may stand, alone on the line above:

``<!-- no-run: REASON -->``
    it is not run;
``<!-- exits N -->``
    every command of it ends with this code.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zarr

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = "napari-materialize"

FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>python|console|sh)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"no-run: (?P<reason>\S.*)|exits (?P<code>\d+)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block that is run."""

    language: str
    body: str
    line: int
    code: int = 0

    @property
    def commands(self) -> list[str]:
        """Lines that begin with our command, without prompt, joined where they go on."""
        lines = self.body.replace("\\\n", " ").splitlines()
        bare = [line.strip().removeprefix("$ ") for line in lines]
        return [line for line in bare if line.split(" ")[0] == COMMAND]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page that are to be run, in order."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        line = text[: match.start("body")].count("\n") + 1
        mark = MARK.fullmatch(match["mark"]) if match["mark"] else None
        assert mark or not match["mark"], f"{page.name}:{line}: unknown mark {match['mark']!r}"
        if mark is None or not mark["reason"]:
            code = int(mark["code"]) if mark else 0
            found.append(Block(match["language"], match["body"], line, code))
    return found


@pytest.fixture(scope="session")
def em(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An OME-Zarr 0.4 image that none of our code wrote: (z, y, x) uint8, 8 nm, two levels."""
    path = tmp_path_factory.mktemp("docs") / "em.zarr"
    z, y, x = np.ogrid[:64, :256, :256]
    wave = 120 + 60 * np.sin(z / 5) * np.sin(y / 9) * np.sin(x / 9)
    noise = np.random.default_rng(0).normal(0, 8, wave.shape)
    finest = np.clip(wave + noise, 0, 255).astype("u1")
    group = zarr.open_group(path, mode="w", zarr_format=2)
    datasets = []
    for level, data in enumerate((finest, finest[::2, ::2, ::2])):
        group.create_array(
            str(level),
            data=data,
            chunks=(32, 64, 64),
            chunk_key_encoding={"name": "v2", "separator": "/"},
        )
        scale = {"type": "scale", "scale": [8.0 * 2**level] * 3}
        datasets.append({"path": str(level), "coordinateTransformations": [scale]})
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    multiscale = {"version": "0.4", "name": "em", "axes": axes, "datasets": datasets}
    (path / ".zattrs").write_text(json.dumps({"multiscales": [multiscale]}))
    return path


def run_command(line: str, folder: Path, code: int) -> None:
    """Run a line as a shell would, with the command the package installs, without a display."""
    arguments = shlex.split(line, comments=True)
    script = Path(sys.executable).with_name(COMMAND)
    hidden = ("DISPLAY", "WAYLAND_DISPLAY")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    result = subprocess.run(
        [script, *arguments[1:]],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    told = f"{line}\n{result.stdout}{result.stderr}"
    assert result.returncode == code, f"exit code {result.returncode}, not {code}: {told}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_runs(page: Path, em: Path, tmp_path: Path) -> None:
    shutil.copytree(em, tmp_path / "em.zarr")
    names: dict[str, object] = {"__name__": "__page__"}
    for block in blocks(page):
        if block.language == "python":
            # padded so that a traceback names the page's own line
            code = compile("\n" * (block.line - 1) + block.body, page, "exec")
            with contextlib.chdir(tmp_path):
                exec(code, names)
        for line in block.commands if block.language != "python" else ():
            run_command(line, tmp_path, block.code)


def test_there_is_something_to_run() -> None:
    readme = blocks(ROOT / "README.md")
    assert any(block.language == "python" for block in readme)
    assert any(line.startswith(f"{COMMAND} run ") for block in readme for line in block.commands)
    shown = [line for page in PAGES for block in blocks(page) for line in block.commands]
    assert len(shown) >= 5


def test_every_fence_is_read() -> None:
    """A fence that the pattern above misses would be a block that nobody runs."""
    for page in PAGES:
        text = page.read_text()
        opened = len(
            re.findall(r"^\s*(?:```|~~~)\s*\{?\.?(?:python|py|console|sh|bash|shell)\b", text, re.M)
        )
        assert opened == len(FENCE.findall(text)), page.name


def test_marks_and_commands_are_understood(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- no-run: needs a cluster -->\n```python\n1 / 0\n```\n\n"
        "<!-- exits 2 -->\n```console\n$ napari-materialize run a \\\n    b\n$ pip list\n```\n\n"
        "```python\nx = 1\n```\n"
    )
    command, python = blocks(page)
    assert (command.code, command.commands) == (2, ["napari-materialize run a      b"])
    assert (python.line, python.body) == (14, "x = 1\n")
    page.write_text("<!-- no-run -->\n```python\n1 / 0\n```\n")
    with pytest.raises(AssertionError, match="unknown mark"):
        blocks(page)


def test_images_and_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
