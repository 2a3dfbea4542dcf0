"""What the commands print with: consoles, errors, log lines, small formats."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from connector.errors import BugError, DeltatideError

log = logging.getLogger(__name__)

# Without a terminal, a table's columns must not be cut to 80 characters.
# Names such as a:key:b are no emoji.
out = Console(soft_wrap=True, highlight=False, emoji=False, width=None if sys.stdout.isatty() else 240)
err = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Control characters, characters that change text direction, and lone surrogates."""

Shown = Callable[[int, int, str], None]
"""Shows the amount done, the total, and what is under way."""


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[Shown]:
    """Yield a callback that shows progress: a bar on a terminal, nothing elsewhere."""
    if not shown or not out.is_terminal:
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description:<48}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True) as bars:
        task = bars.add_task("starting", total=None)
        yield lambda done, total, what: bars.update(task, completed=done, total=total, description=what)


def fail(error: DeltatideError) -> NoReturn:
    """Show an error with its hint, and exit with its status; our own bugs include a traceback."""
    bug = error if isinstance(error, BugError) else None
    show_error("error:", str(error), error.hint, bug=bug)
    sys.exit(error.exit_code)


def show_error(what: str, error: str, hint: str | None, *, of: str = "", bug: BugError | None = None) -> None:
    """Print an error to the standard error; as a line of the log if its lines are JSON objects."""
    if any(isinstance(handler.formatter, _JsonLines) for handler in logging.getLogger().handlers):
        subject = f"{what} {of}: " if of else ""
        log.error("%s%s%s", subject, error, f"; hint: {hint}" if hint else "", exc_info=bug)
        return
    subject = f"{escape(of)}: " if of else ""
    err.print(f"[bold red]{what}[/] {subject}{escape(error, lines=True)}")
    if hint:
        err.print(f"[bold]hint:[/] {escape(hint, lines=True)}")
    if bug:
        err.print_exception()


_MARKUP = re.compile(r"\\+(?=\[|\Z)|\[")


def escape(text: str, *, lines: bool = False) -> str:
    """Keep text from being read as markup or by the terminal; `lines`: keep its line breaks."""
    if lines:
        return "\n".join(map(escape, text.split("\n")))
    return _MARKUP.sub(_plain, visible(text))


def _plain(found: re.Match[str]) -> str:
    """Escape a bracket, or backslashes before one, so that no tag of ours or of others joins them."""
    return r"\[" if found[0] == "[" else found[0] * 2 + "[none][/none]"


def visible(text: str) -> str:
    """Escape characters that a terminal would obey or not show."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def duration(seconds: float) -> str:
    """Format a duration in its two largest units, as in ``2 d 4 h`` or ``35 s``."""
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, seconds = divmod(round(seconds), length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def when(at: datetime | None) -> str:
    """Format an instant in UTC."""
    return "" if at is None else f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}Z"


def log_to_stderr(verbose: bool, *, as_json: bool = False) -> None:
    """Log in plain lines, or a JSON object per line; chatty libraries only from warnings up."""
    handler = logging.StreamHandler(sys.stderr)
    plain = _Lines("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    handler.setFormatter(_JsonLines() if as_json else plain)
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    for noisy in ("botocore", "boto3", "urllib3", "s3transfer", "py4j"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _Lines(logging.Formatter):
    """Formats one line per event, whatever names it holds; tracebacks follow on their own lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Format the message alone."""
        return visible(super().formatMessage(record))


class _JsonLines(logging.Formatter):
    """One object per event: `at` (UTC), `level`, `logger`, `message`, and `traceback` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the event."""
        at = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        event = {"at": at, "level": record.levelname.lower(), "logger": record.name}
        event["message"] = record.getMessage()
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event)


def close_broken_pipe() -> NoReturn:
    """Exit quietly when the reader has gone, as in ``deltatide dumps | head``."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
