"""What every test shares: settings that touch nobody's own, Hypothesis profiles, the real data."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from napari_materialize import Engine
    from napari_materialize.session import Session

collect_ignore = ["outside"]
"""Scripts for an environment of their own, with readers and validators of other projects."""

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"

# Before anything imports napari or Qt: napari saves its settings, and qtpy picks a Qt for good.
_settings_folder = tempfile.mkdtemp(prefix="napari-materialize-tests-")
os.environ.setdefault("NAPARI_CONFIG", str(Path(_settings_folder) / "settings.yaml"))
os.environ.setdefault("QT_API", "pyqt6")
# what is measured of a model is remembered in the user's cache folder: not for tests
os.environ["NAPARI_MATERIALIZE_CACHE"] = ""

# Deadlines measure the machine, not the code: none of the profiles has one.
settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True, print_blob=True)
settings.register_profile("dev", deadline=None, max_examples=60)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.register_profile("fuzz", deadline=None, max_examples=25_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev"))


def pytest_unconfigure() -> None:
    shutil.rmtree(_settings_folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs the real data where it is absent: the project stands alone."""
    if SHARED_DATA.is_dir():
        return
    for item in items:
        if item.get_closest_marker("real_data"):
            item.add_marker(pytest.mark.skip(reason="no real data: ../shared/data is not there"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail with a sentence where Qt would end the process: there is no display to open."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not display and "qapp" in getattr(item, "fixturenames", ()):
        pytest.fail(
            "this test opens a window and there is no display: run ./dev test", pytrace=False
        )


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real volumes and models; for tests marked ``real_data``."""
    return SHARED_DATA


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine of two slots."""
    from napari_materialize import Engine

    with Engine(slots=2) as engine:
        yield engine


@pytest.fixture(params=["sync", "async"])
def slicing(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both of napari's ways of slicing; to be asked for before a viewer is made."""
    from napari.settings import get_settings

    experimental = get_settings().experimental
    before, experimental.async_ = experimental.async_, request.param == "async"
    yield request.param
    experimental.async_ = before


@pytest.fixture
def dock(make_napari_viewer: Any, qtbot: Any) -> Callable[..., tuple[Any, Any]]:
    """Open a viewer with the widget in a dock; returns ``(viewer, widget)``."""
    from qtpy.QtWidgets import QApplication

    from napari_materialize._napari.widget import MaterializeWidget

    def open_both(show: bool = False) -> tuple[Any, MaterializeWidget]:
        viewer = make_napari_viewer(show=show)
        viewer.window.resize(1100, 800)
        widget = MaterializeWidget(viewer)
        viewer.window.add_dock_widget(widget, name="Materialize", area="right")
        QApplication.processEvents()
        return viewer, widget

    return open_both


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A session over an engine of two slots."""
    from napari_materialize.session import Session

    session = Session(engine)
    yield session
    session.close()
