"""A lake is verified between its merges, in turn: what counts as verified was compared, and nothing else."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.config import VerifyConfig
from connector.landing.requests import DumpRequest, discard, read_pending
from connector.landing.verified import Asked, Verified, read_verified
from connector.store.factory import open_store
from merge import merge_once
from merge.landing_zone import LandingZone
from merge.proof import continuous
from merge.proof.continuous import ContinuousVerification
from tests.support.landing.landed import Chunk, Landed, config_of, schema_of

NUMBERS = schema_of("public.numbers", id="int", v="string")
WORDS = schema_of("public.words", ("w",), w="string")


@pytest.mark.soak
def test_ranges_are_verified_in_turn_and_only_what_was_compared_counts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuous, "LEAST_ROWS", 30)
    landed = Landed.local(tmp_path / "landing")
    settings = config_of(str(tmp_path / "landing"), str(tmp_path / "lake"))
    config = settings.model_copy(update={"verify": VerifyConfig(share=0.1, every_hours=1)})
    rows = [{"id": n, "v": str(n)} for n in range(50)]
    words = [{"w": w} for w in ("a", "b", "c")]
    for schema, some in ((NUMBERS, rows), (WORDS, words)):
        landed.table(schema)
        landed.commit(10, [landed.chunk(schema, Chunk(5, 9, some))])
    assert not merge_once(spark, config).failed
    zone, store = LandingZone(spark, config.landing.url, "shop"), open_store(config.landing, "shop")
    now = [datetime(2026, 3, 1, tzinfo=timezone.utc)]
    jobs = [ContinuousVerification(config, lambda: now[0])]

    def step() -> list[Any]:
        return jobs[-1].step(spark, zone, zone.newest(0))

    def record() -> Verified:
        (found,) = read_verified(store)
        return found

    def read_by_agent(asked: Asked, state: Any = "complete") -> None:
        """Land what the agent reads for a request, as of now."""
        schema = NUMBERS if asked.table == NUMBERS.table else WORDS
        some = [row for row in rows if _within(asked, row["id"])] if schema is NUMBERS else words
        number = landed.number + 10
        kind: Any = "verify_rows" if asked.ranges else "verify"
        dump = landed.verification(
            str(schema.table), number, 20, started_in=landed.number + 1, rows=len(some), kind=kind
        )
        dump.request, dump.state = asked.request, state
        landed.commit(30, [landed.verified(schema, Chunk(20, 25, some, dump=number))])
        for request in read_pending(store):
            if request.id == asked.request:
                discard(store, request)

    assert step() == []
    (first,) = record().asked
    assert (first.table, first.ranges) == (NUMBERS.table, [(None, 29)])
    (request,) = [each for each in read_pending(store) if isinstance(each, DumpRequest)]
    assert (request.id, request.verify, request.ranges) == (first.request, True, [(None, 29)])
    assert step() == [], "the agent has yet to read"
    assert (record().never(), record().share_since(now[0])) == ([NUMBERS.table, WORDS.table], 0.0)
    read_by_agent(first)
    assert not merge_once(spark, config).failed
    (found,) = step()
    assert (found.equal, found.rows) == (True, 30)
    assert record().share_since(now[0]) == 30 / 53
    assert record().never() == [NUMBERS.table, WORDS.table]

    assert step() == [], "no run is due"
    assert not record().asked
    other = ContinuousVerification(config, lambda: now[0])  # a job of its own, on the same lake
    assert other.step(spark, zone, zone.newest(0)) == [], "no run is due"
    now[0] += timedelta(hours=1)
    lake = f"{tmp_path}/lake/public"
    spark.sql(f"INSERT INTO delta.`{lake}/numbers` (id, v) VALUES (10000, 'a ghost')")
    spark.sql(f"DELETE FROM delta.`{lake}/words` WHERE w = 'b'")
    assert step() == []
    assert other.step(spark, zone, zone.newest(0)) == [], "they are read for the first job"
    jobs.append(ContinuousVerification(config, lambda: now[0]))  # a restart: it reads the record
    second, third, fourth = record().asked
    assert (second.table, second.ranges, second.piece.rows) == (NUMBERS.table, [(29, None)], 20)
    assert (third.table, third.ranges) == (WORDS.table, [])
    assert (fourth.table, fourth.ranges, fourth.piece.rows) == (NUMBERS.table, [(None, 5)], 6), (
        "its next turn"
    )
    read_by_agent(second)
    read_by_agent(third, "failed")
    assert not merge_once(spark, config).failed
    verified = step()
    assert [(each.table, each.ghosts, bool(each.error)) for each in verified] == [
        (NUMBERS.table, 1, False), (WORDS.table, 0, True),
    ]  # fmt: skip
    assert record().differing() == {NUMBERS.table: 1}
    assert record().asked == [fourth], "the agent has yet to read it"
    assert record().never() == [WORDS.table], "its rows could not be read"
    assert json.loads(record().model_dump_json())["tables"]["public.numbers"][-1]["run"]

    read_by_agent(fourth)
    assert not merge_once(spark, config).failed
    (found,) = other.step(spark, zone, zone.newest(0))
    assert (found.table, found.equal) == (NUMBERS.table, True)
    assert record().differing() == {NUMBERS.table: 1}, "what the first job found is kept"
    assert not record().asked
    assert step() == [], "the other has compared it"


def _within(asked: Asked, id_: int) -> bool:
    ((after, upto),) = asked.ranges
    return (after is None or id_ > after) and (upto is None or id_ <= upto)
