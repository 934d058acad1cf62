"""The op that runs a model, without the arithmetic of boxes: parameters, file and findings.

Owns what a person may write, the loading and the trial of the file, what is measured of it once it
is shown its image, and what identifies and records it. The file is read by `_model_file`, tried by
`_model_ports`, its context measured by `_model_context`, run by `_model_session`. Which voxels it
needs for a box is `onnx`'s business.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path  # noqa: TC003 - the type of a parameter, which the registry looks up
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import ModelError, NotedWarning
from napari_materialize.ops._base import Op
from napari_materialize.ops._model_copy import again, twin
from napari_materialize.ops._model_description import describe_model
from napari_materialize.ops._model_file import ModelFile, read_model
from napari_materialize.ops._model_findings import Findings, findings
from napari_materialize.ops._model_halo import check_halo, check_tile, choose_halo
from napari_materialize.ops._model_parameters import AUTO, checked
from napari_materialize.ops._model_ports import Ports, each_axis, find_ports, pick_ports
from napari_materialize.ops._model_record import in_words, one_if_equal, record_of
from napari_materialize.ops._model_scale import After, Normalisation, Pending
from napari_materialize.ops._model_session import Runtime
from napari_materialize.ops._model_steering import steering
from napari_materialize.ops._model_trimmed import Trimmed, Wanted, trimmed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from napari_materialize.geometry import Index
    from napari_materialize.ops._base import Voxels
    from napari_materialize.ops._model_grid import AxisGrid

__all__ = ["ModelOp"]


def _parameter(name: str, help: str, default: Any = None) -> Any:  # noqa: A002 - the field's own name
    return field(default=default, metadata={"name": name, "help": help})


@dataclass(frozen=True, slots=True)
class ModelOp(Op):
    """A model loaded, tried and measured; its parameters are told of at `Onnx`."""

    name = "onnx"
    kept = True

    model: Path = field(metadata={"help": "the .onnx file, or a folder with its description"})
    extent: int | tuple[int, ...] | str | None = _parameter(
        "halo", "voxels of context: auto, one number, or one per space axis of the model"
    )
    normalise: str = _parameter(
        "normalise",
        "none, scale, minmax, percentile:low,high or zscore, once for the level",
        AUTO,
    )
    constants: tuple[float, ...] | None = _parameter(
        "constants", "low,high or mean,deviation, instead of taking them from the level"
    )
    after: str = _parameter(
        "after",
        "none, sigmoid, softmax, argmax, threshold:0.5, above:0, cast:uint8, joined by +",
        AUTO,
    )
    input_voxel_size: float | tuple[float, ...] | None = _parameter(
        "input_voxel_size", "the voxel size the model was trained on, in the image's unit"
    )
    multiple: int | tuple[int, ...] | None = _parameter(
        "multiple", "tiles begin and end on multiples of this; found if not given"
    )
    tile: int | tuple[int, ...] | None = _parameter("tile", "sides of every tile, halo included")
    batch: int | None = _parameter("batch", "tiles or planes in one call of the model")
    output: str | None = _parameter("output", "name of the output, where the model has several")
    input: str | None = _parameter("input", "name of the input")
    layout: str | None = _parameter("layout", "axes of the model's input, as in bcyx or byxc")
    allow_tile_dependent: bool = _parameter(
        "allow_tile_dependent", "run a model whose output depends on the whole tile", default=False
    )
    device: str = _parameter("device", "auto, cpu, cuda or cuda:1", default="auto")
    require_device: bool = _parameter(
        "require_device", "refuse where the device is not there", default=False
    )
    threads: int = _parameter("threads", "threads in one call of the model", default=1)
    description: str = _parameter(
        "description", "the description's file; auto: one beside the model; none: ignore it", AUTO
    )
    file: ModelFile = field(init=False, repr=False)
    """What the file says of itself."""
    notes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """What a person should know: contradictions, casts, a device that is not there."""
    _runtime: Runtime = field(init=False, repr=False, compare=False)
    _ports: Ports = field(init=False, repr=False, compare=False)
    _found: Findings | None = field(init=False, repr=False, compare=False)
    _taken: dict[Any, Pending] = field(init=False, repr=False, compare=False)
    """The constants of each level it was shown, taken when first needed."""
    _said_halo: int | tuple[int, ...] | None = field(init=False, repr=False, compare=False)
    _trimmed: Trimmed | None = field(init=False, repr=False, compare=False)
    """The model without the margin that nobody keeps; None where it is run as it came."""
    told_multiple: bool = field(init=False, repr=False, compare=False)
    """Whether somebody gave the stride, so that no other is tried."""

    def __init__(
        self,
        model: Path | str,
        halo: int | tuple[int, ...] | str | None = None,
        *,
        normalise: str = AUTO,
        constants: tuple[float, ...] | None = None,
        after: str = AUTO,
        input_voxel_size: float | tuple[float, ...] | None = None,
        multiple: int | tuple[int, ...] | None = None,
        tile: int | tuple[int, ...] | None = None,
        batch: int | None = None,
        output: str | None = None,
        input: str | None = None,  # noqa: A002  # the word that users of models know
        layout: str | None = None,
        allow_tile_dependent: bool = False,
        device: str = "auto",
        require_device: bool = False,
        threads: int = 1,
        description: str = AUTO,
    ) -> None:
        given: dict[str, Any] = dict(halo=halo, normalise=normalise, constants=constants)  # noqa: C408 - as names
        given |= dict(input_voxel_size=input_voxel_size, multiple=multiple, tile=tile)  # noqa: C408 - as names
        given |= dict(after=after, batch=batch, output=output, input=input, layout=layout)  # noqa: C408 - as names
        given |= dict(device=device, threads=threads)  # noqa: C408 - as names
        path, said = describe_model(model, description, output)
        given = {key: checked(key, value) for key, value in given.items()}
        values, notes = said.fill(given)
        put = partial(object.__setattr__, self)
        for key, value in values.items():
            put(key, value) if key != "halo" else put("extent", checked("halo", halo) or AUTO)
        put("allow_tile_dependent", bool(allow_tile_dependent))
        put("require_device", bool(require_device))
        put("description", description)
        put("_found", None)
        put("_trimmed", None)
        put("_taken", {})
        put("notes", notes)
        put("told_multiple", self.multiple is not None)
        # what a description says of the halo is measured all the same, and the larger one taken
        put("_said_halo", values["halo"] if halo is None else None)
        with said.blamed(given):
            self._load(path)
            self._check(said.contradictions(self._ports))

    def _load(self, path: Path) -> None:
        """Read the model, load it and try it."""
        put = partial(object.__setattr__, self)
        file, data = read_model(path)
        runtime = Runtime.of(file, data, self.device, self.threads)
        if runtime.missing is not None:
            sentence = f"onnx: device={self.device} was asked for, but {runtime.missing}"
            if self.require_device:
                raise ModelError(sentence)
            self._note(sentence)
            warnings.warn(f"{sentence}; the CPU is used", NotedWarning, stacklevel=4)
        if runtime.on_gpu:
            self._note(f"it runs on {runtime.device}, which no test of this project has done")
        ports = pick_ports(runtime, self.input, self.output)
        strides = file.graph.strides(ports[0].name, ports[1].name)
        found = find_ports(runtime, ports, strides, self.layout, self.multiple)
        put("model", file.path)
        put("file", file)
        put("_runtime", runtime)
        put("_ports", found)
        put("multiple", one_if_equal(tuple(axis.stride for axis in found.grid)))

    def _check(self, contradictions: Sequence[str]) -> None:
        """Refuse what contradicts the model, and note what contradicts its description."""
        put, ports, place = partial(object.__setattr__, self), self._ports, self._runtime.place
        put("notes", (*self.notes, *contradictions))
        scaling = self._normalisation
        if self.constants is not None:
            scaling.given(self.constants)
        said: tuple[tuple[str, Any], ...] = (("halo", self._said_halo),)
        for key, value in (*said, ("input_voxel_size", self.input_voxel_size)):
            if value is not None and value != AUTO:
                each_axis(value, ports.rank, place, key)
        if self.tile is not None:
            check_tile(place, each_axis(self.tile, ports.rank, place, "tile"), ports.grid)
        if self.extent != AUTO:
            check_halo(place, self._margin, ports.grid, self._sides(ports.grid))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parameters and what was found: another process loads the model itself."""
        named = [each.metadata.get("name", each.name) for each in fields(self) if each.init]
        options = {key: getattr(self, key) for key in named[2:]}
        taken = {level: pending.get() for level, pending in self._taken.items()}
        return again, (type(self), (self.model, self.extent), options, self._found, taken)

    def _restore(self, found: Findings | None, taken: dict[Any, Pending]) -> None:
        """Take over what another process found out."""
        for name, value in (("_found", found), ("_taken", taken)):
            object.__setattr__(self, name, value)
        if found is not None:
            self._take(found)
        object.__setattr__(self, "_trimmed", self._trim())

    @property
    def identity(self) -> str | None:
        """The parameters, with the digest of the model's bytes for its path, and no device."""
        parameters = {**self.parameters, "model": self.file.digest}
        for key in ("device", "require_device", "threads", "batch", "description"):
            del parameters[key]
        if self.extent == AUTO:
            parameters["halo"] = list(self._margin)
        return json.dumps([self.name, parameters], sort_keys=True)

    @property
    def record(self) -> Mapping[str, Any]:
        """The parameters, the model by its file's name and sha256, what was measured of it, the
        constants its input was normalised with, and what it ran on.
        """
        taken = {level: pending.get() for level, pending in self._taken.items()}
        return record_of(self, self._runtime, taken)

    @property
    def providers(self) -> tuple[str, ...]:
        """The onnxruntime providers that the model runs on, as onnxruntime reports them."""
        return self._runtime.providers

    @property
    def device_used(self) -> str:
        """``cpu`` or ``cuda:0``: where the model runs, as onnxruntime reports it."""
        return self._runtime.device

    @property
    def voxel_size(self) -> tuple[float, ...] | None:
        """The size of the voxels the model runs on, one per space axis it sees; None for any."""
        if self.input_voxel_size is None:
            return None
        size: Any = self.input_voxel_size
        return each_axis(size, self._ports.rank, self._runtime.place, "input_voxel_size")

    @property
    def found(self) -> Findings | None:
        """What was measured of the model, if anything was."""
        return self._found

    @property
    def ports(self) -> Ports:
        """The layout, the dtypes and the grid of the input and the output that are used."""
        return self._ports

    @property
    def _normalisation(self) -> Normalisation:
        return Normalisation.parse(self.normalise)

    @property
    def _after(self) -> After:
        return After.parse(self.after)

    def settle(self, voxels: Voxels | None) -> Self:
        """Return the op with its halo measured, if it has to be, on these voxels.

        Raises
        ------
        ModelError
            If the model depends on the whole tile, and nobody allowed that.
        """
        op = twin(self)
        put = partial(object.__setattr__, op)
        said = self.file.graph.strides(self._ports.input, self._ports.output)
        unsure = bool(said.whole) or not (said.certain or self.told_multiple)
        unsure = unsure or bool(steering(self.file.graph, self._ports.input))
        if self._found is None and (self.extent == AUTO or unsure or self._is_short(said.reach)):
            put("_found", findings(self, voxels))
        found = op._found
        if found is not None:
            op._take(found)
        if voxels is not None and self._normalisation.measured and self.constants is None:
            take = partial(self._normalisation.measure, voxels)
            levels = enumerate(voxels.levels)
            put("_taken", {level: Pending(partial(take, number)) for number, level in levels})
        put("_trimmed", op._trim())
        return op

    def _is_short(self, reach: Index | None) -> bool:
        """Whether a halo is given that is less than the graph says: then it is measured too."""
        return reach is not None and any(a < b for a, b in zip(self._margin, reach, strict=False))

    def _take(self, found: Findings) -> None:
        """Take over what was measured."""
        put, place = partial(object.__setattr__, self), self._runtime.place
        context = found.context
        put("_ports", self._ports.with_strides(context.stride))
        grid = self._ports.grid
        put("multiple", one_if_equal(context.stride))
        if context.tile_dependent and not self.allow_tile_dependent:
            raise ModelError(
                f"{place}: {found.sentence}; give allow_tile_dependent=true to run it all the "
                "same, with seams between chunks, or use another model"
            )
        if context.tile_dependent:
            self._note(
                f"{found.sentence}; each chunk has a tile of its own, with seams between them"
            )
        if found.doubt is not None:
            self._note(found.doubt)
        if self.extent != AUTO:
            wanted = self._margin
            short = any(a < b for a, b in zip(wanted, context.halo, strict=True))
            if short and not context.tile_dependent:
                self._note(f"halo={in_words(wanted)} is given, but {found.sentence}")
            return
        said = self._said_halo
        described = None if said is None else each_axis(said, len(grid), place, "halo")
        halo, note = choose_halo(found, grid, described)
        if note is not None:
            self._note(note)
        put("extent", one_if_equal(halo))
        check_halo(place, halo, grid, self._sides(grid))

    def _trim(self) -> Trimmed | None:
        """Return the model without the margin that its halo makes useless."""
        alone = self._found is not None and self._found.context.tile_dependent
        if alone or self.extent == AUTO:
            return None
        session = Wanted(self.file, self.device, self.threads)
        return trimmed(session, self._runtime, self._ports, self._margin)

    def _note(self, sentence: str) -> None:
        object.__setattr__(self, "notes", (*self.notes, sentence))

    @property
    def _margin(self) -> Index:
        """The halo per space axis of the model; measured without a source if nobody did."""
        if self.extent == AUTO:
            found = findings(self, None)
            if found.context.tile_dependent and not self.allow_tile_dependent:
                raise ModelError(f"{self._runtime.place}: {found.sentence}")
            return found.context.halo
        assert self.extent is not None
        assert not isinstance(self.extent, str)
        return each_axis(self.extent, self._ports.rank, self._runtime.place, "halo")

    def _sides(self, grids: tuple[AxisGrid, ...]) -> tuple[int | None, ...]:
        """Return the sides of all tiles along the axes where they are fixed."""
        if self.tile is None:
            return tuple(axis.fixed for axis in grids)
        return each_axis(self.tile, len(grids), self._runtime.place, "tile")
