"""How long a server is waited for, and what its answers mean.

The client's own texts are looked at for what they hold and never repeated: they quote URLs, which
may be signed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

__all__ = [
    "Patience",
    "broke_off",
    "hands_out_no_parts",
    "is_elsewhere",
    "is_refused",
    "reason_of",
    "status_of",
]

_STATUS = re.compile(r"status code: (\d{3})")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server is waited for. Waits double and are spread at random."""

    retries: int = 8
    """Further attempts after a 5xx answer, a refused or a broken connection."""

    first_wait: float = 0.1
    """Seconds before the first of them."""

    longest_wait: float = 10.0
    """Seconds between two at most."""

    total: float = 120.0
    """Seconds from the first attempt after which none is begun."""

    silence: float = 30.0
    """Seconds without a byte after which an attempt has failed."""

    @property
    def retry(self) -> dict[str, Any]:
        """The same in obstore's words."""
        return {
            "max_retries": self.retries,
            "backoff": {
                "init_backoff": timedelta(seconds=self.first_wait),
                "max_backoff": timedelta(seconds=self.longest_wait),
                "base": 2,
            },
            "retry_timeout": timedelta(seconds=self.total),
        }

    @property
    def client(self) -> dict[str, Any]:
        """Time limits in obstore's words; a server is reached without TLS if the URL says so."""
        return {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=min(10.0, self.silence)),
            "read_timeout": timedelta(seconds=self.silence),
            # of a whole request: a large chunk over a slow line has its time
            "timeout": timedelta(seconds=max(600.0, self.total)),
        }


def status_of(error: Exception) -> str | None:
    """Return the number of the server's answer, or None if there was none."""
    match = _STATUS.search(str(error))
    return match[1] if match else None


def is_refused(error: Exception) -> bool:
    """Whether the server does not let in whoever asks, or what it was asked with is no good."""
    status = status_of(error)
    named = type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError")
    return named or status in ("401", "403") or (status == "400" and "Token" in str(error))


def hands_out_no_parts(error: Exception) -> bool:
    """Whether a server answers a part of an object with all of it, or knows no parts."""
    return type(error).__name__ == "NotSupportedError" or status_of(error) == "416"


def broke_off(error: Exception) -> bool:
    """Whether the connection broke in the middle of an answer, where the client tries no more."""
    text, cut = str(error), type(error).__name__ == "GenericError" and status_of(error) is None
    return cut and "max_retries" not in text and "Content-Length Header missing" not in text


def is_elsewhere(error: Exception) -> bool:
    """Whether a bucket lies in another region than the one that was asked.

    Amazon redirects what is not signed, without saying where to, and refuses a signature that names
    the wrong region.
    """
    status, text = status_of(error), str(error)
    if status == "400":
        return "AuthorizationHeaderMalformed" in text or "IllegalLocation" in text
    return status in ("301", "307", "308") or "redirect without LOCATION" in text


_SAID = (
    ("kind: Timeout", "the server was silent for too long"),
    ('"dns error"', "no server of that name is known"),
    ("kind: Connect", "the server cannot be reached"),
    (
        "redirect",
        "the server redirects elsewhere; check the URL, or of a bucket set its region, AWS_REGION",
    ),
    ("metadata endpoint", "no credentials were found"),
    (
        "Content-Length Header missing",
        "the server does not say how long its files are (Content-Length); serve them with another "
        "program, or copy the folder",
    ),
)
"""What the client's own text holds, and what it means."""


def reason_of(error: Exception) -> str:
    """Say why, without repeating a text that may hold a signed URL."""
    text = str(error)
    if (status := status_of(error)) is not None and not status.startswith("3"):
        again = status.startswith("5") or status == "429"
        tried = ", after as many attempts as are made" if again else ""
        return f"the server answers {status}{tried}"
    for mark, reason in _SAID:
        if mark.lower() in text.lower():
            return reason
    kind = type(error).__name__
    if kind == "InvalidPathError":
        return "the name is not one that an object can have"
    if kind == "NotSupportedError":
        return "the server cannot do that"
    return "the connection broke"
