"""The shape of the house: directions of imports, sizes of rooms, names, what is depended on."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "napari_materialize"
MODULES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in MODULES}

SOFT_LINES, HARD_LINES = 300, 500
FUNCTION_LINES = 60
DEVELOPMENT = {("make_detector", "onnx")}
"""What only a developer runs: (module, what it imports beyond the dependencies)."""

FORBIDDEN_NAMES = {"utils", "common", "types", "core", "helpers", "misc"}

each_module = pytest.mark.parametrize(
    "path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE))
)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of ``folder``'s pyproject.toml on the package below its src."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_modules_are_found() -> None:
    assert PACKAGE / "errors.py" in MODULES


def test_import_contracts() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


VIOLATIONS = [
    (
        "errors.py",
        "from napari_materialize.geometry import Box",
        "errors -> napari_materialize.geom",
    ),
    ("arrays.py", "import napari_materialize.demand", "arrays -> napari_materialize.demand"),
    ("geometry.py", "def f():\n    import click", "geometry -> click"),
    ("__init__.py", "import napari", "napari_materialize -> napari"),
    ("ops/_base.py", "import onnxruntime", "ops._base -> onnxruntime"),
    ("annexe.py", '"""A room without a floor."""', "annexe"),
]


def test_contracts_are_broken_by_what_they_forbid(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ignore = shutil.ignore_patterns("__pycache__", "napari.yaml", "*.onnx")
    package = shutil.copytree(PACKAGE, tmp_path / "src" / PACKAGE.name, ignore=ignore)
    for module, line, _ in VIOLATIONS:
        with (package / module).open("a") as file:
            file.write(f"\n{line}\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1
    silent = [told for _, _, told in VIOLATIONS if told not in result.stdout]
    assert not silent, result.stdout


@each_module
def test_module_length(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= HARD_LINES, f"{path.name} has {lines} lines: split the room"


def test_modules_over_the_soft_length_are_few() -> None:
    """300 lines are the rule; a house where half the rooms are over it is another house."""
    lengths = {path: len(path.read_text().splitlines()) for path in MODULES}
    long = [f"{path.name} ({n})" for path, n in lengths.items() if n > SOFT_LINES]
    if long:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn(f"over {SOFT_LINES} lines: {', '.join(long)}", stacklevel=1)
    assert sorted(lengths.values())[len(lengths) // 2] <= SOFT_LINES


@each_module
def test_module_docstring(path: Path) -> None:
    if path.read_text().strip():
        assert ast.get_docstring(TREES[path]), f"{path.name}: say what it owns and what it does not"


@each_module
def test_module_name(path: Path) -> None:
    names = {part.strip("_") for part in path.relative_to(PACKAGE).with_suffix("").parts}
    assert not names & FORBIDDEN_NAMES, "such a line has a room: docs/design.md"


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) and function.body[1:] else function.body
    assert function.end_lineno is not None
    return function.end_lineno - body[0].lineno + 1 + (function.body[0].lineno - function.lineno)


@each_module
def test_function_length(path: Path) -> None:
    functions = [
        node
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = {f.name: code_lines(f) for f in functions if code_lines(f) > FUNCTION_LINES}
    assert not long, f"over {FUNCTION_LINES} lines of code: {long}"


@each_module
def test_ignores_name_what_they_ignore(path: Path) -> None:
    bare = re.compile(r"#\s*(type:\s*ignore(?!\[)|noqa(?!:\s*[A-Z]))")
    for number, line in enumerate(path.read_text().splitlines(), 1):
        assert not bare.search(line), f"{path.name}:{number}: {line.strip()}"


def imported_packages(tree: ast.Module) -> set[str]:
    """Top-level names of everything a module imports when it runs, anywhere in it."""
    names: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def distributions() -> Mapping[str, list[str]]:
    """Distributions by the top-level packages they install; slow to find out."""
    return importlib.metadata.packages_distributions()


@functools.cache
def declared() -> set[str]:
    """Names of the distributions the project depends on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for extra in project["optional-dependencies"].values() for one in extra]
    lines = [*project["dependencies"], *extras]
    return {normal(re.match(r"[A-Za-z0-9._-]+", line)[0]) for line in lines}  # type: ignore[index]


@each_module
def test_imports_are_declared_dependencies(path: Path) -> None:
    for name in imported_packages(TREES[path]) - sys.stdlib_module_names - {PACKAGE.name}:
        if (path.stem, name) in DEVELOPMENT:
            continue
        owners = {normal(owner) for owner in distributions().get(name, [name])}
        assert owners & declared(), f"{path.name} imports {name}, which pyproject.toml lacks"


def test_dependencies_are_explained() -> None:
    table = (ROOT / "docs" / "design.md").read_text()
    missing = [name for name in sorted(declared()) if f"`{name}`" not in table]
    assert not missing, "docs/design.md says what each dependency is for"
