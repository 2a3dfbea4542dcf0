"""The store's contract, on a local folder and in memory; the commit, the newest manifest, the probe."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from connector.errors import BugError, FencedError, FormatError, PreconditionError, TransientError
from connector.landing.consumers import Consumer, read_consumers, record_path
from connector.landing.format import manifest_path
from connector.landing.manifest_store import ManifestWriter, newest_manifest, read_manifest
from connector.landing.requests import DumpRequest, Malformed, read_pending, submit
from connector.store.local import LocalStore
from connector.store.probe import probe
from connector.store.protocol import Store
from connector.testing.memory_store import MemoryStore
from tests.support.landing.store_contract import a_manifest, replace_needs_the_version_that_is_there


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path / "landing" / "shop") if request.param == "local" else MemoryStore()


def test_an_object_is_read_as_it_was_put(store: Store) -> None:
    store.put("schema/public.o%C3%A9/1.json", b"one")
    store.put("schema/public.o%C3%A9/1.json", b"two")
    assert store.read("schema/public.o%C3%A9/1.json") == b"two"
    assert store.read("schema/public.o%C3%A9/2.json") is None


def test_only_the_first_create_of_a_path_succeeds(store: Store) -> None:
    assert store.create("a/b.json", b"one")
    assert not store.create("a/b.json", b"two")
    assert store.read("a/b.json") == b"one"


def test_of_many_creates_at_once_one_succeeds(store: Store) -> None:
    won: list[int] = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait()
        if store.create("a/b.json", str(number).encode()):
            won.append(number)

    run_together(create, 8)
    assert len(won) == 1
    assert store.read("a/b.json") == str(won[0]).encode()


def test_of_many_replaces_at_once_none_is_lost(store: Store) -> None:
    store.put("count", b"0")
    barrier = threading.Barrier(4)

    def count(_: int) -> None:
        barrier.wait()
        for _ in range(20):
            while True:
                found = store.read_versioned("count")
                assert found is not None
                if store.replace("count", str(int(found[0]) + 1).encode(), found[1]):
                    break

    run_together(count, 4)
    assert store.read("count") == b"80"


def run_together(work: Callable[[int], None], times: int) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


def test_a_replace_needs_the_version_that_is_there(store: Store) -> None:
    replace_needs_the_version_that_is_there(store, "no such version")


def test_a_list_is_in_order_and_goes_into_folders(store: Store) -> None:
    for path in ("requests/b.json", "requests/a.json/part-0", "requestsx", "manifest/000000000001/1"):
        store.put(path, b"")
    assert list(store.list("requests/")) == ["requests/a.json/part-0", "requests/b.json"]
    assert list(store.list("requests/b")) == ["requests/b.json"]
    assert list(store.list("")) == sorted(store.list(""))
    assert len(list(store.list(""))) == 4
    assert list(store.list("nothing/")) == []


def test_folders_are_those_right_below(store: Store) -> None:
    for path in ("manifest/2/a", "manifest/1/b/c", "manifest/x", "manifests/3/d"):
        store.put(path, b"")
    assert list(store.folders("manifest")) == ["1", "2"]
    assert list(store.folders("nothing")) == []


def test_deleting_what_is_not_there_does_nothing(store: Store) -> None:
    store.put("a/b", b"")
    store.delete("a/b")
    store.delete("a/b")
    store.delete("c/d")
    assert store.read("a/b") is None


def test_a_file_is_moved_into_the_store(store: Store) -> None:
    local = store.scratch / "file.parquet"
    local.write_bytes(b"rows")
    assert store.put_file("data/public.t/2026-01-01/file.parquet", local) == 4
    assert store.read("data/public.t/2026-01-01/file.parquet") == b"rows"
    assert not local.exists()


def test_threads_that_begin_at_once_share_one_scratch_folder(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tempfile.TemporaryDirectory

    def slowly(**settings: Any) -> tempfile.TemporaryDirectory[str]:
        time.sleep(0.05)
        return made(**settings)

    monkeypatch.setattr(tempfile, "TemporaryDirectory", slowly)
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: store.scratch, range(4)))
    assert len(set(folders)) == 1
    assert folders[0].is_dir()


def test_files_in_the_making_are_not_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (store.scratch / "half.parquet").write_bytes(b"ro")
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests" / ".r.json.tmp").write_bytes(b"{")
    assert list(store.list("")) == []
    assert list(store.list("requests/")) == []


def test_scratch_files_of_a_killed_process_go_after_a_day_and_others_stay(tmp_path: Path) -> None:
    scratch = LocalStore(tmp_path).scratch
    for name, age in (("old.parquet", 90_000), ("new.parquet", 10)):
        (scratch / name).write_bytes(b"")
        os.utime(scratch / name, (time.time() - age,) * 2)
    assert [file.name for file in LocalStore(tmp_path).scratch.iterdir()] == ["new.parquet"]


def test_a_crash_between_write_and_link_leaves_nothing_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", crash)
        with pytest.raises(KeyboardInterrupt):
            store.create("a/b", b"x")
    assert list(store.list("")) == []
    assert store.create("a/b", b"y")


def test_what_a_store_leaves_besides_objects_does_not_grow(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    probe(store)
    probe(store)
    assert [p for p in tmp_path.rglob("*") if p.is_symlink() or not p.is_dir()] == []


@pytest.mark.parametrize("path", ["../a", "a/../b", "/a", "a//b", ".a", "a/.b"])
def test_a_path_out_of_the_store_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(BugError):
        LocalStore(tmp_path).put(path, b"")


def test_a_folder_that_is_a_file_is_a_precondition_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreconditionError) as caught:
        probe(LocalStore(tmp_path / "file" / "shop"))
    assert str(tmp_path / "file") in str(caught.value)
    assert caught.value.hint


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable_is_a_precondition(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(PreconditionError, match="permission denied"):
        probe(LocalStore(tmp_path / "shop"))


def test_a_full_disk_may_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TransientError, match="no space left"):
        LocalStore(tmp_path).put("a", b"x")


def test_the_newest_manifest_is_found_in_few_requests() -> None:
    store = MemoryStore()
    assert newest_manifest(store) is None
    for number in range(0, 100_000, 7):
        store.objects[manifest_path(number)] = b"{}"
    ManifestWriter(store).commit(a_manifest(100_001))
    store.calls.clear()
    newest = newest_manifest(store)
    assert newest is not None
    assert newest.number == 100_001
    assert len(store.calls) == 3


def test_the_newest_manifest_overlooks_other_objects_and_empty_folders(store: Store) -> None:
    ManifestWriter(store).commit(a_manifest(7))
    store.put("manifest/000000000009/notes.txt", b"")
    newest = newest_manifest(store)
    assert newest is not None
    assert newest.number == 7


def test_a_manifest_that_is_none_is_an_error_with_its_name(store: Store) -> None:
    store.put(manifest_path(1), b'{"format": 999}')
    with pytest.raises(FormatError, match=r"000000000000001.json has format 999"):
        read_manifest(store, 1)


def test_a_second_commit_of_a_number_is_fenced(store: Store) -> None:
    first = a_manifest(5)
    ManifestWriter(store).commit(first)
    with pytest.raises(FencedError, match=r"manifest 5 was committed by another agent \(its term is 3"):
        ManifestWriter(store).commit(a_manifest(5))
    assert read_manifest(store, 5) == first


def test_a_commit_whose_answer_was_lost_is_ours() -> None:
    store, manifest = MemoryStore(), a_manifest(5)
    store.fail("create", "manifest/", when="after")
    ManifestWriter(store).commit(manifest)
    assert read_manifest(store, 5) == manifest


def test_a_commit_that_failed_before_it_was_written_is_tried_again() -> None:
    store, manifest = MemoryStore(), a_manifest(5)
    store.fail("create", "manifest/", when="before")
    ManifestWriter(store).commit(manifest)
    assert read_manifest(store, 5) == manifest


def test_a_commit_that_fails_in_doubt_can_be_repeated() -> None:
    store, manifest = MemoryStore(), a_manifest(5)
    store.fail("create", "manifest/", when="after", times=2)
    with pytest.raises(TransientError):
        ManifestWriter(store).commit(manifest)
    ManifestWriter(store).commit(manifest)


def test_a_commit_that_lost_its_answer_and_the_race_is_fenced() -> None:
    store = MemoryStore()
    ManifestWriter(store).commit(a_manifest(5))
    store.fail("create", "manifest/", when="before")
    with pytest.raises(FencedError):
        ManifestWriter(store).commit(a_manifest(5))


def test_the_probe_leaves_nothing(store: Store) -> None:
    probe(store)
    assert list(store.list("")) == []


def test_what_a_killed_probe_left_goes_with_the_next(store: Store) -> None:
    store.put("probe/left.json", b"first")
    probe(store)
    assert list(store.list("")) == []


def test_a_probe_that_fails_on_the_way_leaves_nothing_in_the_end() -> None:
    for operation in ("create", "read", "replace", "list", "delete"):
        for when in ("before", "after"):
            store = MemoryStore()
            store.fail(operation, "probe/", when=when)
            with suppress(TransientError):
                probe(store)
            probe(store)
            assert store.objects == {}, (operation, when)


def test_probes_at_the_same_time_find_the_store_fit(store: Store) -> None:
    """Each removes what it takes for another's leftover."""
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            for done in [pool.submit(probe, store) for _ in range(2)]:
                done.result()
    assert list(store.list("")) == []


@pytest.mark.parametrize("kind", ["link", "dangling", "loop", "pipe", "socket", "folder", "linked folder"])
def test_what_is_no_file_is_refused_and_neither_followed_nor_waited_for(tmp_path: Path, kind: str) -> None:
    store = LocalStore(tmp_path / "shop")
    store.put("requests/real.json", b"real")
    (tmp_path / "secret").write_text("secret")
    odd, path = tmp_path / "shop" / "requests" / "odd.json", "requests/odd.json"
    if kind == "link":
        odd.symlink_to(tmp_path / "secret")
    elif kind == "dangling":
        odd.symlink_to(tmp_path / "nothing")
    elif kind == "loop":
        odd.symlink_to(odd)
    elif kind == "pipe":
        os.mkfifo(odd)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(odd))
    elif kind == "folder":
        odd.mkdir()
    else:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "part").write_text("secret")
        odd.symlink_to(tmp_path / "elsewhere")
        path += "/part"
    with pytest.raises(PreconditionError):
        store.read(path)
    if kind == "linked folder":
        with pytest.raises(PreconditionError):
            store.delete(path)
        assert (tmp_path / "elsewhere" / "part").exists()
    elif kind != "folder":
        store.delete(path)
        assert (tmp_path / "secret").exists()
        assert list(store.list("")) == ["requests/real.json"]


def refuse_to_list(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int) -> None:
    """Let the system answer with an error whenever this folder is listed."""
    scandir = os.scandir

    def refusing(path: str) -> Any:
        if Path(path) == folder:
            raise OSError(number, os.strerror(number), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)


UNLISTED = [
    (errno.EACCES, PreconditionError),
    (errno.EIO, TransientError),
    (errno.EMFILE, TransientError),
]


@pytest.mark.parametrize(("number", "error"), UNLISTED)
def test_a_folder_that_cannot_be_listed_does_not_pass_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    store = LocalStore(tmp_path)
    ManifestWriter(store).commit(a_manifest(7))
    refuse_to_list(monkeypatch, (tmp_path / manifest_path(7)).parent, number)
    with pytest.raises(error):
        newest_manifest(store)


@pytest.mark.parametrize(("number", "error"), UNLISTED)
def test_a_consumer_whose_folder_cannot_be_listed_is_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    """Else retention would remove what it has yet to merge."""
    store = LocalStore(tmp_path)
    lake = Consumer(id="lake", lake="s3a://lake", manifest=7, at=datetime.now(timezone.utc))
    store.put(record_path("lake", "0"), lake.model_dump_json().encode())
    assert read_consumers(store) == [lake]
    refuse_to_list(monkeypatch, tmp_path / "consumers" / "lake", number)
    with pytest.raises(error):
        read_consumers(store)


def test_a_request_whose_folder_may_not_be_listed_is_refused_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, request = LocalStore(tmp_path), DumpRequest(tables=["public.orders"])
    submit(store, request)
    store.put("requests/0.json/part-0", b"{}")
    refuse_to_list(monkeypatch, tmp_path / "requests" / "0.json", errno.EACCES)
    refused, read = read_pending(store)
    assert isinstance(refused, Malformed)
    assert read == request


def test_a_folder_that_is_removed_while_it_is_listed_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put("requests/a.json/part-0", b"")
    store.put("requests/b.json", b"")
    refuse_to_list(monkeypatch, tmp_path / "requests" / "a.json", errno.ENOENT)
    assert list(store.list("requests/")) == ["requests/b.json"]


def test_no_more_is_read_than_the_limit(store: Store) -> None:
    store.put("a.json", b"12345")
    assert store.read("a.json", 5) == b"12345"
    with pytest.raises(PreconditionError, match="more than 4 bytes"):
        store.read("a.json", 4)


class _IgnoresCreates(MemoryStore):
    def create(self, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True


class _IgnoresVersions(MemoryStore):
    def replace(self, path: str, data: bytes, version: str | None) -> str | None:
        return super().replace(path, data, str(self._versions[path]))


class _LosesCreatesButWrites(MemoryStore):
    def create(self, path: str, data: bytes) -> bool:
        new = path not in self.objects
        self.put(path, data)
        return new


@pytest.mark.parametrize(
    ("unfit", "what"),
    [
        (_IgnoresCreates(), "conditional creates"),
        (_LosesCreatesButWrites(), "conditional creates"),
        (_IgnoresVersions(), "conditional replaces"),
    ],
)
def test_a_store_that_ignores_conditions_is_refused(unfit: MemoryStore, what: str) -> None:
    with pytest.raises(PreconditionError, match=f"ignores {what}") as caught:
        probe(unfit)
    assert caught.value.hint
    assert unfit.objects == {}
