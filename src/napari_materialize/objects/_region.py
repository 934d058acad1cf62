"""In which of Amazon's regions a bucket lies."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from email.message import Message

__all__ = ["AMAZON", "bucket_region"]

AMAZON = "https://s3.amazonaws.com"
"""Answers for the buckets of every region."""

_HEADER = "x-amz-bucket-region"
_REGION = re.compile("[a-z0-9-]{1,40}")


class _Stay(urllib.request.HTTPRedirectHandler):
    """The answer that redirects is the one that says where to."""

    def redirect_request(self, *_: Any) -> None:
        return None


def bucket_region(bucket: str, endpoint: str | None, seconds: float) -> str | None:
    """Ask where a bucket lies: one request, without credentials.

    Whatever the answer is, also that it is refused, it says the region in a header
    (https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadBucket.html).

    Parameters
    ----------
    bucket : str
        Its name.
    endpoint : str, optional
        The URL of the server; Amazon's if left out.
    seconds : float
        How long the server may be silent.

    Returns
    -------
    str or None
        None if it does not say.
    """
    request = urllib.request.Request(
        f"{(endpoint or AMAZON).rstrip('/')}/{quote(bucket, safe='')}", method="HEAD"
    )
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=seconds) as answer:
            headers: Message = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
        error.close()
    except (OSError, ValueError):  # no answer: what the bucket itself said stands
        return None
    said = str(headers.get(_HEADER, ""))
    return said if _REGION.fullmatch(said) else None
