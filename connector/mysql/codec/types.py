"""MySQL's and MariaDB's types: what each lands as, how its name is written, its width in row events. Pure.

Invariant: a type lands as a Spark type that holds its values exactly (rare misfits go into ``raw``), or as
the source's own text. The same column has one `ColumnType.type_name`, whether read from the log's table map
or from the catalog (`type_of_catalog`), so log and dump land under one schema.

Decisions: ``bit(n)`` lands as a number (``bigint``, ``decimal(20,0)`` for 64 bits), since ``bit(1)`` may
become ``bit(2)`` and MySQL itself computes with it. Geometry and vectors, whose text the log does not have,
land as the text of ``HEX()``. MariaDB's uuid, inet and vector types are binaries in the log: the catalog must
name them (`as_alias`), and they land as text.

A new type needs its code, `ColumnType.width`, `ColumnType.landing` and `type_name`, and its name in the
catalog (`type_of_catalog`) here; its metadata in `table_map`; `values.decode_values` for row events and
`text_rows.decode_text` for dumps; `key_sql.py` if it may be a key; literals in `tests/fidelity/mysql.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pymysqlreplication.constants import FIELD_TYPE

from connector.mysql.codec.charsets import BINARY, is_ambiguous, max_bytes

DECIMAL_MAX_PRECISION = 38
"""The widest decimal that Spark and Parquet hold in 128 bits."""

TINY, SHORT, INT24 = FIELD_TYPE.TINY, FIELD_TYPE.SHORT, FIELD_TYPE.INT24
LONG, LONGLONG = FIELD_TYPE.LONG, FIELD_TYPE.LONGLONG
FLOAT, DOUBLE, NEWDECIMAL, BIT = FIELD_TYPE.FLOAT, FIELD_TYPE.DOUBLE, FIELD_TYPE.NEWDECIMAL, FIELD_TYPE.BIT
DATE, NEWDATE, YEAR = FIELD_TYPE.DATE, FIELD_TYPE.NEWDATE, FIELD_TYPE.YEAR
TIMESTAMP, TIMESTAMP2 = FIELD_TYPE.TIMESTAMP, FIELD_TYPE.TIMESTAMP2
DATETIME, DATETIME2 = FIELD_TYPE.DATETIME, FIELD_TYPE.DATETIME2
TIME, TIME2 = FIELD_TYPE.TIME, FIELD_TYPE.TIME2
VARCHAR, VAR_STRING, STRING = FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING
BLOB, ENUM, SET = FIELD_TYPE.BLOB, FIELD_TYPE.ENUM, FIELD_TYPE.SET
JSON, GEOMETRY = FIELD_TYPE.JSON, FIELD_TYPE.GEOMETRY
BLOB_COMPRESSED, VARCHAR_COMPRESSED, VECTOR = 140, 141, 242
"""Type codes of the binary log (enum_field_types). Those with a plain number are not among
pymysqlreplication's: MariaDB's COMPRESSED types, and MySQL's VECTOR.
"""

UUID, INET6, INET4 = "uuid", "inet6", "inet4"
ALIASES = {UUID: 16, INET6: 16, INET4: 4}
"""MariaDB's types that the log shows as binary(n)."""

_INTEGERS = {
    TINY: ("tinyint", 1, "tinyint", "smallint"),
    SHORT: ("smallint", 2, "smallint", "int"),
    INT24: ("mediumint", 3, "int", "int"),
    LONG: ("int", 4, "int", "bigint"),
    LONGLONG: ("bigint", 8, "bigint", "decimal(20,0)"),
}
"""Name, width, landing type signed and unsigned."""

_TEMPORAL = {
    TIMESTAMP: ("timestamp", 4, "timestamp"),
    TIMESTAMP2: ("timestamp", 4, "timestamp"),
    DATETIME: ("datetime", 8, "timestamp_ntz"),
    DATETIME2: ("datetime", 5, "timestamp_ntz"),
    DATE: ("date", 3, "date"),
    NEWDATE: ("date", 3, "date"),
    TIME: ("time", 3, "string"),
    TIME2: ("time", 3, "string"),
    YEAR: ("year", 1, "int"),
}
"""Name, width without fraction, landing type."""

_BLOBS = {1: "tiny", 2: "", 3: "medium", 4: "long"}
BLOBS = frozenset((BLOB, BLOB_COMPRESSED))
STRINGS = frozenset((STRING, VARCHAR, VAR_STRING, VARCHAR_COMPRESSED))
HEX_TYPES = frozenset((GEOMETRY, VECTOR))
COMPRESSED = frozenset((BLOB_COMPRESSED, VARCHAR_COMPRESSED))
NUMERIC = frozenset((*_INTEGERS, NEWDECIMAL, FLOAT, DOUBLE))


@dataclass(frozen=True)
class ColumnType:
    """One column's type. `code` is the actual type (ENUM or SET, where the log says STRING).

    `size`: bytes of the length prefix of a BLOB, JSON, GEOMETRY or VECTOR value, or of an ENUM or SET value.
    `length`: maximum bytes of a string or binary, or the bits of a BIT. `precision`: digits of a decimal.
    `scale`: its digits after the point, or the digits of fractional seconds. `charset`: of strings, enums and
    sets. `values`: of an enum or set. `alias`: a MariaDB type that the log does not name.
    """

    code: int
    size: int = 0
    length: int = 0
    precision: int = 0
    scale: int = 0
    unsigned: bool = False
    charset: str | None = None
    values: tuple[str, ...] = ()
    alias: str | None = None

    @property
    def width(self) -> int | None:
        """Return the bytes of a value in a row event; None if it has a length prefix."""
        if self.code in _INTEGERS:
            return _INTEGERS[self.code][1]
        if self.code in _TEMPORAL:
            return _TEMPORAL[self.code][1] + (self.scale + 1) // 2
        if self.code == NEWDECIMAL:
            return decimal_width(self.precision, self.scale)
        if self.code == BIT:
            return (self.length + 7) // 8
        if self.code in (FLOAT, DOUBLE):
            return 4 if self.code == FLOAT else 8
        return self.size if self.code in (ENUM, SET) else None

    @property
    def prefix(self) -> int:
        """Return the bytes of the length prefix of a value without a fixed width."""
        return (1 if self.length <= 255 else 2) if self.code in STRINGS else self.size

    @property
    def is_binary(self) -> bool:
        """Return whether it is a binary or blob, not a char or text."""
        return self.charset in (None, BINARY)

    @property
    def is_ambiguous(self) -> bool:
        """Return whether different bytes may be the same text (`charsets.has_unwritten`)."""
        return self.code in STRINGS | BLOBS and self.alias is None and is_ambiguous(self.charset)

    @property
    def has_twins(self) -> bool:
        """Return whether two values have one text: an invalid ENUM is '', and so is a SET of no members."""
        return self.code in (ENUM, SET) and len({"", *self.values}) <= len(self.values)

    @property
    def landing(self) -> str:
        """Return the Spark SQL landing type."""
        if self.code in _INTEGERS:
            _, _, signed, unsigned = _INTEGERS[self.code]
            return unsigned if self.unsigned else signed
        if self.code in _TEMPORAL:
            return _TEMPORAL[self.code][2]
        if self.code == NEWDECIMAL and self.precision <= DECIMAL_MAX_PRECISION:
            return f"decimal({self.precision},{self.scale})"
        if self.code == BIT:
            return "decimal(20,0)" if self.length == 64 else "bigint"
        if self.code in (FLOAT, DOUBLE):
            return "float" if self.code == FLOAT else "double"
        is_bytes = self.code in STRINGS | BLOBS and self.is_binary and self.alias is None
        return "binary" if is_bytes else "string"

    @property
    def type_name(self) -> str:
        """Format the type like MySQL 8's COLUMN_TYPE, without display widths and zerofill."""
        unsigned = " unsigned" if self.unsigned else ""
        if self.alias:
            return self.alias
        if self.code in _INTEGERS:
            return _INTEGERS[self.code][0] + unsigned
        if self.code in _TEMPORAL:
            return _TEMPORAL[self.code][0] + (f"({self.scale})" if self.scale else "")
        if self.code == NEWDECIMAL:
            return f"decimal({self.precision},{self.scale}){unsigned}"
        if self.code in (FLOAT, DOUBLE):
            return ("float" if self.code == FLOAT else "double") + unsigned
        return f"bit({self.length})" if self.code == BIT else self._string_type_name()

    def _string_type_name(self) -> str:
        if self.code in (ENUM, SET):
            values = ",".join("'" + value.replace("'", "''") + "'" for value in self.values)
            return f"{'enum' if self.code == ENUM else 'set'}({values})"
        if self.code in BLOBS:
            return _BLOBS[self.size] + ("blob" if self.is_binary else "text")
        if self.code in STRINGS:
            name = ("binary" if self.is_binary else "char") if self.code == STRING else None
            name = name or ("varbinary" if self.is_binary else "varchar")
            return f"{name}({self.length // max_bytes(self.charset or BINARY)})"
        return {JSON: "json", GEOMETRY: "geometry", VECTOR: "vector"}[self.code]


_DECIMAL_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_words(precision: int, scale: int) -> list[tuple[int, int]]:
    """List the digits and bytes of each word in a packed decimal."""
    whole, fraction = precision - scale, scale
    words = [whole % 9, *[9] * (whole // 9), *[9] * (fraction // 9), fraction % 9]
    return [(digits, _DECIMAL_BYTES[digits]) for digits in words if digits]


def decimal_width(precision: int, scale: int) -> int:
    """Return the bytes of a packed decimal."""
    return sum(width for _, width in decimal_words(precision, scale))


def is_shown_as_binary(name: str) -> bool:
    """Return whether a COLUMN_TYPE is a binary, or one that MariaDB's log shows as a binary."""
    return name in ALIASES or any(pattern.fullmatch(name) for pattern in (_VECTOR, _BINARY))


def as_alias(type_: ColumnType, *names: str) -> ColumnType:
    """Return the MariaDB type of a binary: the first that it can be of those with these names, or its own.

    A name is the catalog's COLUMN_TYPE, or a `ColumnType.type_name`.
    """
    named = (_named(type_, name) for name in names if type_.is_binary)
    return next((found for found in named if found is not None), type_)


def _named(type_: ColumnType, name: str) -> ColumnType | None:
    """Return the type with this name, if the log shows it as that binary."""
    if name == type_.type_name:
        return type_
    if vector := _VECTOR.fullmatch(name):
        length = _FLOAT_BYTES * int(vector[1]) if vector[1] else type_.length
        fits = type_.code == VARCHAR and type_.length == length
        return ColumnType(VECTOR, size=type_.prefix) if fits else None
    fits = type_.code == STRING and type_.length == ALIASES.get(name)
    return replace(type_, alias=name) if fits else None


_VECTOR, _FLOAT_BYTES = re.compile(r"vector(?:\((\d+)\))?"), 4
_BINARY = re.compile(r"(?:var)?binary\(\d+\)")
_CATALOG = re.compile(r"(\w+)\s*(?:\((.*)\))?\s*([^()]*)", re.DOTALL)
_BY_NAME = {name: code for code, (name, *_) in {**_TEMPORAL, **_INTEGERS}.items()}
_BY_NAME |= {"timestamp": TIMESTAMP2, "datetime": DATETIME2, "time": TIME2, "date": DATE}
_BY_NAME |= {"float": FLOAT, "double": DOUBLE, "json": JSON, "vector": VECTOR, "enum": ENUM, "set": SET}
_BY_NAME |= dict.fromkeys(
    "geometry point linestring polygon multipoint multilinestring multipolygon geomcollection"
    " geometrycollection".split(),
    GEOMETRY,
)
_STRING_CODES = {"char": STRING, "binary": STRING, "varchar": VARCHAR, "varbinary": VARCHAR}


def type_of_catalog(column_type: str, charset: str | None) -> ColumnType:
    """Parse the catalog's COLUMN_TYPE and CHARACTER_SET_NAME; `ValueError` for an unknown type."""
    bare = _QUOTED_OR_COMMENT.sub(lambda found: found[1] or "", column_type)
    match = _CATALOG.fullmatch(bare)
    if match is None:
        raise ValueError(f"{column_type!r} is not a known type")
    name, arguments, attributes = match[1].lower(), match[2] or "", match[3]
    unsigned = "unsigned" in attributes or "zerofill" in attributes
    if name in ALIASES:
        return ColumnType(STRING, length=ALIASES[name], charset=BINARY, alias=name)
    if name in ("enum", "set"):
        return _enumerated(_BY_NAME[name], arguments, charset)
    if name in _STRING_CODES:
        length = int(arguments) * max_bytes(charset or BINARY)
        return ColumnType(_STRING_CODES[name], length=length, charset=charset or BINARY)
    if match_blob := re.fullmatch(r"(tiny|medium|long|)(blob|text)", name):
        size = {prefix: size for size, prefix in _BLOBS.items()}[match_blob[1]]
        return ColumnType(BLOB, size=size, charset=charset or BINARY)
    numbers = [int(n) for n in re.findall(r"\d+", arguments)]
    if name == "decimal":
        return ColumnType(NEWDECIMAL, precision=numbers[0], scale=numbers[1], unsigned=unsigned)
    if name == "bit":
        return ColumnType(BIT, length=numbers[0])
    if name not in _BY_NAME:
        raise ValueError(f"{column_type!r} is not a known type")
    code = _BY_NAME[name]
    if code == YEAR and numbers == [2]:
        raise ValueError("it is a year(2): the log has four digits, a dump has two; change it to year")
    scale = numbers[0] if numbers and code in (TIMESTAMP2, DATETIME2, TIME2) else 0
    size = 4 if code in (JSON, GEOMETRY, VECTOR) else 0
    return ColumnType(code, size=size, scale=scale, unsigned=unsigned and code in NUMERIC)


_QUOTED_OR_COMMENT = re.compile(r"('(?:[^']|'')*')|\s*/\*.*?\*/")
_ESCAPED = {"''": "'", r"\0": "\0", r"\n": "\n", r"\r": "\r", r"\\": "\\"}
"""As the servers write members (``append_unescaped``), whatever the sql_mode."""


def _enumerated(code: int, arguments: str, charset: str | None) -> ColumnType:
    members = re.findall(r"'((?:[^']|'')*)'", arguments)
    values = tuple(re.sub(r"''|\\[0nr\\]", lambda found: _ESCAPED[found[0]], v) for v in members)
    size = (1 if len(values) < 256 else 2) if code == ENUM else _set_size(len(values))
    return ColumnType(code, size=size, charset=charset, values=values)


def _set_size(values: int) -> int:
    size = (values + 7) // 8
    return size if size <= 4 else 8


def select_expression(quoted: str, type_: ColumnType) -> str:
    """Build the expression that a dump selects, so the value is exact.

    Of a float or double, that is a point, whose bytes hold it: as text, it takes the server as long as half a
    dozen other columns, and MySQL prints only a float's first 6 digits, and only as many of a double(M,D) as
    its type has.
    """
    return f"Point({quoted}, 0)" if type_.code in (FLOAT, DOUBLE) else quoted
