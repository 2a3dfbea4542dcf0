"""Formats names, values and positions as Spark SQL. Pure text.

Everything from outside that reaches SQL (names of tables and columns, key values) passes through here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

from connector.position import Position

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def quoted(name: str) -> str:
    """Format the name of a column or table."""
    return "`" + name.replace("`", "``") + "`"


def unquoted(name: str) -> str:
    """Return the name that Spark has printed, in backquotes or as it is."""
    return name[1:-1].replace("``", "`") if len(name) > 1 and name[0] == name[-1] == "`" else name


def listed(names: Iterable[str]) -> str:
    """Format names as a list."""
    return ", ".join(quoted(name) for name in names)


def text(value: str) -> str:
    """Format a string."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("\n", "\\n").replace("\r", "\\r") + "'"


def data_type(type_: str) -> str:
    """Format a landed type unambiguously: in some sessions, `timestamp` has no time zone."""
    return re.sub(r"\btimestamp\b", "timestamp_ltz", type_)


def literal(value: object) -> str | None:
    """Format a value of a type whose order Delta's file statistics keep; None for other types."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return f"{value}L"
    if isinstance(value, Decimal):
        return f"{value:f}BD"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, datetime):
        return None
    if isinstance(value, date):
        return f"DATE'{value.isoformat()}'"
    return None


def to_micros(value: datetime) -> int:
    """Return an instant in microseconds since 1970, as Spark counts them."""
    return (value - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    """Return the instant that `to_micros` counts."""
    return _EPOCH + timedelta(microseconds=micros)


def timestamp(value: datetime | None) -> str:
    """Format an instant."""
    if value is None:
        return "CAST(NULL AS TIMESTAMP)"
    return f"TIMESTAMP'{value.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S.%f}+00:00'"


def position(alias: str) -> str:
    """Format the position of the rows of `alias`, for comparison with another."""
    return f"({alias}._cdc.epoch, {alias}._cdc.lsn, {alias}._cdc.seq)"


def position_literal(value: Position) -> str:
    """Format a known position; its fields have the names that Spark before 4 compares, too."""
    return f"named_struct('epoch', {value.epoch}, 'lsn', {value.lsn}L, 'seq', {value.seq}L)"


def numbered_struct(values: Iterable[str]) -> str:
    """Format values as a struct with numbered fields: Spark 3.5 compares only structs of the same names."""
    return f"named_struct({', '.join(f'{text(str(n))}, {value}' for n, value in enumerate(values))})"
