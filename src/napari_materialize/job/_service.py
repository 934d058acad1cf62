"""What a job needs of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from napari_materialize.claims import ChunkClaim
    from napari_materialize.geometry import Box, Index
    from napari_materialize.view import View
    from napari_materialize.written import WrittenChunks

__all__ = ["ChunkService"]


class ChunkService(Protocol):
    """What a job needs of an engine."""

    @property
    def slots(self) -> int:
        """Computations at a time."""

    @property
    def closed(self) -> bool:
        """Whether it takes no claims any more."""

    def claim_all(
        self,
        view: View,
        level: int,
        indices: Sequence[Sequence[int]],
        *,
        background: bool = False,
        priority: int = 0,
        cancel: threading.Event | None = None,
        together: Callable[[list[ChunkClaim]], None] | None = None,
    ) -> list[ChunkClaim]:
        """Ask for chunks, before any of them is begun; ``together`` is told which are over."""

    def release_all(self, claims: Iterable[ChunkClaim]) -> None:
        """Let chunks go."""

    def block(self, view: View, level: int) -> Index:
        """Return how many chunks along each axis are computed in one call, as of now."""

    def working_on(self, view: View, level: int, box: Box) -> AbstractContextManager[None]:
        """Say that every chunk of a box of voxels will be asked for once."""

    def remember(self, view: View, level: int, place: WrittenChunks) -> None:
        """Let clients read chunks of a view back from where they are written."""

    def run_writer(
        self,
        work: Callable[[], None],
        *,
        quick: bool | None = None,
        seconds: float | None = None,
        computes: bool = True,
        in_turn: bool = False,
        more: bool = False,
    ) -> None:
        """Run work that encodes and stores: soon, or at once where that is as well.

        ``quick``: it takes no longer than a hand-over. ``seconds``: what it takes for each chunk,
        as far as known. ``computes``: it keeps a core busy, and does not wait for a server.
        ``in_turn``: after what was handed over before. ``more``: it comes of other such work, and
        says nothing of the time that takes.
        """

    def forget_failures(self, view: View) -> None:
        """Take the view's chunks that failed for not asked yet, and what they are made of."""
