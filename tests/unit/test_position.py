"""Positions, manifests and times as people write them."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from connector.errors import ConfigurationError
from connector.position import Moment, format_position, parse_position


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("postgres", "16/B374D848", (None, 0x16B374D848)),
        ("postgres", "2:0/1f", (2, 0x1F)),
        ("mysql", "3/4512", (None, 3 << 32 | 4512)),
        ("mariadb", "2:binlog file 3 offset 4512", (2, 3 << 32 | 4512)),
    ],
)
def test_a_position_is_read_as_its_source_writes_it(
    kind: str, text: str, expected: tuple[int | None, int]
) -> None:
    assert parse_position(text, kind) == expected
    assert Moment.parse(text, kind).position == expected
    assert parse_position(format_position(expected[1], kind), kind) == (None, expected[1])


@pytest.mark.parametrize("text", ["", "16", "1/G", "a:1/2", "1/2/3", "FFFFFFFF/0", "0/123456789"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_position(text, "postgres")


def test_manifests_and_times_are_told_apart() -> None:
    assert Moment.parse(" 120 ", "postgres").manifest == 120
    at = datetime(2026, 11, 21, 10, tzinfo=timezone.utc)
    for text in ("2026-11-21T10:00:00Z", "2026-11-21 10:00:00", "2026-11-21T12:00:00+02:00"):
        assert Moment.parse(text, "mysql").committed_at == at
    for text in ("", "yesterday", "²", "9" * 99):
        with pytest.raises(ConfigurationError, match="neither a manifest") as refused:
            Moment.parse(text, "mysql")
        assert "3/4512" in (refused.value.hint or "")
