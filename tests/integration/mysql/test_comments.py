"""Comments of tables and columns, as checks of the catalog find them."""

from __future__ import annotations

from connector.schema import TableComments, TableName
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import source_of

ODD = 'it\'s "odd" \\ %s {x} ü\n\t; --'


def literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def test_comments_are_those_of_now(mariadb: MysqlDatabase) -> None:
    odd = literal(ODD)
    mariadb.execute(
        f"CREATE TABLE t (id int PRIMARY KEY COMMENT 'key', n int COMMENT {odd}, v text) COMMENT {odd}",
        "CREATE TABLE bare (id int PRIMARY KEY)",
        "CREATE TABLE parted (id int PRIMARY KEY) COMMENT 'in parts' PARTITION BY HASH (id) PARTITIONS 2",
        "CREATE VIEW w AS SELECT * FROM t",
    )
    t, parted = TableName(mariadb.name, "t"), TableName(mariadb.name, "parted")
    source = source_of(mariadb)
    assert source.check_catalog().comments == {
        t: TableComments(t, ODD, {"id": "key", "n": ODD}),
        parted: TableComments(parted, "in parts"),
    }
    mariadb.execute("ALTER TABLE t COMMENT '', MODIFY v text COMMENT 'new'", "ALTER TABLE parted COMMENT ''")
    assert source.check_catalog().comments == {t: TableComments(t, "", {"id": "key", "n": ODD, "v": "new"})}
    source.close()
