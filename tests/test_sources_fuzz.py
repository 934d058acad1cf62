"""Metadata changed at random: what comes of it is a source that keeps its rules, or one sentence.

``HYPOTHESIS_PROFILE=fuzz`` looks for about ten minutes; what was found is kept in `FOUND`.
"""

from __future__ import annotations

import copy
import json
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from malformed import AXES, GROUP, N5, V2, V3, image, image6, scaled, sharded
from napari_materialize.arrays import default_axes
from napari_materialize.errors import DamagedChunk, SourceError, StoreError
from napari_materialize.geometry import Box
from napari_materialize.objects import Found
from napari_materialize.sources.folder import node_at
from napari_materialize.sources.overrides import Overrides
from napari_materialize.sources.plain import PlainReader
from napari_materialize.sources.plain_document import said_in
from napari_materialize.sources.stored import open_place
from napari_materialize.sources.zarr_array import axes_of, describe, fill_of

if TYPE_CHECKING:
    from napari_materialize.sources.opened import OpenedSource
    from napari_materialize.sources.places import Place

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")


@dataclass(frozen=True)
class Shelf:
    """A place in memory."""

    files: dict[str, bytes]
    path: str = ""

    near = True

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        return f"shelf:/{self.path}"

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2] or "shelf"

    @property
    def parent(self) -> Shelf | None:
        return Shelf(self.files, self.path.rpartition("/")[0]) if self.path else None

    def at(self, path: str) -> Shelf:
        return Shelf(self.files, f"{self.path}/{path}".strip("/"))

    def path_in(self, outer: Place) -> str:
        return self.text.removeprefix(outer.text).strip("/")

    def document(self, name: str) -> Found | None:
        data = self.files.get(f"{self.path}/{name}".strip("/"))
        return None if data is None else Found(data, "")

    def chunk(self, key: str, most: int, start: int = 0, stop: int | None = None) -> bytes | None:
        data = self.files.get(f"{self.path}/{key}".strip("/"))
        return None if data is None else data[start:stop][:most]

    def folders(self) -> list[Place]:
        inside = [path.removeprefix(self.path).strip("/") for path in self.files]
        names = {path.partition("/")[0] for path in inside if "/" in path}
        return [self.at(name) for name in sorted(names)]

    def missing(self) -> str | None:
        return None


N5_GROUP = {
    "attributes.json": {"axes": ["x", "y"], "units": ["nm", "um"], "resolution": [1, 2],
                        "offset": [3, 4], "scales": [[1, 1], [2, 2]],
                        "pixelResolution": {"dimensions": [1, 2], "unit": "mm"}},
    "s0/attributes.json": N5 | {"downsamplingFactors": [1, 1]},
    "s1/attributes.json": N5 | {"dimensions": [2, 2], "downsamplingFactors": [2, 2],
                                "resolution": [2, 2], "offset": [1, 1]},
}  # fmt: skip
COSEM = {
    "ordering": "F",
    "axes": ["x", "y"],
    "scale": [1, 2],
    "translate": [3, 4],
    "units": ["nm"] * 2,
}
NGFF_N5 = {
    "attributes.json": {"multiscales": [{"axes": AXES[::-1], "datasets": [scaled("s0", [1, 1])]}]},
    "s0/attributes.json": N5 | {"transform": COSEM},
}
PLATE = {"plate": {"wells": [{"path": "A/1"}]}, "well": {"images": [{"path": "0"}]}}

STORES: list[dict[str, Any]] = [
    {".zarray": V2, "0.0": b"\0" * 8},
    {".zarray": V2 | {"compressor": {"id": "gzip", "level": 1}, "filters": [{"id": "shuffle"}]}},
    {"zarr.json": V3 | {"dimension_names": ["y", "x"]}, "c/0/0": b"\0" * 8},
    sharded(4, 2) | {"c/0/0": b"\0" * 32 + struct.pack("<8Q", 0, 8, 8, 8, 16, 8, 24, 8)},
    {"attributes.json": N5 | {"transform": COSEM}, "0/0": b"\0\0\0\2\0\0\0\2\0\0\0\2" + b"\0" * 8},
    image(
        scaled("0", [1, 1], {"type": "translation", "translation": [0.5, 0.5]}),
        scaled("1", [2, 2]),
        coordinateTransformations=[{"type": "scale", "scale": [2, 2]}],
        name="image",
    ),
    image6({"type": "sequence", "input": "0", "output": "world", "transformations": [
        {"type": "scale", "scale": [1, 2]},
        {"type": "affine", "affine": [[1, 0, 1], [0, 1, 1]]}]},
        coordinateTransformations=[{"type": "identity", "input": "world", "output": "other"}]),
    N5_GROUP,
    NGFF_N5,
    {".zgroup": GROUP, ".zattrs": PLATE, "A/1/0/.zgroup": GROUP, "A/1/0/0/.zarray": V2},
    {".zgroup": GROUP, ".zattrs": {"bioformats2raw.layout": 3, "series": ["0"]}, "0/.zarray": V2},
]  # fmt: skip

odd = st.sampled_from(
    [
        *(None, True, False, 0, -1, 1, 2, 3, 7, 2**31, 2**62, 2**64, 10**400, 0.5, -0.0, 1e308),
        *(math.nan, math.inf, -math.inf, "", "x", "y", "0", "s0", "..", "/", "\0", "NaN", "\ud800"),
        *([], {}, [[]], [0], [1, 1], [2, 2], [1, 2, 3], [0, 0], [-1, 2], ["x", "y"], [{}], [None]),
        *("gzip", "zstd", "blosc", "bytes", "transpose", "sharding_indexed", "scale", "affine"),
        *("<i2", "|b1", ">f8", "|O", "int16", "float64", "bool", "string", "C", "F", "big"),
        *({"id": "gzip"}, {"id": "pickle"}, {"id": "wat"}, {"name": "crc32c"}, {"type": "raw"}),
    ]
)
flat = odd | st.lists(odd, max_size=3)
values = flat | st.lists(flat, max_size=3) | st.dictionaries(st.text(max_size=3), flat, max_size=2)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to everything in a document."""
    found = [path]
    if isinstance(value, dict):
        for key, each in value.items():
            found += places_in(each, (*path, key))
    elif isinstance(value, list):
        for key, each in enumerate(value):
            found += places_in(each, (*path, key))
    return found


def stores() -> st.SearchStrategy[dict[str, bytes]]:
    """Return the files of a store, changed in one to four places."""
    return changed(STORES).map(written)


@st.composite
def changed(draw: st.DrawFn, stores: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one of some stores, changed in one to four places."""
    files = copy.deepcopy(draw(st.sampled_from(stores)))
    documents = [name for name, content in files.items() if not isinstance(content, bytes)]
    for _ in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from(documents))
        *way, last = (None, *draw(st.sampled_from(places_in(files[name]))))
        if last is None:
            if draw(st.integers(0, 9)) == 0:
                files[name] = copy.deepcopy(draw(values))
            continue
        holder = files[name]
        for key in way[1:]:
            holder = holder[key]
        change = draw(st.sampled_from(["put", "put", "put", "remove", "double", "more"]))
        if change == "put":
            holder[last] = copy.deepcopy(draw(values))
        elif change == "remove":
            del holder[last]
        elif change == "double" and isinstance(holder, list):
            holder.insert(last, copy.deepcopy(holder[last]))
        elif isinstance(holder, dict):
            others = ["multiscales", "omero", "transform", "filters", "attributes", "series"]
            holder[draw(st.sampled_from(others))] = copy.deepcopy(draw(values))
    return files


def written(files: dict[str, Any]) -> dict[str, bytes]:
    return {
        name: content if isinstance(content, bytes) else json.dumps(content).encode()
        for name, content in files.items()
    }


def keeps_its_rules(files: dict[str, bytes]) -> None:
    """Open, and look at what comes of it."""
    try:
        source = open_place(Shelf(files), Overrides())
    except SourceError as error:
        sentence = str(error)
    else:
        keep_their_rules(source)
        return
    assert "\n" not in sentence
    assert "; " in sentence, "what to do is missing"
    assert len(sentence) < 1000


def keep_their_rules(source: OpenedSource) -> None:
    """Look at the levels of a source that opened."""
    for number, level in enumerate(source.levels):
        assert all(math.isfinite(each) and each > 0 for each in level.scale)
        assert all(map(math.isfinite, level.translation))
        assert math.prod(level.shape) * level.dtype.itemsize < 2**63
        assert all(1 <= chunk <= 2**31 for chunk in level.chunks)
        json.dumps([source.record, list(source.storage), source.notices])
        box = Box((0,) * level.ndim, (1,) * level.ndim)
        if math.prod(level.chunks) * level.dtype.itemsize > 2**20:
            continue
        try:
            voxel = source.read(number, box)
        except (DamagedChunk, StoreError, ValueError, RuntimeError, TypeError, IndexError, OSError):
            continue  # a chunk that does not fit what the metadata says now
        assert (voxel.shape, voxel.dtype) == (box.shape, level.dtype)


@given(stores())
def test_metadata_changed_at_random(files: dict[str, bytes]) -> None:
    keeps_its_rules(files)


BLOSC2 = {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 1, "blocksize": 0}
BLOSC3 = {"typesize": 2, "cname": "lz4", "clevel": 3, "shuffle": "shuffle", "blocksize": 0}
PLAIN: list[dict[str, Any]] = [
    {".zarray": V2 | {"compressor": compressor, "dimension_separator": "/"}, ".zattrs": {}}
    for compressor in (None, BLOSC2, *({"id": n, "level": 3} for n in ("gzip", "zlib", "zstd")))
] + [
    {"zarr.json": V3 | {"codecs": V3["codecs"] + more, "attributes": {}, "dimension_names": names}}
    for more, names in (
        ([], None),
        ([{"name": "gzip", "configuration": {"level": 5}}], ["y", "x"]),
        ([{"name": "zstd", "configuration": {"level": 0, "checksum": False}}], [None, "x"]),
        ([{"name": "blosc", "configuration": BLOSC3}], None),
    )
]  # fmt: skip
"""Arrays that are opened without zarr-python."""


@given(st.sampled_from(PLAIN) | changed(PLAIN))
def test_what_is_opened_without_zarr_is_what_zarr_opens(files: dict[str, Any]) -> None:
    try:
        node = node_at(Shelf(written(files)))
        if node is None or node.type != "array":
            return
        level, reader = describe(node)
    except SourceError:
        return
    if said_in(node) is None:
        return
    document = dict(node.document)
    if node.zarr_format == 2:
        document["attributes"] = dict(node.attributes)
    array = zarr.Array.from_dict(zarr.storage.StorePath(zarr.storage.MemoryStore()), document)
    assert (level.shape, level.chunks, level.dtype) == (
        array.shape,
        array.chunks,
        array.dtype.newbyteorder("="),
    )
    assert level.axes == (axes_of(array) or default_axes(array.ndim))
    np.testing.assert_array_equal(level.fill, fill_of(array))
    assert isinstance(reader, PlainReader)
    metadata: Any = array.metadata
    index = (1,) * array.ndim
    key = metadata.encode_chunk_key(index)
    assert reader.key(index) == key


@pytest.mark.parametrize("number", range(len(PLAIN)))
def test_usual_arrays_are_opened_without_zarr(number: int) -> None:
    node = node_at(Shelf(written(PLAIN[number])))
    assert node is not None
    assert said_in(node) is not None


@given(st.sampled_from(STORES), st.data())
def test_documents_of_changed_bytes(store: dict[str, Any], data: st.DataObject) -> None:
    files = written(store)
    name = data.draw(st.sampled_from([name for name in files if "json" in name or ".z" in name]))
    document = bytearray(files[name])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(document) - 1))
        document[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
        document = document or bytearray(b" ")
    keeps_its_rules({**files, name: bytes(document)})


@pytest.mark.parametrize("number", range(len(STORES)))
def test_what_is_changed_above_opens_as_it_is(number: int) -> None:
    if "plate" in str(STORES[number]) or "bioformats2raw" in str(STORES[number]):
        with pytest.raises(SourceError, match="inside are"):
            open_place(Shelf(written(STORES[number])), Overrides())
        return
    source = open_place(Shelf(written(STORES[number])), Overrides())
    level = source.levels[0]
    assert np.asarray(source.read(0, Box.whole(level.shape))).shape == (4, 4)


FOUND: dict[str, dict[str, Any]] = {
    "a dtype of N5 that is a list": {"attributes.json": N5 | {"dataType": []}},
    "a fill that no float32 holds": {
        "zarr.json": V3 | {"data_type": "float32", "fill_value": 1e39}
    },
    "a fill that no float holds": {
        "zarr.json": V3 | {"data_type": "float64", "fill_value": 10**400}
    },
    "the same in v2": {".zarray": V2 | {"dtype": "<f4", "fill_value": 10**400}},
}
"""Stores that once ended in something else than a source or a sentence."""


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(name: str) -> None:
    keeps_its_rules(written(FOUND[name]))
