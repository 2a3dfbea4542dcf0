"""How names, values and positions are spelled in Spark SQL. Pure text.

Everything that reaches SQL from outside (names of tables and columns, key values) passes through here.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, timezone
from decimal import Decimal

from connector.position import Position


def quoted(name: str) -> str:
    """Spell the name of a column or table."""
    return "`" + name.replace("`", "``") + "`"


def listed(names: Iterable[str]) -> str:
    """Spell names in a list."""
    return ", ".join(quoted(name) for name in names)


def text(value: str) -> str:
    """Spell a string."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("\n", "\\n").replace("\r", "\\r") + "'"


def literal(value: object) -> str | None:
    """Spell a value of a type whose order Delta keeps in its file statistics; None for any other."""
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


def timestamp(value: datetime | None) -> str:
    """Spell an instant."""
    if value is None:
        return "CAST(NULL AS TIMESTAMP)"
    return f"TIMESTAMP'{value.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S.%f}+00:00'"


def position(alias: str) -> str:
    """Spell the position of the rows of `alias`, to be compared with another."""
    return f"({alias}._cdc.epoch, {alias}._cdc.lsn, {alias}._cdc.seq)"


def position_literal(value: Position) -> str:
    """Spell a known position."""
    return f"({value.epoch}, {value.lsn}L, {value.seq}L)"
