"""Replacing a file of a local landing zone: whatever processes are paused or killed in the middle of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from connector.errors import TransientError
from connector.store import compare_and_swap
from connector.store.local import LocalStore

COUNT = """
import sys
from pathlib import Path
from connector.errors import TransientError
from connector.store import compare_and_swap
from connector.store.local import LocalStore

compare_and_swap.CLAIM_SECONDS = 0.002
store, name, done = LocalStore(sys.argv[1]), sys.argv[2], 0
while done < 60:
    data, version = store.read_versioned("count") or (b"", None)
    try:
        done += store.replace("count", data + f"{name}\\n".encode(), version) is not None
    except TransientError:
        pass
print(done)
"""


class Paused:
    """A thread that replaces an object and stops before or after one call of the operating system."""

    def __init__(self, replace: Callable[[], str | None]) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.result: str | BaseException | None = None
        self._replace = replace
        self.thread = threading.Thread(target=self._run)

    def hold(self) -> None:
        """Wait for `go_on`, if called in the thread, and only the first time."""
        if threading.current_thread() is self.thread and not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(10)

    def _run(self) -> None:
        try:
            self.result = self._replace()
        except TransientError as error:
            self.result = error


@contextmanager
def paused(store: LocalStore, version: str, call: str, after: bool) -> Iterator[Paused]:
    """Replace the object `count`, and stop at a call until `go_on`; it has ended at the end."""
    one = Paused(lambda: store.replace("count", b"paused", version))
    original: Callable[..., Any] = getattr(os, call)

    def stop(*args: Any, **kwargs: Any) -> Any:
        if not after:
            one.hold()
        answer = original(*args, **kwargs)
        if after:
            one.hold()
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, call, stop)
        one.thread.start()
        assert one.reached.wait(10)
        yield one
        one.go_on.set()
        one.thread.join(10)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_and_swap, "CLAIM_SECONDS", 0.05)


@pytest.mark.parametrize(("call", "after"), [("symlink", False), ("symlink", True), ("replace", False)])
def test_a_process_that_is_paused_before_it_has_replaced_keeps_nobody_from_it_and_changes_nothing_later(
    tmp_path: Path, call: str, after: bool
) -> None:
    store = LocalStore(tmp_path)
    version = store.replace("count", b"0", None)
    assert version
    with paused(store, version, call, after) as one:
        second = store.replace("count", b"1", version)
        assert second
        assert store.read("count") == b"1"
        one.go_on.set()
        one.thread.join(10)
        assert one.result is None
        assert store.read("count") == b"1"
    assert store.replace("count", b"2", second)
    assert left(tmp_path) == [tmp_path / "count"]


def test_a_process_that_is_paused_just_after_it_has_replaced_keeps_nobody_from_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    version = store.replace("count", b"0", None)
    assert version
    with paused(store, version, "replace", after=True) as one:
        data, theirs = store.read_versioned("count") or (b"", "")
        assert data == b"paused"
        assert store.replace("count", b"1", version) is None
        assert store.replace("count", b"2", theirs)
    assert one.result == theirs
    assert store.read("count") == b"2"
    assert left(tmp_path) == [tmp_path / "count"]


def test_whoever_was_taken_for_paused_by_one_that_then_changed_nothing_is_told_to_try_again(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path)
    version = store.replace("count", b"0", None)
    assert version
    with paused(store, version, "replace", after=False) as one:
        with paused(store, version, "replace", after=False) as other:
            assert store.read("count") == b"0"
            one.go_on.set()
            one.thread.join(10)
            assert isinstance(one.result, TransientError)
            assert store.read("count") == b"0"
        assert other.result
        assert store.read("count") == b"paused"


def test_what_a_killed_process_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    version = store.replace("count", b"0", None)
    for call in ("symlink", "replace", "unlink"):

        def kill(*args: Any, _original: Any = getattr(os, call), **kwargs: Any) -> None:
            _original(*args, **kwargs)
            os._exit(9)

        if (child := os.fork()) == 0:
            try:
                setattr(os, call, kill)
                store.replace("count", call.encode(), version)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        _, version = store.read_versioned("count") or (b"", None)
        version = store.replace("count", f"after {call}".encode(), version)
        assert version
        assert left(tmp_path) == [tmp_path / "count"], call


def test_no_replace_is_lost_amid_processes_that_are_paused_at_random(tmp_path: Path) -> None:
    """Each appends its name to one object 60 times; waits are so short that the slow count as paused."""
    command = [sys.executable, "-c", COUNT, str(tmp_path)]
    running = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in "abc"]
    random = Random(5)
    try:
        deadline = time.monotonic() + 60
        while any(one.poll() is None for one in running) and time.monotonic() < deadline:
            one = random.choice(running)
            if one.poll() is None:
                one.send_signal(signal.SIGSTOP)
                time.sleep(random.uniform(0, 0.03))
                one.send_signal(signal.SIGCONT)
    finally:
        for one in running:
            if one.poll() is None:
                one.kill()
        said = [one.communicate()[0] for one in running]
    assert said == ["60\n"] * 3
    counted = (tmp_path / "count").read_text().split()
    assert [counted.count(name) for name in "abc"] == [60] * 3
    assert [path.name for path in left(tmp_path)] == ["count"]


def left(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
