"""The page of benchmarks: what was measured is renewed, what was written by hand stays."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
PAGE = """# Benchmarks

<!-- measured: machine -->
old
<!-- end of machine -->

By hand.

## The queue by itself

<!-- measured: queue -->
old
<!-- end of queue -->

By hand, too.
"""


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = ROOT / "bench" / "_report.py"
    spec = importlib.util.spec_from_file_location("_report", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("throughput", "_cases"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(module, "DOCS", tmp_path)
    (tmp_path / "benchmarks.md").write_text(PAGE)
    (tmp_path / "benchmarks.json").write_text('{"formats": {"rows": [{"job": "image"}]}}')
    return module


def record(case: str, seconds: float) -> dict[str, object]:
    return {"case": case, "system": "ours", "round": "1/0", "voxels": 10**6, "seconds": seconds}


def test_only_what_was_measured_is_renewed(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / "queue.md").write_text("| waiting | us |\n| ---: | ---: |\n| 100 | 21.1 |\n")
    (results / "queue.args").write_text("--few\n")
    (results / "latency.md").write_text("| op | ms |\n| --- | ---: |\n| sleep | 61 |\n")
    monkeypatch.setattr(sys, "argv", ["_report.py", str(results)])
    report.main()
    page = (tmp_path / "benchmarks.md").read_text()
    assert page.index("By hand.") < page.index("`./dev bench queue --few`") < page.index("| 100 |")
    assert page.index("| 100 |") < page.index("By hand, too.") < page.index("| sleep | 61 |")
    assert "old" not in page
    kept = json.loads((tmp_path / "benchmarks.json").read_text())
    assert kept["queue"]["rows"] == [{"waiting": "100", "us": "21.1"}]
    assert kept["queue"]["arguments"] == "--few"
    assert kept["formats"] == {"rows": [{"job": "image"}]}


def test_a_row_of_throughput_takes_the_place_of_that_row(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    monkeypatch.setattr(sys, "argv", ["_report.py", str(results)])
    (results / "throughput.md").write_text("a table")
    for records in (
        [record("threshold", 1.0), record("no op", 0.5)],
        [record("threshold", 0.1)],
    ):
        (results / "throughput.json").write_text(json.dumps(records))
        report.main()
    lines = (tmp_path / "benchmarks.md").read_text().splitlines()
    table = [line.split("|")[1:3] for line in lines if line.startswith("| ") and "(" in line]
    assert table == [[" no op ", " 2.0 (2.0 to 2.0) "], [" threshold ", " 10 (10 to 10) "]]
