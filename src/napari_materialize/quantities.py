"""Sizes, counts and times as people read them. Owns words for numbers, decides nothing."""

from __future__ import annotations

__all__ = ["bytes_text", "count_text", "seconds_text"]


def bytes_text(count: float) -> str:
    """Return a number of bytes with a unit.

    >>> bytes_text(999), bytes_text(7_130_000)
    ('999 B', '7.1 MB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if count < 999.5 or unit == "TB":
            break
    return f"{count:.1f} {unit}" if count < 99.5 else f"{count:.0f} {unit}"


def count_text(count: int, word: str) -> str:
    """Return a number of things: ``1 chunk``, ``27 chunks``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def seconds_text(seconds: float) -> str:
    """Return a time.

    >>> seconds_text(0.34), seconds_text(75), seconds_text(7260)
    ('0.3 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
