"""The MySQL codec against a real MariaDB: rows of its log, rows of a dump, and the server's own text."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from connector.errors import TableError
from connector.event import EventBatch
from connector.mysql.compressed import PLAIN
from connector.mysql.segment import ROWS_EVENTS, TABLE_MAP, MysqlSegment, TableLayout, Transactions
from connector.mysql.tablemap import parse_table_map
from connector.mysql.textrows import RowStream, decode_rows
from connector.mysql.types import select_expression, type_of_catalog
from tests.waiting import wait_until

pymysql = pytest.importorskip("pymysql", reason="pymysql is not installed")

GTID_EVENT = 162
CHECKSUM = 4


class MariaDB:
    """A throw-away server; its binary log is read from its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, _free_port()
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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

    def segment(self, table: str, aliases: dict[str, str] | None = None) -> MysqlSegment:
        """Everything written to `table` since, in the form that a log reader hands over."""
        file, end = self._end()
        assert file == self._file
        data = (self._server.folder / file).read_bytes()
        payloads, ordinals, transactions, layouts = [], [], Transactions(), {}
        place, ordinal = self._start, 0
        while place < end:
            kind, size = data[place + 4], struct.unpack_from("<I", data, place + 9)[0]
            event = data[place : place + size]
            table_id = int.from_bytes(event[19:25], "little")
            if kind == GTID_EVENT:
                transactions.add(len(payloads), place, 1_000_000, f"0-1-{place}")
                ordinal = 0
            elif kind == TABLE_MAP:
                mapped = parse_table_map(event[19:-CHECKSUM], mariadb=True).with_aliases(aliases or {})
                if mapped.table.name == table and table_id not in layouts:
                    layouts[table_id] = TableLayout(len(payloads), table_id, mapped, mapped.schema())
            elif kind in ROWS_EVENTS:
                if table_id in layouts:
                    payloads.append(event)
                    ordinals.append(ordinal)
                ordinal += 1
            place += size
        return MysqlSegment(
            1, end, None, payloads, ordinals, transactions, list(layouts.values()), tail=CHECKSUM
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
        texts = ", ".join(_text_of(name, columns[name].spelling) for name in names)
        cursor.execute(f"SELECT {texts} FROM t.{table}")
        own = {int(row[0]): dict(zip(names, row, strict=True)) for row in cursor}
    return rows, own


def _text_of(name: str, spelling: str) -> str:
    quoted = f"`{name}`"
    if spelling.startswith("bit"):
        return f"CAST({quoted} + 0 AS CHAR)"
    if "blob" in spelling or "binary" in spelling or spelling == "geometry":
        return f"HEX({quoted})"
    return f"CAST({f'CAST({quoted} AS DOUBLE)' if spelling == 'float' else quoted} AS CHAR)"


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


EVERY_TYPE: dict[str, tuple[str, list[str]]] = {
    "ti": ("tinyint", ["-128", "127", "0"]),
    "tiu": ("tinyint unsigned", ["255", "0"]),
    "si": ("smallint", ["-32768", "32767"]),
    "siu": ("smallint unsigned", ["65535"]),
    "mi": ("mediumint", ["-8388608", "8388607", "-1"]),
    "miu": ("mediumint unsigned", ["16777215"]),
    "i": ("int", ["-2147483648", "2147483647", "7"]),
    "iu": ("int unsigned zerofill", ["4294967295", "42"]),
    "bi": ("bigint", ["-9223372036854775808", "9223372036854775807"]),
    "biu": ("bigint unsigned", ["18446744073709551615", "9223372036854775808", "0"]),
    "d1": ("decimal(10,2)", ["-12345678.90", "99999999.99", "0.01", "-0.01", "0"]),
    "d2": ("decimal(38,10)", ["-" + "9" * 28 + "." + "9" * 10, "1.0000000001", "-1"]),
    "d3": (
        "decimal(65,30)",
        ["-" + "9" * 35 + "." + "1" * 30, "0", "0.5", "1000", "-0.000000000000000000000000000001"],
    ),
    "d4": ("decimal(18,0) unsigned", ["9" * 18, "0"]),
    "d5": ("decimal(3,3)", ["0.999", "-0.001"]),
    "d6": ("decimal(20,9)", ["12345678901.123456789", "-99999999999.999999999"]),
    "f": ("float", ["3.4028234e38", "-1.17549435e-38", "16777217", "0.1", "-0.0"]),
    "db": (
        "double",
        ["1.7976931348623157e308", "-2.2250738585072014e-308", "0.1", "-123456.789", "1e15", "1e16"],
    ),
    "b1": ("bit(1)", ["1", "0"]),
    "b9": ("bit(9)", ["511", "256"]),
    "b64": ("bit(64)", ["18446744073709551615", "1"]),
    "y": ("year", ["1901", "2155", "0"]),
    "dt": (
        "date",
        ["'0001-01-01'", "'9999-12-31'", "'0000-00-00'", "'2024-00-10'", "'2024-02-30'", "'1582-10-10'"],
    ),
    "t0": ("time", ["'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'", "'99:00:00'"]),
    "t1": ("time(1)", ["'-00:00:00.5'", "'12:34:56.7'"]),
    "t3": ("time(3)", ["'-1:02:03.456'", "'100:00:00.001'"]),
    "t6": ("time(6)", ["'-838:59:58.000001'", "'00:00:00.999999'", "'-00:00:00.000001'"]),
    "dt0": ("datetime", ["'0001-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'0000-00-00 00:00:00'"]),
    "dt2": ("datetime(2)", ["'2026-02-28 12:00:00.12'", "'2026-02-30 12:00:00.12'"]),
    "dt6": (
        "datetime(6)",
        ["'1969-12-31 23:59:59.999999'", "'2026-00-00 01:02:03.000004'", "'0000-01-01 00:00:00'"],
    ),
    "ts0": ("timestamp NULL", ["'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'0000-00-00 00:00:00'"]),
    "ts4": ("timestamp(4) NULL", ["'2026-07-01 00:00:00.1234'", "'0000-00-00 00:00:00'"]),
    "ts6": ("timestamp(6) NULL", ["'2026-07-01 23:59:59.000001'"]),
    "c": ("char(10)", ["'abc  '", "''", "'ü€😀'"]),
    "cl": ("char(5) CHARACTER SET latin1", ["'äö€'", "x'818D8F909D'", "'  a'"]),
    "c255": ("char(255)", ["repeat('😀', 255)", "'x'"]),
    "v": ("varchar(20)", ["'abc  '", "'\\0\\n'", "''"]),
    "vl": ("varchar(300) CHARACTER SET latin1", ["repeat('ß', 300)", "'plain'"]),
    "vs": ("varchar(10) CHARACTER SET sjis", ["'日本ｱ'", "x'815F5C'"]),
    "vk": ("varchar(10) CHARACTER SET koi8u", ["'Київ'", "x'95'"]),
    "u2": ("varchar(10) CHARACTER SET ucs2", ["'añ日'"]),
    "u16": ("varchar(10) CHARACTER SET utf16", ["'a😀'"]),
    "uca": ("varchar(10) COLLATE uca1400_swedish_ai_ci", ["'å'"]),
    "nopad": ("varchar(10) COLLATE latin1_swedish_nopad_ci", ["'å'"]),
    "bn": ("binary(8)", ["x'0102'", "x'0000'", "x'6100620000000000'"]),
    "vb": ("varbinary(300)", ["repeat('\\0', 300)", "x'FF00'", "''"]),
    "tt": ("tinytext", ["'tiny'"]),
    "tx": ("text", ["repeat('x', 300)", "''"]),
    "mt": ("mediumtext", ["repeat('é', 40000)", "'m'"]),
    "lt": ("longtext CHARACTER SET latin1", ["'ÿ'"]),
    "tb": ("tinyblob", ["x'00'"]),
    "bb": ("blob", ["x'DEADBEEF'", "repeat('b', 65535)"]),
    "mb": ("mediumblob", ["x'01'"]),
    "lb": ("longblob", ["x'02'", "''"]),
    "e": ("enum('a','ü''x','c,') CHARACTER SET latin1", ["'a'", "'c,'", "0", "'ü''x'"]),
    "e3": (f"enum({','.join(repr(f'v{n}') for n in range(300))})", ["'v299'", "'v0'"]),
    "s": ("set('x','y','z')", ["'x,z'", "''", "7"]),
    "s64": (f"set({','.join(repr(f's{n}') for n in range(64))})", ["'s0,s63'"]),
    "js": ("json", ['\'{"b": [1, 2.50], "a": "ü"}\'', "'null'"]),
    "g": ("geometry", ["ST_GeomFromText('POINT(1 2)', 4326)"]),
    "uu": ("uuid", ["'01890a5d-ac96-774b-bcce-b302099a8057'", "'123e4567-e89b-12d3-a456-426655440000'"]),
    "i6": ("inet6", ["'::ffff:1.2.3.4'", "'::'", "'2001:db8:0:0:1:0:0:1'", "'::1'", "'::1.2.3.4'"]),
    "i4": ("inet4", ["'127.0.0.0'", "'0.0.0.0'"]),
    "vc": ("varchar(500) COMPRESSED", ["repeat('z', 400)", "''", "'short'"]),
    "tc": ("text COMPRESSED", ["repeat('ü', 4000)", "'s'"]),
    "gv": ("int AS (id + 1) VIRTUAL", []),
    "gs": ("int AS (id + 2) STORED", []),
    "inv": ("int INVISIBLE DEFAULT 5", ["6"]),
}
ALIASES = {"uu": "uuid", "i6": "inet6", "i4": "inet4"}


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
        (name, type_.spelling, type_.landing) for name, type_ in columns.items()
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
    rows = [row for batch in landed(log.segment(table)) for row in batch.to_pylist()]
    found = [(r["_cdc"]["op"], r["id"], r["a"], r["b"], r["c"], r["_cdc"]["unchanged"]) for r in rows]
    if image == "FULL":
        expected_update = ("update", 1, 3, "b", "cc", None)
        expected_insert = ("insert", 7, 4, "bb", None, None)
    elif image == "NOBLOB":
        expected_update = ("update", 1, 3, None, "cc", ["b"])
        expected_insert = ("insert", 7, 4, None, None, ["b"])
    else:
        expected_update = ("update", 1, None, None, "cc", ["a", "b"])
        expected_insert = ("insert", 7, 4, None, None, ["b", "c"])
    assert found[0][:2] == ("insert", 1)
    assert found[0][3:5] == ("b", "c")
    assert found[2:] == [
        expected_update,
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
