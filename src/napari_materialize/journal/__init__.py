"""What a job has done, kept beside what it wrote, so that another can go on.

A missing chunk may be empty, unfinished or lost, and a chunk that is there may be damaged: neither
can be told from the files. So every file that is written, or left out since it holds nothing but
the fill value, or failed, is a line in the job's journal, with its size and checksum. The journal
is a hidden file beside the metadata (where files cannot grow, a hidden folder of some), which
readers do not look at. It ends with the job: what a finished result needs to be verified is folded
into sums that stand in its record.

Owns lines, states and sums. What to do about them is the job's.
"""

from __future__ import annotations

from napari_materialize.journal._journal import (
    JOURNAL,
    Found,
    Journal,
    Seen,
    is_journal,
    parse_extremes,
    read_journal,
)
from napari_materialize.journal._ledger import FileState, Ledger, checksum
from napari_materialize.journal._sums import Sums

__all__ = [
    "JOURNAL",
    "FileState",
    "Found",
    "Journal",
    "Ledger",
    "Seen",
    "Sums",
    "checksum",
    "is_journal",
    "parse_extremes",
    "read_journal",
]
