"""Settings of a Spark session, held for a while and put back; what a platform refuses is gone without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For work on few rows: compiling Java code for each query costs more than all the rest of a small merge."""

COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""For work on many rows: Spark's own defaults."""


@contextmanager
def held(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Give a session these settings for the time of the block."""
    before = {name: _get(spark, name) for name in settings}
    try:
        for name, value in settings.items():
            _set(spark, name, value)
        yield
    finally:
        for name, old in before.items():
            _set(spark, name, old)


def _get(spark: SparkSession, name: str) -> str | None:
    try:
        return spark.conf.get(name, None)
    except PySparkException:
        return None


def _set(spark: SparkSession, name: str, value: str | None) -> None:
    with suppress(PySparkException):
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
