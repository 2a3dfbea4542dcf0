"""Names, values and errors of others on a terminal: shown as they are, never obeyed."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from connector.cli import agent as commands
from connector.cli import dumps as dump_commands
from connector.cli.dumps import parse_keys
from connector.cli.printing import escape, fail, log_to_stderr, show_error, visible
from connector.control.status import LakeStatus, Status, TableStatus, VerifiedStatus
from connector.errors import RequestError
from connector.landing.lease import AgentFigures
from connector.landing.manifest import DumpState
from connector.schema import TableName

ODD = [
    "[red]x[/]",
    "[/]",
    "[/red]",
    "a\\",
    "\\[red]",
    "[link=http://x]y",
    ":smile:",
    "\x1b[31mred\x9b2J",
    "a\nb\r\tc",
]
ODD += ["\u202eright to left", "\ud800", "[@click=app.bell]z[/]", "é漢", "[bold", "]", "[[]]"]


@given(st.text() | st.sampled_from(ODD))
def test_any_text_is_shown_as_it_is(text: str) -> None:
    shown = Text.from_markup(escape(text) + "[b]x[/b]", emoji=False).plain
    assert shown == visible(text) + "x"
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in shown)


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def printed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    file = io.StringIO()
    width = 80 if request.param else 240
    console = Console(
        file=file, force_terminal=request.param, width=width, soft_wrap=True, highlight=False, emoji=False
    )
    for module in (commands, dump_commands):
        monkeypatch.setattr(module, "out", console)
    return file


@pytest.mark.parametrize("odd", ODD)
def test_dumps_and_status_show_odd_names_within_the_line(odd: str, printed: io.StringIO) -> None:
    table = TableName("public", odd)
    state = DumpState(
        id=f"20261121T100000-{odd}", number=1, table=table, kind="where", where=odd, state="failed",
        error=f"public.t: syntax error at or near {odd} " + "and so on " * 20, epoch=1,
        requested_at=datetime.now(timezone.utc), started_in=1,
    )  # fmt: skip
    dump_commands.print_dumps([state])
    commands.print_status(status_of(table, odd))
    text = Text.from_ansi(printed.getvalue()).plain
    assert max(map(len, text.splitlines())) <= printed_width(printed)
    squeezed = "".join(text.split())
    assert "".join(visible(odd).split()) in squeezed
    assert "\x1b" not in text


def printed_width(printed: io.StringIO) -> int:
    return 80 if "\x1b" in printed.getvalue() else 240


def status_of(table: TableName, odd: str) -> Status:
    return Status(
        source=odd, agent=odd, figures=AgentFigures(lag_seconds=3.2, lag_bytes=1, at=0.0),
        manifest=1, position=odd, epoch=1,
        committed_at=datetime.now(timezone.utc), source_committed_at=None, exact=False, gaps=0,
        tables={str(table): TableStatus("quarantined", True, 0, odd * 9, f"do {odd}")},
        lakes=[LakeStatus(odd, 1, datetime.now(timezone.utc), {odd: odd})],
        verified=[VerifiedStatus(odd, None, 2, 0.5, None, 1, {odd: 3})],
    )  # fmt: skip


@contextmanager
def logged(*, as_json: bool = False) -> Iterator[logging.Logger]:
    """A logger as a command's, without pytest's handlers."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        log_to_stderr(verbose=False, as_json=as_json)
        yield logging.getLogger("x")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_a_log_line_is_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with logged() as log:
        log.warning("rejected request %s", "a\n12:00:00 ERROR forged\x1b[2J")
    (line,) = capsys.readouterr().err.splitlines()
    assert "\x1b" not in line
    assert "\\n12:00:00" in line


def test_a_log_of_json_has_an_object_per_line_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with logged(as_json=True) as log:
        log.debug("not logged")
        log.warning("rejected request %s", "a\n\x1b[2J \u2028\ud800")
        try:
            raise ValueError("of ours")
        except ValueError:
            log.exception("a bug")
    rejected, bug = map(json.loads, capsys.readouterr().err.split("\n")[:-1])
    assert datetime.fromisoformat(rejected.pop("at")).tzinfo is not None
    assert rejected == {
        "level": "warning", "logger": "x", "message": "rejected request a\n\x1b[2J \u2028\ud800",
    }  # fmt: skip
    assert (bug["level"], bug["message"]) == ("error", "a bug")
    assert bug["traceback"].endswith("ValueError: of ours")


def test_a_log_of_json_says_why_the_command_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with logged(as_json=True), pytest.raises(SystemExit):
        fail(RequestError("no\nsuch table", hint="name one"))
    with logged(as_json=True):
        show_error("failed", "no key", None, of="public.t")
    ended, failed = map(json.loads, capsys.readouterr().err.splitlines())
    assert (ended["level"], ended["message"]) == ("error", "no\nsuch table; hint: name one")
    assert failed["message"] == "failed public.t: no key"


def test_keys_keep_their_digits_and_nonsense_is_refused() -> None:
    assert parse_keys("1, 2") == [["1"], ["2"]]
    assert parse_keys('[1.10, 12345678901234567890123, [true, "a"]]') == [
        ["1.10"],
        ["12345678901234567890123"],
        ["true", "a"],
    ]
    for text in ("[null]", "[{}]", "[[[1]]]", "[1", "[" * 100_000):
        with pytest.raises(RequestError):
            parse_keys(text)
