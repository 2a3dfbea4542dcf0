"""Which statements of MariaDB compute virtual columns after triggers have changed the row."""

from __future__ import annotations

import pytest

from connector.mysql.log.transaction import computed_last
from connector.schema import TableName


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE t SET a = 1",
        "update low_priority ignore `t` x set a = 1",
        "UPDATE D.T AS x SET a = 1 WHERE b = 2",
        "INSERT INTO t VALUES (1)",
        "insert ignore t(id) select id from u",
        "REPLACE `d` . `t` SET a = 1",
        "DELETE FROM t",
        "DELETE QUICK FROM t WHERE id = 1",
        "/* of * an ORM **/ UPDATE t SET a = 1",
        "# one\n-- two\n/**/INSERT INTO t VALUES (1)",
    ],
)
def test_a_statement_that_writes_to_one_table_computes_virtual_columns_last(statement: str) -> None:
    mapped = [TableName("d", "audit"), TableName("d", "t")]
    assert computed_last(statement.encode(), mapped) == TableName("d", "t")


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "/*! UPDATE u, */ UPDATE t SET a = 1",
        "/*M!100500 UPDATE u, */ UPDATE t SET a = 1",
        "/* x */ x */ UPDATE t SET a = 1",
        "/* x */ WITH u AS (SELECT 1) /* y */ UPDATE t SET a = 1",
        "-- x UPDATE t SET a = 1",
        "--\nUPDATE u,\nUPDATE t SET a = 1",
        "CALL t()",
        "UPDATE t, u SET a = 1",
        "UPDATE t ,u SET a = 1",
        "UPDATE t JOIN u SET a = 1",
        "UPDATE t x JOIN u SET a = 1",
        "UPDATE t SET a = 1 WHERE id IN (SELECT id FROM u)",  # executed as of several tables from 11.1 on
        "UPDATE t SET a = 1 WHERE id IN (VALUES (1), (2))",
        "UPDATE t SET a = 1 WHERE id IN (/*!50000SELECT id FROM u*/)",
        "UPDATE t SET a = 1 WHERE id IN (/*M!100500SELECT id FROM u*/)",
        "INSERT INTO t () VALUES ()",
        "INSERT INTO t VALUES ( ), ()",
        "REPLACE INTO t (/**/) VALUE (/**/)",
        "UPDATE t FOR PORTION OF p FROM 1 TO 2 SET a = 1",
        "DELETE FROM t FOR PORTION OF p FROM 1 TO 2",
        "DELETE t FROM t JOIN u",
        "DELETE FROM t USING t JOIN u",
        "UPDATE v SET a = 1",
        "UPDATE e.t SET a = 1",
        "INSERT INTO u VALUES (1)",
    ],
)
def test_another_statement_may_compute_virtual_columns_before_a_trigger(statement: str) -> None:
    assert computed_last(statement.encode(), [TableName("d", "t")]) is None


@pytest.mark.parametrize("other", [TableName("e", "t"), TableName("d", "T")])
def test_of_tables_of_one_name_a_trigger_may_have_written_to_either(other: TableName) -> None:
    mapped = [TableName("d", "t"), other]
    assert computed_last(b"UPDATE t SET a = 1", mapped) is None
    assert computed_last(b"UPDATE e.t SET a = 1", mapped) == (other if other.namespace == "e" else None)
