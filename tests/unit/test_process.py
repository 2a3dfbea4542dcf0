"""Whether a process that is named by its identity still lives."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from connector import process
from connector.process import ProcessIdentity, _start_of
from tests.support.waiting import wait_until


def test_a_process_is_told_from_those_that_have_its_number_later_or_elsewhere() -> None:
    own = ProcessIdentity.own()
    assert (own.lives, own.is_gone) == (True, False)
    later, elsewhere = replace(own, start="1"), replace(own, machine="db-2/boot/pid")
    assert (later.lives, later.is_gone) == (False, True)
    for doubtful in (elsewhere, replace(elsewhere, pid=2**22 + 1), replace(own, machine=None)):
        assert (doubtful.lives, doubtful.is_gone) == (False, False)


def test_a_process_that_is_dead_but_not_reaped_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        identity = replace(ProcessIdentity.own(), pid=child.pid, start=_start_of(child.pid))
        assert (identity.lives, identity.is_gone) == (True, False)
        child.kill()
        wait_until(lambda: identity.is_gone, "a zombie does not live")
        assert not identity.lives
    finally:
        child.wait()


def test_a_name_that_is_cut_amid_a_character_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Linux keeps 15 bytes of it."""
    stat = tmp_path / "stat"
    stat.write_bytes(b"7 (loesch-dienst-\xc3) S " + b" ".join(b"%d" % n for n in range(30)))
    monkeypatch.setattr(process, "Path", lambda _: stat)
    assert process._start_of(7) == "18"


def test_nothing_is_known_where_proc_shows_the_processes_of_another_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after `unshare --pid --fork`: whoever has this number there may start, or end, at any time."""
    own = ProcessIdentity.own()
    monkeypatch.setattr(process.os, "getpid", lambda: 1)
    assert ProcessIdentity.own().machine is None
    for doubtful in (own, replace(own, pid=1), replace(own, start="1")):
        assert (doubtful.lives, doubtful.is_gone) == (False, False)
