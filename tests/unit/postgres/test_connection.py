"""Errors of the server: the line that people read, and which of them may pass."""

from __future__ import annotations

import psycopg2
import pytest

from connector.errors import TransientError
from connector.postgres.connection import failed, one_line

LOST = (
    "server closed the connection unexpectedly\n"
    "\tThis probably means the server terminated abnormally\n"
    "\tbefore or while processing the request.\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOST, "server closed the connection unexpectedly"),
        (
            f'connection to server at "127.0.0.1", port 5432 failed: {LOST}',
            "server closed the connection unexpectedly",
        ),
        (
            'connection to server at "db" (10.0.0.1), port 5432 failed: Connection refused\n'
            "\tIs the server running on that host and accepting TCP/IP connections?\n",
            "connection refused",
        ),
        (
            'connection to server at "db", port 5432 failed: FATAL:  role "x" does not exist\n',
            'role "x" does not exist',
        ),
    ],
    ids=["lost", "lost while connecting", "refused", "fatal"],
)
def test_the_line_with_the_reason_is_shown(text: str, expected: str) -> None:
    assert one_line(psycopg2.OperationalError(text)) == expected


def test_a_snapshot_that_has_become_too_old_is_taken_again() -> None:
    """A long chunk, where a server before version 17 has old_snapshot_threshold, is no fault of its table."""
    assert isinstance(failed("public.t", "snapshot too old", "72000"), TransientError)
