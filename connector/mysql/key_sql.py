"""SQL for keys as round-trip text: how a key column is selected, ordered and compared; absent keys. Pure.

A key's text is the server's own (binaries: ``0x`` and hexadecimal digits; enums and sets: their members), or
what a merge makes of the landed value: see `connector.source.TableReader.open_keys`.

Order and comparison are the server's, by the column's own type and collation; enums, sets and bits are
ordered and compared by number. A comparison with a composite key is written column by column, since MySQL
uses no index for ``(a, b) > (1, 2)``. Where order and comparison differ, a table is one piece
(`KeyColumn.is_misordered`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from connector.codec.cells import combine_raw, gather
from connector.errors import RequestError
from connector.landing.event_batch import arrow_type
from connector.mysql.codec import types
from connector.mysql.codec.table_map import TableMap
from connector.mysql.codec.text_rows import TextRows, decode_text, split_rows
from connector.mysql.codec.types import ColumnType
from connector.mysql.codec.values import check_key
from connector.mysql.connection import literal, quote
from connector.schema import TableName
from connector.source import ChunkRows, KeyRange

_NUMBER = re.compile(r"\s*([+-]?\d+(\.\d*)?([eE][+-]?\d+)?)\s*")
_BINARY = re.compile(r"(?:0x|\\x)((?:[0-9A-Fa-f]{2})*)")
_UTC = re.compile(r"(\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d*)?)?)?)(?:\+00(?::?00)?|Z)?")
_NO_PAD = re.compile("_nopad_|_0900_")
"""In the names of MariaDB's collations: since 11.4, it has some by the names that MySQL gives to its own."""

_FLOATS = frozenset((types.FLOAT, types.DOUBLE))
_NUMERIC = (types.NUMERIC | {types.YEAR, types.BIT}) - _FLOATS
_TIMESTAMPS = frozenset((types.TIMESTAMP, types.TIMESTAMP2))

MAX_EXPONENT = 330
"""No number in a column has more digits before its decimal point, or zeros after it."""


@dataclass(frozen=True)
class KeyColumn:
    """A column of a key."""

    name: str
    type: ColumnType
    collation: str | None = None
    mariadb: bool = False

    @property
    def is_misordered(self) -> bool:
        """Return whether the server orders the column in another way than it compares it.

        In MariaDB, an index has a CHAR with its blanks, a comparison has it without them: by NO PAD, what
        goes on with a character below the blank comes before the shorter text in the one, and after it in the
        other. So of the rows up to a key and those after it, neither may have it.
        """
        return self.mariadb and self.type.code == types.STRING and bool(_NO_PAD.search(self.collation or ""))

    @property
    def has_collation(self) -> bool:
        """Return whether the server may consider two of its texts equal."""
        of_text = self.type.code in types.STRINGS | types.BLOBS
        return of_text and self.type.landing == "string" and self.type.alias is None

    @property
    def text(self) -> str:
        """Build the expression that selects the value, whose text is exact."""
        column, type_ = f"t.{quote(self.name)}", self.type
        if type_.landing == "binary":
            return f"CONCAT('0x', HEX({column}))"
        if type_.code == types.BIT:
            return f"CAST({column} + 0 AS CHAR)"
        if type_.code in _FLOATS:
            return f"CAST({column} AS DOUBLE)"  # as text, MySQL rounds it to 22 characters
        if type_.code in types.STRINGS | types.BLOBS | {types.ENUM, types.SET} and type_.alias is None:
            return f"CONVERT({column} USING utf8mb4)"
        return f"CAST({column} AS CHAR)"

    def compare(self, sign: str, text: str) -> str:
        """Build the comparison of the column with a key's text; `ValueError` if it is not a value."""
        column = f"t.{quote(self.name)}"
        if self.type.code in (types.ENUM, types.SET):
            return f"CAST({column} AS UNSIGNED) {sign} {self._number_of(text)}"  # + 0 makes it a double
        return f"{column} {sign} {self._value(text)}"

    def array(self, text: str) -> tuple[pa.Array, pa.Array | None]:
        """Return the landed value of a key's text, and its raw text if it has one.

        `ValueError` if the text is not a value.
        """
        if self.type.landing == "binary":
            return pa.array([_bytes(text)], pa.binary()), None
        text = self._exact_text(text)
        if self.type.code == types.BIT:
            return pa.array([int(text)], pa.decimal128(20, 0) if self.type.length == 64 else pa.int64()), None
        return decode_text(pa.array([text.encode()], pa.binary()), self.type, "utf8mb4")

    def _value(self, text: str) -> str:
        code = self.type.code
        if self.type.landing == "binary":
            return f"X'{_bytes(text).hex()}'"
        return self._exact_text(text) if code in _NUMERIC | _FLOATS else literal(self._exact_text(text))

    def _exact_text(self, text: str) -> str:
        """Format a number or timestamp for exact comparison by the server; `ValueError` if it is neither."""
        code = self.type.code
        if code in _TIMESTAMPS:
            if match := _UTC.fullmatch(text):
                return match[1]
            raise ValueError(f"{text!r} is not a UTC time, for key column {self.name}")
        if code not in _NUMERIC | _FLOATS:
            return text
        match = _NUMBER.fullmatch(text)
        formatted = _number(Decimal(match[1]), code) if match else None
        if formatted is None:
            raise ValueError(f"{text!r} is not a number, for key column {self.name}")
        return formatted

    def _number_of(self, text: str) -> int:
        """Return an enum member's number, or a set's bits."""
        values = self.type.values
        if self.type.code == types.SET:
            return sum(1 << _index(values, part, self.name) for part in text.split(",") if part)
        return _index(values, text, self.name) + 1 if text or "" in values else 0


def _number(number: Decimal, code: int) -> str | None:
    """Format a number so that the server compares it exactly with a column; None if too large for any."""
    if abs(number.adjusted()) > MAX_EXPONENT:
        return None
    if code not in _FLOATS:
        return f"{number:f}"  # with an exponent it would be a double
    value = float(number)
    if code == types.FLOAT:  # the column is widened to a double, in which 1.1 is another number
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    return f"{value:.16e}" if math.isfinite(value) else None


def _index(values: Sequence[str], text: str, column: str) -> int:
    if text in values:
        return values.index(text)
    raise ValueError(f"{text!r} is not a member of key column {column}")


def _bytes(text: str) -> bytes:
    match = _BINARY.fullmatch(text)
    return bytes.fromhex(match[1]) if match else text.encode()


def conditions(columns: Sequence[KeyColumn], key_range: KeyRange, where: str | None) -> str:
    """Build the WHERE clause of a chunk; `RequestError` if the range's bounds are not values of the key."""
    if not key_range.fits(len(columns)):
        raise RequestError(f"the chunk's range is not of a key of {len(columns)} columns")
    ends = [
        (end, build) for end, build in ((key_range.after, after), (key_range.upto, upto)) if end is not None
    ]
    try:
        found = [f"({build(columns[: len(end)], end)})" for end, build in ends]
    except ValueError as error:
        raise RequestError(str(error)) from error
    if where:
        found.append(f"({where}\n)")  # a trailing comment must not swallow the parenthesis
    return f" WHERE {' AND '.join(found)}" if found else ""


def order_of(columns: Sequence[KeyColumn], key_range: KeyRange) -> str | None:
    """Return a hash of what the order of a key depends on; None if the range ends at no whole key."""
    if key_range.of_prefix or not (key_range.after or key_range.upto):
        return None
    orders = [(c.type, c.collation, "none") if c.is_misordered else (c.type, c.collation) for c in columns]
    return hashlib.md5(repr(orders).encode(), usedforsecurity=False).hexdigest()[:16]


def after(columns: Sequence[KeyColumn], key: Sequence[str]) -> str:
    """Build the condition for keys greater than a key."""
    return _after_or_before(columns, key, ">", ">")


def upto(columns: Sequence[KeyColumn], key: Sequence[str]) -> str:
    """Build the condition for keys less than or equal to a key."""
    return _after_or_before(columns, key, "<", "<=")


def _after_or_before(columns: Sequence[KeyColumn], key: Sequence[str], sign: str, last: str) -> str:
    column, text = columns[0], key[0]
    if len(columns) == 1:
        return column.compare(last, text)
    rest = _after_or_before(columns[1:], key[1:], sign, last)
    # The second condition implies the first, which gives the optimizer an index range.
    return f"{column.compare(sign + '=', text)} AND ({column.compare(sign, text)} OR ({rest}))"


def equal(columns: Sequence[KeyColumn], key: Sequence[str]) -> str:
    """Build the condition for one key."""
    return " AND ".join(column.compare("=", text) for column, text in zip(columns, key, strict=True))


def texts(columns: Sequence[KeyColumn]) -> str:
    """Build the expressions that select a key, for `read_key`."""
    of_bytes = (f"HEX(t.{quote(column.name)})" for column in columns if column.type.is_ambiguous)
    return ", ".join([*(column.text for column in columns), *of_bytes])


def read_key(table: TableName, columns: Sequence[KeyColumn], found: Sequence[Any]) -> tuple[str, ...]:
    """Return the key that `texts` selected; `TableError` if its texts may be another row's, too."""
    ambiguous = (column for column in columns if column.type.is_ambiguous)
    for column, digits in zip(ambiguous, found[len(columns) :], strict=True):
        check_key(table, column.name, pa.array([bytes.fromhex(digits)], pa.binary()), column.type)
    return tuple(map(str, found[: len(columns)]))


def check_encodings(layout: TableMap, columns: Sequence[KeyColumn], rows: TextRows, values: int) -> None:
    """Refuse rows, of so many values each, with a key that other bytes may also be decoded to."""
    ambiguous = [column for column in columns if column.type.is_ambiguous]
    if not ambiguous:
        return
    names, found = [column.name for column in layout.columns], split_rows(rows, values)
    for column in ambiguous:
        cells = gather(rows.data, *found[names.index(column.name)])
        check_key(layout.table, column.name, cells, column.type)


def of_exact_text(
    layout: TableMap,
    columns: Sequence[KeyColumn],
    found: ChunkRows,
    numbers: Sequence[int],
    wanted: Sequence[Sequence[str]],
) -> set[int]:
    """Return the numbers of the wanted keys whose row has their very text, as a lake compares texts.

    `numbers`: the number of the key to which the server considers each row's equal.
    """
    names = [column.name for column in layout.columns]
    texts = [index for index, column in enumerate(columns) if column.has_collation]
    values = [found.columns[names.index(columns[index].name)].to_pylist() for index in texts]
    rows = zip(numbers, *values, strict=True)
    return {number for number, *row in rows if row == [wanted[number][index] for index in texts]}


def absent_rows(
    layout: TableMap, columns: Sequence[KeyColumn], missing: Sequence[Sequence[str]]
) -> ChunkRows:
    """Build the rows that report keys as absent; `RequestError` for what is not a value of its column."""
    values: dict[str, pa.Array] = {}
    raws: dict[str, pa.Array | None] = {}
    for index, column in enumerate(columns):
        try:
            found = [column.array(key[index]) for key in missing]
            values[column.name] = pa.concat_arrays([value for value, _ in found])
            texts = [pa.nulls(1, pa.string()) if raw is None else raw.cast(pa.string()) for _, raw in found]
            raws[column.name] = pa.concat_arrays(texts) if any(raw is not None for _, raw in found) else None
        except (ValueError, pa.ArrowInvalid) as error:
            raise RequestError(f"{layout.table}: key column {column.name}: {error}") from error
    empty = {c.name: pa.nulls(len(missing), arrow_type(c.type.landing)) for c in layout.columns}
    arrays = [values.get(c.name, empty[c.name]) for c in layout.columns]
    return ChunkRows(arrays, combine_raw(raws), pa.array([True] * len(missing)))
