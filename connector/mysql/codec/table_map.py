"""Parses TABLE_MAP events with full metadata: the layout of the rows that follow, as of writing. Pure.

MySQL 8.0+ (``mysql/binlog/event/rows_event.h``, Table_map_event) and MariaDB 10.5+ (``log_event.h``) write
the same optional metadata. Without column names (``binlog_row_metadata`` is not FULL) nothing is guessed:
`TableError`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from connector.errors import TableError
from connector.mysql.codec import types
from connector.mysql.codec.charsets import BINARY, charset_of, decode_bytes, decoder_known
from connector.mysql.codec.types import ColumnType, as_alias
from connector.schema import Column, TableName, TableSchema

_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _NAME, _SET_VALUES, _ENUM_VALUES = range(1, 7)
_PRIMARY_KEY, _PRIMARY_KEY_PREFIX, _ENUM_SET_DEFAULT_CHARSET, _ENUM_SET_CHARSET, _VISIBILITY = range(8, 13)

_ONE_BYTE_META = {
    *(types.FLOAT, types.DOUBLE, types.JSON, types.GEOMETRY, types.VECTOR, *types.BLOBS),
    *(types.TIME2, types.DATETIME2, types.TIMESTAMP2),
}
_TWO_BYTE_META = {types.BIT, types.NEWDECIMAL, types.ENUM, types.SET, *types.STRINGS}
_NO_META = {
    *(
        types.TINY,
        types.SHORT,
        types.INT24,
        types.LONG,
        types.LONGLONG,
        types.YEAR,
        types.DATE,
        types.NEWDATE,
    ),
    *(types.TIMESTAMP, types.DATETIME, types.TIME),
}

FIX = "SET GLOBAL binlog_row_metadata = FULL, then dump the table again"


@dataclass(frozen=True)
class MappedColumn:
    """One column as the log describes it.

    Only MariaDB's catalog shows that it is `virtual` or `hidden`, or has a `default` other than null.
    `hidden`: internal to the server, so no dump has it and it never lands.
    `collation`: only the catalog shows it.
    """

    name: str
    type: ColumnType
    visible: bool = True
    virtual: bool = False
    hidden: bool = False
    default: bool = False
    collation: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class TableMap:
    """A table's layout under `table_id`; `key`: the primary key's columns in key order, () without one.

    `row_end`: the column with the end of a row's version, in a table with system versioning. Such a table
    also holds its history; what lands is what a SELECT shows, the current rows.
    """

    table_id: int
    table: TableName
    columns: tuple[MappedColumn, ...]
    key: tuple[str, ...]
    row_end: str | None = None

    @property
    def landed(self) -> tuple[MappedColumn, ...]:
        """Return the columns that land."""
        return tuple(column for column in self.columns if not column.hidden)

    def schema(self, key: Sequence[str] | None = None, *, before_images: bool = False) -> TableSchema:
        """Return the landing schema, with the configured key if there is one."""
        columns = tuple(Column(c.name, c.type.type_name, c.type.landing) for c in self.landed)
        return TableSchema(self.table, columns, self.key if key is None else tuple(key), before_images)

    def with_aliases(self, *known: Mapping[str, str]) -> TableMap:
        """Set the types of columns that are MariaDB's uuid, inet or vector, by what is known of their types.

        Only a column that the log shows as a binary of the same length becomes one. `known`: name to
        COLUMN_TYPE; the first counts that can be what the log shows.
        """
        named = (as_alias(c.type, *(types.get(c.name, "") for types in known)) for c in self.columns)
        columns = (replace(c, type=type_) for c, type_ in zip(self.columns, named, strict=True))
        return replace(self, columns=tuple(columns))

    def with_virtual(self, names: Collection[str]) -> TableMap:
        """Mark the columns whose values are generated on read."""
        return replace(self, columns=tuple(replace(c, virtual=c.name in names) for c in self.columns))

    def with_defaults(self, names: Collection[str]) -> TableMap:
        """Mark the columns that have a default."""
        return replace(self, columns=tuple(replace(c, default=c.name in names) for c in self.columns))

    def with_hidden(self, shown: Collection[str], row_end: str | None = None) -> TableMap:
        """Mark the columns that MariaDB adds after all others and hides, so `shown` lacks them.

        They are hashes (of unique keys too long for an index) and, before those, the period of system
        versioning that names no columns for it. `shown`: the columns in the catalog; `row_end`: the one
        there with the end of a row's version.

        The catalog may be ahead of the log, and those names are free for ordinary columns. So a column ends
        versions only if it is in the log's primary key, to which MariaDB adds it. (An ordinary column there
        is part of the key that lands, so its table is quarantined when it goes.) `TableError` if the log has
        no key; a unique one without nulls counts as primary there.
        """
        left = len(self.columns)
        while left and _is_hash(self.columns[left - 1], shown):
            left -= 1
        is_period = self._ends_in_period(left, shown)
        row_end = _ROW_END if is_period else row_end
        if row_end is None or not any(c.name == row_end and _is_moment(c) for c in self.columns):
            row_end = None
        elif not self.key:
            raise TableError(
                self.table, f"it has no key, so the log does not show whether {row_end} ends versions"
            )
        elif row_end not in self.key:
            row_end, is_period = None, False
        left -= 2 * is_period
        columns = tuple(replace(c, hidden=index >= left) for index, c in enumerate(self.columns))
        return replace(self, columns=columns, key=tuple(c for c in self.key if c != row_end), row_end=row_end)

    def _ends_in_period(self, upto: int, shown: Collection[str]) -> bool:
        """Return whether the last columns before `upto` may be a hidden system versioning period."""
        period = self.columns[max(0, upto - 2) : upto]
        return (
            [c.name for c in period] == [_ROW_START, _ROW_END]
            and all(map(_is_moment, period))
            and not {_ROW_START, _ROW_END} & set(shown)
        )


def _is_moment(column: MappedColumn) -> bool:
    return column.type.code == types.TIMESTAMP2 and column.type.scale == 6


_ROW_START, _ROW_END = "row_start", "row_end"
_HASH = re.compile(r"DB_ROW_HASH_\d+")


def _is_hash(column: MappedColumn, shown: Collection[str]) -> bool:
    is_bigint = column.type.code == types.LONGLONG and column.type.unsigned
    return is_bigint and bool(_HASH.fullmatch(column.name)) and column.name not in shown


class _Bytes:
    """Reads a payload from front to back; `IndexError` past its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def __bool__(self) -> bool:
        return self.offset < len(self.data)

    def take(self, count: int) -> bytes:
        self.offset += count
        if self.offset > len(self.data):
            raise IndexError("a table map ends too early")
        return self.data[self.offset - count : self.offset]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def packed(self) -> int:
        first = self.number(1)
        return first if first < 251 else self.number({252: 2, 253: 3, 254: 8}[first])

    def text(self) -> bytes:
        return self.take(self.packed())


def table_name_of(body: bytes) -> TableName:
    """Parse only the table's name in a TABLE_MAP event's body."""
    reader = _Bytes(body)
    reader.take(8)
    namespace = reader.text().decode()
    reader.take(1)
    return TableName(namespace, reader.text().decode())


def parse_table_map(body: bytes, *, mariadb: bool) -> TableMap:
    """Parse a TABLE_MAP event's body: what follows the 19 bytes of the event's header, without checksum.

    In the metadata, numbers and years have a sign; strings and blobs have a character set, as do vectors in
    MySQL and geometries in MariaDB (`mariadb`).

    `TableError` for an unknown type, a character set that can't be decoded exactly, or missing optional
    metadata. The body holds the table id, so equal bodies are equal layouts: a reader caches layouts by body,
    and parses each only once.
    """
    table = table_name_of(body)
    try:
        return _parse(table, body, mariadb)
    except (IndexError, KeyError, UnicodeDecodeError, ValueError) as error:
        raise TableError(table, f"can't parse its table map in the log: {error}") from error


def _parse(table: TableName, body: bytes, mariadb: bool) -> TableMap:
    reader = _Bytes(body)
    table_id = reader.number(6)
    reader.take(2)
    reader.text()
    reader.take(1)
    reader.text()
    reader.take(1)
    codes = reader.take(reader.packed())
    metadata = _Bytes(reader.text())
    found = [_column_type(table, code, metadata) for code in codes]
    reader.take((len(codes) + 7) // 8)
    fields: dict[int, bytes] = {}
    while reader:
        field = reader.number(1)
        fields[field] = reader.text()
    names = [name.decode() for name in _texts(fields.get(_NAME, b""))]
    if len(names) != len(codes):
        raise TableError(table, "the log does not name its columns", hint=FIX)
    if mariadb:
        _refuse_old_temporal(table, names, found)
    found = _with_attributes(table, found, names, fields, mariadb)
    visible = _bits(fields.get(_VISIBILITY, b"\xff" * ((len(codes) + 7) // 8)), len(codes))
    columns = tuple(map(MappedColumn, names, found, visible))
    return TableMap(table_id, table, columns, tuple(names[i] for i in _primary_key(fields)))


def _refuse_old_temporal(table: TableName, names: list[str], found: list[ColumnType]) -> None:
    """Refuse MariaDB's old temporal formats: the log carries neither their fractions nor their width."""
    for name, type_ in zip(names, found, strict=True):
        if type_.code in (types.TIME, types.DATETIME, types.TIMESTAMP):
            raise TableError(
                table,
                f"column {name} has the temporal format of MariaDB 5.3",
                hint=f"SET GLOBAL mysql56_temporal_format = ON; ALTER TABLE {table} FORCE; dump it again",
            )


def _column_type(table: TableName, code: int, metadata: _Bytes) -> ColumnType:
    if code in _NO_META:
        return ColumnType(code)
    if code in _ONE_BYTE_META:
        size = metadata.number(1)
        if code in (types.TIME2, types.DATETIME2, types.TIMESTAMP2):
            return ColumnType(code, scale=size)
        return ColumnType(code, size=size)
    if code not in _TWO_BYTE_META:
        raise TableError(table, f"unknown column type {code} in the log", hint="exclude the table")
    first, second = metadata.take(2)
    if code == types.STRING:
        return _string_type(first, second)
    if code == types.BIT:
        return ColumnType(code, length=second * 8 + first)
    if code == types.NEWDECIMAL:
        return ColumnType(code, precision=first, scale=second)
    return ColumnType(code, length=second << 8 | first)


def _string_type(first: int, second: int) -> ColumnType:
    """Parse the real type and the length, whose upper two bits are stored inverted in the type's byte."""
    if first & 0x30 != 0x30:
        return ColumnType(first | 0x30, length=second | (first & 0x30 ^ 0x30) << 4)
    if first in (types.ENUM, types.SET):
        return ColumnType(first, size=second)
    return ColumnType(types.STRING, length=second)


def _with_attributes(
    table: TableName, found: list[ColumnType], names: list[str], fields: dict[int, bytes], mariadb: bool
) -> list[ColumnType]:
    numbers = [i for i, t in enumerate(found) if t.code in types.NUMERIC | {types.YEAR}]
    for index, unsigned in zip(numbers, _bits(fields.get(_SIGNEDNESS, b""), len(numbers)), strict=True):
        if found[index].code == types.YEAR:
            if not unsigned:  # they always are: these bits are for other columns
                raise ValueError("it declares years as signed")
            continue
        found[index] = replace(found[index], unsigned=unsigned)
    enumerated = frozenset((types.ENUM, types.SET))
    texts = types.STRINGS | types.BLOBS | {types.GEOMETRY if mariadb else types.VECTOR}
    for codes, default, each in (
        (texts, _DEFAULT_CHARSET, _COLUMN_CHARSET),
        (enumerated, _ENUM_SET_DEFAULT_CHARSET, _ENUM_SET_CHARSET),
    ):
        for index, collation in _collations(found, codes, fields, default, each):
            charset = _known_charset(table, names[index], collation)
            found[index] = replace(found[index], charset=charset)
    for code, listed in ((types.ENUM, _ENUM_VALUES), (types.SET, _SET_VALUES)):
        columns = [i for i, t in enumerate(found) if t.code == code]
        for index, values in zip(columns, _value_lists(fields.get(listed, b"")), strict=True):
            charset = found[index].charset or "utf8mb4"
            found[index] = replace(found[index], values=tuple(decode_bytes(v, charset) for v in values))
    return found


def _collations(
    found: list[ColumnType],
    codes: frozenset[int],
    fields: dict[int, bytes],
    default: int,
    each: int,
) -> Iterator[tuple[int, int]]:
    """Pair columns and collations: one for each, or a default and the exceptions from it."""
    columns = [i for i, t in enumerate(found) if t.code in codes]
    if each in fields:
        yield from zip(columns, _packed_numbers(fields[each]), strict=True)
    elif default in fields:
        usual, *exceptions = _packed_numbers(fields[default])
        others = dict(zip(exceptions[::2], exceptions[1::2], strict=True))
        yield from ((index, others.get(number, usual)) for number, index in enumerate(columns))
    elif columns:
        raise ValueError("it does not name the character sets")


def _known_charset(table: TableName, column: str, collation: int) -> str:
    charset = charset_of(collation)
    if charset is None or not (charset == BINARY or decoder_known(charset)):
        reason = f"column {column} has unknown character set {charset or f'of collation {collation}'}"
        raise TableError(table, reason, hint=f"convert {column} to utf8mb4, or exclude the table")
    return charset


def _primary_key(fields: dict[int, bytes]) -> list[int]:
    if _PRIMARY_KEY in fields:
        return _packed_numbers(fields[_PRIMARY_KEY])
    return _packed_numbers(fields.get(_PRIMARY_KEY_PREFIX, b""))[::2]


def _packed_numbers(data: bytes) -> list[int]:
    reader, numbers = _Bytes(data), []
    while reader:
        numbers.append(reader.packed())
    return numbers


def _texts(data: bytes) -> list[bytes]:
    reader, texts = _Bytes(data), []
    while reader:
        texts.append(reader.text())
    return texts


def _value_lists(data: bytes) -> list[list[bytes]]:
    reader, lists = _Bytes(data), []
    while reader:
        lists.append([reader.text() for _ in range(reader.packed())])
    return lists


def _bits(data: bytes, count: int) -> list[bool]:
    """Parse a bitmap whose first bit is the highest of the first byte."""
    if len(data) != (count + 7) // 8:
        raise ValueError(f"{len(data)} bytes do not describe {count} columns")
    return [bool(data[i // 8] & 0x80 >> i % 8) for i in range(count)]
