"""Masks of values that are about to land."""

from __future__ import annotations

import hashlib
import hmac
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from connector.masking.values import masked, text_of

SALT = b"a salt of sixteen characters"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (-7, "-7"),
        ("née", "née"),
        (b"\x00\xff", "\\x00ff"),
        (date(1, 2, 3), "0001-02-03"),
        (Decimal("12345678901234567890123456789012345678"), "12345678901234567890123456789012345678"),
        (datetime(2026, 11, 21, 10, 0), "2026-11-21 10:00:00"),
        (datetime(2026, 11, 21, 10, 0, 0, 500_000), "2026-11-21 10:00:00.5"),
        (datetime(33, 1, 1, 0, 0, 10, tzinfo=timezone.utc), "0033-01-01 00:00:10+00"),
    ],
)
def test_a_value_has_one_text(value: object, text: str) -> None:
    assert text_of(value) == text


def test_a_hash_is_the_hmac_of_the_text() -> None:
    expected = hmac.new(SALT, b"a@example", hashlib.sha256).hexdigest()
    assert masked("sha256", pa.array(["a@example", None]), None, SALT).to_pylist() == [expected, None]


@pytest.mark.parametrize(
    ("mask", "values", "expected"),
    [
        ("keep last 4", ["12345678", "1234", "", None], ["****5678", "****", "****", None]),
        ("keep last 1", [12, None], ["****2", None]),
        ("null", [12, None], [None, None]),
    ],
)
def test_other_masks_show_no_more_than_they_say(mask: str, values: list[Any], expected: list[Any]) -> None:
    assert masked(mask, pa.array(values), None, SALT).to_pylist() == expected


def test_null_keeps_the_type_and_everything_else_is_text() -> None:
    assert masked("null", pa.array([1]), None, SALT).type == pa.int64()
    assert masked("sha256", pa.array([1]), None, SALT).type == pa.string()


def test_what_the_type_cannot_hold_is_masked_by_the_text_of_the_source() -> None:
    dates = pa.array([None, date(2026, 1, 2), None], pa.date32())
    assert masked("keep last 2", dates, ["infinity", None, None], b"").to_pylist() == [
        "****ty",
        "****02",
        None,
    ]
