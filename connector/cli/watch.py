"""``deltatide status --watch``: refreshes the status until SIGTERM or Ctrl-C.

On a terminal, redraws it in place, cut to the terminal's height, with what needs attention first. Elsewhere,
prints a line each time; with ``--json``, a JSON object per line. If the landing zone does not answer, or is
empty, shows that and retries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from connector.cli.printing import duration, visible, when
from connector.errors import PreconditionError, TransientError
from connector.signals import SignalEvent, stopped_by_signals

if TYPE_CHECKING:
    from connector.control.dump_requests import DumpList
    from connector.control.source_view import SourceView
    from connector.control.status import Status, TableStatus

LATE_SECONDS = 60.0
"""Lag above this is shown in another color."""

MOST_DUMPS = 8


@dataclass
class Sight:
    """The status at one time (UTC), or the `problem` that hid it."""

    at: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    status: Status | None = None
    dumps: DumpList | None = None
    problem: str | None = None


def watch(view: SourceView, every: float, *, as_json: bool, console: Console | None = None) -> None:
    """Show the status every so many seconds until SIGTERM or Ctrl-C. In the main thread only."""
    stopping = SignalEvent()
    console = console or Console(highlight=False, emoji=False)
    with stopped_by_signals(lambda _signal: stopping.set()), _showing(console, as_json) as show:
        while not stopping.is_set():
            show(_look(view))
            stopping.wait(every)


def _look(view: SourceView) -> Sight:
    from connector.control.dump_requests import list_dumps
    from connector.control.status import status

    try:
        return Sight(status=status(view), dumps=list_dumps(view))
    except (TransientError, PreconditionError) as error:
        return Sight(problem=f"{error} ({error.hint})" if error.hint else str(error))


@contextmanager
def _showing(console: Console, as_json: bool) -> Iterator[Callable[[Sight], None]]:
    if as_json:
        yield lambda sight: print(_json(sight), flush=True)
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda sight: live.update(picture(sight, console.height), refresh=True)
    else:
        yield lambda sight: print(line(sight), flush=True)


def _json(sight: Sight) -> str:
    found = {"error": sight.problem} if sight.status is None else sight.status.as_json()
    return json.dumps({"at": sight.at.isoformat(), **found})


def line(sight: Sight) -> str:
    """Format a sight as one line."""
    status = sight.status
    if status is None:
        return visible(f"{when(sight.at)}  {sight.problem}")
    dumps = _dumps_in_words(sight)
    facts = [status.source, status.agent, _lag(status), f"manifest {status.manifest}"]
    facts += [f"dumps: {dumps}"] if dumps else []
    return visible(f"{when(sight.at)}  {'; '.join(facts)}; needs you: {_needs(status)}")


def picture(sight: Sight, height: int) -> RenderableType:
    """Draw a sight in a limited number of lines."""
    status = sight.status
    if status is None or sight.dumps is None:
        return Group(Text(when(sight.at)), Text(visible(sight.problem or ""), style="yellow"))
    lag, needs = status.figures.lag_seconds, _needs(status)
    exact = "exact" if status.exact else "not exact"
    gaps = f", gaps on record: {status.gaps}" if status.gaps else ""
    rows = [
        ("agent", Text(visible(status.agent))),
        ("lag", Text(_lag(status), style="yellow" if lag is None or lag > LATE_SECONDS else "green")),
        ("needs you", Text(needs, style="green" if needs == "nothing" else "bold red")),
        ("manifest", Text(f"{status.manifest}, {_ago(sight, status.committed_at)}, {exact}{gaps}")),
        ("dumps", Text(visible(_dumps_in_words(sight) or "none under way"))),
    ]
    head = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in rows:
        head.add_row(Text(name, style="bold"), value)
    title = Text(f"{visible(status.source)}  {when(sight.at)}", style="bold")
    dumps = _dump_rows(sight.dumps)
    left = height - len(rows) - 4 - (dumps.row_count + 2 if dumps.row_count else 0)
    parts: list[RenderableType] = [title, Text(), head]
    parts += [Text(), dumps] if dumps.row_count else []
    return Group(*parts, Text(), _table_rows(status, max(left, 1)))


def _dump_rows(dumps: DumpList) -> Table:
    table = Table("dump of", "state", "share", "rows/s", "left", box=None, padding=(0, 2, 0, 0))
    active = [(dump, progress) for dump, progress in dumps.dumps if dump.active]
    active.sort(key=lambda each: each[1].state == "queued")
    for dump, progress in active[:MOST_DUMPS]:
        share = "" if progress.share is None else f"{progress.share:.0%}"
        rate = "" if progress.rows_per_second is None else f"{progress.rows_per_second:,.0f}"
        left = "" if progress.seconds_left is None else duration(progress.seconds_left)
        table.add_row(Text(visible(str(dump.table))), progress.state, share, rate, left)
    return table


def _table_rows(status: Status, most: int) -> Table:
    """Draw the tables that fit, the header being a line too; the last line says how many don't."""
    table = Table("table", "state", "dumped", "reason", box=None, padding=(0, 2, 0, 0))

    def urgency(each: tuple[str, TableStatus]) -> tuple[bool, bool]:
        return each[1].state != "quarantined", each[1].dumped

    tables = sorted(status.tables.items(), key=urgency)
    shown = len(tables) if len(tables) < most else most - 2
    for name, each in tables[: max(shown, 0)]:
        reason = Text(visible(each.reason or ""), no_wrap=True, overflow="ellipsis")
        state = Text(each.state, style="bold red" if each.state == "quarantined" else "")
        name_text = Text(visible(name), no_wrap=True, overflow="ellipsis")
        dumped = "only changes" if each.only_changes else "yes" if each.dumped else "no"
        table.add_row(name_text, state, dumped, reason)
    if shown < len(tables):
        table.add_row(Text(f"and {len(tables) - max(shown, 0):,} more", style="dim"))
    return table


def _needs(status: Status) -> str:
    tables = len(status.quarantined)
    facts = [f"{tables:,} quarantined table{'s' if tables > 1 else ''}" if tables else ""]
    failing = sum(len(lake.failing) + lake.failing_unnamed for lake in status.lakes)
    facts.append(f"{failing:,} table{'s' if failing > 1 else ''} that can't be merged" if failing else "")
    facts.append("an agent: none is active" if status.agent.startswith(("none", "probably none")) else "")
    return ", ".join(filter(None, facts)) or "nothing"


def _lag(status: Status) -> str:
    lag = status.figures.lag_seconds
    if lag is None:
        return "lag unknown"
    text = f"{lag:.1f} s" if lag < 10 else duration(lag)
    return f"{text} behind, {status.figures.lag_bytes:,} bytes of log not landed"


def _ago(sight: Sight, at: datetime) -> str:
    return f"{duration(max(0.0, (sight.at - at).total_seconds()))} ago"


def _dumps_in_words(sight: Sight) -> str:
    """Count the unfinished dumps by state; empty if there are none."""
    dumps = sight.dumps.dumps if sight.dumps else []
    states = [progress.state for dump, progress in dumps if dump.active]
    words = [
        f"{states.count(state):,} {state}" for state in ("running", "paused", "queued") if state in states
    ]
    held_back = f", held back: {sight.dumps.held_back}" if sight.dumps and sight.dumps.held_back else ""
    return f"{', '.join(words)}{held_back}" if words else ""
