"""MySQL's and MariaDB's checksums are those of the landed values, for every type that has any."""

from __future__ import annotations

import re
from contextlib import closing

import pytest

from connector.checksums.definition import checksum, row_text
from connector.errors import RequestError
from connector.schema import TableName
from connector.source import KeyRange
from tests.fidelity.mysql import LITERALS
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.checksum_scenarios import (
    BUCKET_ENDS,
    assert_buckets,
    compare_checksums,
    landed_rows,
    sums,
)
from tests.support.source.mysql_source import source_of
from tests.support.source.reading import following

BY_ROWS = re.compile(
    r"(float|double|vector|geometry|\w*point|\w*linestring|\w*polygon|geometrycollection)\b.*"
    r"|.*CHARACTER SET (?!latin1|utf8mb3|ascii).*"
)
"""Types that have no checksum; of MySQL also json, which is a text in MariaDB."""


@pytest.mark.every_release
def test_the_database_and_the_landed_values_have_one_checksum(mariadb: MysqlDatabase) -> None:
    server = ("mysql" if mariadb.is_mysql else "mariadb") + ("-8.0" if mariadb.is_old else "")
    cases = [literals for literals in LITERALS if literals.is_on(server)]
    statements = ["SET sql_mode = 'ALLOW_INVALID_DATES'"]
    for number, case in enumerate(cases):
        statements.append(f"CREATE TABLE t{number} (id int PRIMARY KEY, v {case.type}) CHARACTER SET utf8mb4")
        rows = (f"({id_}, {literal})" for id_, literal in enumerate((*case.all, "NULL")))
        statements.append(f"INSERT INTO t{number} VALUES {', '.join(rows)}")
    mariadb.execute(*statements)
    source = source_of(mariadb)
    with following(source):
        tables = [(case.type, TableName(mariadb.name, f"t{n}")) for n, case in enumerate(cases)]
        uncovered, differing = compare_checksums(source, tables)
    assert not differing
    json = {"json"} if mariadb.is_mysql else set()
    assert uncovered == {case.type for case in cases if BY_ROWS.fullmatch(case.type)} | json


def test_buckets_are_cut_at_powers_of_two_and_a_range_may_be_of_the_keys_first_column(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute(
        "CREATE TABLE s (id bigint, part varchar(9), c int, PRIMARY KEY (id, part))",
        "CREATE TABLE u (id bigint unsigned PRIMARY KEY)",
        "CREATE TABLE y (id year PRIMARY KEY, a int)",
        "CREATE TABLE b (id bit(9) PRIMARY KEY, a int)",
        f"INSERT INTO u VALUES (0), (255), (256), ({2**63 - 1}), ({2**63}), ({2**64 - 1})",
    )
    rows = ", ".join(f"({id_}, 'a;b', 1), ({id_}, 'c', NULL)" for id_ in BUCKET_ENDS)
    mariadb.execute(f"INSERT INTO s VALUES {rows}")
    source, signed, unsigned = source_of(mariadb), *(TableName(mariadb.name, name) for name in "su")
    with following(source), closing(source.open_tables()) as reader:
        assert_buckets(reader, signed)
        assert reader.key_span(unsigned, ("id",)) == (0, 2**64 - 1)
        assert {bucket: count for bucket, (count, _) in sums(reader, unsigned, bits=8).items()} == {
            0: 2, 1: 1, 2**55 - 1: 1, 2**55: 1, 2**56 - 1: 1,
        }  # fmt: skip
        for other in "yb":
            with pytest.raises(RequestError, match="not an integer"):
                sums(reader, TableName(mariadb.name, other))


def test_a_row_too_long_for_a_packet_is_not_taken_for_one_with_a_null(mariadb: MysqlDatabase) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a longtext, b longblob)",
        "INSERT INTO t VALUES (1, repeat('x', 7e5), ''), (2, NULL, repeat('y', 7e5)), (3, '', NULL)",
    )
    ((before,),) = mariadb.execute("SELECT @@global.max_allowed_packet")
    source, table = source_of(mariadb), TableName(mariadb.name, "t")
    try:
        mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
        with following(source), closing(source.open_tables()) as reader:
            found = sums(reader, table)
            with reader.open_chunk(table, KeyRange()) as chunk:
                rows = {row["id"]: row_text(chunk.schema, row) for row in landed_rows(chunk)}
    finally:
        mariadb.execute(f"SET GLOBAL max_allowed_packet = {before}")
    assert found == {1: (1, checksum(rows[1])), 2: (1, None), 3: (1, checksum(rows[3]))}
