"""Rows whose columns no event has carried: their keys, as the merge spells them, find them at the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connector.schema import TableName
from connector.source import KeyRange
from merge.keys import key_text
from merge.spark.session_settings import applied_settings
from tests.support.agent.installed import Installation
from tests.support.source import mysql_source, postgres_source
from tests.support.source.reading import following
from tests.support.source.tested_database import TestedDatabase
from tests.support.spark.lake import assert_lake, assert_landed, merge, merge_until_whole

WORDS = (
    "''", "'b'", "'trailing  '", "'it''s \"so\"'", "'100%_'", "'{a,b}'", "'  in front'", "'0x41'",
    "'ünïcödé'", "'😀'", "'a\u2028b'", "'true'", "'1.10'", "'1.1'",
)  # fmt: skip
BACKSLASHES = ("'a\\'", "'\\x41'", "'\\\\'", "'\\'''")
POSTGRES_KEYS: dict[str, tuple[str, ...]] = {
    "smallint": ("-32768", "0", "32767"),
    "int": ("-2147483648", "0", "2147483647"),
    "bigint": ("-9223372036854775808", "9223372036854775807"),
    "numeric": ("1.10", "0.0000001", "1e40", "-5", "'NaN'", "0", "1e-30"),
    "numeric(12,2)": ("1.5", "0", "-9999999999.99"),
    "numeric(38,30)": (
        "1e-30", "0", "0.000000123456789012345678", "0.000000123456789012345677", "-0.0000001",
        "12345678.000000000000000000000000000001",
    ),
    "numeric(40,2)": ("1.5", "12345678901234567890123456789012345678.01"),
    "numeric(3,5)": ("0.00123", "0.00001"),
    "real": ("1.1", "-3.4028235e38", "1e-45", "'Infinity'", "'-Infinity'", "'NaN'", "16777217", "0"),
    "double precision": ("0.1", "-1.7976931348623157e308", "5e-324", "'NaN'", "'-Infinity'", "2e-3", "1e23"),
    "boolean": ("true", "false"),
    "bit(3)": ("B'101'", "B'000'"),
    "bit varying": ("B'101'", "B''", "B'1010101010'"),
    "text": (*WORDS, *BACKSLASHES, "E'tab\\t\\r\\nnew'", "'B'", "' '"),
    'text COLLATE "C"': (*WORDS, *BACKSLASHES),
    "varchar(20)": (*WORDS, *BACKSLASHES),
    "char(20)": ("'a'", "'A'", "'it''s \"so\"'", "'  in front'", "'ü😀'", "'\\'"),
    "bpchar": ("'a'", "'it''s'"),
    "name": ("'a'", "'It''s'"),
    '"char"': ("'a'", "'\\'"),
    "bytea": ("''", "'\\x00'", "'\\xDEADBEEF5c27'", "'\\x5c783030'"),
    "date": ("'0001-01-01'", "'2026-11-21'", "'1582-10-10'", "'9999-12-31'"),
    "time": ("'00:00'", "'23:59:59.999999'", "'24:00'"),
    "timetz": ("'10:00+02'", "'23:59:59.000001-08:30'"),
    "timestamp": ("'0001-01-01'", "'2020-03-29 02:30:00.5'", "'9999-12-31 23:59:59.999999'"),
    "timestamp(3)": ("'2020-03-29 02:30:00.5'", "'2020-03-29 02:30'"),
    "timestamptz": (
        "'0001-01-01 00:00+00'", "'1883-11-18 12:03:58.000001-05'", "'2020-10-25 00:30+00'",
        "'2020-10-25 01:30+00'", "'2020-03-29 01:30:00.123+00'", "'9999-12-31 23:59:59.999999+00'",
    ),
    "interval": ("'1 year 2 mons -3 days 04:05:06.7'", "'-1 day'", "'1 hour'"),
    "uuid": ("'A0EEBC99-9c0b-4ef8-bb6d-6bb9bd380a11'",),
    "inet": ("'10.0.0.1'", "'10.0.0.0/8'", "'::1'"),
    "cidr": ("'10.0.0.0/8'", "'2001:db8::/32'"),
    "macaddr": ("'08:00:2b:01:02:03'",),
    "oid": ("1", "4294967295"),
    "jsonb": ("""'{"a": [1, "x\\n\\"y"]}'""", "'1.50'", "'null'"),
    "int4range": ("'[1,5)'", "'empty'"),
    "money": ("1.5", "-1234567.89"),
    "mood": ("'sad'", "'ha ppy'", "'it''s'"),
    "positive": ("1", "9223372036854775807"),
    "smallint[]": ("'{}'", "'{1,NULL,-3}'"),
    "bigint[]": ("'{9223372036854775807,NULL}'",),
    "text[]": ("'{}'", "'{a,NULL,\"NULL\",\"\",\"a b\",\"q\\\"\\\\\",\"{x}\",\"1,2\",😀}'"),
    "varchar[]": ("'{it''s}'",),
}  # fmt: skip
MARIADB_KEYS: dict[str, tuple[str, ...]] = {
    "tinyint": ("-128", "127"),
    "smallint": ("-32768", "0"),
    "mediumint unsigned": ("16777215", "0"),
    "int": ("-2147483648", "2147483647"),
    "int unsigned zerofill": ("42", "4294967295"),
    "bigint": ("-9223372036854775808", "9223372036854775807"),
    "bigint unsigned": ("18446744073709551615", "9223372036854775808", "9223372036854775807", "0"),
    "decimal(12,2)": ("1.5", "0", "-9999999999.99"),
    "decimal(38,30)": (
        "0.000000000000000000000000000001", "0", "-0.0000001", "0.000000123456789012345678", "1.5",
        "0.000000123456789012345677",
    ),
    "decimal(65,30)": ("-0.000000000000000000000000000001", "0", "12345678901234567890123456789012345.5"),
    "decimal": ("9999999999", "0"),
    "float": ("1.1", "-3.4028234e38", "1.17549435e-38", "16777216", "0", "1e-6", "1.1000001"),
    "double": ("0.1", "-1.7976931348623157e308", "2.2250738585072014e-308", "2e-3", "1e23", "0", "5e-324"),
    "bit(1)": ("0", "1"),
    "bit(9)": ("511", "0"),
    "bit(64)": ("18446744073709551615", "1"),
    "year": ("1901", "2155", "0", "2026"),
    "varchar(20) COLLATE utf8mb4_general_ci": (*WORDS, "'B2'", "'a\\\\'", "'\\\\x41'", "'\\0'", "'\\n\\t'"),
    "varchar(20) COLLATE utf8mb4_bin": (*WORDS, "'B'", "'a\\\\'", "'\\\\x41'", "'\\0'", "'\\r\\n'"),
    "varchar(20) CHARACTER SET latin1": ("'äö€'", "'A'", "x'818D8F909D'", "'it''s'", "'b '"),
    "varchar(20) CHARACTER SET sjis": ("'日本ｱ'", "'a\\\\ b'"),
    "varchar(20) CHARACTER SET koi8u": ("'Київ'", "x'95'"),
    "varchar(20) CHARACTER SET ucs2": ("'añ日'", "''"),
    "varchar(20) CHARACTER SET utf16": ("'a😀'",),
    "char(20) COLLATE utf8mb4_unicode_ci": ("'a  '", "'it''s'", "'  in front'", "''", "'ü😀'"),
    "binary(4)": ("x'00000000'", "x'DEADBEEF'", "x'61000000'", "x'5C783030'", "x'30783431'"),
    "varbinary(20)": ("x''", "x'00'", "x'DEADBEEF5C27'", "x'5C783030'", "x'30783431'", "'plain'"),
    "blob": ("x''", "x'00'", "x'DEADBEEF5C27'", "x'30783431'"),
    "text": ("'a'", "'it''s'", "'ü😀'"),
    "date": ("'0001-01-01'", "'2026-11-21'", "'1582-10-10'", "'9999-12-31'"),
    "time": ("'-838:59:59'", "'838:59:59'", "'00:00:00'"),
    "time(3)": ("'-00:00:00.5'", "'12:34:56.789'"),
    "datetime": ("'0001-01-01'", "'2020-03-29 02:30:00'", "'9999-12-31 23:59:59'"),
    "datetime(6)": ("'2020-03-29 02:30:00.5'", "'1969-12-31 23:59:59.999999'", "'2020-03-29'"),
    "timestamp": ("'1970-01-02 00:00:01'", "'2038-01-18 03:14:07'"),
    "timestamp(6)": ("'2020-10-25 00:30:00'", "'2020-10-25 01:30:00'", "'2020-03-29 01:30:00.000001'"),
    "enum('z', 'ü', 'b''c', '1')": ("'z'", "'ü'", "'b''c'", "'1'"),
    "set('z', 'm', 'b''c')": ("'z,b''c'", "''", "'m'"),
}  # fmt: skip
ONLY_MARIADB_KEYS: dict[str, tuple[str, ...]] = {
    "uuid": ("'01890a5d-ac96-774b-bcce-b302099a8057'", "'123E4567-e89b-12d3-a456-426655440000'"),
    "inet6": ("'::ffff:1.2.3.4'", "'::'", "'2001:db8:0:0:1:0:0:1'", "'::1.2.3.4'"),
    "inet4": ("'127.0.0.0'", "'0.0.0.0'"),
    "varchar(20) COLLATE utf8mb4_nopad_bin": ("''", "' '", "'a'", "'a '", "'A'"),
}
ONLY_MYSQL_KEYS: dict[str, tuple[str, ...]] = {
    "varchar(20) COLLATE utf8mb4_0900_ai_ci": (*WORDS, "'b '", "' '"),
    "varchar(20) COLLATE utf8mb4_0900_bin": ("'a'", "'a '", "'A'"),
}


def keys_of(kind: str) -> dict[str, tuple[str, ...]]:
    """The types of a database with the values that their keys are to have, as its SQL."""
    if kind == "postgres":
        return POSTGRES_KEYS
    return MARIADB_KEYS | (ONLY_MYSQL_KEYS if kind == "mysql" else ONLY_MARIADB_KEYS)


AROUND = {
    "postgres": (
        """CREATE TYPE mood AS ENUM ('sad', 'ha ppy', 'it''s');
        CREATE DOMAIN positive AS bigint CHECK (VALUE > 0)""",
        """CREATE TABLE several (n int, a text, b bytea, c timestamptz, d mood, PRIMARY KEY (d, c, b, a));
        INSERT INTO several SELECT n - 1, 'it''s ' || n % 2, decode(lpad(to_hex(n % 3), 4, '0'), 'hex'),
            timestamptz '2020-10-24 23:30+00' + n * interval '30.5 minutes', 'ha ppy'
            FROM generate_series(1, 9) n""",
    ),
    "mariadb": (
        "SET time_zone = '-09:30'",
        """CREATE TABLE several (n int, a varchar(9), b binary(2), c timestamp(6), d enum('x', 'y'),
            PRIMARY KEY (d, c, b, a));
        INSERT INTO several SELECT seq - 1, concat('it''s ', seq % 2), unhex(lpad(hex(seq % 3), 4, '0')),
            '2020-10-24 14:00:00.5' + interval seq * 30 minute, 'y' FROM seq_1_to_9""",
    ),
}
"""What comes before the tables of one type each, and behind them."""


@dataclass
class Keyed:
    """A table with the types of its key; its rows are numbered. `landed`: its key columns."""

    name: TableName
    types: str
    key: list[str]
    rows: int
    landed: dict[str, tuple[str, pa.Array]] = field(default_factory=dict)

    def read(self, tables: Any) -> None:
        """Read the key columns of all rows in a chunk."""
        with tables.open_chunk(self.name, KeyRange()) as chunk:
            assert sorted(chunk.schema.key) == sorted(self.key)
            batches = [some.columns for some in chunk.rows()]
            for column, arrays in zip(chunk.schema.columns, zip(*batches, strict=True), strict=True):
                if column.name in self.key:
                    self.landed[column.name] = column.type, pa.concat_arrays(arrays)
        assert all(len(v) == self.rows and not v.null_count for _, v in self.landed.values()), self.types

    def look_up(self, tables: Any, keys: list[tuple[str, ...]]) -> Any:
        """What a dump of these keys reads: number, whether it is not there, and key of each row."""
        try:
            with tables.open_keys(self.name, keys) as chunk:
                names = [column.name for column in chunk.schema.columns]
                rows = [
                    row
                    for some in chunk.rows()
                    for row in pa.table([*some.columns, some.absent], [*names, "absent"]).to_pylist()
                ]
        except Exception as error:  # told beside the others
            return repr(error)
        found = [(row["n"], row["absent"], repr([row[name] for name in self.key])) for row in rows]
        return sorted(found, key=lambda row: (row[0] or 0, row[2]))

    def keys(self) -> list[str]:
        """The keys as they landed."""
        return [repr(list(k)) for k in zip(*(self.landed[n][1].to_pylist() for n in self.key), strict=True)]


def create_tables(database: TestedDatabase) -> list[Keyed]:
    """One table for each type, and one with a key of several."""
    made: list[Keyed] = []
    statements: list[str] = []
    for number, (type_, values) in enumerate(keys_of(database.kind).items()):
        name = f"t{number}"
        part = "(20)" if type_ in ("blob", "text") and database.kind != "postgres" else ""
        statements.append(f"CREATE TABLE {name} (n int, k {type_} NOT NULL, PRIMARY KEY (k{part}))")
        rows = ", ".join(f"({n}, {value})" for n, value in enumerate(values))
        statements.append(f"INSERT INTO {name} VALUES {rows}")
        made.append(Keyed(TableName(database.namespace, name), type_, ["k"], len(values)))
    before, after = AROUND["postgres" if database.kind == "postgres" else "mariadb"]
    database.script(";".join([before, *statements, after]))
    return [*made, Keyed(TableName(database.namespace, "several"), "several", ["d", "c", "b", "a"], 9)]


@contextmanager
def open_tables(database: Any) -> Iterator[Any]:
    """A reader of the database's tables."""
    module: Any = postgres_source if database.kind == "postgres" else mysql_source
    source = module.source_of(database)
    with following(source):
        tables = source.open_tables()
        yield tables
        tables.close()


def formats(tables: list[Keyed], spark: Any, folder: Path) -> list[list[tuple[str, ...]]]:
    """The keys of each table as the merge spells them; all go through one Parquet file."""
    columns = [table.landed[name] for table in tables for name in table.key]
    longest = max(len(values) for _, values in columns)
    padded = [pa.concat_arrays([v, pa.nulls(longest - len(v), v.type)]) for _, v in columns]
    pq.write_table(pa.table(padded, [f"c{n}" for n in range(len(padded))]), folder / "keys.parquet")
    schema = ", ".join(f"c{n} {type_}" for n, (type_, _) in enumerate(columns))
    frame = spark.read.schema(schema).parquet(str(folder / "keys.parquet"))
    texts = [key_text(frame[f"c{n}"], type_).alias(f"c{n}") for n, (type_, _) in enumerate(columns)]
    formatted = iter(frame.select(*texts).toArrow().columns)
    return [
        list(zip(*(next(formatted).to_pylist()[: table.rows] for _ in table.key), strict=True))
        for table in tables
    ]


SESSIONS: list[Mapping[str, str]] = [
    {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"},
    {"spark.sql.session.timeZone": "Europe/Berlin", "spark.sql.ansi.enabled": "false"},
]


def test_every_key_is_found_by_the_text_that_the_merge_makes_of_it(
    tested: TestedDatabase, spark: Any, tmp_path: Path
) -> None:
    keyed = create_tables(tested)
    wrong: list[str] = []
    with open_tables(tested) as tables:
        for table in keyed:
            table.read(tables)
        for session in SESSIONS:
            with applied_settings(spark, session):
                formatted = formats(keyed, spark, tmp_path)
            for table, texts in zip(keyed, formatted, strict=True):
                found = table.look_up(tables, texts)
                if [row[:2] for row in found] != [(n, False) for n in range(table.rows)]:
                    wrong.append(f"{table.types}: {texts} {found}")
        for table in keyed:
            tested.script(f"DELETE FROM {table.name.name}")
        for table, texts in zip(keyed, formatted, strict=True):
            found = table.look_up(tables, texts)
            if found != [(None, True, key) for key in sorted(table.keys())]:
                wrong.append(f"{table.types} once deleted: {texts} {found}")
    assert not wrong, "\n".join(wrong)


NOTES = """
    CREATE TABLE notes (b varbinary(9), ts timestamp(6), d decimal(38,30), f double,
        w varchar(20) COLLATE utf8mb4_general_ci, n int DEFAULT 7, body text,
        at datetime(6) DEFAULT '2020-03-29 02:30:00.000001', PRIMARY KEY (w, f, d, ts, b));
    INSERT INTO notes SELECT x'00ff5c27', '2020-10-24 23:30:00' + INTERVAL seq * 15 minute, seq * 1e-10,
        seq * 1e-7, concat('it''s ', seq), seq, repeat(concat('body ', seq), 900), '2020-01-01'
        FROM seq_1_to_20
"""
BEFORE_MERGE = """
    SET binlog_row_image = MINIMAL;
    UPDATE notes SET n = -n WHERE n BETWEEN 1 AND 4;
    UPDATE notes SET ts = ts + INTERVAL 1 hour WHERE n BETWEEN 5 AND 9;
    UPDATE notes SET w = upper(w) WHERE n = 10;
    INSERT INTO notes (b, ts, d, f, w)
        SELECT x'', '2020-10-25 01:30:00.5', seq / 7, seq / 7, concat('new ', seq) FROM seq_1_to_9;
    UPDATE notes SET body = 'set' WHERE w IN ('new 1', 'new 2', 'it''s 14');
    UPDATE notes SET b = x'5c' WHERE w IN ('new 2', 'new 3');
    DELETE FROM notes WHERE n = 18;
    SET binlog_row_image = NOBLOB;
    UPDATE notes SET w = upper(w), b = x'' WHERE n IN (11, 12);
    UPDATE notes SET d = -d, f = f / 7 WHERE n BETWEEN 13 AND 16;
    INSERT INTO notes (b, ts, d, f, w) VALUES (x'', '2020-10-25 00:30', 0, 0, 'without body');
    DELETE FROM notes WHERE n IN (13, 17)
"""
"""Rows 5 to 12, 14 to 16 and the new ones have new keys, under which something is left out."""

AFTER_MERGE = """
    SET binlog_row_image = MINIMAL;
    DELETE FROM notes WHERE n IN (5, 14) OR w = 'new 4';
    UPDATE notes SET w = concat('moved ', w) WHERE n IN (6, 11) OR w = 'new 5';
    UPDATE notes SET body = 'new' WHERE n = 7
"""
"""What becomes of rows that are asked for before the agent, which is down, can read them."""


@pytest.mark.only_mariadb
@pytest.mark.only_mysql
@pytest.mark.soak_on_mariadb  # both leave the same columns out
def test_columns_that_the_log_leaves_out_are_dumped_until_the_lake_is_the_source(
    place: Installation, spark: Any
) -> None:
    place.configure(source={"allow_partial_row_images": True})
    place.database.script(NOTES)
    with place.agent() as agent:
        place.wait_dumped(agent)
        place.database.script(BEFORE_MERGE)
        place.wait_caught_up(agent)
    report = merge(spark, place)
    assert (report.exact, [table.requested for table in report.tables]) == (False, [8 + 3 + 10])
    place.database.script(AFTER_MERGE)
    with place.agent() as agent:
        place.wait_caught_up(agent)
        merge_until_whole(spark, place, agent)
        newest = place.newest
    assert newest is not None
    assert {dump.state for dump in newest.dumps} == {"complete"}
    assert "missing" in {dump.reason for dump in newest.dumps}
    assert_lake(place, "notes")
    assert_landed(place, "notes", unchanged=())
