"""URLs of objects: what their parts mean, and what of them may be repeated."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

__all__ = ["ObjectURL", "is_object_url", "local_path", "parse_url"]

SCHEMES = ("s3", "gs", "http", "https")
"""What is read; the first two are written to as well."""

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]+)://")


class ObjectURL(NamedTuple):
    """A URL in its parts.

    Examples
    --------
    >>> url = parse_url("https://me:secret@host:8080/a%20b/image.zarr/?token=secret")
    >>> url.text, url.root, url.path
    ('https://host:8080/a b/image.zarr', 'https://host:8080', 'a b/image.zarr')
    """

    scheme: str
    """``s3``, ``gs``, ``http`` or ``https``."""

    host: str
    """The bucket, or the web server with its port."""

    path: str
    """Inside it, decoded, without slashes at its ends."""

    user: str = ""
    """User and password as they were given, with the ``@``; a credential."""

    query: str = ""
    """As it was given, with the ``?``; may be a credential."""

    @property
    def root(self) -> str:
        """The URL of the bucket or server."""
        return f"{self.scheme}://{self.host}"

    @property
    def text(self) -> str:
        """The URL without credentials; read again, it is the same place."""
        path = self.path
        if self.scheme not in SCHEMES[:2]:
            path = re.sub("[%?#]", lambda found: f"%{ord(found[0]):02X}", path)
        return f"{self.root}/{path}" if path else self.root

    def at(self, path: str) -> ObjectURL:
        """Return the URL of another path at the same place."""
        return self._replace(path=path.strip("/"))


def is_object_url(text: str) -> bool:
    """Whether ``text`` is a URL of a kind that is read here.

    Examples
    --------
    >>> is_object_url("S3://bucket/a.zarr"), is_object_url("file:///a.zarr")
    (True, False)
    """
    match = _URL.match(text)
    return match is not None and match["scheme"].lower() in SCHEMES


def parse_url(text: str) -> ObjectURL:
    """Return the parts of a URL.

    Keys of a bucket are taken as they are written, as the cloud's own tools do; a web address is
    percent-decoded.

    Raises
    ------
    ValueError
        With a reason that repeats no credential, if it names no bucket or server, or its path is
        not one.
    """
    try:
        parts = urlsplit(text)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("it is malformed") from None
    web = scheme in ("http", "https")
    if scheme not in SCHEMES or not host:
        raise ValueError(f"it names no {'server' if web else 'bucket'}")
    user = parts.netloc.rpartition("@")[0]
    if web:
        if "#" in text:
            # browsers do not send it: another place than the one that was meant would be read
            raise ValueError("it ends before the #: in a name, write # as %23")
        host = f"[{host}]" if ":" in host else host
        path, query = unquote(parts.path), parts.query
    else:
        # A bucket keeps its capitals, and a key may hold ? and #.
        host = parts.netloc.rpartition("@")[2]
        path = text.partition("://")[2].partition("/")[2]
        if user or "?" in path:
            raise ValueError(
                "it holds more than bucket and key: credentials have their place in the environment"
            )
        query = ""
    if path.startswith("/"):
        path = path.removeprefix("/") if web else path
    path = path.removesuffix("/")
    segments = path.split("/") if path else []
    if any(part in ("", ".", "..") for part in segments) or re.search(r"[\0-\x1f\\]", path):
        raise ValueError("its path has an empty segment, '.', '..', a backslash or a control")
    if web and port is not None:
        host = f"{host}:{port}"
    return ObjectURL(scheme, host, path, f"{user}@" if user else "", f"?{query}" if query else "")


def local_path(url: str) -> str:
    """Return the path that a ``file:`` URL names on this machine, percent-decoded.

    Raises
    ------
    ValueError
        With a reason, if it names another machine, no path, or a query or fragment: an address
        with ``?`` or ``#`` in a name has to be written otherwise, and is not cut there.

    Examples
    --------
    >>> local_path("file:///tmp/a%20b%231.zarr")
    '/tmp/a b#1.zarr'
    >>> local_path("file:///tmp/b#1.zarr")
    Traceback (most recent call last):
        ...
    ValueError: it must be a path alone, in which ? and # are written file:///tmp/b%231.zarr
    """
    rest = url.partition(":")[2]
    if re.search("[?#]", rest):
        better = rest.replace("?", "%3F").replace("#", "%23")
        raise ValueError(f"it must be a path alone, in which ? and # are written file:{better}")
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
    except ValueError:
        raise ValueError("it is malformed") from None
    if host not in ("", "localhost"):
        raise ValueError(
            f"it must name this machine (file://{parts.path or '/folder'}), got the host {host!r}"
        )
    if not parts.path.strip("/"):
        raise ValueError("it must be a path alone, as in file:///folder")
    from urllib.request import url2pathname  # brings http, email and ssl along

    return url2pathname(parts.path)
