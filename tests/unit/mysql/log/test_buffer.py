"""The buffer of the binary log over events made by hand: MySQL's dialect, broken logs, files beyond 4 GiB."""

from __future__ import annotations

import struct
import zlib
from datetime import datetime, timezone
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pymysqlreplication.constants import BINLOG

from connector.errors import BugError, NotYetError, PreconditionError, TableError, TransientError
from connector.landing.event_batch import EventBatch, QuarantineNotice, TableRedefined, UnloggedNotice
from connector.landing.manifest import LastCommit
from connector.mysql.codec.rows_event import PARTIAL_UPDATE
from connector.mysql.codec.table_map import MappedColumn, TableMap, table_name_of
from connector.mysql.codec.types import LONG, ColumnType
from connector.mysql.gtid import Gtids, MariadbGtids, MysqlGtids
from connector.mysql.log import events
from connector.mysql.log.buffer import LogBuffer
from connector.mysql.log.packet import BODY, END
from connector.mysql.log.schema_cache import NotedColumn, ResolvedLayout
from connector.mysql.log.transaction import OnePhaseCommits, ShownByLog
from connector.mysql.state_table import StateTable
from connector.position import Position, pack_binlog_position
from connector.schema import TableName

SECONDS = 1_700_000_000
UUID = bytes(range(16))
UUID_TEXT = "00010203-0405-0607-0809-0a0b0c0d0e0f"
GIB4 = 1 << 32


class SchemaCache:
    """Captures all tables of database d, each with one key column; in the catalog they have one more.

    The key of table d.keyed is a configured one; in the catalog, d.stored has stored columns, and those of
    d.date, d.datetime and d.timestamp are of such a type.
    """

    mariadb = False

    def __init__(self) -> None:
        self.seen: set[TableName] = set()
        self.forgotten: set[str] = set()
        self.looks = 0

    def cascading(self) -> list[TableError]:
        self.looks += 1
        return [TableError(TableName("d", "u"), "its foreign keys (f) change rows", hint="drop f")]

    def resolve(self, body: bytes) -> ResolvedLayout:
        table = table_name_of(body)
        if table.namespace != "d":
            return ResolvedLayout(table)
        self.seen.add(table)
        return self.latest(table)

    def latest(self, table: TableName) -> ResolvedLayout:
        names = ("id",) if table in self.seen else ("id", "now")
        columns = tuple(MappedColumn(name, ColumnType(LONG)) for name in names)
        table_map = TableMap(0, table, columns, ("id",))
        return ResolvedLayout(table, table_map, table_map.schema())

    def named(self, database: str, name: str) -> TableName | None:
        return TableName(database, name) if database == "d" else None

    def types_of(self, table: TableName) -> dict[str, str]:
        return {"went": "datetime"} if table.name == "went" else {}

    def forget(self, table: TableName) -> None:
        self.seen.discard(table)

    def forget_traits(self, table: TableName) -> None:
        self.forgotten.add(table.name)

    def forget_columns(self, table: TableName, columns: tuple[str, ...], renamed: object) -> None: ...

    def has_configured_key(self, table: TableName) -> bool:
        return table.name == "keyed"

    def noted(self, table: TableName) -> dict[str, NotedColumn]:
        return {"a": NotedColumn(table.name, virtual=False, stored=table.name == "stored")}

    def among(self, database: str | None) -> set[TableName]:
        return {TableName("d", "t"), TableName("d", "u")} if database in (None, "d") else set()


class Log:
    """A log file written by hand, fed to a buffer event by event."""

    def __init__(self, offset: int = 1000, file: int = 7, tail: int = 4, gtids: Gtids | None = None) -> None:
        self.cut_off: set[Position] = set()
        self.prepared: dict[str, set[TableName]] = {}
        self.gtids, self.one_phase, self.shown = gtids, OnePhaseCommits(), ShownByLog()
        self.open(file, offset, tail)

    def open(self, file: int, offset: int, tail: int) -> None:
        """Open the log, again with what was found out before."""
        position, self.schema_cache = pack_binlog_position(file, offset), SchemaCache()
        self.buffer = LogBuffer(
            1, position, self.schema_cache, self.gtids, None, self.cut_off, self.prepared, self.one_phase,
            self.shown,
        )  # fmt: skip
        self.file, self.offset, self.tail = file, offset, tail
        self.frame(events.ROTATE, struct.pack("<Q", offset) + b"bin.%06d" % file, tail=0)
        described = bytes(57) + bytes([15]) * 40 + bytes([1 if tail else 0])
        self.frame(events.FORMAT, described, tail=4)

    def event(
        self, kind: int, body: bytes, *, flags: int = 0, end: int | None = None, tail: int = -1
    ) -> bytes:
        size = 19 + len(body) + (self.tail if tail < 0 else tail)
        after = (self.offset + size) % GIB4 if end is None else end
        header = struct.pack("<IBIIIH", SECONDS, kind, 9, size, after, flags)
        return header + body + bytes(self.tail if tail < 0 else tail)

    def frame(self, kind: int, body: bytes, tail: int = -1) -> None:
        self.buffer.feed([b"\0" + self.event(kind, body, flags=events.ARTIFICIAL, end=0, tail=tail)])

    def write(self, kind: int, body: bytes = b"", flags: int = 0) -> None:
        event = self.event(kind, body, flags=flags)
        self.offset += len(event)
        self.buffer.feed([b"\0" + event])

    def gtid(self, number: int = 5) -> None:
        micros = (SECONDS * 1_000_000 + 123_456).to_bytes(7, "little")
        body = b"\0" + UUID + number.to_bytes(8, "little") + b"\2" + bytes(16) + micros
        self.write(events.GTID, body)

    def query(self, statement: str, database: str = "d", *, modes: int = 1 << 21, zone: str = "") -> None:
        status = b"\1" + modes.to_bytes(8, "little")
        status += b"\5" + bytes([len(zone)]) + zone.encode() if zone else b""
        head = struct.pack("<IIBHH", 1, 0, len(database), 0, len(status)) + status
        self.write(events.QUERY, head + database.encode() + b"\0" + statement.encode())

    def rows(
        self, *keys: int, table: str = "d.t", write: bool = True, number: int = 0
    ) -> tuple[bytes, bytes]:
        """A table map and its rows; `number`: the table's id, else one by its name."""
        namespace, name = table.split(".")
        table_id = (number or zlib.crc32(table.encode())).to_bytes(6, "little")
        mapped = table_id + b"\1\0" + bytes([len(namespace)]) + namespace.encode() + b"\0"
        mapped += bytes([len(name)]) + name.encode() + b"\0\1\3\0\0"
        body = table_id + b"\1\0\1\xff" + b"".join(b"\xfe" + struct.pack("<i", key) for key in keys)
        if write:
            self.write(19, mapped)
            self.write(23, body)
        return mapped, body

    def transaction(self, *keys: int, table: str = "d.t", number: int = 5, table_id: int = 0) -> None:
        self.gtid(number)
        self.query("BEGIN")
        self.rows(*keys, table=table, number=table_id)
        self.write(events.XID, bytes(8))

    def restart(self, crash: bool = False) -> None:
        """The server stops and starts again, in the next file: a made up ROTATE leads there."""
        if not crash:
            self.write(3)
        self.file, self.offset = self.file + 1, 4
        self.frame(events.ROTATE, struct.pack("<Q", 4) + b"bin.%06d" % self.file)
        described = bytes(57) + bytes([15]) * 40 + bytes([1 if self.tail else 0])
        event = self.event(events.FORMAT, described, tail=4)
        self.offset += len(event)
        self.buffer.feed([b"\0" + event])

    @property
    def end(self) -> int:
        return pack_binlog_position(self.file, self.offset)

    def unlogged(self) -> list[UnloggedNotice]:
        """Take the tables that may have changed without row events."""
        noticed = self.buffer._effects._unlogged
        found = [first for first, _ in noticed.values()]
        noticed.clear()
        return found

    def taken(self) -> list[tuple[str, int | None, int, int]]:
        """Operation, key, lsn and seq of what is whole."""
        return landed(self.buffer.take())


def landed(segment: object) -> list[tuple[str, int | None, int, int]]:
    found = []
    for batch in segment.decode():  # type: ignore[attr-defined]
        if isinstance(batch, UnloggedNotice):
            continue
        assert isinstance(batch, EventBatch), batch
        rows = batch.table.to_pylist()
        found += [(row["_cdc"]["op"], row["id"], row["_cdc"]["lsn"], row["_cdc"]["seq"]) for row in rows]
    return sorted(found, key=lambda row: row[2:])


def quarantines(segment: object) -> list[QuarantineNotice]:
    return [found for found in segment.decode() if isinstance(found, QuarantineNotice)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("tail", [0, 4])
def test_transactions_of_mysql_come_whole_at_their_begin(tail: int) -> None:
    log = Log(tail=tail)
    start = log.end
    log.transaction(1, 2)
    second = log.end
    log.gtid()
    log.query("BEGIN")
    log.rows(3)
    assert log.buffer.position == second
    assert log.taken() == [("insert", 1, start, 0), ("insert", 2, start, 2)]
    log.rows(4)
    log.query("COMMIT")
    assert log.buffer.position == log.end
    segment = log.buffer.take()
    assert landed(segment) == [("insert", 3, second, 0), ("insert", 4, second, 1 << 32)]
    (batch,) = segment.decode()
    assert isinstance(batch, EventBatch)
    cdc = batch.table.column("_cdc")[0].as_py()
    assert cdc["txid"] == "00010203-0405-0607-0809-0a0b0c0d0e0f:5"
    assert cdc["committed_at"].timestamp() == SECONDS + 0.123456


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("kind", "flags", "seen"),
    [
        (BINLOG.DELETE_ROWS_EVENT_V2, 0x01, True),
        (BINLOG.UPDATE_ROWS_EVENT_V2, 0x05, True),
        (PARTIAL_UPDATE, 0x00, True),
        (BINLOG.DELETE_ROWS_EVENT_V2, 0x11, False),  # what foreign keys did is in the log
        (BINLOG.UPDATE_ROWS_EVENT_V2, 0x02, False),  # they did nothing
        (BINLOG.WRITE_ROWS_EVENT_V2, 0x00, False),
        (BINLOG.DELETE_ROWS_EVENT_V1, 0x00, False),  # MariaDB's, which never has it
    ],
)
def test_a_change_without_what_foreign_keys_did_is_seen_whichever_table_it_is_of(
    kind: int, flags: int, seen: bool, compressed: bool
) -> None:
    """The tables that it may have changed are quarantined with the segment that has it, not before."""
    log = Log()
    at = log.end
    change_natively(log, kind, flags, compressed=compressed, commit=False)
    assert log.shown.native_keys == seen
    assert quarantines(log.buffer.take()) == []
    log.write(events.XID, bytes(8))
    found = [(each.table.name, each.lsn, each.hint) for each in quarantines(log.buffer.take())]
    assert found == ([("u", at, "drop f")] if seen else [])
    log.shown.begin("another server")
    assert not log.shown.native_keys


def change_natively(
    log: Log, kind: int, flags: int, *, compressed: bool = False, commit: bool = True
) -> None:
    mapped, body = log.rows(1, table="elsewhere.t", write=False)
    body = body[:6] + bytes([flags]) + body[7:]
    log.gtid()
    if compressed:
        inner = [log.event(k, b, end=0, tail=0) for k, b in ((19, mapped), (kind, body))]
        log.write(events.TRANSACTION_PAYLOAD, payload_of(inner, None))
    else:
        log.query("BEGIN")
        log.write(19, mapped)
        log.write(kind, body)
    if commit:
        log.write(events.XID, bytes(8))


def test_the_catalog_is_asked_for_foreign_keys_again_after_a_statement_and_when_the_log_is_reopened() -> None:
    log = Log()
    for statement in ("SAVEPOINT a", "ALTER TABLE u ADD FOREIGN KEY (a) REFERENCES t (id)"):
        for _ in range(3):
            change_natively(log, BINLOG.DELETE_ROWS_EVENT_V2, 0x01)
        assert log.schema_cache.looks == 1
        log.gtid()
        log.query(statement)
    change_natively(log, BINLOG.DELETE_ROWS_EVENT_V2, 0x01)
    assert log.schema_cache.looks == 2
    log.open(log.file, log.offset, log.tail)
    change_natively(log, BINLOG.DELETE_ROWS_EVENT_V2, 0x01)
    assert [each.table.name for each in quarantines(log.buffer.take())] == ["u"]


@pytest.mark.parametrize("statement", ["DROP FOREIGN KEY f", "DROP CONSTRAINT f"])
@pytest.mark.parametrize("mariadb", [False, True])
def test_a_table_whose_foreign_key_is_gone_when_its_changes_are_read_is_reread_later(
    monkeypatch: pytest.MonkeyPatch, statement: str, mariadb: bool
) -> None:
    """MariaDB's are never logged, so a table with one that changes rows was not captured."""
    monkeypatch.setattr(SchemaCache, "mariadb", mariadb)
    log = Log()
    log.gtid()
    log.query(f"ALTER TABLE u {statement}")
    found = [(each.table.name, each.reason) for each in log.unlogged()]
    assert found == ([] if mariadb else [("u", "ALTER TABLE ... DROP FOREIGN KEY")])


@pytest.mark.parametrize(
    ("flags", "effect"), [("2902", False), ("290401", True), ("290801", False), ("2900", True)]
)
def test_a_statement_in_two_phases_takes_effect_where_it_is_committed(
    monkeypatch: pytest.MonkeyPatch, flags: str, effect: bool
) -> None:
    """Also where the log is opened in between, so that only its end is read."""
    monkeypatch.setattr(SchemaCache, "mariadb", True)
    log = Log()
    at = log.end
    log.write(events.MARIADB_GTID, bytes(12) + bytes.fromhex(flags) + bytes(8))
    log.query("ALTER TABLE t DROP SYSTEM VERSIONING, MODIFY a int")
    assert log.buffer.position == log.end
    assert log.schema_cache.forgotten == ({"t"} if effect else set())
    assert [each.lsn for each in log.unlogged()] == ([at] if effect else [])
    assert any(isinstance(found, TableRedefined) for found in log.buffer.take().decode()) == effect


@pytest.mark.parametrize(
    ("statement", "may_lack"),
    [
        ("INSERT INTO `t` VALUES (1, 'IGNORE'), (2, 'SELECT')", False),  # as mysqldump writes it
        ("INSERT INTO `d`.`t` (`id`, `a``(`) VALUES (1, 2)", False),
        ("insert t(id)value(1)", False),
        ("REPLACE INTO t SELECT * FROM u", False),
        ("LOAD DATA INFILE 'f' INTO TABLE t IGNORE 1 LINES", False),
        (None, True),
        ("INSERT IGNORE INTO t VALUES (1), (2)", True),
        ("INSERT IGNORE t VALUES (1), (2)", True),
        ("INSERT LOW_PRIORITY IGNORE INTO t VALUES (1), (2)", True),
        ("/* x */ INSERT INTO t VALUES (1), (2)", True),  # it could be anything
        ("INSERT INTO t SELECT id FROM u", True),
        ("INSERT INTO tVALUES SELECT id FROM u", True),
        ("LOAD DATA LOCAL INFILE 'f' INTO TABLE t", True),
        ("LOAD DATA INFILE 'f' IGNORE INTO TABLE t IGNORE 1 LINES", True),
        ("UPDATE v SET a = 2", True),  # a trigger inserted
    ],
)
@pytest.mark.parametrize("kind", [23, 166])
def test_rows_that_mariadb_inserted_without_checks_are_reread_unless_duplicates_were_reported(
    monkeypatch: pytest.MonkeyPatch, statement: str | None, may_lack: bool, kind: int
) -> None:
    monkeypatch.setattr(SchemaCache, "mariadb", True)
    log = Log()
    at = log.end
    insert_unchecked(log, statement, kind=kind)
    found = log.unlogged()
    assert [(each.table, each.lsn) for each in found] == ([(TableName("d", "t"), at)] if may_lack else [])


def test_a_statement_that_inserts_into_a_second_table_by_a_trigger_does_not_report_its_duplicates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SchemaCache, "mariadb", True)
    log = Log()
    insert_unchecked(log, "INSERT INTO t VALUES (1)", also="d.u")
    assert {each.table.name for each in log.unlogged()} == {"t", "u"}


@pytest.mark.parametrize(("flags", "mariadb"), [(0x03, True), (0x05, True), (0x07, False)])
def test_rows_of_a_session_that_checks_anything_are_kept_as_are_mysqls(
    monkeypatch: pytest.MonkeyPatch, flags: int, mariadb: bool
) -> None:
    monkeypatch.setattr(SchemaCache, "mariadb", mariadb)
    log = Log()
    insert_unchecked(log, "INSERT IGNORE INTO t VALUES (1)" if mariadb else None, flags=flags)
    assert log.unlogged() == []


def insert_unchecked(
    log: Log, statement: str | None, *, kind: int = 23, flags: int = 0x07, also: str | None = None
) -> None:
    log.write(events.MARIADB_GTID, (9).to_bytes(8, "little") + bytes(5))
    if statement is not None:
        log.write(events.ANNOTATE, statement.encode())
    mapped, body = log.rows(1, write=False)
    if also is not None:
        log.write(19, log.rows(1, table=also, write=False)[0])
    log.write(19, mapped)
    log.write(kind, body[:6] + bytes([flags]) + body[7:])
    log.write(events.XID, bytes(8))


def test_what_precedes_a_table_that_is_locked_can_be_taken_and_what_follows_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MariaDB's catalog has what the log lacks of a table, which others may keep locked for hours."""
    locked, resolve = {TableName("d", "u")}, SchemaCache.resolve

    def resolve_unlocked(self: SchemaCache, body: bytes) -> ResolvedLayout:
        if table_name_of(body) in locked:
            raise NotYetError("d.u is locked")
        return resolve(self, body)

    monkeypatch.setattr(SchemaCache, "resolve", resolve_unlocked)
    log = Log()
    log.transaction(1)
    boundary = log.end
    log.gtid()
    log.query("BEGIN")
    log.rows(2)
    log.rows(3, table="d.u")
    assert [key for _, key, *_ in log.taken()] == [1]
    log.write(events.XID, bytes(8))
    log.transaction(4, number=6)
    log.buffer.feed([])
    assert (log.buffer.position, log.buffer.locked, log.taken()) == (boundary, "d.u is locked", [])
    locked.clear()
    log.buffer.feed([])
    assert (log.buffer.position, log.buffer.locked) == (log.end, None)
    found = [(key, seq) for _, key, _, seq in log.taken()]
    assert found == [(2, 0), (3, 1 << 32), (4, 0)]


@pytest.mark.parametrize("statement", ["ALTER TABLE u MODIFY a int, DROP x", "TRUNCATE TABLE u"])
def test_a_statement_about_a_table_that_is_locked_waits_and_has_its_effects_once(
    monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Each attempt had the log reopened, and dumps begin again: by a later statement that ran for hours."""
    locked, latest = {TableName("d", "u")}, SchemaCache.latest

    def latest_unlocked(self: SchemaCache, table: TableName) -> ResolvedLayout:
        if table in locked:
            raise NotYetError("d.u is locked")
        return latest(self, table)

    monkeypatch.setattr(SchemaCache, "latest", latest_unlocked)
    log, unhindered = Log(), Log()
    for each in (log, unhindered):
        each.transaction(1)
        boundary = each.end
        if each is unhindered:
            locked.clear()
        each.gtid()
        each.query(statement)
        each.transaction(4, number=6)
        if each is log:
            log.buffer.feed([])
            assert (log.buffer.position, log.buffer.locked) == (boundary, "d.u is locked")
            locked.clear()
            log.buffer.feed([])
            assert (log.buffer.position, log.buffer.locked) == (log.end, None)
            locked.add(TableName("d", "u"))
    assert log.unlogged() == unhindered.unlogged()
    assert log.taken() == unhindered.taken()


def test_statements_that_are_transactions_of_their_own_move_the_position() -> None:
    log = Log()
    for statement in ("ALTER TABLE t ADD now int", "TRUNCATE TABLE t", "ALTER TABLE u MODIFY a int"):
        lsn = log.end
        log.gtid()
        log.query(statement)
        assert log.buffer.position == log.end
    assert [(each.table.name, each.lsn) for each in log.unlogged()] == [("u", lsn)]
    assert [row[:2] for row in log.taken()] == [("truncate", None)]


def test_a_statement_that_can_not_be_read_has_all_tables_read_again_whatever_its_database() -> None:
    log = Log()
    log.gtid()
    statement = b"ALTER TABLE d.t COMMENT '\xe9'"
    log.write(events.QUERY, struct.pack("<IIBHH", 1, 0, 5, 0, 0) + b"other\0" + statement)
    assert {found.table.name for found in log.unlogged()} == {"t", "u"}


def test_our_own_writes_as_statements_concern_no_table() -> None:
    """As once binlog_format is MIXED: in MariaDB, each chunk's barrier had all tables dumped again.

    And a table d.barrier or d.source, in the database that source.url names, was quarantined. A statement
    is logged though it changes no row, as those are that find out whether we may write.
    """
    log, tried = Log(), MagicMock()
    StateTable("a").try_writing(tried)
    executed = tried.cursor.return_value.__enter__.return_value.execute.call_args_list
    assert len(executed) == 2
    for statement in (
        *(call.args[0] for call in executed),
        "UPDATE deltatide.watermark SET barrier = barrier + 1 WHERE source = _utf8mb4 X'61'",
        "UPDATE deltatide.watermark SET log_server = _utf8mb4 X'75', log_file = 7, log_created = 5"
        " WHERE source = _utf8mb4 X'61'",
        "INSERT INTO deltatide.watermark (source, id) VALUES (_utf8mb4 X'61', _utf8mb4 X'62')",
    ):
        log.gtid()
        log.query(statement)
        assert log.unlogged() == []
        assert quarantined_in(log.buffer.take()) == set()
    for statement in (
        "UPDATE deltatide.watermark JOIN d.t SET a = 1",
        "UPDATE deltatide.watermark, t SET a = 1",
        "INSERT INTO deltatide.watermark (source, id) VALUES (changed(1), 1)",
        "UPDATE deltatide.watermark SET barrier = changed(barrier)",
        "UPDATE deltatide.others SET a = 1",  # may be a view
    ):
        log.gtid()
        log.query(statement)
        assert log.unlogged() != []
        assert ("t" in quarantined_in(log.buffer.take())) == (" t " in statement or "d.t" in statement)


def quarantined_in(segment: object) -> set[str]:
    return {found.table.name for found in getattr(segment, "quarantined", ())}


def layouts_in(segment: object) -> list[tuple[list[str], int]]:
    """The columns of each batch, and its number of events."""
    batches = [batch for batch in segment.decode() if isinstance(batch, EventBatch)]  # type: ignore[attr-defined]
    return [([c.name for c in batch.schema.columns], batch.table.num_rows) for batch in batches]


def test_a_layout_that_no_row_shows_is_reported_in_its_place() -> None:
    log = Log()
    log.transaction(1)
    log.gtid()
    log.query("ALTER TABLE t ADD now int")
    log.transaction(2)
    assert layouts_in(log.buffer.take()) == [(["id"], 2), (["id", "now"], 0)]


def test_a_column_that_is_in_the_catalog_again_is_first_reported_gone() -> None:
    """No row showed the column, so the layout of the last row does not have it either."""
    log = Log()
    log.transaction(1)
    for statement in ("ADD now int DEFAULT 5", "DROP NOW"):
        log.gtid()
        log.query(f"ALTER TABLE t {statement}")
    assert layouts_in(log.buffer.take()) == [
        (["id"], 1),
        (["id", "now"], 0),
        (["id"], 0),
        (["id", "now"], 0),
    ]


def test_a_table_that_many_statements_may_have_changed_is_told_of_once() -> None:
    """Each may have changed all tables: what is held must not grow with both."""
    log = Log()
    for _ in range(5):
        log.gtid()
        log.query("INSERT INTO d.elsewhere VALUES (1)")
    found = [each for each in log.buffer.take().decode() if isinstance(each, UnloggedNotice)]
    assert [each.table.name for each in found] == ["t", "u"]


def test_columns_that_are_renamed_are_told_whatever_the_catalog_shows_and_becomes_of_the_table() -> None:
    """By then the catalog may have columns of the same names again, in the same places."""
    log = Log()
    for statement in ("DROP now", "RENAME COLUMN id TO now", "ADD id int FIRST"):
        log.gtid()
        log.query(f"ALTER TABLE t {statement}")
    log.gtid()
    log.query("INSERT INTO t VALUES (1)")
    found = [*log.buffer.take().decode()]
    assert [(each.table.name, each.names) for each in found if isinstance(each, TableRedefined)] == [
        ("t", (("id", "now"),))
    ]
    assert [each.table.name for each in found if isinstance(each, QuarantineNotice)] == ["t"]
    assert not any(isinstance(each, TableRedefined) for each in log.buffer.take().decode())


@pytest.mark.parametrize(
    ("statement", "redefined", "forgotten"),
    [
        ("ALTER TABLE t ADD a int, ADD INDEX (a)", {"t"}, set()),
        ("ALTER TABLE t DROP b", {"t"}, set()),
        ("ALTER TABLE t ADD a int DEFAULT 1", {"t"}, {"t"}),
        ("ALTER TABLE t ALTER id SET DEFAULT 5", {"t"}, {"t"}),
        ("ALTER TABLE t ADD SYSTEM VERSIONING", {"t"}, {"t"}),
        ("ALTER TABLE t MODIFY v int AS (id) STORED", {"t"}, {"t"}),
        ("ALTER TABLE t DROP v, ADD v int AS (id) VIRTUAL", {"t"}, {"t"}),
        ("CREATE OR REPLACE TABLE t (id int)", {"t"}, {"t"}),
        ("RENAME TABLE t TO u", {"t", "u"}, {"t", "u"}),
        ("DROP TABLE t", {"t"}, {"t"}),
        ("DROP DATABASE d", {"t", "u"}, {"t", "u"}),
        ("TRUNCATE TABLE t", set(), set()),
        ("OPTIMIZE TABLE t", set(), set()),
        ("CREATE INDEX i ON t (id)", set(), set()),
    ],
)
@pytest.mark.parametrize("mariadb", [True, False])
def test_a_statement_that_may_change_what_mariadbs_log_lacks_is_told(
    monkeypatch: pytest.MonkeyPatch, statement: str, redefined: set[str], forgotten: set[str], mariadb: bool
) -> None:
    monkeypatch.setattr(SchemaCache, "mariadb", mariadb)
    log = Log()
    log.gtid()
    log.query(statement)
    if mariadb:
        log.query("COMMIT")  # its GTID event, which is MySQL's here, would say that none follows
    found = [each for each in log.buffer.take().decode() if isinstance(each, TableRedefined)]
    captured = {each.table.name for each in found} & {"t", "u"}  # the stub knows any name
    assert captured == (redefined if mariadb else set())
    assert log.schema_cache.forgotten & {"t", "u"} == (forgotten if mariadb else set())


@pytest.mark.parametrize("statement", ["ALTER TABLE t ADD now int", "RENAME TABLE t TO x, y TO t"])
def test_a_truncate_has_the_layout_that_the_table_has_by_then(statement: str) -> None:
    log = Log()
    log.transaction(1)
    for each in (statement, "TRUNCATE TABLE t"):
        log.gtid()
        log.query(each)
    assert layouts_in(log.buffer.take())[-1] == (["id", "now"], 1)


@pytest.mark.parametrize(
    "clauses",
    ["RENAME COLUMN id TO x, RENAME COLUMN x TO id", "DROP ID", "RENAME COLUMN id TO x, ADD id int"],
)
def test_rows_are_read_again_whose_key_column_may_have_become_another(clauses: str) -> None:
    log = Log()
    log.transaction(1)
    log.gtid()
    log.query(f"ALTER TABLE t {clauses}")
    assert [found.table.name for found in log.unlogged()] == ["t"]


@pytest.mark.parametrize(
    "statement", ["DROP INDEX i ON {}", "ALTER TABLE {} DROP KEY i", "ALTER TABLE {} DROP PRIMARY KEY"]
)
def test_rows_are_read_again_that_may_have_had_the_same_configured_key(statement: str) -> None:
    """Of a primary key, the table map shows that it is gone."""
    log = Log()
    for table in ("keyed", "t"):
        log.transaction(1, table=f"d.{table}")
        log.gtid()
        log.query(statement.format(table))
    assert [found.table.name for found in log.unlogged()] == ["keyed"]


@pytest.mark.parametrize(
    ("clauses", "read_again"),
    [("DROP id", ["t"]), ("ADD id int PRIMARY KEY", ["t"]), ("ADD INDEX (now)", [])],
)
def test_rows_are_read_again_whose_layout_is_unknown_when_a_column_goes_or_comes(
    clauses: str, read_again: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row was logged since the log was opened, and the catalog shows a table without a key."""
    monkeypatch.setattr(SchemaCache, "latest", lambda _self, table: ResolvedLayout(table))
    log = Log()
    log.gtid()
    log.query(f"ALTER TABLE t {clauses}")
    assert [found.table.name for found in log.unlogged()] == read_again


@pytest.mark.parametrize(
    ("statement", "read_again"),
    [
        ("ALTER TABLE {} ADD FOREIGN KEY (a) REFERENCES u (a)", ["stored"]),
        ("CREATE INDEX i ON {} (a)", ["stored"]),
        ("ALTER TABLE {} ADD now int, ALGORITHM = INSTANT", []),
        ("ALTER TABLE {} ADD PRIMARY KEY (a)", ["stored", "t"]),
    ],
)
def test_rows_are_read_again_whose_stored_columns_a_copy_may_have_changed(
    statement: str, read_again: list[str]
) -> None:
    log = Log()
    for table in ("stored", "t"):
        log.gtid()
        log.query(statement.format(table))
    assert [found.table.name for found in log.unlogged()] == read_again


STRICT_TRANS_TABLES, STRICT_ALL_TABLES, NO_ZERO_DATE = 1 << 21, 1 << 22, 1 << 24


@pytest.mark.parametrize(
    ("modes", "zone", "read_again"),
    [
        (STRICT_TRANS_TABLES | NO_ZERO_DATE, "", []),
        (STRICT_ALL_TABLES, "+5:00", []),
        (STRICT_TRANS_TABLES, "-11:30", []),
        (STRICT_TRANS_TABLES, "SYSTEM", ["timestamp"]),
        (STRICT_ALL_TABLES, "Europe/Berlin", ["timestamp"]),
        (NO_ZERO_DATE, "", ["date", "datetime", "went"]),
        (0, "SYSTEM", ["date", "datetime", "timestamp", "went"]),
    ],
)
def test_rows_are_read_again_whose_times_a_copy_may_have_changed(
    modes: int, zone: str, read_again: list[str]
) -> None:
    """Also those of a column that the catalog does not show any more."""
    log = Log()
    for table in ("date", "datetime", "int", "timestamp", "went"):
        log.gtid()
        log.query(f"CREATE INDEX i ON {table} (a)", modes=modes, zone=zone)
    assert [found.table.name for found in log.unlogged()] == read_again


def test_rows_are_not_read_again_for_a_column_that_the_copy_itself_has_dropped() -> None:
    log = Log()
    log.gtid()
    log.query("ALTER TABLE went DROP COLUMN Went", modes=0)
    assert log.unlogged() == []


def test_a_copy_waits_for_a_table_of_which_it_is_not_known_whether_it_has_stored_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def locked(_self: SchemaCache, table: TableName) -> dict[str, NotedColumn]:
        raise NotYetError(f"{table} is locked")

    log = Log()
    with monkeypatch.context() as patch:
        patch.setattr(SchemaCache, "noted", locked)
        log.gtid()
        log.query("CREATE INDEX i ON stored (a)")
        assert (log.buffer.locked, log.unlogged()) == ("d.stored is locked", [])
    log.buffer.feed([])
    assert log.buffer.locked is None
    (found,) = log.unlogged()
    assert found.table.name == "stored"


def test_mysql_skips_what_only_mariadb_executes() -> None:
    log = Log()
    log.gtid()
    log.query("TRUNCATE /*M!999999 x */ `u`")
    log.gtid(6)
    log.query("ALTER TABLE t COMMENT '/*M!', MODIFY a int")
    assert [found.table.name for found in log.unlogged()] == ["t"]
    (batch, _) = [batch for batch in log.buffer.take().decode() if isinstance(batch, EventBatch)]
    assert (batch.schema.table.name, batch.truncates) == ("u", True)


@pytest.mark.parametrize("taken_each_time", [True, False])
def test_table_ids_begin_again_when_the_server_does(taken_each_time: bool) -> None:
    log, found, expected = Log(), [], []
    # (table, id): t is opened again, and each restart counts from 100.
    lives = [
        [("d.t", 100), ("d.t", 101)],
        [("d.t", 100), ("d.u", 101)],
        [("d.u", 100), ("other.t", 101), ("d.t", 102)],
        [("other.t", 100), ("d.t", 101), ("d.t", 100)],
    ]
    for life in lives:
        for table, table_id in life:
            key = len(expected)
            expected.append((table, key))
            log.transaction(key, table=table, table_id=table_id)
            if taken_each_time:
                found.append(log.buffer.take())
        log.restart()
    found.append(log.buffer.take())
    rows = [
        (str(batch.schema.table), row["id"])
        for segment in found
        for batch in segment.decode()
        for row in batch.table.to_pylist()
    ]
    assert sorted(rows, key=lambda row: row[1]) == [row for row in expected if row[0] != "other.t"]


def test_an_open_transaction_keeps_its_layouts_where_segments_part() -> None:
    log = Log()
    log.transaction(1, table_id=100)
    log.gtid()
    log.query("BEGIN")
    log.rows(2, number=100)
    log.rows(3, number=101)  # opened again by another session's FLUSH TABLES
    assert [row[1] for row in log.taken()] == [1]
    log.rows(4, number=101)
    log.write(events.XID, bytes(8))
    assert [row[1] for row in log.taken()] == [2, 3, 4]


def test_layouts_that_no_open_transaction_needs_are_not_kept() -> None:
    log = Log()
    for table_id in range(100, 200):
        log.transaction(table_id, table_id=table_id)
        assert len(log.taken()) == 1
    assert len(log.buffer._pending._known) == len(log.buffer._pending._layout_by_id) == 0


def test_tables_that_are_not_captured_count_but_do_not_land() -> None:
    log = Log()
    log.gtid()
    log.query("BEGIN")
    log.rows(1, table="other.t")
    log.rows(2)
    log.write(events.XID, bytes(8))
    assert [(key, seq) for _, key, _, seq in log.taken()] == [(2, 1 << 32)]


def payload(events_of: int, codec: str | None = "zstd", announced: int = 0) -> bytes:
    """A compressed transaction with so many events, of two rows each; `announced`: more bytes than it has."""
    inner = Log(tail=0)
    mapped, _ = inner.rows(1, write=False)
    parts = [(2, struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"d\0BEGIN"), (19, mapped)]
    parts += [(23, inner.rows(2 * n + 1, 2 * n + 2, write=False)[1]) for n in range(events_of)]
    return payload_of([inner.event(kind, body) for kind, body in [*parts, (16, bytes(8))]], codec, announced)


def payload_of(inner: list[bytes], codec: str | None, announced: int = 0) -> bytes:
    data = b"".join(inner)
    body = pa.compress(data, codec, asbytes=True) if codec else data
    fields = b"\2\1\0" if codec else b"\2\3\xfc\xff\0"
    sizes = ((3, len(data) + announced), (1, len(body)))
    return fields + b"".join(bytes([f, 9, 254]) + n.to_bytes(8, "little") for f, n in sizes) + b"\0" + body


@pytest.mark.parametrize("codec", ["zstd", None])
def test_a_compressed_transaction_of_mysql_is_the_same_transaction(codec: str | None) -> None:
    plain, packed = Log(), Log()
    start = plain.end
    plain.transaction(1, 2)
    packed.gtid()
    packed.write(events.TRANSACTION_PAYLOAD, payload(1, codec))
    assert packed.buffer.position == packed.end
    assert packed.taken() == plain.taken() == [("insert", 1, start, 0), ("insert", 2, start, 2)]


@pytest.mark.parametrize("piece", [0, 100, 5000])
@pytest.mark.parametrize("codec", ["zstd", None])
@pytest.mark.parametrize("tail", [0, 4])
def test_a_large_compressed_transaction_is_unpacked_part_by_part(
    monkeypatch: pytest.MonkeyPatch, piece: int, codec: str | None, tail: int
) -> None:
    monkeypatch.setattr("connector.mysql.log.transaction_payload.AT_ONCE_BYTES", 1000)
    monkeypatch.setattr("connector.mysql.log.transaction_payload._BLOCK_BYTES", 512)
    log = Log(tail=tail)
    log.gtid()
    start = log.buffer.position
    packet = b"\0" + log.event(events.TRANSACTION_PAYLOAD, payload(500, codec))
    log.offset += len(packet) - 1
    pieces = [packet[i : i + piece] for i in range(0, len(packet), piece)] if piece else [packet]
    assert not log.buffer.unpack_more(1000)
    for part in pieces[:-1]:
        log.buffer.feed([part])
        assert not log.buffer.unpack_more(1000)
    end = log.end
    behind = [b"\0" + event for event in after(log)]
    log.buffer.feed([pieces[-1], *behind[:1]])
    log.buffer.feed(behind[1:])
    found, most = [], 0
    while log.buffer.unpack_more(1000):
        most = max(most, log.buffer.held_bytes)
        assert log.buffer.position in (start, end, log.end)
        found += landed(log.buffer.take())
        if part := log.buffer.take_open():
            found += landed(part)
    assert log.buffer.position == log.end
    found += log.taken()
    assert [key for _, key, _, _ in found] == [*range(1, 1001), 7777]
    assert [seq for _, _, _, seq in found[:4]] == [0, 2, 1 << 32, (1 << 32) + 2]
    assert most < 3000


def test_a_compressed_transaction_lands_at_its_end_wherever_its_unpacking_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if that is right behind its commit: else a manifest from before it had its rows."""
    monkeypatch.setattr("connector.mysql.log.transaction_payload.AT_ONCE_BYTES", 0)
    log = Log()
    log.gtid()
    log.write(events.TRANSACTION_PAYLOAD, payload(2))
    positions = set()
    for _ in range(6):
        log.buffer.unpack_more(1)  # an event at a time
        segment = log.buffer.take()
        if segment.rows:
            positions.add(segment.position)
    assert positions == {log.end}


@pytest.mark.parametrize("at", [END, BODY, BODY + 2])
def test_what_announces_a_compressed_transaction_counts_once_it_is_whole(at: int) -> None:
    """Until then its checksum is unknown: damage would be taken for a lost connection, or a bug, for ever."""
    log = Log()
    log.gtid()
    packet = bytearray(b"\0" + log.event(events.TRANSACTION_PAYLOAD, payload(9)))
    packet[at] ^= 0xFF
    log.buffer.feed([bytes(packet[:100])])
    log.buffer.feed([bytes(packet[100:-1])])
    assert not log.buffer.unpack_more(1 << 20)
    log.buffer.feed([bytes(packet[-1:])])
    with pytest.raises((TransientError, BugError, LookupError)):  # of a file without checksums
        log.buffer.unpack_more(1 << 20)


def after(log: Log) -> list[bytes]:
    """The events of one more transaction; the log's end moves behind it."""
    begin = struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"d\0BEGIN"
    gtid = b"\0" + UUID + (6).to_bytes(8, "little") + b"\2" + bytes(16) + bytes(7)
    mapped, rows = log.rows(7777, write=False)
    found = []
    for kind, body in ((events.GTID, gtid), (2, begin), (19, mapped), (23, rows), (16, bytes(8))):
        found.append(log.event(kind, body))
        log.offset += len(found[-1])
    return found


@pytest.mark.parametrize("announced", [-1, 1])
@pytest.mark.parametrize("least", [10, 1 << 20])
def test_a_compressed_transaction_that_is_not_as_long_as_announced_stops(
    monkeypatch: pytest.MonkeyPatch, announced: int, least: int
) -> None:
    monkeypatch.setattr("connector.mysql.log.transaction_payload.AT_ONCE_BYTES", least)
    log = Log()

    def read() -> None:
        log.write(events.TRANSACTION_PAYLOAD, payload(3, announced=announced))
        log.buffer.unpack_more(1 << 20)

    log.gtid()
    with pytest.raises((BugError, OSError)):
        read()


@pytest.mark.parametrize("difference", [-1, 1, 40])
def test_a_log_that_does_not_go_on_where_it_ended_stops(difference: int) -> None:
    log = Log()
    log.transaction(1)
    log.offset += difference
    with pytest.raises(TransientError, match="does not continue"):
        log.transaction(2)


def test_another_file_than_the_next_stops() -> None:
    log = Log()
    with pytest.raises(TransientError, match="continued at"):
        log.frame(events.ROTATE, struct.pack("<Q", 4) + b"bin.000009")
    with pytest.raises(TransientError, match="continued at"):
        Log().frame(events.ROTATE, struct.pack("<Q", 5) + b"bin.000008")


def test_a_file_that_ended_without_saying_so_is_followed_by_the_next() -> None:
    log = Log()
    log.transaction(1)
    log.frame(events.ROTATE, struct.pack("<Q", 4) + b"bin.000008")
    assert log.buffer.position == pack_binlog_position(8, 4)


@pytest.mark.parametrize("created", [0, SECONDS])
def test_a_file_that_only_a_new_process_could_begin_has_all_tables_read_again(created: int) -> None:
    """The one before ended its file for it, and could not begin it: it went on without a log."""
    log = Log()
    log.transaction(1)
    before = log.end
    log.write(events.ROTATE, struct.pack("<Q", 4) + b"bin.000008")
    assert log.buffer.position == before
    log.file, log.offset = 8, 4
    log.frame(events.ROTATE, struct.pack("<Q", 4) + b"bin.000008")
    assert log.buffer.position == before
    log.write(events.FORMAT, b"\4\0" + bytes(50) + struct.pack("<I", created) + bytes(41) + b"\1")
    assert log.buffer.position == log.end
    assert {found.table.name for found in log.unlogged()} == ({"t", "u"} if created else set())


def test_a_file_that_ended_within_a_transaction_stops() -> None:
    log = Log()
    log.gtid()
    with pytest.raises(TransientError, match="within a transaction"):
        log.frame(events.ROTATE, struct.pack("<Q", 4) + b"bin.000008")


@pytest.mark.parametrize("mariadb", [False, True])
def test_after_a_crash_what_mariadb_committed_in_one_phase_is_dumped_again(
    monkeypatch: pytest.MonkeyPatch, *, mariadb: bool
) -> None:
    """It logs such a transaction before InnoDB commits it, which may never come: the row is in no table."""
    monkeypatch.setattr(SchemaCache, "mariadb", mariadb)
    log = Log()

    def commit_in_one_phase() -> None:
        log.gtid()
        log.query("BEGIN")
        log.rows(1)
        log.query("COMMIT")

    commit_in_one_phase()
    for _ in range(2):
        log.transaction(2, table="d.u")
        log.restart()
    log.restart(crash=True)
    assert log.unlogged() == []
    commit_in_one_phase()
    log.open(log.file, log.offset, 4)  # the connection is lost as the server crashes
    log.transaction(3, table="d.u")
    log.restart(crash=True)
    at = pack_binlog_position(log.file, 4)
    expected = [(TableName("d", "t"), at)] if mariadb else []
    assert [(found.table, found.lsn) for found in log.unlogged()] == expected


def test_a_transaction_that_a_crash_cut_off_is_passed_over_when_the_log_is_read_again() -> None:
    """Whether parts of it were taken or not: the reading ends once, and then goes on behind the file."""
    log = Log(gtids=MysqlGtids())

    def write_up_to_the_crash() -> None:
        log.transaction(1, number=4)
        log.gtid(5)
        log.query("BEGIN")
        log.rows(2)

    write_up_to_the_crash()
    assert [row[:2] for row in log.taken()] == [("insert", 1)]
    assert landed(log.buffer.take_open())[0][:2] == ("insert", 2)
    with pytest.raises(TransientError, match="within a transaction"):
        log.restart(crash=True)
    log.gtids = MysqlGtids()
    log.open(7, 1000, 4)
    write_up_to_the_crash()
    log.restart(crash=True)
    log.transaction(3, number=5)
    segment = log.buffer.take()
    assert [row[:2] for row in landed(segment)] == [("insert", 1), ("insert", 3)]
    assert (segment.position, segment.end.gtids) == (log.end, f"{UUID_TEXT}:4-5")


def test_what_was_read_last_is_named_by_the_position_where_it_begins() -> None:
    log = Log()
    assert log.buffer.take().end.last_commit is None
    log.transaction(1, number=4)
    start = log.end
    log.transaction(2, number=5, table="other.t")
    log.gtid()
    at = datetime.fromtimestamp(SECONDS, timezone.utc)
    committed_at = at.replace(microsecond=123_456)
    expected = LastCommit(position=start, txid=f"{UUID_TEXT}:5", committed_at=committed_at)
    assert log.buffer.take().end.last_commit == expected
    log = Log()
    log.transaction(1)
    log.restart()
    file = LastCommit(position=pack_binlog_position(8, 4), txid="begin of the file", committed_at=at)
    assert log.buffer.take().end.last_commit == file


def test_what_grows_a_file_beyond_4_gib_is_one_transaction_until_the_next_file() -> None:
    log = Log(offset=GIB4 - 300)
    log.transaction(1)
    start = log.end
    log.transaction(2, 3)
    assert log.offset > GIB4
    log.transaction(4)
    assert log.buffer.position == start
    assert [row[1] for row in log.taken()] == [1]
    part = log.buffer.take_open()
    log.write(events.ROTATE, struct.pack("<Q", 4) + b"bin.000008")
    log.frame(events.ROTATE, struct.pack("<Q", 4) + b"bin.000008")
    assert log.buffer.position == pack_binlog_position(8, 4)
    rest = landed(log.buffer.take())
    assert part is not None
    assert [(key, lsn) for _, key, lsn, _ in landed(part) + rest] == [(2, start), (3, start), (4, start)]
    seqs = [seq for *_, seq in landed(part) + rest]
    assert seqs == sorted(set(seqs))


def test_a_huge_transaction_is_taken_in_parts() -> None:
    log = Log()
    start = log.end
    log.gtid()
    log.query("BEGIN")
    found = []
    for key in range(5):
        log.rows(key)
        assert log.taken() == []
        part = log.buffer.take_open()
        assert part is not None
        assert part.position == start
        found += landed(part)
    log.write(events.XID, bytes(8))
    assert log.taken() == []
    assert log.buffer.position == log.end
    assert found == [("insert", key, start, key << 32) for key in range(5)]


def test_checksums_may_come_and_go_between_files() -> None:
    log = Log()
    log.transaction(1)
    log.write(events.ROTATE, struct.pack("<Q", 4) + b"bin.000008")
    log.frame(events.ROTATE, struct.pack("<Q", 4) + b"bin.000008")
    log.file, log.offset, log.tail = 8, 4, 0
    body = bytes(57) + bytes([15]) * 40 + bytes([0])
    event = log.event(events.FORMAT, body, tail=4)
    log.buffer.feed([b"\0" + event])
    log.offset += len(event)
    log.transaction(2)
    assert [row[1] for row in log.taken()] == [1, 2]


def test_an_unknown_event_stops_unless_it_says_that_it_may_be_passed_over() -> None:
    log = Log()
    log.write(111, b"?", flags=events.IGNORABLE)
    assert log.buffer.position == log.end
    with pytest.raises(PreconditionError, match="type 112"):
        log.write(112, b"?")


def test_an_unknown_event_behind_layouts_quarantines_their_tables_and_the_log_goes_on() -> None:
    log = Log()
    log.transaction(1, table="d.u")
    log.gtid()
    log.query("BEGIN")
    log.rows(2)
    assert quarantines(log.buffer.take()) == []
    log.write(112, b"?")
    assert quarantines(log.buffer.take()) == [], "nothing is landed of a segment without a whole transaction"
    log.write(events.XID, bytes(8))
    assert log.buffer.position == log.end
    (found,) = quarantines(log.buffer.take())
    assert (str(found.table), "type 112" in found.reason) == ("d.t", True)
    log.gtid()
    log.query("BEGIN")
    with pytest.raises(PreconditionError, match="type 112"):
        log.write(112, b"?")


@pytest.mark.parametrize("begun", [False, True])
def test_an_incident_quarantines_all_tables_and_the_log_goes_on(begun: bool) -> None:
    log = Log()
    log.gtid()
    if begun:
        log.query("BEGIN")
    log.write(events.INCIDENT, b"\1\0\0")
    if begun:
        log.query("COMMIT")
    assert log.buffer.position == log.end
    assert {str(found.table) for found in quarantines(log.buffer.take())} == {"d.t", "d.u"}


def test_what_a_rollback_in_the_log_takes_back_does_not_land() -> None:
    """Nor is its table anything else than before."""
    log = Log()
    log.transaction(1)
    log.gtid()
    log.query("BEGIN")
    log.rows(2)
    log.query("ROLLBACK")
    log.transaction(3, table="d.u")
    log.gtid()
    log.query("BEGIN")
    log.rows(4)
    log.rows(5, table="d.v")
    assert [key for _, key, *_ in log.taken()] == [1, 3]
    log.query("ROLLBACK")
    log.transaction(6, table="d.v")
    assert [(key, seq) for _, key, _, seq in log.taken()] == [(6, 0)]
    assert log.unlogged() == []
    assert log.buffer.held_bytes == 0


def test_a_rollback_beyond_4_gib_takes_back_its_own_transaction_only() -> None:
    log = Log(offset=GIB4 - 100)
    log.transaction(1)
    log.gtid()
    log.query("BEGIN")
    log.rows(2)
    log.query("ROLLBACK")
    log.transaction(3)
    log.write(events.ROTATE, struct.pack("<Q", 4) + b"bin.000008")
    log.frame(events.ROTATE, struct.pack("<Q", 4) + b"bin.000008")
    assert [key for _, key, *_ in log.taken()] == [1, 3]


@pytest.mark.parametrize("statement", ["ROLLBACK", "ROLLBACK TO `s`"])
def test_tables_are_read_again_if_what_a_rollback_takes_back_has_landed_or_is_unknown(statement: str) -> None:
    log = Log()
    log.gtid()
    log.query("BEGIN")
    log.query("SAVEPOINT `s`")
    log.rows(1)
    log.buffer.take()
    if statement == "ROLLBACK":
        assert log.buffer.take_open() is not None
    log.query(statement)
    if statement != "ROLLBACK":
        log.write(events.XID, bytes(8))
    assert [str(found.table) for found in log.unlogged()] == ["d.t"]


def test_xa_transactions_quarantine_their_tables_when_prepared_and_when_committed() -> None:
    log = Log()
    log.gtid()
    log.query("XA START X'61',X'',1")
    log.rows(1)
    log.query("XA END X'61',X'',1")
    log.write(events.XA_PREPARE, b"\0" + struct.pack("<III", 1, 1, 0) + b"a")
    assert {str(found.table) for found in quarantines(log.buffer.take())} == {"d.t"}
    log.gtid()
    log.query("XA COMMIT X'61',X'',1")
    assert {str(found.table) for found in quarantines(log.buffer.take())} == {"d.t"}
    log.gtid()
    log.query("XA COMMIT X'99',X'',1")  # prepared before we began to read
    assert {str(found.table) for found in log.unlogged()} == {"d.t", "d.u"}
    assert quarantines(log.buffer.take()) == []


@pytest.mark.parametrize("mariadb", [False, True])
@pytest.mark.parametrize(("xid", "concerned"), [("61", {"d.t"}), ("99", {"d.t", "d.u"})])
def test_an_xa_commit_of_mariadb_is_one_in_one_phase(
    monkeypatch: pytest.MonkeyPatch, xid: str, concerned: set[str], *, mariadb: bool
) -> None:
    """The dump that follows, of all tables if its tables are unknown, may begin before it is visible."""
    monkeypatch.setattr(SchemaCache, "mariadb", mariadb)
    log = Log()
    log.prepared["X'61',X'',1"] = {TableName("d", "t")}
    before = log.end
    log.gtid()
    log.query(f"XA COMMIT X'{xid}',X'',1")
    found = {str(table) for table in log.one_phase.since(1, before)}
    assert found == (concerned if mariadb else set())
    assert log.one_phase.since(1, before + 1) == set()


def test_an_xa_transaction_of_other_tables_is_known_when_the_log_is_opened_again_behind_it() -> None:
    log = Log()
    log.gtid()
    log.query("XA START X'61',X'',1")
    log.rows(1, table="other.t")
    log.query("XA END X'61',X'',1")
    log.write(events.XA_PREPARE, b"\0" + struct.pack("<III", 1, 1, 0) + b"a")
    offset = log.offset
    for _ in range(2):  # lost, and read again
        log.open(log.file, offset, 4)
        log.gtid()
        log.query("XA COMMIT X'61',X'',1")
        assert log.unlogged() == []
        assert quarantines(log.buffer.take()) == []


def test_an_xa_transaction_quarantines_tables_that_are_captured_by_its_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The configuration was reloaded meanwhile; their first dump did not see rows that were prepared."""
    log = Log()
    log.gtid()
    log.query("XA START X'61',X'',1")
    log.rows(1, table="other.t")
    log.query("XA END X'61',X'',1")
    log.write(events.XA_PREPARE, b"\0" + struct.pack("<III", 1, 1, 0) + b"a")
    assert quarantines(log.buffer.take()) == []
    monkeypatch.setattr(SchemaCache, "among", lambda *_: {TableName("other", "t")})
    log.open(log.file, log.offset, 4)
    log.gtid()
    log.query("XA COMMIT X'61',X'',1")
    assert {str(found.table) for found in quarantines(log.buffer.take())} == {"other.t"}


def test_rows_outside_of_a_transaction_or_without_layout_are_a_bug() -> None:
    with pytest.raises(BugError, match="outside"):
        Log().rows(1)
    log = Log()
    log.gtid()
    with pytest.raises(BugError, match="without a table map"):
        log.write(23, bytes(12))


OURS = "00010203-0405-0607-0809-0a0b0c0d0e0f"

TAGGED = bytes.fromhex(
    "0272000000021274809d039503cd0222c503fd02b604f10300000002040c060a6d7974616708100a1c0c7fd39b92b2c96006"
    "1055041283120b"
)
"""What MySQL 9.7 wrote for GTID 093a40e7-e5b3-11f1-bf5b-02fc00000001:mytag:3."""


def test_a_segment_names_the_transactions_up_to_its_position() -> None:
    log = Log(gtids=MysqlGtids.parse(f"{OURS}:1-4"))
    log.transaction(1, number=5)
    log.transaction(2, number=7)
    log.gtid(6)
    log.query("BEGIN")
    log.rows(3)
    assert log.buffer.take().end.gtids == f"{OURS}:1-5:7"
    log.write(events.XID, bytes(8))
    assert log.buffer.take().end.gtids == f"{OURS}:1-7"
    log.write(events.TAGGED_GTID, TAGGED)
    log.query("BEGIN")
    log.write(events.XID, bytes(8))
    assert log.buffer.take().end.gtids == f"{OURS}:1-7,093a40e7-e5b3-11f1-bf5b-02fc00000001:mytag:3"


def test_what_is_executed_is_not_known_behind_an_anonymous_transaction() -> None:
    log = Log(gtids=MysqlGtids.parse(f"{OURS}:1-4"))
    log.write(events.ANONYMOUS_GTID, bytes(42))
    log.query("BEGIN")
    assert log.buffer.take().end.gtids == f"{OURS}:1-4"
    log.rows(1)
    log.write(events.XID, bytes(8))
    log.transaction(2, number=5)
    segment = log.buffer.take()
    assert segment.end.gtids is None
    assert len(landed(segment)) == 2


def test_transactions_that_landed_before_a_failover_are_passed_over_with_all_they_did() -> None:
    log = Log(gtids=MysqlGtids.parse(f"{OURS}:1-4:6-8"))
    log.transaction(1, number=4)
    fresh = log.end
    log.transaction(2, number=5)
    for number, statement in ((6, "TRUNCATE TABLE t"), (7, "ALTER TABLE t ADD a int"), (8, "DROP TABLE t")):
        log.gtid(number)
        log.query(statement)
    log.gtid(9)
    log.query("TRUNCATE TABLE t")
    assert not log.unlogged()
    segment = log.buffer.take()
    assert [(op, key) for op, key, *_ in landed(segment)] == [("insert", 2), ("truncate", None)]
    assert landed(segment)[0][2] == fresh
    assert (segment.position, segment.end.gtids) == (log.end, f"{OURS}:1-9")


def test_a_compressed_transaction_that_landed_before_a_failover_is_passed_over() -> None:
    log, inner = Log(gtids=MysqlGtids.parse(f"{OURS}:1-5")), Log(tail=0)
    mapped, rows = inner.rows(1, 2, write=False)
    data = b"".join(inner.event(kind, body) for kind, body in ((19, mapped), (23, rows), (16, bytes(8))))
    body = pa.compress(data, "zstd", asbytes=True)
    log.gtid(5)
    log.write(
        events.TRANSACTION_PAYLOAD,
        b"\2\1\0\3\3\xfc" + len(data).to_bytes(2, "little") + b"\1\1" + bytes([len(body)]) + b"\0" + body,
    )
    assert log.taken() == []
    assert log.buffer.position == log.end


def test_mariadbs_domains_are_passed_over_each_up_to_its_last_one() -> None:
    log = Log(gtids=MariadbGtids.parse("0-9-3,7-9-20", "0-9-3,7-9-19"))

    def transaction(domain: int, number: int, key: int) -> None:
        log.write(events.MARIADB_GTID, struct.pack("<QIBxxxxxx", number, domain, 0))
        log.rows(key)
        log.write(events.XID, bytes(8))

    for domain, number, key in ((0, 4, 1), (7, 5, 2), (0, 2, 3), (7, 20, 4), (7, 21, 5)):
        transaction(domain, number, key)
    segment = log.buffer.take()
    assert [key for _, key, *_ in landed(segment)] == [1, 3, 5]
    assert segment.end.gtids == "0-9-2,7-9-21;0-9-4"


def test_the_list_at_the_start_of_mariadbs_files_is_what_was_executed() -> None:
    """Of a domain that is no longer listed, the server has forgotten all numbers; replicas have not."""
    log = Log(gtids=MariadbGtids.parse("0-9-3,7-9-20"))
    log.write(events.GTID_LIST, struct.pack("<IIIQIIQ", 2, 0, 8, 2, 0, 9, 3))
    assert log.buffer.take().end.gtids == "0-8-2,0-9-3;7-9-20"


def own_write(log: Log, number: int, **other: str) -> None:
    log.gtid(number)
    log.query("BEGIN")
    log.rows(1, table="deltatide.watermark")
    for kind, what in other.items():
        log.rows(1, table=what) if kind == "table" else log.query(what)
    log.write(events.XID, bytes(8))


def test_our_own_writes_at_the_end_are_not_needed_of_another_server() -> None:
    log = Log(gtids=MysqlGtids.parse(f"{OURS}:1-4"))
    own_write(log, 5)
    own_write(log, 6)
    segment = log.buffer.take()
    assert (segment.end.gtids, segment.end.gtids_needed) == (f"{OURS}:1-6", f"{OURS}:1-4")
    log.transaction(2, number=7)
    segment = log.buffer.take()
    assert (segment.end.gtids, segment.end.gtids_needed) == (f"{OURS}:1-7", None)
    assert [key for _, key, *_ in landed(segment)] == [2]


@pytest.mark.parametrize(
    "other",
    [
        {"table": "d.t"},
        {"table": "other.uncaptured"},
        {"table": "deltatide.other"},
        {"statement": "TRUNCATE TABLE t"},
        {"statement": "SAVEPOINT a"},
    ],
)
def test_a_transaction_with_anything_else_in_it_is_needed(other: dict[str, str]) -> None:
    log = Log(gtids=MysqlGtids.parse(f"{OURS}:1-4"))
    own_write(log, 5, **other)
    segment = log.buffer.take()
    assert (segment.end.gtids, segment.end.gtids_needed) == (f"{OURS}:1-5", None)


def test_a_transaction_of_nothing_or_of_uncaptured_tables_is_needed() -> None:
    log = Log(gtids=MysqlGtids.parse(f"{OURS}:1-4"))
    log.transaction(1, table="other.uncaptured", number=5)
    log.gtid(6)
    log.query("BEGIN")
    log.write(events.XID, bytes(8))
    log.gtid(7)
    log.query("CREATE TABLE deltatide.watermark (id int)")
    segment = log.buffer.take()
    assert (segment.end.gtids, segment.end.gtids_needed) == (f"{OURS}:1-7", None)


def test_our_own_writes_of_mariadb_are_not_needed_in_their_domain() -> None:
    log = Log(gtids=MariadbGtids.parse("0-8-4,7-9-3"))

    def transaction(domain: int, number: int, table: str) -> None:
        log.write(events.MARIADB_GTID, struct.pack("<QIBxxxxxx", number, domain, 0))
        log.rows(number, table=table)
        log.write(events.XID, bytes(8))

    for domain, number, table in ((0, 5, "watermark"), (0, 6, "watermark"), (7, 4, "other")):
        transaction(domain, number, f"deltatide.{table}")
    segment = log.buffer.take()
    assert (segment.end.gtids, segment.end.gtids_needed) == ("0-8-4,0-9-6,7-9-4", "0-8-4,7-9-4")
    transaction(0, 7, "d.t")
    assert log.buffer.take().end.gtids_needed is None


def test_what_an_open_transaction_may_have_changed_is_told_with_it_as_well() -> None:
    """The dump that whole transactions lead to may be over before it is committed."""
    log, ends = Log(), []
    for _ in range(2):
        ends.append(log.end)
        log.gtid()
        log.query("INSERT INTO x.x SELECT f()")
    ends.append(log.end)
    log.gtid()
    log.query("BEGIN")
    log.query("INSERT INTO x.x SELECT f()")

    def told() -> list[tuple[str, int]]:
        found = [each for each in log.buffer.take().decode() if isinstance(each, UnloggedNotice)]
        return [(each.table.name, each.lsn) for each in found]

    assert log.buffer.unlogged_count == 2
    assert told() == [("t", ends[0]), ("u", ends[0])]
    assert (log.buffer.unlogged_count, told()) == (0, [])
    log.write(events.XID, bytes(8))
    assert log.buffer.unlogged_count == 2
    assert told() == [("t", ends[2]), ("u", ends[2])]
    assert told() == []
