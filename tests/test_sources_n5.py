"""N5 groups as their writers leave them: which are images, and where levels lie that do not say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from malformed import N5, write
from napari_materialize.sources import open_source

if TYPE_CHECKING:
    from pathlib import Path

type Placed = tuple[tuple[float, ...], tuple[float, ...]]


def sized(*dimensions: int, **more: Any) -> dict[str, Any]:
    """A dataset, its sizes in N5's order."""
    return N5 | {"dimensions": list(dimensions)} | more


def pyramid(folder: Path, group: dict[str, Any], *levels: dict[str, Any]) -> Path:
    """Write a group with the levels s0, s1, ..."""
    documents = {f"s{n}/attributes.json": level for n, level in enumerate(levels)}
    write(folder, {"attributes.json": group} | documents)
    return folder


def placed(what: Path) -> list[Placed]:
    return [(level.scale, level.translation) for level in open_source(what).levels]


THREE = (sized(10, 7), sized(5, 4), sized(3, 2))
"""Of 7 x 10 voxels, as halving leaves them."""


@pytest.mark.parametrize(
    "group", [{"resolution": [4, 6]}, {"pixelResolution": {"dimensions": [4, 6], "unit": "nm"}}]
)
def test_where_only_the_group_has_a_resolution_it_is_the_finest_levels(
    tmp_path: Path, group: dict[str, Any]
) -> None:
    """Shapes tell of the others; that of a level opened alone is no other."""
    image = pyramid(tmp_path, group, *THREE)
    found = [((6.0, 4.0), (0.0, 0.0)), ((12.0, 8.0), (3.0, 2.0)), ((24.0, 16.0), (9.0, 6.0))]
    assert placed(image) == found
    assert [placed(image / f"s{n}")[0] for n in range(3)] == found


def test_factors_go_before_shapes(tmp_path: Path) -> None:
    group = {"resolution": [4, 6], "offset": [1, 2], "scales": [[1, 1], [2, 2], [4, 2]]}
    image = pyramid(tmp_path, group, *THREE)
    assert placed(image)[2] == placed(image / "s2")[0] == ((12.0, 16.0), (5.0, 7.0))


def test_a_level_beside_damaged_ones_opens_alone(tmp_path: Path) -> None:
    image = pyramid(tmp_path, {"resolution": [4, 6]}, sized(10, 7), {}, sized(3, 2))
    assert placed(image / "s2") == [((1.0, 1.0), (0.0, 0.0))]


def test_levels_of_ngff_in_n5_are_called_as_it_calls_them(tmp_path: Path) -> None:
    """Without an s0 the group is an image by its ``multiscales``."""
    steps = [{"type": "scale", "scale": [3, 2]}, {"type": "translation", "translation": [5, 7]}]
    listed = [{"path": "in a/0", "coordinateTransformations": steps}]
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "yx"]
    group = {"multiscales": [{"version": "0.4", "axes": axes, "datasets": listed}]}
    write(tmp_path / "g", {"attributes.json": group, "in a/0/attributes.json": sized(10, 7)})
    write(tmp_path, {"attributes.json": {"n5": "4.0.0"}})
    for place in (tmp_path, tmp_path / "g", tmp_path / "g/in a/0"):
        assert placed(place) == [((3.0, 2.0), (5.0, 7.0))]
        assert open_source(place).levels[0].axes[1].unit == "nanometer"


def test_a_level_of_ngff_that_cannot_be_used_opens_alone(tmp_path: Path) -> None:
    group = {"multiscales": [{"axes": "yx", "datasets": [{"path": "s0"}]}]}
    image = pyramid(tmp_path, group, sized(10, 7, resolution=[4, 6]))
    assert placed(image / "s0") == [((6.0, 4.0), (0.0, 0.0))]
