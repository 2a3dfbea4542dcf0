"""A PostgreSQL table whose key has infinity and NaN, captured and merged: the Delta table is the source's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connector.config import Config
from connector.schema import TableName
from merge import merge_once
from tests.support.agent.captured import CapturedDatabase
from tests.support.servers.postgres import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = TableName("public", "prices")
DAY = "to_char(valid_to AT TIME ZONE 'UTC', 'YYYY-MM-DD')"
AT_SOURCE = (
    f"SELECT id, CASE WHEN isfinite(valid_to) THEN {DAY} ELSE valid_to::text END, n::text, f, v FROM prices"
)
IN_LAKE = (
    "id", "coalesce(_cdc.raw['valid_to'], date_format(valid_to, 'y-MM-dd'))",
    "coalesce(_cdc.raw['n'], string(n))", "f", "v",
)  # fmt: skip


class Lake:
    """The Delta table of `prices`, merged when it is compared; deleted rows stay in it, marked."""

    def __init__(self, spark: SparkSession, captured: CapturedDatabase, folder: Path) -> None:
        self.spark, self.captured, self.path = spark, captured, str(folder / "lake/public/prices")
        said = captured.config.model_dump()
        self.config = Config.model_validate({**said, "tables": {str(TABLE): {"deletes": "soft"}}})

    def assert_as_the_source(self) -> None:
        self.captured.wait_settled()
        report = merge_once(self.spark, self.config)
        assert report.exact, report
        frame = self.spark.read.format("delta").load(self.path).where("_cdc.op <> 'delete'")
        found = [tuple(row) for row in frame.selectExpr(*IN_LAKE).collect()]
        assert sorted(map(formatted, found)) == sorted(map(formatted, self.captured.database.rows(AT_SOURCE)))


def formatted(row: tuple[Any, ...]) -> tuple[str, ...]:
    """A row with NaN equal to itself; -0.0 is 0.0, as in a key."""
    return tuple(repr(value + 0.0 if isinstance(value, float) else value) for value in row)


def test_a_key_that_goes_to_infinity_and_back_is_one_row_from_log_and_dump(
    spark: SparkSession, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(
        "CREATE TABLE prices (id int, valid_to timestamptz, n numeric(6,2), f float8, v text,"
        " PRIMARY KEY (id, valid_to, n, f)); INSERT INTO prices VALUES"
        " (1, 'infinity', 1, 0, 'open'), (1, '2026-01-31 00:00+00', 1, 0, 'past'),"
        " (1, '-infinity', 1, 0, 'low'), (2, 'infinity', 'NaN', 'NaN', 'nan'),"
        " (3, 'infinity', 1, 0, 'ghost'), (4, 'infinity', 1, 1.5, 'gone')"
    )
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=[str(TABLE)])
    lake = Lake(spark, captured, tmp_path)
    with captured.running():
        lake.assert_as_the_source()
        database.execute(
            "UPDATE prices SET valid_to = '2026-06-01 00:00+00' WHERE v = 'open';"
            "INSERT INTO prices VALUES (1, 'infinity', 1, 0, 'next');"
            "UPDATE prices SET v = 'nan again' WHERE id = 2;"
            "UPDATE prices SET f = '-0' WHERE v = 'past'; DELETE FROM prices WHERE id = 4"
        )
        lake.assert_as_the_source()
        database.execute(
            "DELETE FROM prices WHERE v = 'next';UPDATE prices SET valid_to = 'infinity' WHERE v = 'open'"
        )
        database.changed_unseen(
            "DELETE FROM prices WHERE id = 3; UPDATE prices SET v = 'unseen' WHERE id = 2"
        )
        captured.dump([TABLE])
        lake.assert_as_the_source()
    assert [row[0] for row in database.rows("SELECT v FROM prices ORDER BY 1")] == [
        "low",
        "open",
        "past",
        "unseen",
    ]
