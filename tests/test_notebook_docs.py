"""docs/notebook.ipynb is run in a kernel, cell by cell, and what is left of it without widgets."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "notebook.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    from nbclient import NotebookClient

    folder = tmp_path_factory.mktemp("notebook")
    before = dict(os.environ)
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        os.environ[name] = str(folder / name.lower())
    try:
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        client = NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        client.execute()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return notebook


def test_it_runs(executed: nbformat.NotebookNode) -> None:
    text = "".join(
        output.get("text", "") for cell in executed.cells for output in cell.get("outputs", [])
    )
    assert "done" in text
    assert "chunks written" in text


def test_without_widgets_a_picture_and_a_table_are_left(executed: nbformat.NotebookNode) -> None:
    """As nbconvert shows it, which knows no kernel: the widget's state is not in the notebook."""
    from nbconvert import HTMLExporter

    executed.metadata.pop("widgets", None)
    (shown,) = [
        output.data
        for cell in executed.cells
        for output in cell.get("outputs", [])
        if "application/vnd.jupyter.widget-view+json" in output.get("data", {})
    ]
    assert shown["image/png"]
    html, _ = HTMLExporter().from_notebook_node(executed)
    assert '<img alt="a slice of blobs" src="data:image/png;base64,' in html
    assert "<th>level 0</th>" in html


def test_it_is_kept_without_outputs() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
