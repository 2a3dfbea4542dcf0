"""The key span of a landing file: its least and greatest key, by which readers of one key skip other files.

Values of the first key column count as numbers, if its type has an order that databases, Spark and Python
agree on:

================================  ==========================================================
integers                          themselves
decimal                           without the point: 12.50 of a decimal(12,2) is 1250
date                              days since 1970-01-01
timestamp, timestamp_ntz          microseconds since 1970-01-01 00:00:00, in UTC or as written
================================  ==========================================================

Invariant: a file has a span only if every row has a value within it. A null (a truncate, or a value in
`_cdc.raw` that the type can't hold) leaves the file without a span. So does any other type, such as text,
whose order depends on a collation.
"""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pyarrow.compute as pc

KeySpan = tuple[int, int]


def key_span(column: pa.ChunkedArray) -> KeySpan | None:
    """Return the least and greatest value of a key column, as numbers; None if some row has no number."""
    type_ = column.type
    has_numbers = (
        pa.types.is_signed_integer(type_)
        or pa.types.is_decimal128(type_)
        or pa.types.is_date32(type_)
        or pa.types.is_timestamp(type_)
    )
    if not has_numbers or column.null_count or not len(column):
        return None
    found = pc.min_max(column)
    return _number(found["min"]), _number(found["max"])


def joined(one: KeySpan | None, other: KeySpan | None) -> KeySpan | None:
    """Return the combined span of two parts of a file."""
    return (min(one[0], other[0]), max(one[1], other[1])) if one and other else None


def _number(value: pa.Scalar) -> int:
    if pa.types.is_decimal128(value.type):
        return int(Fraction(value.as_py()) * 10**value.type.scale)
    # Python's own dates end with the year 9999.
    return int(value.as_py() if pa.types.is_integer(value.type) else value.value)
