"""Every type of every database, merged: the Delta table holds what landed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connector.landing.format import DUMP, UPDATE
from connector.schema import TableName
from merge import merge_once
from tests.fidelity.landed_values import cells_of, column_of, differences, landed_cells
from tests.fidelity.mysql import LITERALS
from tests.fidelity.postgres_table import PostgresTypes
from tests.support.agent.captured import CapturedDatabase
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.servers.postgres import Database
from tests.support.spark.spark_sessions import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_type_of_postgres_is_the_same_in_the_lake(
    spark: SparkSession, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = PostgresTypes(database, tmp_path, monkeypatch)
    types.capture()
    report = merge_once(spark, types.captured.config)
    assert not report.failed
    assert report.exact
    rows = to_arrow(spark.read.format("delta").load(str(tmp_path / "lake/public/types"))).to_pylist()
    found = {row["id"]: cells_of(row) for row in rows}
    problems = differences(types.expected(), found, types.cases, "the lake")
    assert not problems, "\n".join(problems)


# What lands of MySQL is compared in tests/integration/mysql; its types are MariaDB's.
@pytest.mark.parametrize("server", ["mariadb", pytest.param("mysql", marks=pytest.mark.soak)])
def test_every_type_of_mysql_and_mariadb_is_the_same_in_the_lake(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database: MysqlDatabase = request.getfixturevalue(f"{server}_database")
    matrix = [literals for literals in LITERALS if literals.is_on(server)]
    columns = ", ".join(f"{column_of(n)} {literals.type}" for n, literals in enumerate(matrix))
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, n int, {columns}) CHARACTER SET utf8mb4")
    for id_ in range(max(len(literals.all) for literals in matrix)):
        values = ", ".join(literals.all[id_ % len(literals.all)] for literals in matrix)
        database.execute("SET sql_mode = 'ALLOW_INVALID_DATES'", f"INSERT INTO t VALUES ({id_}, 0, {values})")
    table = TableName(database.name, "t")
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=[str(table)])
    with captured.running():
        captured.wait_settled()
        database.execute("SET sql_mode = 'ALLOW_INVALID_DATES'", "UPDATE t SET n = 1")
        captured.wait_settled()
    report = merge_once(spark, captured.config)
    assert not report.failed
    assert report.exact
    rows = to_arrow(spark.read.format("delta").load(str(tmp_path / "lake" / database.name / "t"))).to_pylist()
    found = {row["id"]: cells_of(row) for row in rows}
    dumped, logged = landed_cells(captured, table, DUMP), landed_cells(captured, table, UPDATE)
    problems = differences(dumped, logged, matrix, "the log") + differences(logged, found, matrix, "the lake")
    assert not problems, "\n".join(problems)
