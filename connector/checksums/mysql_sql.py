"""SQL for `connector.checksums.definition` in MySQL and MariaDB. Pure.

Cells are concatenated as bytes, so collations don't matter. These servers return NULL for any cell or row
text that exceeds a packet. A cell is ``-`` only if the column itself is null, and cells are joined by CONCAT,
not CONCAT_WS, which skips NULL. So a row with an oversized cell has no checksum, which counts as 0: its
bucket's sum differs, and the bucket's rows are compared directly.

Invariant: every function is a native one, which takes precedence over a stored function of the same name in
the session's current database.
"""

from __future__ import annotations

from connector.checksums.definition import HEX_DIGITS, NULL, SEPARATOR, uncovered, why_uncovered
from connector.errors import RequestError
from connector.mysql.codec import types
from connector.mysql.codec.table_map import TableMap
from connector.mysql.codec.types import ColumnType
from connector.mysql.connection import quote
from connector.schema import Column, TableSchema

UTF8 = ("utf8mb4", "utf8mb3", "utf8", "ascii")
"""Character sets whose bytes are those of UTF-8."""

CONVERTED = ("latin1",)
"""Character sets that the server converts exactly as the codec does; in others, some characters may differ.
"""

_TEXTS = types.STRINGS | types.BLOBS | {types.ENUM, types.SET}


def bucket_columns(schema: TableSchema, layout: TableMap, bits: int) -> str:
    """Build the select list, to be grouped by its first column: bucket, row count, sum of checksums.

    `RequestError` if a column's text is not the same everywhere.
    """
    if why := uncovered(schema):
        raise RequestError(f"{schema.table}: {why}")
    known = {column.name: column.type for column in layout.columns}
    cells = f", '{SEPARATOR}', ".join(_cell(column, known[column.name]) for column in schema.columns)
    checksum = f"CONV(LEFT(SHA2(CONCAT({cells}), 256), {HEX_DIGITS}), 16, 10)"
    key, width = f"t.{quote(schema.key[0])}", 1 << bits
    return f"{key} DIV {width} - ({key} % {width} < 0), COUNT(*), SUM(CAST({checksum} AS UNSIGNED))"


def _cell(column: Column, type_: ColumnType) -> str:
    name = f"t.{quote(column.name)}"
    text = _text(name, type_)
    if text is None:
        raise RequestError(why_uncovered(column))
    if column.type == "string":
        text = f"CONCAT(LENGTH({text}), '{SEPARATOR}', {text})"
    return f"IF({name} IS NULL, '{NULL}', CAST({text} AS BINARY))"


def _text(name: str, type_: ColumnType) -> str | None:
    """Build the expression for a value's text as it lands; None if they may differ."""
    if type_.landing == "binary":
        return f"CONCAT(X'5C78', LOWER(HEX({name})))"
    if type_.alias is not None or type_.landing == "date" or type_.code in (types.TIME, types.TIME2):
        return f"CAST({name} AS CHAR)"
    if type_.landing in ("timestamp", "timestamp_ntz"):
        return _moment(name, type_)
    if type_.code in _TEXTS and type_.charset in CONVERTED:
        return f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)"
    if type_.code in _TEXTS:
        return f"CAST({name} AS BINARY)" if type_.charset in UTF8 else None
    if type_.code in (types.FLOAT, types.DOUBLE) or type_.code in (types.JSON, *types.HEX_TYPES):
        return None
    if type_.landing == "string":
        return f"CAST({name} AS CHAR)"
    return f"CAST({name} + 0 AS CHAR)"  # without the zeros of a zerofill, a bit as its number


def _moment(name: str, type_: ColumnType) -> str:
    text = f"CAST({name} AS CHAR)"
    if type_.scale:
        text = f"TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM {text}))"
    return f"CONCAT({text}, '+00')" if type_.landing == "timestamp" else text
