"""Texts of keys that MySQL and MariaDB compare exactly, and those that are refused."""

from __future__ import annotations

import pytest

from connector.errors import RequestError
from connector.mysql.codec.types import type_of_catalog
from connector.mysql.key_sql import KeyColumn, conditions
from connector.source import KeyRange


def compared(type_: str, text: str) -> str:
    """What the server compares the column with."""
    charset = "utf8mb4" if "char" in type_ else None
    return KeyColumn("k", type_of_catalog(type_, charset)).compare("=", text).removeprefix("t.`k` = ")


@pytest.mark.parametrize(
    ("type_", "texts", "expected"),
    [
        ("decimal(38,30)", ["1.2E-7", "0.00000012", "12e-8"], "0.00000012"),
        ("decimal(12,2)", ["0E-10"], "0.0000000000"),
        ("bigint unsigned", ["18446744073709551615"], "18446744073709551615"),
        ("int", [" -7 "], "-7"),
        ("float", ["1.1", "1.100000023841858"], "1.1000000238418579e+00"),
        ("double", ["1.1", "1.1000000000000001", "11E-1"], "1.1000000000000001e+00"),
        ("varbinary(9)", ["\\x00fF", "0x00FF"], "X'00ff'"),
        ("varbinary(9)", ["\\x", "0x", ""], "X''"),
        ("timestamp", ["2026-01-02 03:04:05", "2026-01-02 03:04:05+00", "2026-01-02 03:04:05Z"], None),
        ("timestamp(6)", ["2026-01-02 03:04:05.5+00", "2026-01-02 03:04:05.5+00:00"], None),
        ("datetime(6)", ["2026-01-02 03:04:05.5"], None),
    ],
)
def test_a_value_has_one_meaning_however_it_is_formatted(type_: str, texts: list[str], expected: str) -> None:
    expected = expected or f"_utf8mb4 X'{texts[0].partition('+')[0].encode().hex()}'"
    assert {text: compared(type_, text) for text in texts} == dict.fromkeys(texts, expected)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("int", "one"),
        ("int", "1e999999999"),
        ("decimal(12,2)", "NaN"),
        ("float", "1e39"),
        ("double", "-9e308"),
        ("double", "1; DROP TABLE t"),
        ("timestamp", "2026-01-02 03:04:05+02:00"),
        ("timestamp", "yesterday"),
        ("enum('a','b')", "c"),
    ],
)
def test_a_text_that_is_no_value_is_refused_with_the_columns_name(type_: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"key column k$"):
        compared(type_, text)


def test_a_range_of_a_key_that_had_fewer_columns_is_refused() -> None:
    columns = [KeyColumn(name, type_of_catalog("int", None)) for name in "ab"]
    with pytest.raises(RequestError):
        conditions(columns, KeyRange(("1",), None), None)
    of_prefix = conditions(columns, KeyRange(("1",), ("2",), of_prefix=True), None)
    assert of_prefix == " WHERE (t.`a` > 1) AND (t.`a` <= 2)"
    with pytest.raises(RequestError):
        conditions(columns, KeyRange(("1", "2", "3"), of_prefix=True), None)
