"""What proves that one process of the server has lived all along."""

from __future__ import annotations

import pytest

from connector.postgres.primary_session import Process, is_same

BEGAN = "2026-01-01 00:00:00.123456+00"


@pytest.mark.parametrize(
    ("process", "before", "same"),
    [
        ((7, BEGAN), (7, BEGAN), True),
        ((7, BEGAN), (8, BEGAN), False),
        ((7, BEGAN), (7, BEGAN.replace("1234", "1235")), False),
        ((7, None), (7, None), False),  # hidden from a role with a role of its own
        (None, None, False),
        ((7, BEGAN), None, False),
    ],
)
def test_a_process_is_the_same_if_its_id_and_begin_are(
    process: Process | None, before: Process | None, same: bool
) -> None:
    assert is_same(process, before) == same
