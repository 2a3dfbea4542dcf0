"""An independent decoder (pymysqlreplication) reads the same rows in a log as land, in every row image."""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.constants import NONE_SOURCE
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from connector.mysql.connection import parse_url
from tests.fidelity.literals import Literals
from tests.fidelity.mysql import LITERALS
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import Row, following

UNREADABLE = (
    "date",  # zero dates
    "char(5) CHARACTER SET latin1",
    "varchar(20) CHARACTER SET utf32",
    "varchar(500) COMPRESSED",
    "text COMPRESSED",
    "blob COMPRESSED",
    "vector(3)",
)
"""Types whose literals, or whose table maps, it can't read."""

MISREAD = (
    "year",  # 0 becomes 1900
    "timestamp NULL",  # the zero timestamp becomes 1970
    "timestamp(4) NULL",
    "time(3)",  # fractions of negative times count the other way
    "time(6)",
    *(f"varchar(20) CHARACTER SET {charset}" for charset in ("ucs2", "utf16", "utf16le", "sjis", "koi8u")),
    "enum('a','ü''x','c,') CHARACTER SET latin1",
)
"""Types of which it reads other values than the server has: `test_fidelity` compares them with the server."""


def read_independently(
    database: MysqlDatabase, file: str, offset: int, ignored: Sequence[str]
) -> Iterator[tuple[str, str, Row]]:
    """Read rows as (table, operation, values by column name) from an offset in the log to its end.

    An update's row is its old image with the new one over it; either may lack columns.
    """
    stream = BinLogStreamReader(
        connection_settings=parse_url(database.url),
        server_id=4711,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        log_file=file,
        log_pos=offset,
        resume_stream=True,
        only_schemas=[database.name],
        ignored_tables=list(ignored),
        enable_logging=False,
    )
    try:
        for event in stream:
            for row in event.rows:
                if isinstance(event, UpdateRowsEvent):
                    given = {n: v for n, v in row["after_values"].items() if not _left_out(row, n)}
                    yield event.table, "update", row["before_values"] | given
                else:
                    op = "insert" if isinstance(event, WriteRowsEvent) else "delete"
                    yield event.table, op, row["values"]
    finally:
        stream.close()


def _left_out(row: Row, name: str) -> bool:
    """Whether an update's new image lacks a column, which then reads as null."""
    return bool(row["after_none_sources"].get(name) == NONE_SOURCE.COLS_BITMAP)


def same(ours: Any, theirs: Any, type_: str) -> bool:
    """Whether a landed value is the one that the other decoder found, in the form in which it gives it."""
    if ours is None or theirs is None:
        return ours == theirs or (type_, ours) == ("json", "null") or (type_.startswith("set") and not ours)
    if type_.startswith("bit"):
        return int(ours) == int(theirs, 2)
    if type_.startswith("set"):
        return _members(ours, theirs - {""} if type_.startswith("set('',") else theirs)
    if type_ == "json" and not isinstance(theirs, str):
        return _equal_json(json.loads(ours), theirs)
    if isinstance(theirs, datetime.timedelta):
        return _duration(ours) == theirs
    if isinstance(ours, datetime.datetime):
        return ours.replace(tzinfo=None) == theirs
    if isinstance(theirs, (int, Decimal)):
        return Decimal(ours) == Decimal(theirs)
    if isinstance(ours, bytes):
        return ours == (theirs or b"").ljust(len(ours), b"\0")
    if type_ == "inet6":  # texts of one address differ
        ours = str(ipaddress.IPv6Address(ours))
    if isinstance(theirs, bytes) or type_ in ("inet4", "inet6"):
        return bool(ours == _text(theirs or b"", type_))
    return repr(ours) == repr(theirs)


def _members(ours: str, theirs: set[str]) -> bool:
    """Whether a text lists just these members; of an empty one in front, the server's text shows nothing."""
    return all(re.search(f"(^|,){re.escape(member)}(,|$)", ours) for member in theirs) and len(ours) == (
        sum(map(len, theirs)) + max(0, len(theirs) - 1)
    )


def _equal_json(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict):
        return [k.encode() for k in ours] == [*theirs] and all(
            _equal_json(value, theirs[name.encode()]) for name, value in ours.items()
        )
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(_equal_json, ours, theirs))
    return bool(ours == (theirs.decode() if isinstance(theirs, bytes) else theirs))


def _duration(text: str) -> datetime.timedelta:
    sign = -1 if text.startswith("-") else 1
    hours, minutes, seconds = text.lstrip("-").split(":")
    micros = int(Decimal(seconds) * 1_000_000)
    return sign * datetime.timedelta(hours=int(hours), minutes=int(minutes), microseconds=micros)


def _text(data: bytes, type_: str) -> str:
    if type_ == "uuid":
        return str(uuid.UUID(bytes=data.ljust(16, b"\0")))
    if type_ == "inet4":
        return str(ipaddress.IPv4Address(data.ljust(4, b"\0")))
    if type_ == "inet6":
        return str(ipaddress.IPv6Address(data.ljust(16, b"\0")))
    return data.hex().upper()


@pytest.mark.parametrize("image", ["FULL", "MINIMAL", "NOBLOB"])
def test_an_independent_decoder_finds_the_same_rows(mariadb: MysqlDatabase, image: str) -> None:
    if image == "NOBLOB" and not mariadb.is_mysql:
        pytest.skip("an update that lacks columns on both sides may be a REPLACE")
    server = ("mysql" if mariadb.is_mysql else "mariadb") + ("-8.0" if mariadb.is_old else "")
    matrix = {f"t{n}": literals for n, literals in enumerate(LITERALS) if literals.is_on(server)}
    ignored = [table for table, literals in matrix.items() if literals.type in (*UNREADABLE, *MISREAD)]
    created = (f"CREATE TABLE {t} (id int PRIMARY KEY, c {x.type}, d int)" for t, x in matrix.items())
    mariadb.execute(*(f"{statement} CHARACTER SET utf8mb4" for statement in created))
    file, offset = mariadb.execute("SHOW MASTER STATUS")[0][:2]
    with following(source_of(mariadb, partial_images=image != "FULL")) as log:
        statements = [s for table, literals in matrix.items() for s in changes(table, literals)]
        mariadb.execute(f"SET binlog_row_image = {image}", *statements)
        ours = [row for row in read_all(mariadb, log) if table_of(row) not in ignored]
    theirs = list(read_independently(mariadb, file, offset, ignored))
    assert [(table_of(row), row["_cdc"]["op"], row["id"]) for row in ours] == [
        (table, op, row.get("id")) for table, op, row in theirs
    ]
    differing = [
        (matrix[table].type, op, row["c"], other["c"])
        for row, (table, op, other) in zip(ours, theirs, strict=True)
        if op != "delete" and "c" not in (row["_cdc"]["unchanged"] or ())
        if not same(row["c"], other["c"], matrix[table].type)
    ]
    assert differing == []
    assert len(theirs) > 300


def changes(table: str, literals: Literals) -> list[str]:
    """Statements that insert each literal, change it to the next one or leave it, and delete some rows."""
    rows = ", ".join(f"({n}, {text}, 0)" for n, text in enumerate(literals.all))
    return [
        f"INSERT INTO {table} VALUES {rows}, (99, NULL, 0)",
        *(f"UPDATE {table} SET c = {text} WHERE id = {n + 1}" for n, text in enumerate(literals.all[:2])),
        f"UPDATE {table} SET d = 1 WHERE id = 99",
        f"DELETE FROM {table} WHERE id = 0",
    ]


def table_of(row: Row) -> str:
    return str(row["_table"]).rpartition(".")[2]
