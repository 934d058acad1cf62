"""Object stores over HTTP on loopback: what is read, what is written, and what goes wrong."""

from __future__ import annotations

import gzip
import json
import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import numpy as np
import pytest
import tensorstore

import napari_materialize as nm
from buckets import CREDENTIALS, Proxy, Wrong, ask, plain_server, proxy_to, s3_server, use_server
from napari_materialize.errors import (
    AccessError,
    ChunkError,
    InputError,
    SourceError,
    StoreError,
    TargetError,
)
from napari_materialize.objects import Objects, Patience, is_object_url, parse_url
from napari_materialize.sources import places
from napari_materialize.stores import ObjectStore, open_store
from terminal import here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VOXELS = np.random.default_rng(7).integers(1, 250, (40, 32, 32), "u1")
"""No chunk of it is the fill value."""


def image() -> nm.View:
    """A view of them, 3 x 2 x 2 chunks."""
    return nm.open_view(VOXELS, chunks=(16, 16, 16))


BRIEF = Patience(retries=2, first_wait=0.01, longest_wait=0.02, silence=5)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An S3 server with a private bucket ``private`` and a public one ``public``."""
    with s3_server() as url:
        ask("PUT", f"{url}/private")
        ask("PUT", f"{url}/public", x_amz_acl="public-read")
        yield url


@pytest.fixture
def proxy(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before it, where a user with credentials finds S3."""
    with proxy_to(server) as found:
        use_server(monkeypatch, found.url, **CREDENTIALS)
        yield found


@pytest.fixture(scope="module")
def stored(server: str) -> str:
    """The URL of an image in the private bucket: 3 x 2 x 2 chunks, of which (2, 1, 1) is gone."""
    with pytest.MonkeyPatch.context() as patch:
        use_server(patch, server, **CREDENTIALS)
        url = "s3://private/source of all.zarr"
        nm.materialize(image(), url, compression=None)
        direct(server).delete_object(Bucket="private", Key="source of all.zarr/0/2/1/1")
    return url


def expected() -> np.ndarray:
    """What the stored image reads as."""
    voxels = VOXELS.copy()
    voxels[32:, 16:, 16:] = 0
    return voxels


def by_another(endpoint: str, bucket: str, path: str) -> np.ndarray:
    """Read an array with TensorStore."""
    kvstore = {"driver": "s3", "bucket": bucket, "endpoint": endpoint, "path": path}
    kvstore["aws_region"] = "us-east-1"
    store: Any = tensorstore.open({"driver": "zarr", "kvstore": kvstore}, read=True).result()
    return np.asarray(store.read().result())


def direct(server: str) -> Any:
    """Return a client that is not ours."""
    import boto3

    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    return boto3.client("s3", endpoint_url=server, region_name="us-east-1", **keys)


def document(server: str, path: str) -> dict[str, Any]:
    """Return a stored JSON document."""
    bucket, _, key = path.partition("/")
    body = direct(server).get_object(Bucket=bucket, Key=key)["Body"].read()
    found: dict[str, Any] = json.loads(body)
    return found


def make_public(server: str, prefix: str) -> None:
    """Let everybody read what is stored below a key of the public bucket."""
    client = direct(server)
    for entry in client.list_objects_v2(Bucket="public", Prefix=prefix)["Contents"]:
        client.put_object_acl(Bucket="public", Key=entry["Key"], ACL="public-read")


NO_URLS = [
    *("s3://", "http:///x", "s3://b/a//c", "s3://b/../c", "s3://b/a/.", "s3://b/a\\b", "s3://b/\0"),
    *("s3://k:s@b/x", "s3://b/x?secret=1", "http://h:port/x", "http://[::1/x", "gs://b//x"),
    "https://h/a#hidden",
]


class TestURLs:
    @pytest.mark.parametrize(
        ("text", "shown", "path"),
        [
            ("s3://bucket/a b/µ%20?.zarr"[:-6], "s3://bucket/a b/µ%20", "a b/µ%20"),
            ("S3://Bucket_1/a.zarr/", "s3://Bucket_1/a.zarr", "a.zarr"),
            ("gs://bucket", "gs://bucket", ""),
            ("https://me:pw@host:81/a%20b?x=1", "https://host:81/a b", "a b"),
            ("http://[::1]:80/x", "http://[::1]:80/x", "x"),
        ],
    )
    def test_parts(self, text: str, shown: str, path: str) -> None:
        url = parse_url(text)
        assert (url.text, url.path) == (shown, path)

    @pytest.mark.parametrize("text", NO_URLS)
    def test_what_is_none_is_refused_without_repeating_it(self, text: str) -> None:
        assert is_object_url(text)
        with pytest.raises(ValueError, match=r"^its? ") as caught:
            parse_url(text)
        assert "secret" not in str(caught.value)

    def test_nothing_shows_credentials(self) -> None:
        objects = Objects(parse_url("https://me:hidden@host/a?token=hidden"))
        for text in (repr(objects), str(objects), objects.place("a/b")):
            assert "hidden" not in text


class TestWriting:
    def test_a_result_reads_back_equal_elsewhere(self, proxy: Proxy) -> None:
        done = nm.materialize(image(), "s3://private/a b/out µ.zarr", compression="zstd")
        assert (done.written, done.failed) == (12, 0)
        read = by_another(proxy.url, "private", "a b/out µ.zarr/0/")
        np.testing.assert_array_equal(read, VOXELS)
        view = nm.open_view("s3://private/a b/out µ.zarr")
        with nm.Engine(slots=2) as engine:
            np.testing.assert_array_equal(engine.array(view, 0)[:], VOXELS)
        store = open_store("s3://private/a b/out µ.zarr")
        assert not any("napari-materialize-job" in key for key in store._keys(100))  # type: ignore[attr-defined]

    def test_one_request_in_five_fails(self, proxy: Proxy, server: str, stored: str) -> None:
        kinds = [Wrong(503), Wrong(500), Wrong(0), Wrong(429)]
        proxy.rule = lambda _m, _p, n: kinds[n // 5 % 4] if n % 5 == 4 else None
        done = nm.materialize(stored, "s3://private/five.zarr", compression=None)
        assert (done.written, done.skipped, done.failed) == (11, 1, 0)
        np.testing.assert_array_equal(by_another(server, "private", "five.zarr/0/"), expected())
        assert document(server, "private/five.zarr/.zattrs")["napari_materialize"]["status"] == (
            "complete"
        )

    def test_a_slow_server_is_asked_again(
        self, proxy: Proxy, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("napari_materialize.stores._objects.PATIENCE", BRIEF_AND_DEAF)
        never = threading.Event()
        silent = iter([Wrong(hang=never)] * 2)
        proxy.rule = lambda m, p, _: next(silent, None) if m == "PUT" and "/0/1/1" in p else None
        done = nm.materialize(image(), "s3://private/slow.zarr", compression=None)
        never.set()
        assert (done.written, done.failed) == (12, 0)
        np.testing.assert_array_equal(by_another(server, "private", "slow.zarr/0/"), VOXELS)

    @pytest.mark.parametrize(
        ("status", "told"), [(403, r"refuses it \(403\)"), (500, "answers 500")]
    )
    def test_a_chunk_that_cannot_be_put_is_named(
        self, proxy: Proxy, server: str, status: int, told: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("napari_materialize.stores._objects.PATIENCE", BRIEF)
        proxy.rule = lambda m, p, _: Wrong(status) if m == "PUT" and "/0/1/1/0" in p else None
        with pytest.raises(
            ChunkError, match=rf"\(1, 1, 0\).*s3://private/refused.*{told}"
        ) as caught:
            nm.materialize(image(), f"s3://private/refused{status}.zarr", compression=None)
        assert "hidden" not in repr(caught.value)
        record = document(server, f"private/refused{status}.zarr/.zattrs")["napari_materialize"]
        assert record["status"] == "failed"
        voxels = by_another(server, "private", f"refused{status}.zarr/0/")
        assert np.isin(voxels - VOXELS, 0).sum() + (voxels == 0).sum() == VOXELS.size
        proxy.rule = lambda *_: None
        done = nm.materialize(
            image(), f"s3://private/refused{status}b.zarr", compression=None, on_error="collect"
        )
        assert done.failed == 0

    def test_chunks_are_put_at_the_same_time(self, proxy: Proxy) -> None:
        two, waiting = threading.Event(), set()

        def rule(method: str, path: str, _: int) -> Wrong | None:
            if method != "PUT" or "/0/" not in path or "/." in path:
                return None
            waiting.add(path)
            if len(waiting) == 2:
                two.set()
            return Wrong(hang=two)

        proxy.rule = rule
        with nm.Engine(slots=4) as engine:
            view = image()
            done = engine.materialize(view, "s3://private/two.zarr", compression=None)
        assert done.written == 12
        assert two.is_set()
        assert proxy.most >= 2

    def test_a_place_is_taken_by_one_job(self, proxy: Proxy) -> None:
        one, other = (ObjectStore("s3://private/taken.zarr") for _ in range(2))
        one.begin()
        with pytest.raises(TargetError, match="another job writes there"):
            other.begin()
        one.put("0/0", b"a")
        one.end()
        with pytest.raises(TargetError, match="has written there meanwhile"):
            other.begin()
        with pytest.raises(TargetError, match="must be empty"):
            nm.materialize(image(), "s3://private/taken.zarr")
        assert one.get("0/0") == b"a"

    @pytest.mark.parametrize("url", ["s3://gone/out.zarr", "https://127.0.0.1:9/out.zarr"])
    def test_targets_that_are_refused(self, proxy: Proxy, url: str) -> None:
        with pytest.raises(InputError) as caught:
            nm.materialize(image(), url)
        assert "\n" not in str(caught.value)
        assert proxy.counts()["PUT"] == 0

    def test_the_source_is_no_target(self, proxy: Proxy, stored: str) -> None:
        view = nm.open_view(stored)
        for target in (stored, f"{stored}/out.zarr", "s3://private"):
            with pytest.raises(TargetError, match="must lie apart from the source"):
                nm.materialize(view, target)
        assert proxy.counts()["PUT"] == 0

    def test_a_bucket_that_is_not_there_is_no_success(self, proxy: Proxy) -> None:
        with pytest.raises(StoreError, match="there is no s3://gone"):
            ObjectStore("s3://gone/out.zarr").put("0", b"x")
        with pytest.raises(StoreError, match="there is no s3://gone"):
            ObjectStore("s3://gone/out.zarr").get("0")

    def test_a_store_goes_to_another_process(self, proxy: Proxy) -> None:
        again = pickle.loads(pickle.dumps(ObjectStore("s3://private/p.zarr", BRIEF)))
        again.put("0", b"voxels")
        assert ObjectStore("s3://private/p.zarr").get("0") == b"voxels"
        assert b"hidden" not in pickle.dumps(again)


BRIEF_AND_DEAF = Patience(retries=4, first_wait=0.01, longest_wait=0.02, silence=0.5)


class TestReading:
    def test_a_missing_chunk_is_the_fill_and_all_others_are_equal(
        self, proxy: Proxy, stored: str
    ) -> None:
        view = nm.open_view(stored)
        with nm.Engine(slots=2) as engine:
            np.testing.assert_array_equal(engine.array(view, 0)[:], expected())
        assert view.source.location == stored
        assert nm.open_view(f"{stored}/0").levels == view.levels

    @pytest.mark.parametrize(
        ("wrong", "told"),
        [
            (Wrong(403), r"refuses it \(403\)"),
            (Wrong(500), "answers 500"),
            (Wrong(0), "the connection broke"),
            (Wrong(after=1000), "the connection broke"),
        ],
        ids=["403", "500", "closed", "cut off"],
    )
    def test_what_cannot_be_read_is_never_written_as_zeros(
        self,
        proxy: Proxy,
        stored: str,
        wrong: Wrong,
        told: str,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        monkeypatch.setattr(places, "PATIENCE", BRIEF)
        view = nm.open_view(stored)
        proxy.rule = lambda _m, p, _n: wrong if "/0/1/0/1" in p else None
        with pytest.raises(ChunkError, match=rf"\(1, 0, 1\).*{told}"):
            nm.materialize(view, tmp_path / "raised.zarr")
        done = nm.materialize(view, tmp_path / "collected.zarr", on_error="collect")
        assert (done.written, done.skipped, done.failed) == (10, 1, 1)
        assert [failure.index for failure in done.failures] == [(1, 0, 1)]
        assert not (tmp_path / "collected.zarr/0/1/0/1").exists()

    def test_a_server_that_refuses_what_it_does_not_have(
        self, proxy: Proxy, stored: str, tmp_path: Path
    ) -> None:
        """As S3 does for whoever may not list: the image opens, a missing chunk is an error."""

        def rule(method: str, path: str, _: int) -> Wrong | None:
            if "list-type" in path:
                return Wrong(403)
            present = any(path.endswith(f"/{name}") for name in PRESENT)
            return None if present or method == "PUT" else Wrong(403)

        proxy.rule = rule
        view = nm.open_view(stored)
        assert view.levels[0].shape == VOXELS.shape
        with pytest.raises(ChunkError, match=r"\(2, 1, 1\).*refuses it \(403\)"):
            nm.materialize(view, tmp_path / "out.zarr")
        with pytest.raises(SourceError, match="the server refuses to say what is there"):
            nm.open_view("s3://private/nothing.zarr")

    def test_metadata_that_is_forbidden_is_not_taken_for_missing(
        self, proxy: Proxy, stored: str
    ) -> None:
        proxy.rule = lambda _m, p, _n: Wrong(403) if p.endswith(".zattrs") else None
        with pytest.raises(SourceError, match=r"\.zattrs failed: the server refuses it \(403\)"):
            nm.open_view(stored)

    @pytest.mark.parametrize(
        "options", [{}, {"format": "zarr3", "shards": (2, 2, 2)}, {"format": "n5"}]
    )
    def test_objects_that_http_alone_knows_to_be_gzip(
        self, proxy: Proxy, server: str, options: dict[str, Any]
    ) -> None:
        name = f"packed/{options.get('format', 'zarr2')}"
        nm.materialize(image(), f"s3://private/{name}", compression=None, **options)
        client = direct(server)
        for entry in client.list_objects_v2(Bucket="private", Prefix=f"{name}/")["Contents"]:
            where = {"Bucket": "private", "Key": entry["Key"]}
            data = gzip.compress(client.get_object(**where)["Body"].read())
            client.put_object(**where, Body=data, ContentEncoding="gzip")
        view = nm.open_view(f"s3://private/{name}")
        with nm.Engine(slots=2) as engine:
            np.testing.assert_array_equal(engine.array(view, 0)[:], VOXELS)

    @pytest.mark.parametrize(
        ("data", "told"),
        [
            (gzip.compress(bytes(2**24)), r"at most \d+ bytes are expected there, and the gzip"),
            (gzip.compress(bytes(16**3))[:-9], "which is damaged"),
            (b"\x1f\x8b" + bytes(30), "which is damaged"),
        ],
        ids=["too much", "cut off", "none"],
    )
    def test_such_gzip_is_not_trusted(
        self, proxy: Proxy, server: str, data: bytes, told: str
    ) -> None:
        nm.materialize(image(), "s3://private/bomb", compression=None, existing="overwrite")
        key = {"Bucket": "private", "Key": "bomb/0/1/0/1"}
        direct(server).put_object(**key, Body=data, ContentEncoding="gzip")
        view = nm.open_view("s3://private/bomb")
        with nm.Engine(slots=2) as engine, pytest.raises(ChunkError, match=told):
            engine.array(view, 0)[:]

    def test_a_list_that_is_cut_off_is_asked_for_again(self, proxy: Proxy, stored: str) -> None:
        whole = Objects(parse_url(stored)).sizes("source of all.zarr")
        cuts = iter([Wrong(after=400)] * 2)
        proxy.rule = lambda _m, p, _n: next(cuts, None) if "list-type" in p else None
        assert Objects(parse_url(stored), BRIEF).sizes("source of all.zarr") == whole
        assert len(whole) >= 11
        assert next(cuts, None) is None

    def test_an_image_that_ends_above_what_is_named_is_told(
        self, proxy: Proxy, stored: str
    ) -> None:
        """A server that lists nothing tells of no levels either."""
        proxy.rule = lambda _m, p, _n: Wrong(405) if "list-type" in p else None
        told = "source of all.zarr is there and can be opened"
        with pytest.raises(SourceError, match=told):
            nm.open_view(f"{stored}/.zattrs")

    def test_what_is_inside_a_bucket_is_told(self, proxy: Proxy, stored: str) -> None:
        with pytest.raises(SourceError, match=r"inside are .*source of all\.zarr"):
            nm.open_view("s3://private")
        with pytest.raises(SourceError, match="nothing is there"):
            nm.open_view("s3://private/nothing.zarr")
        with pytest.raises(SourceError, match=r"nothing is there; .*inside are 0: open one"):
            nm.open_view(f"{stored}/7")

    def test_a_source_that_is_written_again_in_mid_job_fails_it(
        self, proxy: Proxy, server: str, stored: str, tmp_path: Path
    ) -> None:
        nm.materialize(image(), "s3://private/again.zarr", compression=None)
        view = nm.open_view("s3://private/again.zarr")
        store = ObjectStore("s3://private/again.zarr")
        store.put("0/.zarray", (store.get("0/.zarray") or b"") + b" ")
        with pytest.raises(ChunkError, match="the source changed in mid-job"):
            nm.materialize(view, tmp_path / "out.zarr")


PRESENT = [".zgroup", ".zattrs", ".zarray", *(f"0/{z}/{y}/{x}" for z in range(3) for y in (0, 1)
           for x in (0, 1) if (z, y, x) != (2, 1, 1))]  # fmt: skip


class TestCredentials:
    def test_what_the_environment_has_is_used_and_nowhere_told(
        self, proxy: Proxy, server: str, stored: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        nm.open_view(stored)
        assert all("AKIAHIDDEN" in headers["Authorization"] for headers in proxy.headers)
        ended = here(capfd, "run", stored, "s3://private/told.zarr", "--json")
        assert ended.code == 0, ended
        assert ended.result["target"] == "s3://private/told.zarr"
        told = json.dumps(document(server, "private/told.zarr/.zattrs"))
        for secret in ("HIDDEN", "hidden"):
            assert secret not in told + ended.out + ended.err

    def test_a_public_image_opens_without_and_with_useless_ones(
        self, proxy: Proxy, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nm.materialize(image(), "s3://public/open.zarr", compression=None)
        make_public(server, "open.zarr")
        proxy.rule = lambda _m, _p, n: Wrong(403) if proxy.headers[n].get("Authorization") else None
        view = nm.open_view("s3://public/open.zarr")
        with nm.Engine(slots=2) as engine:
            np.testing.assert_array_equal(engine.array(view, 0)[:], VOXELS)
        for name in CREDENTIALS:
            monkeypatch.delenv(name)
        before = len(proxy.asked)
        nm.open_view("s3://public/open.zarr")
        assert not any("Authorization" in headers for headers in proxy.headers[before:])

    def test_the_profile_of_the_command_line_is_read(
        self, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stored: str
    ) -> None:
        for name in CREDENTIALS:
            monkeypatch.delenv(name)
        keys = "[lab]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = hidden\n"
        (tmp_path / "credentials").write_text(keys)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_PROFILE", "lab")
        nm.open_view(stored)
        assert "AKIAPROFILE" in proxy.headers[-1]["Authorization"]

    def test_who_is_let_in_nowhere_is_told_how_it_was_asked(self, proxy: Proxy) -> None:
        proxy.rule = lambda *_: Wrong(403)
        with pytest.raises(AccessError, match="the environment, then no credentials") as caught:
            ObjectStore("s3://private/x").get("0")
        assert "hidden" not in str(caught.value)


class TestRegion:
    """A bucket in another region than the environment says, or than the first one there was."""

    MALFORMED = (
        b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is wrong"
        b"</Message></Error>"
    )

    @staticmethod
    def elsewhere(proxy: Proxy, wrong: Wrong, told: dict[str, str]) -> None:
        """Let the buckets of a proxy be in the region ``eu-west-3``, as Amazon has it."""

        def rule(method: str, _path: str, number: int) -> Wrong | None:
            asked = proxy.headers[number].get("Authorization")
            if asked is None and method == "HEAD":
                return Wrong(403, headers=told)
            return None if asked is not None and "/eu-west-3/s3/" in asked else wrong

        proxy.rule = rule

    @pytest.mark.parametrize("wrong", [Wrong(301), Wrong(400, body=MALFORMED)])
    @pytest.mark.parametrize("named", ["us-east-1", None])
    def test_it_is_found_out_by_one_request(
        self,
        proxy: Proxy,
        stored: str,
        monkeypatch: pytest.MonkeyPatch,
        wrong: Wrong,
        named: str | None,
    ) -> None:
        if named is None:
            monkeypatch.delenv("AWS_REGION")
            monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
        self.elsewhere(proxy, wrong, {"x-amz-bucket-region": "eu-west-3"})
        view = nm.open_view(stored)
        with nm.Engine(slots=2) as engine:
            np.testing.assert_array_equal(engine.array(view, 0)[:], expected())
        unsigned = [n for n, each in enumerate(proxy.headers) if "Authorization" not in each]
        assert [proxy.asked[n] for n in unsigned] == [("HEAD", "/private")]

    def test_writing_finds_it_too(self, proxy: Proxy, server: str) -> None:
        self.elsewhere(proxy, Wrong(301), {"x-amz-bucket-region": "eu-west-3"})
        done = nm.materialize(image(), "s3://private/moved.zarr", compression=None)
        assert done.written == done.chunks
        proxy.rule = lambda *_: None
        np.testing.assert_array_equal(by_another(server, "private", "moved.zarr/0/"), VOXELS)

    @pytest.mark.parametrize("told", [{}, {"x-amz-bucket-region": "no such/region?"}])
    def test_a_server_that_does_not_say_is_told_what_to_set(
        self, proxy: Proxy, stored: str, told: dict[str, str]
    ) -> None:
        self.elsewhere(proxy, Wrong(301), told)
        with pytest.raises(SourceError, match="AWS_REGION"):
            nm.open_view(stored)
        assert proxy.counts()["HEAD"] == 1


class TestWeb:
    def test_a_query_is_sent_and_never_told(
        self, proxy: Proxy, server: str, tmp_path: Path
    ) -> None:
        nm.materialize(image(), "s3://public/web/in a.zarr", compression=None)
        make_public(server, "web/")
        before = len(proxy.asked)
        view = nm.open_view(f"{proxy.url}/public/web/in%20a.zarr?token=hidden")
        assert view.source.location == f"{proxy.url}/public/web/in a.zarr"
        done = nm.materialize(view, tmp_path / "out.zarr")
        assert (done.written, done.failed) == (12, 0)
        assert all("token=hidden" in path for _, path in proxy.asked[before:])
        told = "".join(path.read_text() for path in tmp_path.rglob(".z*"))
        assert "hidden" not in told + repr(view)
        assert "web/in a.zarr" in told

    def test_what_a_group_names_is_told_where_nothing_is_listed(
        self, proxy: Proxy, server: str
    ) -> None:
        nm.materialize(image(), "s3://private/web/0", compression=None)
        store = ObjectStore("s3://private/web")
        store.put(".zgroup", b'{"zarr_format": 2}')
        store.put(".zattrs", b'{"bioformats2raw.layout": 3}')
        proxy.rule = lambda _m, p, _n: Wrong(405) if "list-type" in p else None
        with pytest.raises(
            SourceError, match="a series of images and is none itself; inside are 0:"
        ):
            nm.open_view("s3://private/web")

    @pytest.mark.parametrize(
        ("url", "told"),
        [
            ("http://127.0.0.1:9/a.zarr", "the server cannot be reached"),
            ("http://nowhere.invalid/a.zarr", "no server of that name|cannot be reached"),
        ],
    )
    def test_servers_that_are_not_there(
        self, url: str, told: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(places, "PATIENCE", BRIEF)
        with pytest.raises(SourceError, match=told):
            nm.open_view(url)


def test_google_storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with plain_server() as (url, files):
        account = {"gcs_base_url": url, "disable_oauth": True, "client_email": ""}
        account |= {"private_key": "", "private_key_id": ""}
        (tmp_path / "account.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
        store = ObjectStore("gs://bucket/from google.zarr")
        store.put("0/0/0", b"voxels")
        assert store.get("0/0/0") == b"voxels"
        assert store.get("0/0/1") is None
        assert [unquote(path) for path in files] == ["/bucket/from google.zarr/0/0/0"]
        target = nm.MemoryStore()
        nm.materialize(image(), target)
        files |= {quote(f"/bucket/image.zarr/{path}"): data for path, data in target.files.items()}
        view = nm.open_view("gs://bucket/image.zarr")
        with nm.Engine(slots=2) as engine:
            np.testing.assert_array_equal(engine.array(view, 0)[:], VOXELS)
        assert view.source.location == "gs://bucket/image.zarr"


def test_nothing_is_loaded_before_a_url_is_used() -> None:
    code = (
        "import sys, napari_materialize.sources.stored, napari_materialize.stores;"
        "print('obstore' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
