"""What is written here opens here as well: the same voxels, at the same place, of the same kind."""

from __future__ import annotations

import http.server
import json
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import pytest
import zarr

from napari_materialize import Box, Engine, open_view
from napari_materialize.errors import SourceError
from napari_materialize.sources import open_source
from outside.corpus import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDS = np.random.default_rng(0).integers(0, 5, (5, 7, 9)).astype("u8") + np.uint64(2**63 + 7)
LIES = {"scale": (40.0, 8.1, 7.9), "translation": (-1234.5, -0.1, 1e6 + 0.3), "units": "nm"}
BOX = Box((1, 2, 3), (5, 6, 9))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(slots=2) as engine:
        yield engine


def write(engine: Engine, folder: Path, layout: str, **options: object) -> Path:
    """Write the ids, or a box of them, with a coarser level."""
    shards = (2, 1, 2) if layout.endswith("sharded") else None
    view = open_view(IDS, chunks=(2, 4, 5), kind=options.pop("kind", "label"), **LIES)
    options = {"format": layout.split(maxsplit=1)[0], "shards": shards, "pyramid": 1, **options}
    engine.materialize(view, folder, **options)
    return folder


@pytest.mark.parametrize("extent", ["level", "box"])
@pytest.mark.parametrize("kind", ["label", "image"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_result_opens_as_the_source_it_was_made_of(engine, tmp_path, layout, kind, extent):
    folder = write(engine, tmp_path / "50% of ü.x", layout, kind=kind, extent=extent, box=BOX)
    corner = BOX.start if extent == "box" else (0, 0, 0)
    lies = [t + s * n for t, s, n in zip(LIES["translation"], LIES["scale"], corner, strict=True)]
    coarse = [lies[0], lies[1] + 8.1 / 2, lies[2] + 7.9 / 2]
    for path in (folder, f"{folder}/", folder.as_uri()):
        source = open_source(path)
        assert source.kind == kind
        assert [(axis.name, axis.unit) for axis in source.levels[0].axes] == [
            (name, "nanometer") for name in "zyx"
        ]
        for level, scale, place in zip(
            source.levels, (LIES["scale"], (40, 16.2, 15.8)), (lies, coarse), strict=True
        ):
            np.testing.assert_allclose(level.scale, scale, atol=1e-9)
            np.testing.assert_allclose(level.translation, place, atol=1e-9)
    inside = BOX.relative_to(corner)
    np.testing.assert_array_equal(source.readers[0](inside), IDS[BOX.slices])
    for number, level in enumerate(source.levels):
        alone = open_source(folder / (f"s{number}" if layout == "n5" else str(number)))
        assert alone.kind == kind
        assert alone.levels == (level,)


def test_a_box_cut_from_each_level_is_no_contradiction(engine, tmp_path):
    fine = np.ones((11, 13), "u1")
    view = open_view([fine, fine[::2, ::2].copy(), fine[::4, ::4].copy()], scale=(2, 2))
    engine.materialize(
        view, tmp_path / "a.zarr", levels=[0, 1, 2], box=Box((3, 5), (10, 12)), extent="box"
    )
    source = open_source(tmp_path / "a.zarr")
    assert source.levels[2].shape == (3, 2)  # 24 wide where level 0 is 14
    assert source.notices == ()


# ---------------------------------------------------------------- Python's own web server


class Plain(http.server.SimpleHTTPRequestHandler):
    """Answers a request for a part of a file with all of it."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Refusing(Plain):
    """Says of every part of a file that there is no such part."""

    def do_GET(self) -> None:
        if self.headers.get("Range"):
            self.send_error(416)
        else:
            super().do_GET()


class Silent(Plain):
    """Does not say how long its files are."""

    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Content-Length":
            super().send_header(keyword, value)


@contextmanager
def serving(folder: Path, handler: type[Plain]) -> Iterator[str]:
    made = partial(handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), made) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """A folder behind ``http.server``, which hands out no parts of files."""
    with serving(tmp_path, Plain) as url:
        yield url


def test_a_shard_is_read_whole_where_a_server_refuses_parts(engine, tmp_path):
    write(engine, tmp_path / "a.zarr", "zarr3 sharded")
    with serving(tmp_path, Refusing) as url:
        read = open_source(f"{url}/a.zarr").readers[0](Box((3, 5, 6), (5, 7, 9)))
    np.testing.assert_array_equal(read, IDS[3:5, 5:7, 6:9])


def test_a_server_that_does_not_say_how_long_files_are_is_told_so(engine, tmp_path):
    write(engine, tmp_path / "a.zarr", "zarr2")
    with (
        serving(tmp_path, Silent) as url,
        pytest.raises(SourceError, match=r"does not say how long its files are"),
    ):
        open_source(f"{url}/a.zarr")


def test_a_shard_is_read_whole_where_a_server_has_no_parts(engine, tmp_path, served):
    write(engine, tmp_path / "a.zarr", "zarr3 sharded")
    source = open_source(f"{served}/a.zarr")
    for box in (Box((0, 0, 0), IDS.shape), Box((3, 5, 6), (5, 7, 9))):
        np.testing.assert_array_equal(source.readers[0](box), IDS[box.slices])


@pytest.mark.parametrize("name", ["100%25.zarr", "q?x=1.zarr", "h#1.zarr", "ü b+&;.zarr"])
def test_the_location_of_a_web_source_leads_back_to_it(engine, tmp_path, served, name):
    write(engine, tmp_path / name, "zarr2")
    source = open_source(f"{served}/{quote(name)}/?token=secret")
    assert "secret" not in source.location
    again = open_source(source.location)
    assert again.identity == source.identity
    assert [each["path"] for each in again.storage] == ["0", "1"]
    assert open_source(f"{source.location}/1").levels == (source.levels[1],)


# ---------------------------------------------------------------- numbers beyond numbers


def n5(folder: Path, **documents: object) -> Path:
    array = {"dimensions": [4, 4], "blockSize": [2, 2], "dataType": "int16"}
    array["compression"] = {"type": "raw"}
    for path in ("", "s0", "s1"):
        (folder / path).mkdir(exist_ok=True)
        known = {} if path == "" else array
        more = documents.get(path or "group", {})
        (folder / path / "attributes.json").write_text(json.dumps({**known, **more}))
    return folder


@pytest.mark.parametrize(
    "documents",
    [
        {"group": {"resolution": [1, 2]}, "s0": {"downsamplingFactors": [1, 1e308]}},
        {"group": {"pixelResolution": [1e-200, 1]}, "s0": {"downsamplingFactors": [1e-200, 1]}},
        {"s0": {"resolution": [1e308, 1]}, "s1": {"dimensions": [2, 2]}},
    ],
)
def test_a_product_that_is_no_number_is_refused_in_n5(tmp_path, documents):
    with pytest.raises(SourceError, match=r"scale needs 2 positive numbers.*; correct"):
        open_source(n5(tmp_path, **documents))


def test_a_guess_that_is_no_number_is_refused(tmp_path):
    group = zarr.open_group(tmp_path, mode="w", zarr_format=2)
    for name, size in (("0", 4), ("1", 2)):
        group.create_array(name, shape=(size, size), dtype="u1")
    axes = [{"name": name, "type": "space"} for name in "yx"]
    steps = [{"type": "scale", "scale": [1e308, 1]}]
    datasets = [{"path": "0", "coordinateTransformations": steps}, {"path": "1"}]
    group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": datasets}]
    with pytest.raises(SourceError, match=r"scale needs 2 positive numbers.*; correct"):
        open_source(tmp_path)


def test_a_name_that_begins_with_a_tilde_is_a_name(engine, tmp_path, monkeypatch):
    write(engine, tmp_path / "~nobody of that name.zarr", "zarr2")
    monkeypatch.chdir(tmp_path)
    assert open_source("~nobody of that name.zarr").levels[0].shape == IDS.shape
