"""Values of keys as people type them, and which landing files may hold them."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from connector.landing.event_batch import arrow_type
from connector.landing.key_span import key_span
from connector.landing.manifest import LandedFile
from connector.position import Position
from connector.schema import Column, TableName, TableSchema
from merge.proof.sought_key import SoughtKey, _canonical, key_number

T = TableName("public", "t")
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "decimal(5,2)": st.integers(-99_999, 99_999).map(lambda n: Decimal(n).scaleb(-2)),
    "decimal(20,0)": st.integers(0, 2**64 - 1).map(Decimal),
    "decimal(38,6)": st.integers(1 - 10**38, 10**38 - 1).map(lambda n: Decimal(f"{n}E-6")),
    "date": st.dates(),
    "timestamp": st.datetimes().map(lambda at: at.replace(tzinfo=timezone.utc)),
    "timestamp_ntz": st.datetimes(),
    "string": st.text(),
    "boolean": st.booleans(),
    "double": st.floats(),
}
RAW = {
    "decimal(5,2)": "NaN",
    "date": "infinity",
    "timestamp": "infinity",
    "timestamp_ntz": "0000-00-00 00:00:00",
}


def sought(type_: str, text: str) -> SoughtKey:
    return SoughtKey(None, "id", type_, key_number(type_, text))  # type: ignore[arg-type]


def layout(type_: str, name: str = "id") -> TableSchema:
    return TableSchema(T, (Column(name, type_, type_), Column("n", "int", "int")), (name, "n"))


def file(span: tuple[int, int] | None) -> LandedFile:
    at = Position(1, 1, 1)
    return LandedFile(
        path="p", table=T, schema_id="s", kind="log", rows=1, bytes=1, first=at, last=at, key_span=span
    )


@st.composite
def files(draw: st.DrawFn) -> tuple[str, list[Any]]:
    """Draw a type of a first key column, and its values in a file."""
    type_ = draw(st.sampled_from(sorted(VALUES)))
    values = st.one_of(VALUES[type_], st.none()) if type_ in RAW else VALUES[type_]
    return type_, draw(st.lists(values, min_size=1, max_size=5))


@given(files())
def test_a_file_that_holds_a_key_is_never_passed_over(found: tuple[str, list[Any]]) -> None:
    type_, values = found
    landed = file(key_span(pa.chunked_array([pa.array(values, arrow_type(type_))])))
    for value in values:
        text = RAW[type_] if value is None else f"{value:f}" if isinstance(value, Decimal) else str(value)
        assert sought(type_, text).may_be_in(landed, layout(type_)), text


@given(st.sampled_from([t for t in VALUES if t not in ("string", "boolean", "double")]), st.data())
def test_a_number_is_the_same_as_typed_and_as_landed(type_: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[type_])
    text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    number = key_number(type_, text)
    assert key_span(pa.chunked_array([pa.array([value], arrow_type(type_))])) == (number, number)


def test_a_file_whose_keys_are_others_is_passed_over() -> None:
    key = sought("int", "5")
    assert [key.may_be_in(file(span), layout("int")) for span in ((1, 4), (5, 5), (6, 9), (-9, 9))] == [
        False, True, False, True
    ]  # fmt: skip


def test_a_file_is_read_if_its_span_says_nothing_about_the_key() -> None:
    assert sought("int", "5").may_be_in(file(None), layout("int"))
    assert sought("int", "5").may_be_in(file((6, 9)), layout("bigint"))
    assert sought("decimal(5,2)", "5").may_be_in(file((5, 5)), layout("decimal(5,0)"))
    assert sought("int", "5").may_be_in(file((6, 9)), layout("int", "other"))
    assert sought("timestamp", "infinity").may_be_in(file((6, 9)), layout("timestamp"))


def test_a_number_is_of_the_type_that_the_key_has_now() -> None:
    assert key_number("timestamp", "1970-01-01 01:00:00+01") == 0
    assert key_number("timestamp_ntz", "1970-01-01 00:00:00.5") == 500_000
    assert key_number("date", str(date(1970, 1, 31))) == 30
    assert key_number("decimal(12,2)", "1.500") == 150
    assert key_number("timestamp", str(datetime(1969, 12, 31, 23, 59, 59))) == -1_000_000
    assert key_number("boolean", "true") is None
    assert key_number("string", "1") is None


@pytest.mark.parametrize(
    ("type_", "text", "meant"),
    [
        ("int", "1e3", "1000"),
        ("int", "-5.0", "-5"),
        ("bigint", str(2**63 - 1), str(2**63 - 1)),
        ("decimal(12,2)", "1.5", "1.5"),
        ("decimal(12,2)", "1.500", "1.500"),
        ("decimal(38,0)", "1E30", "1" + 30 * "0"),
        ("decimal(38,6)", 28 * "9" + "5000", 28 * "9" + "5000"),  # Python rounds to 28 digits
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
        ("decimal(38,6)", 28 * "9" + ".1234567"),
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
