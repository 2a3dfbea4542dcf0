"""Values of keys as people type them."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from merge.proof.key_values import _canonical


@pytest.mark.parametrize(
    ("type_", "text", "meant"),
    [
        ("int", "1e3", "1000"),
        ("int", "-5.0", "-5"),
        ("bigint", str(2**63 - 1), str(2**63 - 1)),
        ("decimal(12,2)", "1.5", "1.5"),
        ("decimal(12,2)", "1.500", "1.500"),
        ("decimal(38,0)", "1E30", "1" + 30 * "0"),
        ("boolean", "T", True),
        ("string", " as it is ", " as it is "),
        ("date", "2026-01-31", "2026-01-31"),
        ("timestamp_ntz", "2026-01-31T10:00", "2026-01-31 10:00:00"),
        ("timestamp", "2026-01-31 10:00:00.5", "2026-01-31 10:00:00.500000+00:00"),
        ("timestamp", "2026-01-31 10:00:00Z", "2026-01-31 10:00:00+00:00"),
        ("timestamp", "2026-01-31 10:00:00-05:30", "2026-01-31 15:30:00+00:00"),
    ],
)
def test_a_value_may_be_written_in_several_ways(type_: str, text: str, meant: str | bool) -> None:
    assert _canonical(type_, text) == meant


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("int", "1.5"),
        ("int", "abc"),
        ("int", ""),
        ("int", "1e9999"),
        ("tinyint", "128"),
        ("smallint", "-32769"),
        ("decimal(12,2)", "1.505"),
        ("decimal(12,2)", "1e12"),
        ("decimal(38,0)", "NaN"),
        ("boolean", "yes"),
        ("date", "2026-02-30"),
        ("date", "infinity"),
        ("date", "0000-00-00"),
        ("date", "20260131"),
        ("timestamp_ntz", "2026-01-31 10:00:00+00"),
        ("timestamp_ntz", "2026-01-31 25:00:00"),
        ("timestamp", "0001-01-01 00:00:00+01"),
    ],
)
def test_what_a_type_can_not_hold_is_refused(type_: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        _canonical(type_, text)
