"""TABLE_MAP events with full metadata: the layout of the rows that follow, as it was when written. Pure.

MySQL 8.0+ (``mysql/binlog/event/rows_event.h``, Table_map_event) and MariaDB 10.5+ (``log_event.h``) write
the same optional metadata. Without the columns' names (``binlog_row_metadata`` is not FULL) nothing is
guessed: `TableError`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from connector.errors import TableError
from connector.mysql import types
from connector.mysql.charsets import BINARY, charset_of, decode_bytes, decoder_known
from connector.mysql.types import ColumnType, as_alias
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

MEND = "SET GLOBAL binlog_row_metadata = FULL, then dump the table again"


@dataclass(frozen=True)
class MappedColumn:
    """One column as the log describes it; that it is `virtual`, only MariaDB's catalog tells."""

    name: str
    type: ColumnType
    visible: bool = True
    virtual: bool = False


@dataclass(frozen=True)
class TableMap:
    """A table's layout under `table_id`; `key`: the primary key's columns in its order, () without one."""

    table_id: int
    table: TableName
    columns: tuple[MappedColumn, ...]
    key: tuple[str, ...]

    def schema(self, key: Sequence[str] | None = None) -> TableSchema:
        """Give the landing schema, with another key where one is configured."""
        columns = tuple(Column(c.name, c.type.spelling, c.type.landing) for c in self.columns)
        return TableSchema(self.table, columns, self.key if key is None else tuple(key))

    def with_aliases(self, catalog_types: Mapping[str, str]) -> TableMap:
        """Name the columns that are a uuid or inet in MariaDB's catalog (column name to COLUMN_TYPE).

        Only a column that the log shows as a binary of the same length becomes one.
        """
        named = (replace(c, type=as_alias(c.type, catalog_types.get(c.name, ""))) for c in self.columns)
        return replace(self, columns=tuple(named))

    def with_virtual(self, names: Collection[str]) -> TableMap:
        """Mark the columns that are generated whenever they are read."""
        return replace(self, columns=tuple(replace(c, virtual=c.name in names) for c in self.columns))


class _Bytes:
    """Reads a payload from front to back; `IndexError` past its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def __bool__(self) -> bool:
        return self.place < len(self.data)

    def take(self, count: int) -> bytes:
        self.place += count
        if self.place > len(self.data):
            raise IndexError("a table map ends too early")
        return self.data[self.place - count : self.place]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def packed(self) -> int:
        first = self.number(1)
        return first if first < 251 else self.number({252: 2, 253: 3, 254: 8}[first])

    def text(self) -> bytes:
        return self.take(self.packed())


def table_id_of(body: bytes) -> int:
    """Read the table id of a TABLE_MAP or rows event's body."""
    return int.from_bytes(body[:6], "little")


def table_name_of(body: bytes) -> TableName:
    """Read only the table's name of a TABLE_MAP event's body."""
    reader = _Bytes(body)
    reader.take(8)
    namespace = reader.text().decode()
    reader.take(1)
    return TableName(namespace, reader.text().decode())


def parse_table_map(body: bytes, *, mariadb: bool) -> TableMap:
    """Read a TABLE_MAP event's body: what follows the 19 bytes of the event's header, without checksum.

    `mariadb`: the server is a MariaDB, which lists geometries among the columns that have a character set,
    and years among the numbers that have a sign.

    `TableError` for a type that is not known, a character set that can't be decoded exactly, or when the
    optional metadata lacks what is needed. The body holds the table id, so equal bodies are equal layouts: a
    reader keeps a dictionary from body to layout, and parses each but once.
    """
    table = table_name_of(body)
    try:
        return _parse(table, body, mariadb)
    except (IndexError, KeyError, UnicodeDecodeError, ValueError) as error:
        raise TableError(str(table), f"its table map in the log cannot be read: {error}") from error


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
        raise TableError(str(table), "the log does not name its columns", hint=MEND)
    if mariadb:
        _refuse_old_temporal(table, names, found)
    found = _with_attributes(table, found, names, fields, mariadb)
    visible = _bits(fields.get(_VISIBILITY, b"\xff" * len(codes)), len(codes))
    columns = tuple(map(MappedColumn, names, found, visible))
    return TableMap(table_id, table, columns, tuple(names[i] for i in _primary_key(fields)))


def _refuse_old_temporal(table: TableName, names: list[str], found: list[ColumnType]) -> None:
    """Refuse MariaDB's old temporal formats: the log does not tell their fractions, nor their width."""
    for name, type_ in zip(names, found, strict=True):
        if type_.code in (types.TIME, types.DATETIME, types.TIMESTAMP):
            raise TableError(
                str(table),
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
        raise TableError(str(table), f"column type {code} of the log is not known", hint="exclude the table")
    first, second = metadata.take(2)
    if code == types.STRING:
        return _string_type(first, second)
    if code == types.BIT:
        return ColumnType(code, length=second * 8 + first)
    if code == types.NEWDECIMAL:
        return ColumnType(code, precision=first, scale=second)
    return ColumnType(code, length=second << 8 | first)


def _string_type(first: int, second: int) -> ColumnType:
    """Read the real type and the length, whose upper two bits are hidden (inverted) in the type's byte."""
    if first & 0x30 != 0x30:
        return ColumnType(first | 0x30, length=second | (first & 0x30 ^ 0x30) << 4)
    if first in (types.ENUM, types.SET):
        return ColumnType(first, size=second)
    return ColumnType(types.STRING, length=second)


def _with_attributes(
    table: TableName, found: list[ColumnType], names: list[str], fields: dict[int, bytes], mariadb: bool
) -> list[ColumnType]:
    signed_codes = types.NUMERIC | ({types.YEAR} if mariadb else set())
    numbers = [i for i, t in enumerate(found) if t.code in signed_codes]
    for index, unsigned in zip(numbers, _bits(fields.get(_SIGNEDNESS, b""), len(numbers)), strict=True):
        found[index] = replace(found[index], unsigned=unsigned and found[index].code != types.YEAR)
    enumerated = frozenset((types.ENUM, types.SET))
    texts = types.STRINGS | types.BLOBS | ({types.GEOMETRY} if mariadb else set())
    for codes, default, each in (
        (texts, _DEFAULT_CHARSET, _COLUMN_CHARSET),
        (enumerated, _ENUM_SET_DEFAULT_CHARSET, _ENUM_SET_CHARSET),
    ):
        for index, collation in _collations(found, codes, fields, default, each):
            charset = _known_charset(table, names[index], collation)
            found[index] = replace(found[index], charset=charset)
    for code, field in ((types.ENUM, _ENUM_VALUES), (types.SET, _SET_VALUES)):
        columns = [i for i, t in enumerate(found) if t.code == code]
        for index, values in zip(columns, _value_lists(fields.get(field, b"")), strict=True):
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
        yield from ((index, others.get(place, usual)) for place, index in enumerate(columns))
    elif columns:
        raise ValueError("it does not tell the character sets")


def _known_charset(table: TableName, column: str, collation: int) -> str:
    charset = charset_of(collation)
    if charset is None or not (charset == BINARY or decoder_known(charset)):
        reason = (
            f"column {column} has character set {charset or f'of collation {collation}'}, which is not known"
        )
        raise TableError(str(table), reason, hint=f"convert {column} to utf8mb4, or exclude the table")
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
    """Read a bitmap whose first bit is the highest of the first byte."""
    if len(data) * 8 < count:
        raise ValueError("it does not tell which columns are unsigned")
    return [bool(data[i // 8] & 0x80 >> i % 8) for i in range(count)]
