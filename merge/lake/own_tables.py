"""Creates the tables that we keep beside the source's: cuts, what upkeep keeps, differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from connector.config import Config
from merge.lake.retry import with_retries
from merge.lake.target import lake_folder, location_sql
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_own_table(
    spark: SparkSession, config: Config, table: str, path: str, columns: Mapping[str, str]
) -> None:
    """Create a table if it does not exist, and no other job creates it now.

    `table`: its name in SQL; `path`: its folder under ``lake.location``; `columns`: types by name. Delta
    compacts its many small files automatically.
    """
    lines = ", ".join(f"{quoted(name)} {type_}" for name, type_ in columns.items())
    create = (
        f"CREATE TABLE IF NOT EXISTS {table} ({lines}) USING DELTA "
        f"{location_sql(lake_folder(config, path))}"
        "TBLPROPERTIES ('delta.autoOptimize.autoCompact' = 'true')"
    )
    with_retries(lambda: spark.sql(create), table)
