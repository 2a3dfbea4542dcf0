"""The landing zone on a real S3 server: conditions, lost answers, big files, wrong settings."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from connector.config import LandingConfig
from connector.errors import FencedError, PreconditionError, TransientError
from connector.landing.format import manifest_path
from connector.landing.lease import AgentFigures, Lease, read_lease
from connector.landing.manifest_object import StoredManifest
from connector.landing.manifest_store import ManifestWriter, newest_manifest
from connector.store.factory import open_store
from connector.store.probe import probe
from connector.store.protocol import Store
from tests.support.landing.store_contract import a_manifest, replace_needs_the_version_that_is_there
from tests.support.servers.s3_proxy import S3Proxy
from tests.support.servers.s3_server import S3, S3Server, versitygw_path


def opened(s3: S3, monkeypatch: pytest.MonkeyPatch, prefix: str = "/landing", **changes: Any) -> Store:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    settings: dict[str, Any] = {"url": f"s3://{s3.bucket}{prefix}", "endpoint": s3.endpoint}
    return open_store(LandingConfig(**settings | changes), "shop")


@pytest.fixture
def store(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Store:
    return opened(s3, monkeypatch)


def test_the_probe_passes_and_leaves_nothing(store: Store) -> None:
    probe(store)
    assert list(store.list("")) == []


def test_objects_lie_under_prefix_and_source(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(s3, monkeypatch).put("schema/public.o%C3%A9/1.json", b"x")
    opened(s3, monkeypatch, prefix="").put("a", b"y")
    keys = [o["Key"] for o in s3.client().list_objects_v2(Bucket=s3.bucket)["Contents"]]
    assert keys == ["landing/shop/schema/public.o%C3%A9/1.json", "shop/a"]
    assert list(opened(s3, monkeypatch).list("")) == ["schema/public.o%C3%A9/1.json"]


def test_the_contract_of_reading_and_listing(store: Store) -> None:
    assert store.read("a/b") is None
    assert store.read_versioned("a/b") is None
    store.delete("a/b")
    for path in ("requests/b.json", "requests/a.json/part-0", "manifest/1/x", "manifest/2/y"):
        store.put(path, path.encode())
    assert list(store.list("requests/")) == ["requests/a.json/part-0", "requests/b.json"]
    assert list(store.folders("manifest")) == ["1", "2"]
    assert store.read("manifest/1/x") == b"manifest/1/x"


def test_more_than_a_thousand_objects_are_listed_and_are_removed_at_once(store: Store) -> None:
    """A list's answer, and a removal's request, has a thousand at most."""
    names = [f"data/{n:04} ä%20/x.parquet" for n in range(1005)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(name, b"x"), [*names, "data/kept/x.parquet"]))
    assert list(store.list("data/")) == [*names, "data/kept/x.parquet"]
    assert len(store.folders("data")) == 1006
    store.delete_all([*names, "data/never/there.parquet"])
    assert list(store.list("data/")) == ["data/kept/x.parquet"]


def test_of_many_creates_at_once_one_succeeds(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: store.create("a/b.json", str(n).encode()), range(8)))
    assert won.count(True) == 1
    assert store.read("a/b.json") == str(won.index(True)).encode()


def test_a_replace_needs_the_version_that_is_there(store: Store) -> None:
    replace_needs_the_version_that_is_there(store, '"0123456789abcdef0123456789abcdef"')


@pytest.mark.parametrize("mib", [1, 40])
def test_a_file_is_moved_into_the_store_whole(store: Store, mib: int) -> None:
    local = store.scratch / f"{uuid.uuid4().hex}.parquet"
    data = uuid.uuid4().bytes * (65_536 * mib)
    local.write_bytes(data)
    assert store.put_file("data/public.t/2026-01-01/f.parquet", local) == len(data)
    assert store.read("data/public.t/2026-01-01/f.parquet") == data
    assert not local.exists()


def test_manifests_are_committed_once(store: Store) -> None:
    assert newest_manifest(store) is None
    ManifestWriter(store).commit(a_manifest(999))
    newest = a_manifest(1000)
    ManifestWriter(store).commit(newest)
    assert newest_manifest(store) == newest
    with pytest.raises(FencedError, match="manifest 1000"):
        ManifestWriter(store).commit(a_manifest(1000))


def test_a_lease_is_kept_and_released(store: Store) -> None:
    lease = Lease.acquire(store, 15)
    lease.renew(AgentFigures(lag_seconds=1))
    with pytest.raises(FencedError):
        Lease.acquire(store, 15)
    lease.release()
    state = read_lease(store)
    assert state is not None
    assert state.released
    assert Lease.acquire(store, 15).term == 2


class LosesPuts(S3Proxy):
    """Drops the answers to the next `cuts_left` PUTs, which take effect."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.cuts_left = 0
        self.loses = self._is_cut

    def _is_cut(self, method: str, _path: str) -> bool:
        if method != "PUT" or not self.cuts_left:
            return False
        self.cuts_left -= 1
        return True


@contextmanager
def cutting(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LosesPuts, Store]]:
    with LosesPuts(s3.endpoint) as proxy:
        yield proxy, opened(s3, monkeypatch, endpoint=proxy.endpoint)


def test_a_commit_whose_answer_was_lost_is_ours(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with cutting(s3, monkeypatch) as (proxy, store):
        proxy.cuts_left = 1
        manifest = a_manifest(3)
        ManifestWriter(store).commit(manifest)
        assert proxy.cuts_left == 0
        assert newest_manifest(store) == manifest


def test_a_create_whose_answer_was_lost_is_refused_the_second_time(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cutting(s3, monkeypatch) as (proxy, store):
        proxy.cuts_left = 1
        assert store.create("a/b.json", b"ours") is False
        assert store.read("a/b.json") == b"ours"


def test_a_replace_whose_answer_was_lost_is_ours(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with cutting(s3, monkeypatch) as (proxy, store):
        first = store.replace("lease.json", b"one", None)
        proxy.cuts_left = 1
        second = store.replace("lease.json", b"two", first)
        assert second is not None
        assert store.replace("lease.json", b"three", second) is not None


def test_a_commit_of_which_every_answer_is_lost_is_in_doubt_and_can_be_repeated(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cutting(s3, monkeypatch) as (proxy, store):
        proxy.cuts_left = 100
        manifest = a_manifest(3)
        with pytest.raises(TransientError):
            ManifestWriter(store).commit(manifest)
        proxy.cuts_left = 0
        ManifestWriter(store).commit(manifest)
        assert store.read(manifest_path(3)) == StoredManifest.of(manifest).to_json()


@pytest.mark.skipif(versitygw_path() is None, reason="versitygw, which can ignore conditions, is not here")
def test_a_store_that_ignores_conditions_is_refused(
    servers_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = servers_folder / "s3-nometa"
    folder.mkdir()
    with S3Server(folder, kind="versitygw", honour_conditions=False) as server:
        store = opened(server.s3.with_bucket("test-nometa"), monkeypatch)
        with pytest.raises(PreconditionError, match="the store ignores conditional creates"):
            probe(store)
        assert list(store.list("")) == []


def test_a_missing_bucket_is_reported(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(s3, monkeypatch, url="s3://no-such-bucket/x")
    for call in (lambda: probe(store), lambda: newest_manifest(store)):
        with pytest.raises(PreconditionError, match="NoSuchBucket") as caught:
            call()
        assert "create the bucket" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_reported(s3: S3, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    opened(s3, monkeypatch)
    monkeypatch.setenv(name, "wrong")
    store = open_store(LandingConfig(url=f"s3://{s3.bucket}", endpoint=s3.endpoint), "shop")
    with pytest.raises(PreconditionError) as caught:
        probe(store)
    assert "AWS_" in str(caught.value.hint)
    assert s3.secret_key not in str(caught.value)


def test_missing_credentials_are_reported(s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = open_store(LandingConfig(url="s3://bucket/x", endpoint=s3.endpoint, region="us-east-1"), "shop")
    with pytest.raises(PreconditionError, match="unable to locate credentials") as caught:
        probe(store)
    assert "AWS_ACCESS_KEY_ID" in str(caught.value.hint)


def test_a_profile_that_does_not_exist_is_reported(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(PreconditionError, match="nobody"):
        open_store(LandingConfig(url="s3://bucket/x", endpoint=s3.endpoint), "shop")


def test_an_unreachable_store_may_come_back(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = opened(s3, monkeypatch, endpoint=f"http://127.0.0.1:{port}")
    with pytest.raises(TransientError, match="could not connect"):
        store.read("a")
