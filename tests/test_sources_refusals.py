"""Every bad source is refused with one sentence that says the place and what to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from napari_materialize.errors import SourceError
from napari_materialize.objects import Patience
from napari_materialize.sources import open_source

if TYPE_CHECKING:
    from pathlib import Path

V2: dict[str, Any] = {
    "zarr_format": 2,
    "shape": [4, 4],
    "chunks": [2, 2],
    "dtype": "<i2",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}
V3: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 4],
    "data_type": "int16",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": 0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
}
GROUP = {"zarr_format": 2}


def refusal(what: Any, **options: Any) -> str:
    """Open, and return the one sentence that comes of it."""
    with pytest.raises(SourceError) as caught:
        open_source(what, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.count(". ") == 0
    assert "; " in message  # the rule and the value found; what to do
    return message


def write(folder: Path, files: dict[str, Any]) -> Path:
    """Write files; what is not bytes is written as JSON."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def test_the_documents_that_are_broken_below_are_whole_here(tmp_path: Path) -> None:
    write(tmp_path, {"2/.zarray": V2, "3/zarr.json": V3})
    for version in "23":
        assert open_source(tmp_path / version).levels[0].shape == (4, 4)


# --- paths -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "what", ["", "  ", "a\0b", b"bytes", 7, None, [[1, 2], [3, 4]], [], "~nobody-of-this-name/x"]
)
def test_what_is_no_source(what: Any) -> None:
    refusal(what)


def test_a_name_too_long_for_a_file(tmp_path: Path) -> None:
    refusal(tmp_path / ("x" * 5000))


@pytest.mark.parametrize(
    ("scheme", "told"),
    [
        ("http", "http://127.0.0.1:9/bucket/a.zarr/"),  # nobody serves port 9
        ("s3", "s3:// URL it holds more than bucket and key"),
        ("gs", "gs:// URL it holds more than bucket and key"),
        ("ftp", "ftp://127.0.0.1/bucket/a.zarr"),
    ],
)
def test_urls_are_refused_and_credentials_are_not_repeated(
    scheme: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("napari_materialize.sources.places.PATIENCE", Patience(retries=0))
    message = refusal(f"{scheme}://user:secret@127.0.0.1:9/bucket/a.zarr?token=hidden")
    assert told in message
    for secret in ("user", "secret", "hidden"):
        assert secret not in message


@pytest.mark.parametrize(
    "url",
    [
        "file://elsewhere/a.zarr",
        "file://",
        "file:///a%00b",
        "s3://[broken/x",
        "s3://",
        "http://",
        "gs://b/../x",
        "s3://b/a//c",
    ],
)
def test_urls_that_lead_nowhere(url: str) -> None:
    refusal(url)


@pytest.mark.parametrize("name", ["h#1.zarr", "h?1.zarr", "50%23.zarr", "a b.zarr"])
def test_a_name_that_a_url_has_to_write_otherwise(name: str, tmp_path: Path) -> None:
    write(tmp_path, {f"{name}/.zarray": V2})
    assert open_source(tmp_path / name).location == str(tmp_path / name)
    assert open_source((tmp_path / name).as_uri()).location == str(tmp_path / name)
    if "#" in name or "?" in name:
        # taken apart by the rules of URLs it would be another place, and may be another image
        write(tmp_path, {"h/.zarray": V2})
        assert f"file://{(tmp_path / name).as_uri()[7:]}" in refusal(f"file://{tmp_path / name}")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (".zarray", "open the folder it is in, {}"),
        ("b.zarr.ZIP", "unpack it and open the folder"),
        ("b.tif", "load it with the library it belongs to and pass the array"),
    ],
)
def test_a_file_in_a_folders_place(name: str, advice: str, tmp_path: Path) -> None:
    write(tmp_path, {f"a.zarr/{name}": V2})
    folder = tmp_path / "a.zarr"
    assert f"{folder / name}: zarr is a folder, got a file; " in refusal(folder / name)
    assert advice.format(folder) in refusal(folder / name)


def test_the_fragment_of_a_web_address_is_not_cut_off() -> None:
    message = refusal("http://me:secret@127.0.0.1:9/h#hidden.zarr")
    assert "write # as %23" in message
    assert "secret" not in message
    assert "hidden" not in message


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    assert str(tmp_path / "no.zarr") in refusal(tmp_path / "no.zarr")


def test_a_path_that_is_not_in_its_container_names_what_is(tmp_path: Path) -> None:
    write(tmp_path, {"x.zarr/.zgroup": GROUP, "x.zarr/s10/.zarray": V2, "x.zarr/s2/.zarray": V2})
    message = refusal(tmp_path / "x.zarr" / "s3")
    assert "inside are s2, s10" in message
    assert str(tmp_path / "x.zarr" / "s2") in message


def test_files_and_folders_that_are_not_zarr(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY")
    assert "got a file" in refusal(tmp_path / "a.npy")
    assert "got none of them" in refusal(tmp_path)
    write(tmp_path, {"one/a.zarr/.zarray": V2, "one/b.zarr/zarr.json": V3})
    assert "inside are a.zarr, b.zarr" in refusal(tmp_path / "one")
    write(tmp_path, {"x.n5/attributes.json": {"n5": "2.0.0"}})
    assert "s0 in N5" in refusal(tmp_path / "x.n5")
    write(tmp_path, {"only/.zattrs": {"multiscales": []}})
    assert ".zgroup" in refusal(tmp_path / "only")


def test_a_loop_of_links(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    refusal(tmp_path / "a")


def test_metadata_that_cannot_be_read_at_all(tmp_path: Path) -> None:
    (tmp_path / ".zarray").mkdir()
    assert "cannot be read" in refusal(tmp_path)


# --- groups ------------------------------------------------------------------------------------


def test_a_group_without_image_or_array(tmp_path: Path) -> None:
    assert "no image or array in it" in refusal(write(tmp_path, {".zgroup": GROUP}))


def test_a_group_of_several_arrays_lists_them(tmp_path: Path) -> None:
    write(tmp_path, {".zgroup": GROUP} | {f"g/a{k}/.zarray": V2 for k in range(12)})
    message = refusal(tmp_path)
    assert "inside are g/a0, g/a1, g/a2," in message
    assert "g/a7 and more: open one by its path" in message


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("mark", ["plate", "well", "bioformats2raw.layout"])
def test_containers_of_images_list_them(tmp_path: Path, mark: str, zarr_format: int) -> None:
    image: dict[str, Any] = {"multiscales": [{"datasets": [{"path": "0"}]}]}
    if zarr_format == 2:
        files = {".zgroup": GROUP, ".zattrs": {mark: 3}}
        files |= {"A/1/0/.zgroup": GROUP, "A/1/0/.zattrs": image, "A/1/0/0/.zarray": V2}
    else:
        group = {"zarr_format": 3, "node_type": "group"}
        files = {"zarr.json": group | {"attributes": {"ome": {mark: 3}}}}
        files |= {"A/1/0/zarr.json": group | {"attributes": {"ome": image}}}
        files |= {"A/1/0/0/zarr.json": V3}
    message = refusal(write(tmp_path, files))
    assert f"inside are A/1/0: open one by its path, such as {tmp_path / 'A/1/0'}" in message
    assert open_source(tmp_path / "A/1/0").levels[0].shape == (4, 4)


# --- documents ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", b"{x", b"\xff\xfe\x00", b"[]", b"7", b"null", b"[" * 10**5]
)
@pytest.mark.parametrize("name", ["zarr.json", ".zarray", ".zgroup", ".zattrs"])
def test_metadata_that_is_not_a_json_object(tmp_path: Path, name: str, content: bytes) -> None:
    write(tmp_path, {".zgroup": GROUP, name: content})
    assert str(tmp_path / name) in refusal(tmp_path)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"zarr_format": 3},
        {"zarr_format": 2, "node_type": "array"},
        {"zarr_format": 3, "node_type": "folder"},
        {"zarr_format": 3, "node_type": ["array"]},
        {"zarr_format": 3, "node_type": "group", "attributes": [1]},
        {"zarr_format": 3, "node_type": "group", "attributes": {"ome": "0.5"}},
    ],
)
def test_v3_documents_that_are_neither_array_nor_group(tmp_path: Path, document: Any) -> None:
    refusal(write(tmp_path, {"zarr.json": document}))


ANY_VERSION: list[tuple[dict[str, Any], str]] = [
    ({"shape": None}, "whole numbers"),
    ({"shape": [-4, 4]}, "at least one voxel"),
    ({"shape": [4.5, 4]}, "whole numbers"),
    ({"shape": []}, "2 to 5 axes"),
    ({"shape": [4]}, "2 to 5 axes, got 1"),
    ({"shape": [2] * 6}, "2 to 5 axes, got 6"),
    ({"shape": [0, 4]}, "at least one voxel"),
    ({"fill_value": "haha"}, "zarr-python"),
    ({"fill_value": 2**40}, "zarr-python"),
    ({"fill_value": [1]}, "zarr-python"),
]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *ANY_VERSION,
        ({"zarr_format": 4}, "zarr_format 2"),
        ({"dtype": "<q9"}, "<q9"),
        ({"dtype": "<M8[ns]"}, "M8"),
        ({"dtype": "<c8"}, "c8"),
        ({"dtype": "|S7"}, "S7"),
        ({"dtype": "<U7"}, "U7"),
        ({"dtype": "|O"}, "O"),
        ({"dtype": "<f16"}, "f16"),
        ({"dtype": [["a", "<i2"], ["b", "<i2"]]}, "'a'"),
        ({"dtype": None}, "None"),
        ({"dtype": {"x": 1}}, "'x'"),
        ({"chunks": [0, 2]}, "at least one voxel"),
        ({"chunks": [-1, 2]}, "at least one voxel"),
        ({"chunks": [2.5, 2]}, "at least one voxel"),
        ({"chunks": "xx"}, "at least one voxel"),
        ({"chunks": None}, "at least one voxel"),
        ({"chunks": [2]}, "got (2,)"),
        ({"chunks": [2**70, 2]}, "memory whole"),
        ({"shape": [10**6, 10**6], "chunks": [10**5, 10**5]}, "memory whole"),
        ({"compressor": {"id": "wat"}}, "wat"),
        ({"filters": [{"id": "wat"}]}, "wat"),
        ({"order": "Q"}, "zarr-python"),
        ({"dimension_separator": "|"}, "zarr-python"),
    ],
)
def test_v2_arrays_that_are_malformed_or_no_image(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    document = V2 | change
    if document["dtype"] is None:
        del document["dtype"]
    found = refusal(write(tmp_path, {".zarray": document}))
    assert message in found
    assert str(tmp_path) in found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *ANY_VERSION,
        ({"data_type": "string"}, "string"),
        ({"data_type": "complex64"}, "complex64"),
        ({"data_type": "r16"}, "r16"),
        ({"data_type": "bfloat16"}, "bfloat16"),
        ({"data_type": "int2"}, "int2"),
        ({"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "s"}}}, "datetime"),
        ({"data_type": None}, "None"),
        ({"chunk_grid": {"name": "wat"}}, "regular grid"),
        ({"chunk_grid": None}, "regular grid"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 2]}}}, "least"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}}, "got (2,)"),
        ({"chunk_grid": {"name": "regular", "configuration": 7}}, "regular grid"),
        ({"codecs": [{"name": "wat"}]}, "wat"),
        ({"codecs": None}, "zarr-python"),
        ({"dimension_names": ["y"]}, "zarr-python"),
        ({"whatever": {"must_understand": True}}, "whatever"),
        ({"storage_transformers": [{"name": "x"}]}, "zarr-python"),
    ],
)
def test_v3_arrays_that_are_malformed_or_no_image(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    document = {key: value for key, value in (V3 | change).items() if value is not None}
    found = refusal(write(tmp_path, {"zarr.json": document}))
    assert message in found
    assert str(tmp_path) in found


# --- multiscales -------------------------------------------------------------------------------

SCALE = {"type": "scale", "scale": [1, 1]}


def dataset(*transformations: Any) -> dict[str, Any]:
    return {"datasets": [{"path": "0", "coordinateTransformations": list(transformations)}]}


@pytest.mark.parametrize(
    ("multiscales", "message"),
    [
        ([], "no image"),
        (None, "no image"),
        ({}, "no image"),
        (["x"], "no image"),
        ([{}], "no image"),
        ([{"datasets": []}], "no image"),
        ([{"datasets": "0"}], "no image"),
        ([{"datasets": ["0"]}], "path of an array"),
        ([{"datasets": [{}]}], "path of an array"),
        ([{"datasets": [{"path": "../0"}]}], "path of an array"),
        ([{"datasets": [{"path": 0}]}], "path of an array"),
        ([{"datasets": [{"path": "0"}, {"path": "1"}]}], "got none at '1'; inside are 0, cube"),
        ([{"datasets": [{"path": "0"}, {"path": "cube"}]}], "the same axes"),
        ([{"axes": ["x"], "datasets": [{"path": "0"}]}], "which have 2, got ['x']"),
        ([{"axes": ["x", "x"], "datasets": [{"path": "0"}]}], "must differ"),
        ([{"axes": [{"type": "space"}, "x"], "datasets": [{"path": "0"}]}], "a name each"),
        ([{"axes": 7, "datasets": [{"path": "0"}]}], "a name each"),
        ([dataset({"type": "scale", "scale": [0, 1]})], "2 positive numbers"),
        ([dataset({"type": "scale", "scale": [-1, 1]})], "2 positive numbers"),
        ([dataset({"type": "scale", "scale": [float("nan"), 1]})], "2 positive numbers"),
        ([dataset({"type": "scale", "scale": [float("inf"), 1]})], "2 positive numbers"),
        ([dataset({"type": "scale", "scale": [1]})], "2 positive numbers"),
        ([dataset({"type": "scale", "scale": "11"})], "2 positive numbers"),
        ([dataset({"type": "scale", "scale": ["1", "1"]})], "2 positive numbers"),
        ([dataset({"type": "scale", "scale": [None, 1]})], "2 positive numbers"),
        ([dataset({"type": "scale", "scale": [10**400, 1]})], "2 positive numbers"),
        ([dataset({"type": "scale", "scale": [1e-300, 1]}) | {
            "coordinateTransformations": [{"type": "scale", "scale": [1e-300, 1]}]}], "positive"),
        ([dataset({"type": "scale", "path": "s"})], "numbers in place"),
        ([dataset(SCALE, {"type": "translation", "translation": [1]})], "2 finite numbers"),
        ([dataset(SCALE, {"type": "translation", "translation": [1, float("nan")]})], "finite"),
        ([dataset({"type": "affine", "affine": [[1, 0], [0, 1]]})], "affine"),
        ([dataset("scale")], "numbers in place"),
        ([dataset({"type": ["scale"]})], "numbers in place"),
        ([dataset(SCALE) | {"coordinateTransformations": {}}], "a list"),
        ([dataset(SCALE) | {"coordinateTransformations": "x"}], "a list"),
        ([dataset(SCALE) | {"version": "0.7"}], "got version 0.7"),
        ([dataset(SCALE) | {"version": "0.10"}], "got version 0.10"),
        ([dataset(SCALE) | {"coordinateSystems": []}], "one of its coordinateSystems"),
    ],
)  # fmt: skip
def test_multiscales_that_are_malformed(tmp_path: Path, multiscales: Any, message: str) -> None:
    cube = V2 | {"shape": [4, 4, 4], "chunks": [2, 2, 2]}
    files = {".zgroup": GROUP, "0/.zarray": V2, "cube/.zarray": cube}
    write(tmp_path, files | {".zattrs": {"multiscales": multiscales}})
    found = refusal(tmp_path)
    assert message in found
    assert str(tmp_path) in found
    # The way out that the sentence offers.
    assert open_source(tmp_path / "0", scale=(2, 2)).levels[0].scale == (2, 2)


def test_a_level_that_is_a_group_or_a_broken_array(tmp_path: Path) -> None:
    multiscales = {"multiscales": [dataset(SCALE)]}
    write(tmp_path, {".zgroup": GROUP, ".zattrs": multiscales, "0/.zgroup": GROUP})
    assert "got none at '0'" in refusal(tmp_path)
    write(tmp_path, {"0/.zarray": V2 | {"dtype": "<c8"}})
    assert str(tmp_path / "0") in refusal(tmp_path)


# --- arrays and options ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(4),
        np.zeros((1,) * 6),
        np.zeros((0, 4)),
        np.float64(1),
        np.zeros((4, 4), "c8"),
        np.zeros((4, 4), "M8[ns]"),
        np.zeros((4, 4), "S3"),
        np.zeros((4, 4), object),
        np.zeros((4, 4), [("a", "i2")]),
        np.zeros((4, 4), np.longdouble),
        np.ndarray,
        [np.zeros((4, 4)), np.zeros((8, 8))],
        [np.zeros((4, 4)), np.zeros((4, 4))],
        [np.zeros((4, 4)), np.zeros((2, 2, 2))],
        [np.zeros((4, 4)), "a.zarr"],
    ],
)
def test_arrays_that_are_no_image(array: Any) -> None:
    refusal(array)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": (1,)}, "2 positive numbers"),
        ({"scale": (1, 0)}, "2 positive numbers"),
        ({"scale": (1, float("nan"))}, "2 positive numbers"),
        ({"scale": 2}, "2 positive numbers"),
        ({"scale": "12"}, "2 positive numbers"),
        ({"scale": (1e-320, 1e-320), "translation": (0, 0)}, "positive"),
        ({"translation": (1, float("inf"))}, "2 finite numbers"),
        ({"translation": (1, 2, 3)}, "2 finite numbers"),
        ({"units": ["um"]}, "or 2, one per axis"),
        ({"axes": "x"}, "2 different names"),
        ({"axes": "xx"}, "2 different names"),
        ({"axes": ["", "x"]}, "an axis is a name"),
        ({"axes": 7}, "one entry per axis"),
        ({"axes": [{}, "x"]}, "an axis is a name"),
        ({"kind": "labels"}, "'image', 'label' or 'mask'"),
        ({"kind": "label"}, "whole numbers"),
        ({"kind": ["mask"]}, "'image', 'label' or 'mask'"),
        ({"chunks": (0, 4)}, "at least 1"),
        ({"chunks": (4,)}, "2 numbers"),
        ({"chunks": (1.5, 4)}, "2 whole numbers"),
        ({"chunks": 4}, "2 whole numbers"),
        ({"chunks": (2**40, 2**40)}, "memory whole"),
        ({"name": 7}, "name is text"),
        ({"name": " "}, "name is text"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    zarr.create_array(tmp_path, data=np.zeros((4, 4)))
    pyramid = [np.zeros((4, 4)), np.zeros((2, 2))]
    if "1e-320" in str(options):
        with pytest.raises(SourceError):
            open_source(pyramid, scale=(1e308, 1e308), translation=(1e308, 1e308))
        return
    assert message in refusal(pyramid, **options)
    assert message in refusal(tmp_path, **options)
