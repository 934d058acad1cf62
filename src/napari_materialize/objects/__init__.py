"""Objects behind a URL: ``s3://`` and ``gs://`` buckets, and files on a web server.

Owns URLs, the clients (obstore, imported when a URL is first used), credentials, retries, and the
sentences for what a server answers. It knows no format, no target and no source: `stores` writes
through it and `sources` read.

Credentials are looked for where the cloud's own libraries look: the environment, the profile files,
the machine's own role. What asks without any, or is refused with what it has, asks once more
anonymously. They are kept by the client alone: no text made here holds user, password or query.
"""

from __future__ import annotations

from napari_materialize.objects._answers import Patience
from napari_materialize.objects._client import Found, Objects
from napari_materialize.objects._urls import ObjectURL, is_object_url, local_path, parse_url

__all__ = [
    "Found",
    "ObjectURL",
    "Objects",
    "Patience",
    "is_object_url",
    "local_path",
    "parse_url",
]
