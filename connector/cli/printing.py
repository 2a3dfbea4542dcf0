"""What the commands share: consoles, options, errors, small formats."""

from __future__ import annotations

import logging
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from connector.errors import BugError, DeltatideError

# Where nobody looks at a screen, a table's columns must not be cut to 80 characters.
out = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 240)
err = Console(stderr=True, soft_wrap=True, highlight=False)

ConfigOption = Annotated[
    Path,
    typer.Option(
        "-c", "--config", metavar="FILE", help="The configuration, as in conf/.", envvar="DELTATIDE_CONFIG"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Log more.")]


def fail(error: DeltatideError) -> NoReturn:
    """Print an error and what to do, and end with its exit status; a bug of ours shows where it happened."""
    err.print(f"[bold red]error:[/] {escape(str(error))}")
    if error.hint:
        err.print(f"[bold]hint:[/] {escape(error.hint)}")
    if isinstance(error, BugError):
        err.print_exception()
    sys.exit(error.exit_code)


def escape(text: str) -> str:
    """Keep text from being read as markup."""
    return text.replace("[", r"\[")


def when(at: datetime | None) -> str:
    """Spell an instant in UTC."""
    return "" if at is None else f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}Z"


def log_to_stderr(verbose: bool) -> None:
    """Log in plain lines; libraries only what matters."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )
    for noisy in ("botocore", "boto3", "urllib3", "s3transfer", "py4j"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def close_broken_pipe() -> NoReturn:
    """End quietly when nobody reads any more, as in ``deltatide dumps | head``."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
