"""A real JupyterLab on loopback and a real browser: for tests, benchmarks and pictures.

Neither may reach another host: the browser resolves no name, and what Python processes connect to
is written down. Nothing of the user's own Jupyter, IPython or browser is read or written.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Locator, Page

SECONDS = 60.0
"""How long anything is waited for: a machine may be slow, and a wait ends with its event."""

REQUIRED = "NAPARI_MATERIALIZE_BROWSER"
"""Set to ``required``, a browser that is missing is a failure; CI does so."""

NOTICES = "@jupyterlab/apputils-extension:announcements"

AUDIT = """
import os, sys
def audit(event, arguments, path=os.environ["ASKED_HOSTS"]):
    host = None
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    if host and str(host) not in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "b'127.0.0.1'"):
        with open(path, "a") as file:
            file.write(f"{host}\\n")
sys.addaudithook(audit)
"""


def chromium() -> str | None:
    """Return the path of the system's chromium, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def missing() -> str | None:
    """Return why a browser test cannot run here, or None."""
    if chromium() is None:
        return "no chromium: as root, ./dev test installs it (Debian's package chromium)"
    return None


class Lab:
    """A JupyterLab server with folders of its own; a context manager that ends it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "notebooks"
        self.root.mkdir(parents=True)
        self.asked = folder / "asked-hosts"
        self.asked.touch()
        hooks = folder / "hooks"
        hooks.mkdir()
        (hooks / "sitecustomize.py").write_text(AUDIT)
        jupyter = [f"JUPYTER_{kind}_DIR" for kind in ("CONFIG", "DATA", "RUNTIME")]
        places = {name: folder / name.lower() for name in ("HOME", "IPYTHONDIR", *jupyter)}
        for place in places.values():
            place.mkdir()
        # a notice that would ask whether to fetch news
        settings = places["JUPYTER_CONFIG_DIR"] / "labconfig" / "page_config.json"
        settings.parent.mkdir()
        settings.write_text(json.dumps({"disabledExtensions": {NOTICES: True}}))
        hidden = ("DISPLAY", "WAYLAND_DISPLAY", "JUPYTER_PATH")
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        self._environment = {
            **kept,
            **{name: str(place) for name, place in places.items()},
            "ASKED_HOSTS": str(self.asked),
            "PYTHONPATH": str(hooks),
        }
        self._process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []
        self.url = ""

    def __enter__(self) -> Self:
        command = [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
            "--expose-app-in-browser",
            "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", "--IdentityProvider.token=",
            "--ServerApp.root_dir=" + str(self.root), "--LabApp.extension_manager=readonly",
            # should this process be killed, the server ends by itself
            "--ServerApp.shutdown_no_activity_timeout=300",
            "--MappingKernelManager.cull_idle_timeout=300",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            "--ServerApp.log_level=INFO",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        found: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(found,), daemon=True)
        self._reader.start()
        try:
            self.url = found.get(timeout=SECONDS)
        except queue.Empty:
            self.__exit__()
            raise TimeoutError("JupyterLab did not start: " + "".join(self.lines[-20:])) from None
        return self

    def _read(self, found: queue.SimpleQueue[str]) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            place = line.find("http://127.0.0.1:")
            if place >= 0 and "/lab" in line:
                found.put(line[place:].split("/lab")[0])

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # the server ends its kernels
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(15)
        self._reader.join(15)
        assert process.stdout is not None
        process.stdout.close()

    def write(self, name: str, cells: Sequence[str]) -> None:
        """Write a notebook of code cells."""
        rows = [
            {"cell_type": "code", "id": f"cell-{n}", "metadata": {}, "outputs": [],
             "execution_count": None, "source": source}
            for n, source in enumerate(cells)
        ]  # fmt: skip
        spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": spec}}
        (self.root / name).write_text(json.dumps({**notebook, "cells": rows}))

    def foreign(self) -> list[str]:
        """Return what hosts the server and its kernels asked beside loopback."""
        return self.asked.read_text().split()


class Notebook:
    """A notebook in a tab of the browser."""

    def __init__(self, page: Page, lab: Lab, name: str) -> None:
        self.page, self.name = page, name
        page.set_default_timeout(SECONDS * 1e3)
        page.goto(f"{lab.url}/doc/tree/{name}")
        page.wait_for_function(
            """() => { const now = window.jupyterapp?.shell.currentWidget;
                return now?.context?.isReady && now.sessionContext.isReady
                    && now.sessionContext.session?.kernel?.status === 'idle'; }"""
        )

    def command(self, name: str) -> None:
        """Run one of JupyterLab's commands and wait for it."""
        self.page.evaluate("name => window.jupyterapp.commands.execute(name)", name)

    def run(self, number: int, *, wait: bool = True) -> None:
        """Run a cell, and wait until it is over."""
        self.page.evaluate(
            """number => { const shown = window.jupyterapp.shell.currentWidget;
                shown.content.activeCellIndex = number;
                shown.content.deselectAll();
                window.cellsDone ??= {};
                window.cellsDone[number] = false;
                window.jupyterapp.commands.execute('notebook:run-cell')
                    .then(() => { window.cellsDone[number] = true; }); }""",
            number,
        )
        if wait:
            self.page.wait_for_function("number => window.cellsDone[number]", arg=number)

    def save(self) -> None:
        """Save it, with its outputs."""
        self.command("docmanager:save")

    def output(self, number: int) -> str:
        """Return the text of a cell's output."""
        return self.page.locator(".jp-Cell").nth(number).locator(".jp-OutputArea").inner_text()

    def panel(self, number: int = 0) -> Panel:
        """Return one of the panels that are shown, from above."""
        return Panel(self.page, self.page.locator(".nm-panel").nth(number))


class Panel:
    """A panel in a page, as a person sees it."""

    def __init__(self, page: Page, root: Locator) -> None:
        self.page, self.root = page, root
        self.canvas = root.locator("canvas")

    def button(self, name: str) -> Locator:
        """Return a button by its text."""
        return self.root.get_by_role("button", name=name, exact=True)

    def field(self, name: str) -> Locator:
        """Return a field by its name."""
        return self.root.locator(f"[name={name}]")

    def place(self, axis: str, end: int) -> Locator:
        """Return the field of one end of the box along an axis."""
        return self.root.locator(f"input[data-axis={axis}][data-end='{end}']")

    def box(self) -> dict[str, tuple[int, int]]:
        """Return the box that the fields show."""
        rows: dict[str, list[int]] = {}
        for field in self.root.locator(".nm-box input").all():
            rows.setdefault(str(field.get_attribute("data-axis")), []).append(
                int(field.input_value())
            )
        return {axis: (low, high) for axis, (low, high) in rows.items()}

    def wait(self, state: str) -> None:
        """Wait until the job is in a state."""
        self.root.locator(f"xpath=self::*[@data-job='{state}']").wait_for()

    def wait_bar(self, least: int) -> None:
        """Wait until the bar stands at so many chunks at least."""
        self.until("(panel, least) => panel.querySelector('progress').value >= least", least)

    def wait_picture(self, level: int | None = None) -> None:
        """Wait until the whole picture is there."""
        self.until(
            """(panel, level) => { const told = panel.querySelector('canvas').dataset;
                return told.complete === 'true' && (level === null || +told.level === level); }""",
            level,
        )

    def until(self, test: str, argument: Any = None) -> None:
        """Wait until a JavaScript function of the panel's element returns true."""
        handle = self.root.element_handle()
        self.page.wait_for_function(
            f"([panel, argument]) => ({test})(panel, argument)", arg=[handle, argument]
        )

    def pixels(self) -> Any:
        """Return what is on the canvas, (down, right, 4) uint8."""
        import numpy as np

        height, width, data = self.canvas.evaluate(
            """canvas => { const { width, height } = canvas;
                const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;
                let text = ''; for (let n = 0; n < data.length; n += 8192)
                    text += String.fromCharCode(...data.subarray(n, n + 8192));
                return [height, width, btoa(text)]; }"""
        )
        import base64

        return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)


@contextlib.contextmanager
def browser(asked: list[str] | None = None, **options: Any) -> Iterator[BrowserContext]:
    """Open a browser that reaches loopback alone; what it asks of others goes into ``asked``."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=chromium(),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                  "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"],
        )  # fmt: skip
        context = opened.new_context(viewport={"width": 1280, "height": 1000}, **options)
        asked = [] if asked is None else asked
        context.on("request", lambda request: _note(asked, request.url))
        try:
            yield context
        finally:
            context.close()
            opened.close()


def _note(asked: list[str], url: str) -> None:
    if not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "about:")):
        asked.append(url)
