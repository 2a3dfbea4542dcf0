"""Of libpq's messages of several lines, people read the one with the reason."""

from __future__ import annotations

import psycopg2
import pytest

from connector.postgres.connection import one_line

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
