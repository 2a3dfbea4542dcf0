"""Verification of a large table with five planted differences, by checksums and by rows, with the command.

Rows are inserted before the agent starts, so they are dumped and merged once. Then each kind of difference is
planted in Delta, behind the database's back.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.report import Measurement, Target
from tests.support.agent.installed import Installation
from tests.support.servers.postgres import PostgresServers, fresh_database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "public.big"
PLANTED = ("ghost", "missing", "different", "different", "different")
"""The kinds of differences that a verification must find, once each."""

CREATE = """
    CREATE TABLE big (id bigint PRIMARY KEY, name text, price numeric(12,2), at timestamptz, note text);
    INSERT INTO big SELECT n, concat('item ', n), n / 7.0,
        '2026-01-01'::timestamptz + n * interval '1 second', repeat('x', 50) FROM generate_series(1, {rows}) n
"""


def verification(folder: Path, rows: int) -> Iterator[Measurement]:
    """Measure both ways to verify a table of this many rows; `RuntimeError` for any other result."""
    seconds, moved = {}, {}
    (folder / "verified").mkdir()
    with (
        PostgresServers(folder) as servers,
        fresh_database(servers.get(None), "bench_verification") as database,
    ):
        database.execute(CREATE.format(rows=rows))
        place = Installation(
            folder / "verified",
            database,
            landing={"flush_seconds": 1},
            dump={"chunk_rows": 50_000, "delay_seconds": 0},
        )
        with place.agent() as agent:
            place.wait_caught_up(agent, seconds=1200)
            _merge_and_plant(place, rows)
            for way, options in (("checksums", ["--checksums"]), ("rows", [])):
                begun = time.monotonic()
                done = place.run("verify", TABLE, "--json", *options, seconds=1800)
                seconds[way] = time.monotonic() - begun
                moved[way] = _bytes(done, way)
    name = f"verification of {rows:,} rows by checksums"
    faster = Target("ratio", "<=", 1 / 5)
    yield Measurement(name, seconds["checksums"], "s", "by rows", seconds["rows"], target=faster)
    yield Measurement("bytes landed for it", moved["checksums"], "B", "by rows", moved["rows"])


def _merge_and_plant(place: Installation, rows: int) -> None:
    from merge import merge_once
    from merge.spark.session import local_session

    spark = local_session("deltatide-bench")
    try:
        merge_once(spark, place.config)
        _plant(spark, f"{place.lake}/public/big", rows)
    finally:
        spark.stop()


def _plant(spark: SparkSession, path: str, rows: int) -> None:
    table, middle = f"delta.`{path}`", rows // 2
    spark.sql(f"UPDATE {table} SET price = price + 0.01 WHERE id = {middle}")
    spark.sql(f"UPDATE {table} SET note = NULL WHERE id = {middle // 2}")
    spark.sql(f"UPDATE {table} SET at = at + INTERVAL 1 MICROSECOND WHERE id = {middle // 3}")
    spark.sql(f"DELETE FROM {table} WHERE id = {rows}")
    others = "name, price, at, note, _cdc"
    spark.sql(f"INSERT INTO {table} (id, {others}) SELECT -1, {others} FROM {table} WHERE id = 1")


def _bytes(done: subprocess.CompletedProcess[str], way: str) -> int:
    """Return how many bytes a verification has landed, after checking that it found what was planted."""
    if not done.stdout:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    kinds = sorted(row["kind"] for row in found["differences"])
    if kinds != sorted(PLANTED):
        raise RuntimeError(f"verified by {way}, the differences are {kinds} instead of {sorted(PLANTED)}")
    return sum(table["bytes"] for result in found["verified"] for table in result["tables"])
