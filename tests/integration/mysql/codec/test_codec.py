"""The MySQL codec against a real MariaDB: rows of its log, rows of a dump, and the server's own text."""

from __future__ import annotations

import os
import pwd
import shutil
import struct
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from connector.demo.servers.starting import free_port
from connector.errors import TableError
from connector.landing.event_batch import EventBatch
from connector.mysql.codec.compressed import PLAIN
from connector.mysql.codec.segment import ROWS_EVENTS, TABLE_MAP, MysqlSegment, SegmentLayout, Transactions
from connector.mysql.codec.table_map import parse_table_map
from connector.mysql.codec.text_rows import RowStream, decode_rows
from connector.mysql.codec.types import select_expression, type_of_catalog
from connector.source import ResumePoint
from tests.fidelity.mysql import LITERALS
from tests.support.waiting import wait_until

pymysql = pytest.importorskip("pymysql", reason="pymysql is not installed")

GTID_EVENT = 162
CHECKSUM = 4


class MariaDB:
    """A throw-away server; its binary log is read from its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        user = pwd.getpwnam("mysql") if os.geteuid() == 0 else None
        if user:
            shutil.chown(folder, user.pw_uid, user.pw_gid)
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={folder}", "--skip-test-db"]
        install += ["--auth-root-authentication-method=normal", *(["--user=mysql"] if user else [])]
        subprocess.run(install, check=True, capture_output=True)
        server = [shutil.which("mariadbd") or "/usr/sbin/mariadbd", "--no-defaults", f"--datadir={folder}"]
        server += [f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={folder}/s"]
        server += [f"--log-bin={folder}/bin", "--binlog-format=ROW", "--binlog-row-metadata=FULL"]
        server += ["--server-id=1", "--binlog-row-event-max-size=512", "--innodb-flush-log-at-trx-commit=0"]
        self._process = subprocess.Popen(
            server,
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers, "MariaDB answers", seconds=60)

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except pymysql.err.OperationalError:
            return False
        return True

    def connect(self) -> pymysql.Connection:
        settings = "SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'"
        return pymysql.connect(
            unix_socket=f"{self.folder}/s", user="root", charset="utf8mb4", init_command=settings
        )

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@pytest.fixture(scope="module")
def mariadb(servers_folder: Path) -> Iterator[MariaDB]:
    if shutil.which("mariadb-install-db") is None:
        pytest.skip("mariadb-server is not installed: apt-get install mariadb-server")
    folder = servers_folder / "mariadb"
    folder.mkdir()
    server = MariaDB(folder)
    yield server
    server.close()


class Log:
    """What the server writes to its binary log from here on."""

    def __init__(self, server: MariaDB) -> None:
        self._server = server
        self._file, self._start = self._end()

    def _end(self) -> tuple[str, int]:
        connection = self._server.connect()
        with connection, connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            file, position = cursor.fetchone()[:2]
            return file, position

    def segment(
        self, table: str, aliases: dict[str, str] | None = None, *, partial_images: bool = False
    ) -> MysqlSegment:
        """Everything written to `table` since, in the form that a log reader hands over."""
        file, end = self._end()
        assert file == self._file
        data = (self._server.folder / file).read_bytes()
        payloads, ordinals, transactions, layouts = [], [], Transactions(), {}
        offset, ordinal = self._start, 0
        while offset < end:
            kind, size = data[offset + 4], struct.unpack_from("<I", data, offset + 9)[0]
            event = data[offset : offset + size]
            table_id = int.from_bytes(event[19:25], "little")
            if kind == GTID_EVENT:
                transactions.add(len(payloads), offset, 1_000_000, f"0-1-{offset}")
                ordinal = 0
            elif kind == TABLE_MAP:
                mapped = parse_table_map(event[19:-CHECKSUM], mariadb=True).with_aliases(aliases or {})
                if mapped.table.name == table and table_id not in layouts:
                    layouts[table_id] = SegmentLayout(
                        len(payloads), table_id, mapped, mapped.schema(), partial_images=partial_images
                    )
            elif kind in ROWS_EVENTS:
                if table_id in layouts:
                    payloads.append(event)
                    ordinals.append(ordinal)
                ordinal += 1
            offset += size
        return MysqlSegment(
            1, ResumePoint(end), None, payloads, ordinals, transactions, list(layouts.values()), tail=CHECKSUM
        )


def landed(segment: MysqlSegment) -> list[pa.Table]:
    batches = list(segment.decode())
    assert all(isinstance(batch, EventBatch) for batch in batches), batches
    for batch in batches:
        batch.table.validate(full=True)
    return [batch.table for batch in batches]


def rows_by_key(tables: list[pa.Table]) -> dict:
    """The rows of a log of inserts, by key: values, and the raw texts of values that do not fit."""
    rows = [row for table in tables for row in table.to_pylist()]
    return {row["id"]: (row, dict(row.pop("_cdc")["raw"] or [])) for row in rows}


def dump(server: MariaDB, table: str) -> tuple[dict, dict]:
    """Rows of a dump by key, as `rows_by_key`; and the texts that the server gives for them in UTF-8."""
    connection = server.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, column_type, character_set_name FROM information_schema.columns"
            " WHERE table_schema = 't' AND table_name = %s ORDER BY ordinal_position",
            (table,),
        )
        columns = {name: type_of_catalog(column_type, charset) for name, column_type, charset in cursor}
        names = list(columns)
        expressions = ", ".join(select_expression(f"`{name}`", columns[name]) for name in names)
        cursor.execute("SET character_set_results = NULL")
        connection._execute_command(3, f"SELECT {expressions} FROM t.{table}")
        for _ in range(connection._read_packet().get_all_data()[0] + 1):
            connection._read_packet()
        stream, rows = RowStream(), {}
        while not stream.ended:
            stream.feed(connection._rfile.read1(977))
            arrays, raws = decode_rows(stream.take(), list(columns.values()))
            for array in arrays:
                array.validate(full=True)
            for index in range(len(arrays[0])):
                row = {name: array[index].as_py() for name, array in zip(names, arrays, strict=True)}
                raw = {
                    name: r[index].as_py()
                    for name, r in zip(names, raws, strict=True)
                    if r and r[index].is_valid
                }
                rows[row["id"]] = row, raw
        cursor.execute("SET character_set_results = utf8mb4")
        texts = ", ".join(_text_of(name, columns[name].type_name) for name in names)
        cursor.execute(f"SELECT {texts} FROM t.{table}")
        own = {int(row[0]): dict(zip(names, row, strict=True)) for row in cursor}
    return rows, own


def _text_of(name: str, type_name: str) -> str:
    quoted = f"`{name}`"
    if type_name.startswith("bit"):
        return f"CAST({quoted} + 0 AS CHAR)"
    if "blob" in type_name or "binary" in type_name or type_name == "geometry":
        return f"HEX({quoted})"
    if type_name.removesuffix(" unsigned") in ("float", "double"):
        return f"CAST({quoted} AS DOUBLE)"  # the server cuts its text
    return f"CAST({quoted} AS CHAR)"


def as_text_of(value: object, text: str | None) -> object:
    """Bring the server's text to the form of a landed value, so that they can be compared."""
    if text is None or isinstance(value, str):
        return text
    if isinstance(value, bytes):
        return bytes.fromhex(text)
    if isinstance(value, int | Decimal):
        return Decimal(text)
    if isinstance(value, float):
        return float(text)
    head, _, fraction = text.partition(".")
    rest = fraction.rstrip("0")
    return head + ("." + rest if rest else "")


def comparable(value: object) -> object:
    if isinstance(value, str | bytes | int | float | Decimal | None):
        return Decimal(value) if isinstance(value, int) else value
    text = str(value).removesuffix("+00:00")
    return text.rstrip("0").rstrip(".") if "." in text else text


EVERY_TYPE: dict[str, tuple[str, tuple[str, ...]]] = {
    **{
        f"c{n}": (literals.type, literals.all)
        for n, literals in enumerate(LITERALS)
        if literals.is_on("mariadb")
    },
    "gv": ("int AS (id + 1) VIRTUAL", ()),
    "gs": ("int AS (id + 2) STORED", ()),
    "inv": ("int INVISIBLE DEFAULT 5", ("6",)),
}
ALIASES = {name: type_ for name, (type_, _) in EVERY_TYPE.items() if type_ in ("uuid", "inet6", "inet4")}


def fill(server: MariaDB, table: str) -> None:
    """Make the table of every type: a row of NULLs, then rows that hold each value of each type."""
    connection = server.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS t")
        columns = ", ".join(f"`{name}` {type_}" for name, (type_, _) in EVERY_TYPE.items())
        cursor.execute(f"CREATE TABLE t.{table} (id bigint PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
        cursor.execute(f"INSERT INTO t.{table} (id) VALUES (0)")
        written = {name: values for name, (_, values) in EVERY_TYPE.items() if values}
        names = ", ".join(f"`{name}`" for name in written)
        for row in range(max(map(len, written.values()))):
            values = ", ".join(v[row] if row < len(v) else "NULL" for v in written.values())
            cursor.execute(f"INSERT INTO t.{table} (id, {names}) VALUES ({row + 1}, {values})")
        connection.commit()


@pytest.mark.parametrize("compressed", [False, True])
def test_log_dump_and_the_servers_text_agree_for_every_type(mariadb, compressed):
    table = f"every_type_{int(compressed)}"
    connection = mariadb.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL log_bin_compress = {int(compressed)}")
    log = Log(mariadb)
    fill(mariadb, table)
    segment = log.segment(table, ALIASES)
    assert any(event[4] in PLAIN for event in segment._payloads) == compressed
    logged = rows_by_key(landed(segment))
    dumped, own = dump(mariadb, table)
    assert logged.keys() == dumped.keys() == own.keys()
    for key, (row, raw) in logged.items():
        assert (row, raw) == dumped[key]
        for name, value in row.items():
            if name in raw:
                assert value is None
                value = raw[name]
            assert comparable(value) == as_text_of(value, own[key][name]), name


def test_the_logs_schema_is_the_catalogs(mariadb):
    log = Log(mariadb)
    fill(mariadb, "schema_of_both")
    table = landed(log.segment("schema_of_both", ALIASES))[0]
    connection = mariadb.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, column_type, character_set_name FROM information_schema.columns"
            " WHERE table_name = 'schema_of_both' ORDER BY ordinal_position"
        )
        columns = {name: type_of_catalog(type_, charset) for name, type_, charset in cursor}
    segment = log.segment("schema_of_both", ALIASES)
    schema = next(segment.decode()).schema
    assert schema.key == ("id",)
    assert [(c.name, c.source_type, c.type) for c in schema.columns] == [
        (name, type_.type_name, type_.landing) for name, type_ in columns.items()
    ]
    assert table.schema.names[:-1] == list(columns)


@pytest.mark.parametrize("image", ["FULL", "MINIMAL", "NOBLOB"])
def test_row_images_of_one_session_carry_what_they_name(mariadb, image):
    table = f"image_{image.lower()}"
    connection = mariadb.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS t")
        cursor.execute(f"CREATE TABLE t.{table} (id int PRIMARY KEY, a int DEFAULT 3, b text, c varchar(9))")
        log = Log(mariadb)
        cursor.execute(f"SET binlog_row_image = {image}")
        cursor.execute(f"INSERT INTO t.{table} (id, b, c) VALUES (1, 'b', 'c'), (2, 'bb', NULL)")
        cursor.execute(f"UPDATE t.{table} SET c = 'cc' WHERE id = 1")
        cursor.execute(f"UPDATE t.{table} SET id = 7, a = 4 WHERE id = 2")
        cursor.execute(f"DELETE FROM t.{table} WHERE id = 1")
        connection.commit()
    rows = [
        row
        for batch in landed(log.segment(table, partial_images=image != "FULL"))
        for row in batch.to_pylist()
    ]
    found = [(r["_cdc"]["op"], r["id"], r["a"], r["b"], r["c"], r["_cdc"]["unchanged"]) for r in rows]
    if image == "FULL":
        expected_update = [("update", 1, 3, "b", "cc", None)]
        expected_insert = ("insert", 7, 4, "bb", None, None)
    elif image == "NOBLOB":
        # It may have been a REPLACE, which the log of MariaDB does not tell from an UPDATE.
        expected_update = [("delete", 1, None, None, None, None), ("insert", 1, 3, None, "cc", ["b"])]
        expected_insert = ("insert", 7, 4, None, None, ["b"])
    else:
        expected_update = [("update", 1, None, None, "cc", ["a", "b"])]
        expected_insert = ("insert", 7, 4, None, None, ["b", "c"])
    assert found[0][:2] == ("insert", 1)
    assert found[0][3:5] == ("b", "c")
    assert found[2:] == [
        *expected_update,
        ("delete", 2, None, None, None, None),
        expected_insert,
        ("delete", 1, None, None, None, None),
    ]
    seqs = [(r["_cdc"]["lsn"], r["_cdc"]["seq"]) for r in rows]
    assert seqs == sorted(set(seqs))


def test_many_rows_in_many_events_equal_the_table(mariadb):
    connection = mariadb.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS t")
        cursor.execute("USE t")
        cursor.execute("CREATE TABLE t.many (id int PRIMARY KEY, a varchar(40), b blob, c int)")
        log = Log(mariadb)
        cursor.execute(
            "INSERT INTO t.many SELECT seq, repeat('x', seq % 37), if(seq % 5, repeat('y', seq % 301), NULL),"
            " if(seq % 3, seq, NULL) FROM seq_1_to_5000"
        )
        connection.commit()
    segment = log.segment("many")
    assert segment.rows > 500
    logged = rows_by_key(landed(segment))
    dumped, _ = dump(mariadb, "many")
    assert len(logged) == 5000
    assert logged == dumped


def test_temporal_formats_that_hide_their_fractions_are_refused(mariadb):
    connection = mariadb.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS t")
        cursor.execute("SET GLOBAL mysql56_temporal_format = OFF")
        cursor.execute("CREATE TABLE t.old_format (id int PRIMARY KEY, a datetime(6))")
        cursor.execute("SET GLOBAL mysql56_temporal_format = ON")
        log = Log(mariadb)
        cursor.execute("INSERT INTO t.old_format VALUES (1, '2026-11-21 01:02:03.000004')")
        connection.commit()
    with pytest.raises(TableError, match="column a has the temporal format"):
        log.segment("old_format")
