"""A lake kept over Spark Connect: merges, reads and upkeep, explained and rebuilt, with no Java here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from pyspark.sql import SparkSession

from connector.errors import ConfigurationError
from merge import as_of, cuts, explain, explain_row, merge_once, rebuild
from merge.lake.upkeep import upkeep
from merge.reading.named_tables import answer
from merge.spark.session_pool import own_session_pool
from merge.views import changed_keys
from tests.spark.views.test_views import with_views
from tests.support.landing.landed import Chunk
from tests.support.landing.zone import T, Zone, delete, insert, row, update_of_a
from tests.support.servers.connect_server import ConnectServer
from tests.support.spark.spark_sessions import CONNECT_MODE, connected, serving_at

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def spark(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Connect to the local session, where it serves: a server of its own costs another Java process."""
    url = None if os.environ.get(CONNECT_MODE) else serving_at(spark)
    if url is None:
        server: ConnectServer = request.getfixturevalue("connect_server")
        url = server.url
    with connected(url) as session:
        yield session


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


def test_a_lake_is_loaded_changed_read_and_maintained(zone: Zone) -> None:
    zone.landed.full_dump(T, 1, 10, started_in=1)
    zone.chunk(15, Chunk(10, 13, [row(1, 1), row(2, 2), row(3, 3)]))
    assert zone.merge().exact
    zone.log(20, update_of_a(16, 1, 7), delete(17, 2), insert(18, 4), update_of_a(19, 9, 5))
    changed = [(1, 7, "x"), (3, 3, "x"), (4, 4, "x"), (9, 5, None)]
    assert zone.live() == changed
    report = zone.merge()
    assert (report.exact, zone.rows(), len(zone.requests())) == (False, changed, 1)
    (merged,) = report.tables
    assert (merged.inserted, merged.updated, merged.deleted) == (2, 1, 1)
    assert [r.id for r in as_of(zone.spark, zone.config, 1)[T].orderBy("id").collect()] == [1, 2, 3]
    named = "SELECT id FROM `public.orders` JOIN orders USING (id) ORDER BY id"
    assert [r.id for r in answer(zone.spark, zone.config, named).frame.collect()] == [1, 3, 4, 9]
    with pytest.raises(ConfigurationError, match="can't be run"):
        answer(zone.spark, zone.config, "SELECT nothing FROM orders")
    assert [r.manifest for r in cuts(zone.spark, zone.config).collect()] == [2, 1]
    assert [e["verdict"] for e in explain(zone.spark, zone.config, T, "1").collect()] == [
        "supplies columns",
        "wins",
    ]
    explained = explain_row(zone.spark, zone.config, T, "1").to_dict()
    assert (explained["result"], explained["delta"]["differences"]) == (explained["delta"]["row"], [])
    rebuild(zone.spark, zone.config, T, into="check.orders")
    assert zone.rows(table="check/orders") == changed
    found = {(f.subject, f.action): f.status for f in upkeep(zone.spark, zone.config)}
    assert found[T, "SET TBLPROPERTIES"] == "done"
    zone.log(30)
    assert not merge_once(zone.spark, zone.config).failed
    assert zone.rows() == changed
    assert [r["operation"] for r in zone.history()].count("WRITE") == 1, "it was not rebuilt"


def test_a_view_is_refreshed_incrementally_and_a_lake_without_cuts_has_none(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_keys, "MOST_OF_TABLE", 1 << 20)  # else a change of one row is of most
    assert cuts(zone.spark, zone.config).collect() == []
    zone.config = with_views(zone.config, incremental=True, few="SELECT b, count(*) n FROM orders GROUP BY b")
    for number, (is_incremental, groups) in enumerate(((False, [("x", 1)]), (True, [("x", 1), ("y", 1)])), 1):
        zone.log(10 * number, insert(10 * number - 5, number, b="_xy"[number]))
        (view,) = zone.merge().views
        assert (view.incremental, view.full_because) == (is_incremental, None if is_incremental else ANY)
        read = zone.spark.sql(f"SELECT b, n FROM delta.`{zone.folder}/lake/views/few` ORDER BY b")
        assert [tuple(each) for each in read.collect()] == groups


def test_a_session_of_a_merge_is_closed_once_and_not_again_in_the_midst_of_another_call(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage collection calls its finalizer; closing waits for all sessions' calls (Spark 4.1)."""
    with own_session_pool(spark, 1, {}) as sessions:
        own: Any = sessions.first
        if own is spark:
            pytest.skip("before Spark 4.1, a session can't be cloned: a merge has none of its own")
    assert own.client.is_closed
    monkeypatch.setattr(type(own.client), "close", lambda _: pytest.fail("it is closed again"))
    own.__del__()
    assert spark.range(1).count() == 1


READ_OLD = f"""
import sys
from merge import as_of, open_session
from tests.support.landing.landed import config_of

config = config_of(*sys.argv[1:])
session = open_session(config)
print(*(row.id for row in as_of(session, config, 1)[{T!r}].collect()))
session.stop()
"""


def test_a_session_opened_for_a_command_reads_versions_of_any_age(zone: Zone) -> None:
    """Delta refuses those older than a week when the frame is analyzed, which is when it is read."""
    for number in (1, 2):
        zone.log(10 * number, insert(10 * number - 5, number))
        zone.merge()
    for file in (zone.folder / "lake").rglob("*.*"):
        os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 30 * 24 * 3600))
    folders = [str(zone.folder / name) for name in ("landing", "lake")]
    # In a process of its own, as here a local session may be active; SPARK_REMOTE is set by the fixture.
    without_mode = {name: value for name, value in os.environ.items() if name != CONNECT_MODE}
    read = subprocess.run(
        [sys.executable, "-c", READ_OLD, *folders],
        env=without_mode,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert read.stdout == "1\n", read.stderr[-2000:]
