"""One block of voxels: what each op of a chain is handed, and how many chunks it is best made for.

Owns the arithmetic of halos and of the volume's edge. Halos are exact: the block an op is handed
holds the voxels around it that the op run over the whole level would see, and past the level's
edge what the boundary rule says *of that op's input*, so a chain of ops equals each op run over the
whole level in turn, at every face.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from napari_materialize.buffers import buffer
from napari_materialize.geometry import Box, Index

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from napari_materialize.arrays import Level
    from napari_materialize.ops import Op

__all__ = [
    "BLOCK_BYTES",
    "BOUNDARIES",
    "BlockLimits",
    "Boundary",
    "Link",
    "Rest",
    "Step",
    "best_block",
    "gather",
    "made_box",
    "pad",
    "spread",
    "steps_for",
    "take",
]

type Boundary = Literal["edge", "zeros"]
"""What lies past the volume's edge: its outermost voxels repeated, or zeros."""

BOUNDARIES: tuple[Boundary, ...] = get_args(Boundary.__value__)

BLOCK_CHUNKS = 64
"""Chunks in a block, channels apart: each of them is dealt with under the engine's lock."""

SAVES = 1.15
"""How many times less work larger blocks have to be, to be worth a client's longer wait and memory:
a gaussian of 1.5 voxels on chunks of 64^3 stays at 2 x 2 x 2 of them, 31 MiB, where twice as many
would save a twentieth."""

VOXEL_BYTES = 12
"""What a voxel that ops are handed takes while they work: three times a float32."""

BLOCK_BYTES = 96 * 2**20
"""Memory that the voxels of one computation of several chunks may take, in every slot."""

BESIDE = 1.25
"""How many times what a chunk alone takes a block may take where that alone is above the limit: of
planes with a halo of 6 along z four take a quarter more than one, for a third of the work."""


class Link(NamedTuple):
    """One op of a stage, as it runs on one level."""

    op: Op
    level: Level
    """What goes in."""


class Step(NamedTuple):
    """One op's share in making a block."""

    link: Link
    exists: Box
    """The input voxels it is handed, as far as they lie inside the level."""

    block: Box
    """All it is handed, perhaps past the level's edge."""

    makes: Box
    """The output voxels that are wanted of it."""


class Rest(NamedTuple):
    """The part of a chunk that is still needed."""

    box: Box
    """Which voxels of the level."""

    whole: Box
    """Those of the chunk."""

    voxels: np.ndarray
    """Of ``box``."""

    def covers(self, reach: Box) -> bool:
        """Whether it has all of ``reach`` that the chunk had."""
        return self.box.contains(reach.intersect(self.whole))

    @property
    def nbytes(self) -> int:
        """Bytes of its voxels."""
        return self.voxels.nbytes


def steps_for(chain: Sequence[Link], box: Box) -> list[Step]:
    """Walk a chain from last to first: which voxels each op needs for ``box`` to come out."""
    steps: list[Step] = []
    for link in reversed(chain):
        block = link.op.reach(box, link.level)
        exists = block.clip(link.level.shape)
        steps.append(Step(link, exists, block, box))
        box = exists
    return steps[::-1]


def made_box(chain: Sequence[Link], made: Level, indices: Sequence[Index]) -> Box:
    """Return the voxels that come out when chunks are computed that form a box.

    ``indices`` names the outermost ones first and last.
    """
    op, given = chain[-1]
    wanted = made.grid.box(indices[0])
    if indices[-1] != indices[0]:
        wanted = Box(wanted.start, made.grid.box(indices[-1]).stop)
    return op.outputs(op.inputs(wanted, given), given).clip(made.shape)


def gather(
    step: Step, level: Level, chunks: Mapping[Index, np.ndarray | Rest], boundary: Boundary
) -> np.ndarray:
    """Put the block of the first op together from chunks; no copy if it is one whole chunk."""
    needed = list(level.grid.covering(step.exists))
    if len(needed) == 1 and level.grid.box(needed[0]) == step.block:
        whole = chunks[needed[0]]
        return (whole.voxels if isinstance(whole, Rest) else whole).view()
    block = buffer(step.block.shape, level.dtype)
    for index in needed:
        box = level.grid.box(index)
        part = box.intersect(step.exists)
        target = part.relative_to(step.block.start).slices
        chunk = chunks[index]
        if isinstance(chunk, Rest):
            box, _, chunk = chunk
        block[target] = chunk[part.relative_to(box.start).slices]
    _fill_outside(block, step, boundary)
    return block


def take(step: Step, level: Level, voxels: np.ndarray, boundary: Boundary) -> np.ndarray:
    """Copy the block of the first op from the voxels of the whole level."""
    block = buffer(step.block.shape, level.dtype)
    block[step.exists.relative_to(step.block.start).slices] = voxels[step.exists.slices]
    _fill_outside(block, step, boundary)
    return block


def pad(block: np.ndarray, step: Step, boundary: Boundary) -> np.ndarray:
    """Return the block an op in the middle of a stage is handed, past the edge too."""
    if step.block == step.exists:
        return block
    padded = buffer(step.block.shape, block.dtype)
    padded[step.exists.relative_to(step.block.start).slices] = block
    _fill_outside(padded, step, boundary)
    return padded


def _fill_outside(block: np.ndarray, step: Step, boundary: Boundary) -> None:
    """Fill the voxels past the level's edge, axis by axis, in place."""
    inside = step.exists.relative_to(step.block.start)
    for axis, (low, high) in enumerate(zip(inside.start, inside.stop, strict=True)):
        lead = (slice(None),) * axis
        before, after = (*lead, slice(0, low)), (*lead, slice(high, None))
        if boundary == "zeros":
            block[before] = 0
            block[after] = 0
        else:
            block[before] = block[(*lead, slice(low, low + 1))]
            block[after] = block[(*lead, slice(high - 1, high))]


def spread(chain: Sequence[Link], made: Level) -> tuple[bool, ...]:
    """Return along which axes of what is ``made`` a chunk needs voxels beyond its own."""
    size = dict(zip((axis.name for axis in made.axes), made.chunks, strict=True))
    box = _reach(chain, made.chunks)[-1].takes
    reach = dict(zip((axis.name for axis in chain[0].level.axes), box.shape, strict=True))
    return tuple(
        axis.type == "space" and reach.get(axis.name, 0) > size[axis.name] for axis in made.axes
    )


def own_voxels(chain: Sequence[Link], made: Level) -> bool:
    """Whether a chunk of what is ``made`` takes the voxels at its place, and no others.

    The last one too, which the level's edge may cut: a model of stride 4 is handed more of it.
    """
    counts = made.grid.counts
    ends = [made.grid.box(index) for index in ((0,) * made.ndim, tuple(n - 1 for n in counts))]
    whole = Box((0,) * made.ndim, made.chunks)
    return _reach(chain, made.chunks)[-1].takes == whole and all(
        step.block == box for box in ends for step in steps_for(chain, box)
    )


class BlockLimits(NamedTuple):
    """How large a computation of several chunks may be."""

    seconds: float = 1.0
    """That it may take."""

    memory: int = BLOCK_BYTES
    """Bytes that the voxels which ops are handed may take, at `VOXEL_BYTES` each; a quarter more
    than one chunk alone takes, where that is more than this."""

    lanes: int = 1
    """Blocks that a level has to have at least: who computes them at a time."""


def best_block(
    chain: Sequence[Link], made: Level, voxel_seconds: float | None, limits: BlockLimits
) -> Index:
    """Return how many chunks along each axis are best computed in one call.

    Along an axis that the last op makes whole, as a model its channels, all of them. The axes that
    have a halo are doubled for as long as that saves enough of the work and the block keeps to the
    limits. The last time perhaps only the later ones of them, each if it saves its share of that;
    so a walk in Morton's order meets each block in one run.

    Parameters
    ----------
    chain : sequence of Link
        The ops, as they run on the level.
    made : Level
        What comes out.
    voxel_seconds : float or None
        Seconds of work per voxel of their effort, as measured; None if nobody knows yet, and
        then each chunk is computed alone.
    limits : BlockLimits
        Time, memory, and how many blocks there have to be.
    """
    wide = spread(chain, made)
    first = best = made.grid.indices(made_box(chain, made, [(0,) * made.ndim])).stop

    def pays(now: Index, then: Index, saves: float) -> bool:
        return _work(chain, made, now) >= saves * _work(chain, made, then)

    def takes(shares: list[_Share]) -> int:
        return sum(share.takes.size for share in shares) * VOXEL_BYTES

    alone = takes(_reach(chain, tuple(map(operator.mul, first, made.chunks))))
    memory = limits.memory if alone <= limits.memory else BESIDE * alone

    def fits(counts: Index, seconds: float) -> bool:
        shares = _reach(chain, tuple(map(operator.mul, counts, made.chunks)))
        return (
            math.prod(counts) <= BLOCK_CHUNKS * math.prod(first)
            and takes(shares) <= memory
            and sum(share.effort for share in shares) * seconds <= limits.seconds
            and _blocks(made, counts) >= min(limits.lanes, _blocks(made, first))
        )

    while voxel_seconds is not None and any(wide):
        grown = _doubled(best, made, wide)
        if not pays(best, grown, SAVES):
            break
        if fits(grown, voxel_seconds):
            best = grown
            continue
        share = SAVES ** (1 / sum(map(operator.ne, best, grown)))
        for axis in reversed(range(made.ndim)):
            more = (*best[:axis], grown[axis], *best[axis + 1 :])
            if not (pays(best, more, share) and fits(more, voxel_seconds)):
                break
            best = more
        break
    return best


def _doubled(counts: Index, made: Level, wide: Sequence[bool]) -> Index:
    """Return counts twice as large along some axes, as far as there are chunks."""
    return tuple(
        min(2 * n, 1 << (count - 1).bit_length()) if grows else n
        for n, count, grows in zip(counts, made.grid.counts, wide, strict=True)
    )


def _blocks(made: Level, counts: Index) -> int:
    """Return how many blocks of so many chunks a level has."""
    return math.prod(-(-n // c) for n, c in zip(made.grid.counts, counts, strict=True))


class _Share(NamedTuple):
    """One op's share in making a box."""

    takes: Box
    effort: float
    """Its work, in voxels that it is handed."""


def _reach(chain: Sequence[Link], size: Index) -> list[_Share]:
    """Return what each op is handed, last op first, for a box of ``size`` far from all edges."""
    box, shares = Box((0,) * len(size), size), []
    for op, given in reversed(chain):
        effort = op.effort(box, given)
        box = op.reach(box, given)
        shares.append(_Share(box, effort))
    return shares


def _work(chain: Sequence[Link], made: Level, counts: Index) -> float:
    """Return the ops' work for each voxel that is kept, in voxels that they are handed."""
    size = tuple(map(operator.mul, counts, made.chunks))
    return sum(share.effort for share in _reach(chain, size)) / int(math.prod(size))
