"""Commits to a lake: what lets several drivers write, and on S3 the check that it is in use.

Invariant: only one driver succeeds in writing a version of a Delta table. Delta's own log store for S3 checks
and then writes, so a slower driver overwrites a faster one's commit; `CLASS` (source in ``merge/java``)
writes conditionally. In a local folder, Hadoop checks and then renames; `LOCAL_CLASS` links. Spark loads a
log store only when its context starts.

Everything that writes to the tables (OPTIMIZE, a notebook) needs the same; only merges into S3 are checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, PySparkException

from connector.config import Config
from connector.errors import PreconditionError
from merge.landing_zone import spark_url
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASS = "deltatide.S3ConditionalLogStore"
KEY = "spark.delta.logStore.s3a.impl"
SAFE = (CLASS, "io.delta.storage.S3DynamoDBLogStore")
"""Log stores for S3 that let several drivers commit."""

IDEMPOTENT = {"spark.databricks.delta.commit.idempotencyCheck.enabled": "true"}
"""A commit whose response was lost is recognized on retry, and not repeated."""

SETTINGS = {KEY: CLASS, "spark.delta.logStore.s3.impl": CLASS, **IDEMPOTENT}

LOCAL_CLASS = "deltatide.AtomicLocalFs"
LOCAL_SETTINGS = {"spark.hadoop.fs.AbstractFileSystem.file.impl": LOCAL_CLASS}
"""For local folders; a session whose jars lack the class can't commit to one with these."""

S3_SCHEMES = ("s3://", "s3a://", "s3n://")


def check_log_store(spark: SparkSession, config: Config) -> None:
    """Refuse a lake on S3 if this session's log store is safe for one driver only.

    ``lake.single_driver = true`` permits it. Databricks commits through a service of its own.
    """
    if config.lake is None or config.lake.single_driver:
        return
    if not lake_location(spark, config).startswith(S3_SCHEMES):
        return
    found = started_with(spark, KEY) or started_with(spark, "spark.delta.logStore.class")
    if found not in SAFE and not _is_databricks(spark):
        raise PreconditionError(
            f"{KEY} is {found or 'not set'}: another driver could overwrite the commits of this one on S3",
            hint=f"start Spark with {KEY}={CLASS} and the jar that `python -m merge.spark.log_store_jar` "
            "prints, or set lake.single_driver = true and keep all other writers out of the lake",
        )


def lake_location(spark: SparkSession, config: Config) -> str:
    """Return the url under which the lake's new tables are created; empty if the catalog reports none."""
    lake = config.lake
    if lake is None:
        return ""
    if lake.url is not None:
        return spark_url(lake.url)
    if lake.location is not None:
        return spark_url(lake.location)
    schema = ".".join(quoted(part) for part in (lake.catalog, lake.schema_name) if part)
    try:
        rows = spark.sql(f"DESCRIBE SCHEMA {schema}").collect()
    except AnalysisException:
        return ""  # `check_schema` reports what is wrong with it
    return next((row[1] for row in rows if row[0] == "Location"), "")


def started_with(spark: SparkSession, key: str) -> str | None:
    """Return a setting of the Spark context: Delta looks only there, whatever the session has set since."""
    try:
        return spark.newSession().conf.get(key, None)
    except (AttributeError, PySparkException):  # Spark Connect
        spark.sql(f"RESET {key}")
        return spark.conf.get(key, None)


def _is_databricks(spark: SparkSession) -> bool:
    """Return whether Spark has a function that only Databricks has; calling it elsewhere logs an error."""
    return not spark.sql("SHOW SYSTEM FUNCTIONS LIKE 'current_version'").isEmpty()
