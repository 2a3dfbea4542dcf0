r"""Checksums of rows, by buckets of the key: one definition, which databases and Spark compute alike. Pure.

A row's *text* is its columns' cells in the layout's order, joined by ``;``. A cell is ``-`` for NULL, else by
the landed type:

=============================  =====================================================
boolean                        ``true``, ``false``
integers, decimal              digits, as many after the point as the type has
string                         length in bytes, ``;``, the text; both in UTF-8
binary                         ``\x`` and hexadecimal digits in lower case
date                           ``2026-11-21``
timestamp_ntz                  ``2026-11-21 10:00:00.5``, without trailing zeros
timestamp                      the same in UTC, and ``+00``
=============================  =====================================================

Two rows of one layout have one text only if they are equal: no cell but a string's holds ``;``, and a string
says how long it is. A row's *checksum* is the first `HEX_DIGITS` hexadecimal digits of its text's SHA-256, as
a number (MySQL 9.6 dropped MD5). A *bucket* holds the rows whose first key column, an integer, has
one value after `bits` binary digits are cut off: ``floor(value / 2 ** bits)``. What is compared is each
bucket's count and sum of checksums, so buckets may be read in parts, in any order.

Invariants: a table is covered with all its columns, or not at all (`uncovered`). A value that the landed type
can't hold (`_cdc.raw`) has no cell, as Spark has none: whoever compares looks at such rows themselves. Equal
sums prove equal rows but for one chance in 2 ** 56; different sums prove nothing, since a database may format
a rare value in another way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from connector.schema import Column, TableName, TableSchema, decimal_of

HEX_DIGITS = 14
"""56 bits: whole bytes of the hash, as PostgreSQL cuts bytes faster than text, and a positive number in every
database's 64-bit integers.
"""

SEPARATOR, NULL = ";", "-"

INTEGERS = ("tinyint", "smallint", "int", "bigint")
UNSIGNED = "bigint unsigned"
"""MySQL's only integer that lands as a decimal."""

NOT_INTEGERS = ("year", "bit")
"""MySQL types that land as integers but don't compare as such there: a year does not compare as a number."""

LEAST_BITS = 8
"""In a table without gaps in its key, a bucket then has 256 rows: few to read again if one of them differs.
"""

MOST_BUCKETS = 1 << 16
"""Limit per table, from its least to its greatest key; Spark's driver holds them all."""

BUCKET, ROWS, SUM, LAYOUT = "bucket", "rows", "sum", "layout"

_COVERED = ("boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")


def bucket_schema(table: TableName) -> TableSchema:
    """Return the layout in which a table's checksums land: part of a bucket, its row count, its sum.

    `layout`: the schema id of the rows.
    """
    columns = {BUCKET: "bigint", ROWS: "bigint", SUM: "decimal(38,0)", LAYOUT: "string"}
    return TableSchema(table, tuple(Column(name, "", type_) for name, type_ in columns.items()), (BUCKET,))


def uncovered(schema: TableSchema) -> str | None:
    """Return why rows of a layout have no checksums in any database; None if they have."""
    if why := without_ranges(schema):
        return why
    return next((why_uncovered(column) for column in schema.columns if not _is_covered(column.type)), None)


def without_ranges(schema: TableSchema) -> str | None:
    """Return why a key can't be split into ranges that databases and Spark agree on; None if it can."""
    first = schema.column(schema.key[0])
    lands_as_integer = first.type in INTEGERS or first.source_type == UNSIGNED
    if not lands_as_integer or first.source_type.partition("(")[0] in NOT_INTEGERS:
        return f"key column {first.name} ({first.source_type}) is not an integer"
    return None


def why_uncovered(column: Column) -> str:
    """Return the reason for a table without checksums: this column's text is not the same everywhere."""
    return f"no checksum covers column {column.name} ({column.source_type})"


def _is_covered(type_: str) -> bool:
    return type_ in _COVERED or type_ in INTEGERS or decimal_of(type_) is not None


def bits_of(first: int, last: int) -> int:
    """Return how many low bits of keys from `first` to `last` to drop for at most `MOST_BUCKETS` buckets."""
    return max(LEAST_BITS, ((last - first) // MOST_BUCKETS).bit_length())


def row_text(schema: TableSchema, values: Mapping[str, Any]) -> bytes:
    """Return a row's text from its landed values as Python objects; all other implementations must agree."""
    cells = (_cell(values[column.name], column.type) for column in schema.columns)
    return SEPARATOR.encode().join(cells)


def _cell(value: Any, type_: str) -> bytes:
    if value is None:
        return NULL.encode()
    text = _text(value, type_).encode()
    return b"%d%s%s" % (len(text), SEPARATOR.encode(), text) if type_ == "string" else text


def _text(value: Any, type_: str) -> str:
    if type_ == "binary":
        return f"\\x{value.hex()}"
    if type_ == "boolean":
        return "true" if value else "false"
    if type_ in ("timestamp", "timestamp_ntz"):
        text = str(value.replace(tzinfo=None).isoformat(" "))
        text = text.rstrip("0") if value.microsecond else text
        return f"{text}+00" if type_ == "timestamp" else text
    return f"{value:f}" if decimal_of(type_) else str(value)


def checksum(text: bytes) -> int:
    """Return the checksum of a row's text."""
    return int(hashlib.sha256(text).hexdigest()[:HEX_DIGITS], 16)


def sums_of(schema: TableSchema, rows: Iterable[Mapping[str, Any]], bits: int) -> dict[int, tuple[int, int]]:
    """Return the row count and sum of checksums of each bucket."""
    found: dict[int, tuple[int, int]] = {}
    for row in rows:
        bucket = int(row[schema.key[0]]) >> bits
        count, total = found.get(bucket, (0, 0))
        found[bucket] = (count + 1, total + checksum(row_text(schema, row)))
    return found
