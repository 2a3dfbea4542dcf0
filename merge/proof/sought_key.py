r"""A key that somebody asks about: parses its values as typed, and builds the condition for its events.

The text of a value is what ``deltatide dump --keys`` takes (`connector.source.TableReader.open_keys`):
numbers with or without an exponent, ``true`` and ``false``, bytes as ``\x`` and hexadecimal digits,
date-times as ``2026-11-21 10:00:00.5`` (with ``+00`` for a timestamp), everything else as it lands. What the
column's type can't hold (``infinity``, a zero date) is compared with the source's own text in `_cdc.raw`.

Values that the type holds are compared as literals of that type, by which Parquet can skip row groups. Files
whose manifest says that their keys are others are not opened at all (`SoughtKey.may_be_in`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.errors import ConfigurationError
from connector.landing.format import CDC
from connector.landing.manifest import LandedFile
from connector.schema import TableName, TableSchema, array_of, decimal_of
from merge.keys import TargetLayout, key_text
from merge.sql_formatting import data_type, quoted, to_micros

if TYPE_CHECKING:
    from pyspark.sql import Column

BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
BOOLEANS = {"true": True, "t": True, "false": False, "f": False}

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?")
_BINARY = re.compile(r"(?:\\x|0x)((?:[0-9A-Fa-f]{2})*)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)(Z|[+-]\d\d(?::?\d\d)?)?")


@dataclass(frozen=True)
class SoughtKey:
    """A key: the `condition` for its rows and events; name, `type` and value of its first `column`.

    `number`: that value as in `connector.landing.key_span`; None: it has no number.
    """

    condition: Column
    column: str
    type: str
    number: int | None

    @classmethod
    def of(cls, table: TableName, layout: TargetLayout, texts: Sequence[str]) -> SoughtKey:
        """Read the key of a table as people type it; errors as in `key_condition`."""
        condition = key_condition(table, layout, texts)
        first = layout.key[0]
        return cls(condition, first, layout.columns[first], key_number(layout.columns[first], texts[0]))

    def may_be_in(self, file: LandedFile, schema: TableSchema) -> bool:
        """Return whether a file of this layout may hold the key; yes if the column had another type then."""
        if self.number is None or file.key_span is None or schema.key[:1] != (self.column,):
            return True
        if schema.column(self.column).type != self.type:
            return True
        least, greatest = file.key_span
        return least <= self.number <= greatest


def key_condition(table: TableName, layout: TargetLayout, texts: Sequence[str]) -> Column:
    """Return the condition for a table's rows or events with this key, one text for each column of the key.

    `ConfigurationError` for the wrong number of texts, or a text that is not a value of its column.
    """
    if len(texts) != len(layout.key):
        columns = ", ".join(layout.key)
        values = "1 value" if len(texts) == 1 else f"{len(texts)} values"
        raise ConfigurationError(
            f"{values} given, but the key of {table} is ({columns})",
            hint="give one value for each column of the key, in this order",
        )
    found = F.lit(True)
    for name, text in zip(layout.key, texts, strict=True):
        try:
            found = found & _has_value(layout, name, text)
        except ValueError as error:
            type_ = layout.columns[name]
            raise ConfigurationError(
                f"{text!r} is not a value of key column {name} of {table} ({type_})",
                hint=f"write it as for deltatide dump --keys: {error}",
            ) from None
    return found


def _has_value(layout: TargetLayout, name: str, text: str) -> Column:
    type_, column = layout.columns[name], F.col(quoted(name))
    spelled = column.isNull() & (F.col(CDC)["raw"][name] == text)
    if array_of(type_):
        return (key_text(column, type_) == text) | spelled
    try:
        return _equals(column, type_, text)
    except ValueError:
        if name not in layout.raw_keys:
            raise
        return spelled


def _equals(column: Column, type_: str, text: str) -> Column:
    """Compare a column with a value of its type; `ValueError` says how to write one."""
    if type_ in ("float", "double"):
        value = _float(text)
        return F.isnan(column) if math.isnan(value) else column == F.lit(value).cast(type_)
    if type_ == "binary":
        match = _BINARY.fullmatch(text)
        if match is None:
            raise ValueError(r"as in \x00ff")
        return column == F.expr(f"X'{match[1]}'")
    return column == F.lit(_canonical(type_, text)).cast(data_type(type_))


def _canonical(type_: str, text: str) -> str | bool:
    """Return a value as a text that Spark casts to its type exactly, in any session."""
    if type_ in BITS:
        return str(_integer(text, BITS[type_]))
    if digits := decimal_of(type_):
        return _decimal(text, *digits)
    if type_ == "boolean":
        if text.lower() not in BOOLEANS:
            raise ValueError("true or false")
        return BOOLEANS[text.lower()]
    if type_ == "date":
        if not _DATE.fullmatch(text):
            raise ValueError("as in 2026-01-31")
        return date.fromisoformat(text).isoformat()
    if type_ in ("timestamp", "timestamp_ntz"):
        return _moment(text, zoned=type_ == "timestamp")
    return text


def key_number(type_: str, text: str) -> int | None:
    """Return a value as a number (`connector.landing.key_span`); None: it has none."""
    try:
        known = _canonical(type_, text)
    except ValueError:
        return None
    if isinstance(known, bool):
        return None
    if type_ in BITS:
        return int(known)
    if digits := decimal_of(type_):
        return int(Fraction(known) * 10 ** digits[1])
    if type_ == "date":
        return (date.fromisoformat(known) - date(1970, 1, 1)).days
    if type_ in ("timestamp", "timestamp_ntz"):
        at = datetime.fromisoformat(known).replace(tzinfo=timezone.utc)  # a timestamp is in UTC already
        return to_micros(at)
    return None


def _number(text: str) -> Decimal:
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError("a number")
    return Decimal(text.strip())


def _integer(text: str, bits: int) -> int:
    number = _number(text)
    if abs(number) > 1 << 64 or number != int(number) or not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"a whole number of {bits} bits")
    return int(number)


def _decimal(text: str, precision: int, scale: int) -> str:
    number = _number(text)
    fraction = Fraction(number)  # Python's decimals would be rounded to 28 digits
    if abs(fraction) >= 10 ** (precision - scale) or (fraction * 10**scale).denominator != 1:
        raise ValueError(f"a number of {precision - scale} digits and {scale} decimals")
    return f"{number:f}"


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number, Infinity or NaN") from None


def _moment(text: str, *, zoned: bool) -> str:
    match = _MOMENT.fullmatch(text)
    if match is None or (match[3] and not zoned):
        raise ValueError("as in 2026-01-31 10:00:00.5" + ("+00" if zoned else ""))
    day, clock, zone = match[1], match[2], match[3] or "+00"
    seconds, _, fraction = (clock if clock.count(":") == 2 else f"{clock}:00").partition(".")
    at = datetime.strptime(f"{day} {seconds}.{fraction or 0}", "%Y-%m-%d %H:%M:%S.%f")
    if not zoned:
        return at.isoformat(" ")
    hours, minutes = (0, 0) if zone == "Z" else (int(zone[:3]), int(zone[3:].lstrip(":") or 0))
    offset = timedelta(hours=hours, minutes=-minutes if zone[0] == "-" else minutes)
    try:
        return f"{(at - offset).isoformat(' ')}+00:00"
    except OverflowError:
        raise ValueError("an instant from year 1 to 9999 in UTC") from None
