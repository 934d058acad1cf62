"""Ways to ask a bucket or a web server: with which credentials, in which order.

Owns where credentials are looked for and what each way is called in a message. What is asked, and
what an answer means, is the client's business. Nothing found here is ever written or printed.
"""

from __future__ import annotations

import configparser
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from napari_materialize.objects._urls import ObjectURL

__all__ = ["Attempt", "attempts", "s3_endpoint"]

_ROLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""What a cluster sets for a process that has a role."""

_ACCOUNTS = (
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
)

_BRIEF = {"max_retries": 1}
"""Patience with the machine's own role: most machines have none, and nobody answers there."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to ask."""

    title: str
    """For messages."""

    open: Callable[[], Any]
    """Make the client. Nothing is asked of a server."""

    doubtful: bool = False
    """Whether there may be nothing to ask with."""


def attempts(
    url: ObjectURL, client: Mapping[str, Any], retry: Mapping[str, Any], region: str | None = None
) -> list[Attempt]:
    """Return the ways to ask at ``url``, best first.

    Credentials that somebody put there come first and asking without any second. Where there are
    none the machine's own role comes last, since finding that there is none takes seconds. A
    ``region`` that was found out goes before what the environment says.
    """
    options = {"client_options": dict(client), "retry_config": dict(retry)}
    if url.scheme == "s3":
        return _s3(url, options, region)
    return (_gs if url.scheme == "gs" else _web)(url, options)


def _web(url: ObjectURL, options: dict[str, Any]) -> list[Attempt]:
    def make() -> Any:
        from obstore.store import HTTPStore

        return HTTPStore.from_url(f"{url.scheme}://{url.user}{url.host}/{url.query}", **options)

    asked = "what the URL holds" if url.user or url.query else "no credentials"
    return [Attempt(asked, make)]


def s3_endpoint() -> str | None:
    """Return the URL of the S3 server that is asked instead of Amazon's, if somebody named one."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    named = next((os.environ[name] for name in names if os.environ.get(name)), None)
    return named or _profile().get("endpoint_url")


def _s3(url: ObjectURL, options: dict[str, Any], region: str | None) -> list[Attempt]:
    profile = _profile()
    config: dict[str, Any] = {}
    if region:
        config["region"] = region
    elif not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        config["region"] = profile.get("region", "us-east-1")
    if endpoint := s3_endpoint():
        config["endpoint"] = endpoint

    def make(**more: Any) -> Callable[[], Any]:
        def made() -> Any:
            from obstore.store import S3Store

            provider = more.pop("credential_provider", None)
            given = {"credential_provider": provider()} if provider else {}
            merged = {**options, **more.pop("options", {})}
            settings: Any = {**config, **more}
            return S3Store(url.host, config=settings, **given, **merged)

        return made

    found = []
    if os.environ.get("AWS_ACCESS_KEY_ID") or any(map(os.environ.get, _ROLES)):
        found.append(Attempt("the credentials in the environment", make()))
    elif "aws_access_key_id" in profile:
        keys = {
            "access_key_id": profile["aws_access_key_id"],
            "secret_access_key": profile.get("aws_secret_access_key", ""),
        }
        if token := profile.get("aws_session_token"):
            keys["session_token"] = token
        found.append(Attempt("the credentials of the profile", make(**keys)))
    elif profile and importlib.util.find_spec("boto3") is not None:
        # single sign-on, roles assumed through another profile, and the like
        found.append(Attempt("the profile", make(credential_provider=_boto3)))
    found.append(Attempt("no credentials", make(skip_signature="true")))
    if len(found) == 1:
        brief = {"retry_config": {**options["retry_config"], **_BRIEF}}
        found.append(Attempt("this machine's role", make(options=brief), doubtful=True))
    return found


def _boto3() -> Any:
    from obstore.auth.boto3 import Boto3CredentialProvider

    return Boto3CredentialProvider()


def _profile() -> dict[str, str]:
    """Return what the files of the AWS command line say of the profile that is in use.

    A file that is not one says nothing: the credentials may be elsewhere.
    """
    name = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    home = Path("~/.aws").expanduser()
    files = (
        (os.environ.get("AWS_CONFIG_FILE") or home / "config", f"profile {name}"),
        (os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials", name),
    )
    found: dict[str, str] = {}
    for file, section in files:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(Path(file).expanduser(), encoding="utf-8")
        except (configparser.Error, OSError, UnicodeError):
            continue
        for one in (section, name):
            if parser.has_section(one):
                found |= dict(parser.items(one))
    return found


def _gs(url: ObjectURL, options: dict[str, Any]) -> list[Attempt]:
    def make(**more: Any) -> Callable[[], Any]:
        def made() -> Any:
            from obstore.store import GCSStore

            merged = {**options, **more.pop("options", {})}
            settings: Any = more
            return GCSStore(url.host, config=settings, **merged)

        return made

    home = os.environ.get("APPDATA") or Path("~/.config").expanduser()
    user = Path(home, "gcloud", "application_default_credentials.json")
    found = []
    if any(map(os.environ.get, _ACCOUNTS)) or user.is_file():
        found.append(Attempt("the credentials of the environment", make()))
    found.append(Attempt("no credentials", make(skip_signature="true")))
    if len(found) == 1:
        brief = {"retry_config": {**options["retry_config"], **_BRIEF}}
        found.append(Attempt("this machine's role", make(options=brief), doubtful=True))
    return found
