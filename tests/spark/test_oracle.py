"""Random histories through the real merge: after every cut each Delta table equals a plain-Python fold.

What is rebuilt from the landing zone alone equals what all merges made, in every bit; the events that are
said to win make up each row. A second lake has soft deletes, is merged at fewer cuts, and rebuilt: its
deleted rows equal a fold, too. Hundreds of histories, told apart by their key, share one table, so that one
merge checks them all; truncates have a table of their own, with one history.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import Row, SparkSession

from connector.config import Config
from connector.landing.manifest import LandedFile
from connector.position import Position
from connector.schema import TableName, TableSchema
from merge import change_set, live, merge_once, rebuild
from merge.landing_zone import LandingZone
from merge.proof.verdicts import WINS, TableEvents
from merge.spark.session_settings import COMPILED, LITERAL, applied_settings
from tests.support.landing.histories import COLUMNS, KEY, NAMES, VALUES, Batch, Gone, Key, Known, World
from tests.support.landing.landed import Event, Landed, config_of, schema_of

SPELLED: dict[str, Any] = dict(
    zip(NAMES, (date(2026, 1, 31), "infinity", "0044-03-15 BC", date(1, 1, 1)), strict=True)
)
"""A key's date; or its text, where it is none of Spark's."""
LANDED = {**COLUMNS, "k": "date"}
MANY = schema_of("public.many", KEY, **LANDED)
ONE = schema_of("public.one", KEY, **LANDED)


def formatted(event: Event) -> Event:
    """The event with its key as it lands: a date, or null with the source's text in `raw`."""
    if "k" not in event.values:
        return event
    key = SPELLED[event.values["k"]]
    if isinstance(key, date):
        return replace(event, values={**event.values, "k": key})
    return replace(event, values={**event.values, "k": None}, raw={**(event.raw or {}), "k": key})


def key_of(row: Row, found: Mapping[str, str] | None) -> Key:
    raw = dict(found or {})
    assert (row["k"] is None) == ("k" in raw)
    return row["h"], next(name for name, key in SPELLED.items() if key == raw.get("k", row["k"]))


def known(row: Row | dict[str, Any]) -> Known:
    cdc = row["_cdc"]
    raw, missing = cdc["raw"] or {}, cdc["missing"] or []
    assert all(row[name] is None for name in missing)
    return Known({name: (row[name], dict(raw).get(name)) for name in VALUES if name not in missing})


def rows(found: list[Row]) -> dict[Key, Known]:
    assert len({key_of(row, row["_cdc"]["raw"]) for row in found}) == len(found)
    return {key_of(row, row["_cdc"]["raw"]): known(row) for row in found}


def merge_softly(spark: SparkSession, folder: Path, worlds: dict[TableSchema, World], forged: bool) -> None:
    """Merge into the lake with soft deletes, after somebody has written to its rows (`forged`)."""
    soft = {str(schema.table).replace(".", "__"): {"deletes": "soft"} for schema in worlds}
    config = config_of(str(folder / "landing"), str(folder / "soft"), **soft)
    names = {schema: f"delta.`{folder}/soft/{str(schema.table).replace('.', '/')}`" for schema in worlds}
    for name in names.values() if forged else ():
        with applied_settings(spark, LITERAL):  # before Spark 4, dates before 1582 are refused by default
            spark.sql(f"UPDATE {name} SET b = 'mine', _cdc.missing = NULL WHERE h % 2 = 0")
    report = merge_once(spark, config)
    assert not report.failed
    for schema, world in worlds.items():
        found = spark.table(names[schema]).collect()
        assert rows([row for row in found if row["_cdc"]["op"] != "delete"]) == world.known()
        gone = {
            key_of(row, row["_cdc"]["raw"]): gone_of(row) for row in found if row["_cdc"]["op"] == "delete"
        }
        assert gone == world.gone()
        assert all((row["_cdc"]["deleted_at"] is None) == (row["_cdc"]["op"] != "delete") for row in found)


def gone_of(row: Row) -> Gone:
    cdc = row["_cdc"]
    return Gone(Position(cdc["epoch"], cdc["lsn"], cdc["seq"]), known(row))


def land(landed: Landed, schema: TableSchema, batch: Batch, r: random.Random) -> list[LandedFile]:
    """Land a batch: split over files, shuffled in them, a part of it twice, a file of older log again."""
    log = list(batch.log)
    r.shuffle(log)
    cut = r.randint(0, len(log))
    files = [landed.log(schema, part) for part in (log[:cut], log[cut:], log[: len(log) // 4]) if part]
    files += [landed.chunk(schema, chunk) for chunk in batch.chunks]
    older = [f for m in landed.manifests for f in m.files if f.kind == "log" and f.table == schema.table]
    return files + ([r.choice(older)] if older and r.random() < 0.2 else [])


def test_any_delivery_of_random_histories_gives_the_source_at_every_cut(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = random.Random(1)
    worlds = {MANY: World(r, size=150), ONE: World(r, size=1, truncates=True)}
    landed = Landed.local(tmp_path / "landing")
    landed.state_objects = 3
    landed.formats = formatted
    config = config_of(str(tmp_path / "landing"), str(tmp_path / "lake"))
    for schema in worlds:
        landed.table(schema)
    lsn = 0
    for cut in range(5):
        monkeypatch.setattr(change_set, "FEW_COLUMNS", 0 if cut % 2 else 16)
        for _ in range(r.randint(1, 3)):
            for _ in range(r.randint(1, 5)):
                lsn += 1
                for world in worlds.values():
                    world.step()
            position = r.randint(worlds[MANY].position, lsn)
            files = [f for s, world in worlds.items() for f in land(landed, s, world.commit(position), r)]
            landed.commit(position, files)
        if cut and r.random() < 0.5:
            replay(spark, tmp_path / "lake", r.randint(0, landed.number - 1))
        expected = {str(schema.table): world.known() for schema, world in worlds.items()}
        if cut in (1, 2, 4):
            merge_softly(spark, tmp_path, worlds, forged=cut == 4)
        if cut == 3:
            with applied_settings(spark, COMPILED):  # as in most sessions
                shown = {table: rows(live(spark, config, table).collect()) for table in expected}
            assert shown == expected
        report = merge_once(spark, config)
        assert not report.failed
        assert report.manifest == landed.number
        for schema, world in worlds.items():
            table = str(schema.table)
            got = rows(spark.table(f"delta.`{tmp_path}/lake/{table.replace('.', '/')}`").collect())
            assert got == expected[table]
            check(world, got)
            if cut == 4:
                assert_rebuilt(spark, tmp_path, config, table)
                for deletes in ("hard", "soft"):
                    assert_explained(spark, tmp_path, schema.table, landed.number, world, deletes)
            lacking = [key for key, row in got.items() if row.missing]
            assert not lacking or list((tmp_path / "landing/shop/requests").glob("missing-*.json/part-*"))
            world.chunk(lacking, keyed=True)
    # An independent reader agrees, deletion vectors and all.
    reader = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(tmp_path / "lake/public/many")))
    counted = reader.execute("SELECT count(*) AS n FROM t").read_all()
    assert counted.column("n")[0].as_py() == len(expected["public.many"])


def check(world: World, got: dict[Key, Known]) -> None:
    """What is known is true, and where presence is known it is right."""
    truth, seen = world.truth(), world.seen()
    assert all(row.agrees(truth[key]) for key, row in got.items())
    assert got.keys() & seen == truth.keys() & seen


def assert_rebuilt(spark: SparkSession, folder: Path, config: Config, table: str) -> None:
    """Check that the landing zone alone gives the same rows as all merges so far, in every bit."""
    into = f"rebuilt.{table.rpartition('.')[2]}"
    rebuild(spark, config, table, into=into)
    merged, rebuilt = (
        Counter(map(comparable, spark.table(f"delta.`{folder}/lake/{name.replace('.', '/')}`").collect()))
        for name in (table, into)
    )
    assert rebuilt == merged


def assert_explained(
    spark: SparkSession, folder: Path, table: TableName, manifest: int, world: World, deletes: str
) -> None:
    """Check that for every key, the events that are said to win make up its row, and no others do."""
    config = config_of(str(folder / "landing"), "/nowhere", **{str(table): {"deletes": deletes}})
    landing = LandingZone(spark, config.landing.url, config.source.name)
    landing.newest(0)
    history = TableEvents.read(config, landing, table, manifest)
    events: dict[Key, list[Row]] = {}
    for event in history.events(history.layout()).collect():
        if event["key"] is not None:
            events.setdefault(key_of(event["key"], event["raw"]), []).append(event)
    explained = {key: Known(supplied(found)) for key, found in events.items()}
    winners = {key: [e for e in found if e["verdict"] == WINS] for key, found in events.items()}
    assert all(len(found) <= 1 for found in winners.values())
    alive = {key for key, found in winners.items() if found and found[0]["op"] != "delete"}
    assert {key: explained[key] for key in alive} == world.known()
    if deletes == "soft":
        gone = world.gone()
        assert {key: explained[key] for key in gone} == {key: row.last for key, row in gone.items()}
    else:
        assert not any(explained[key].columns for key in events.keys() - alive)


def supplied(events: list[Row]) -> dict[str, tuple[Any, str | None]]:
    """Return the columns that some events are said to supply; each is supplied once."""
    names = [name for event in events for name in event["supplies"]]
    assert len(names) == len(set(names))
    return {
        name: (event["row"][name], (event["raw"] or {}).get(name))
        for event in events
        for name in event["supplies"]
    }


def comparable(row: Row) -> str:
    """Return a row as text, without the order of its map."""
    values = row.asDict(recursive=True)
    values["_cdc"]["raw"] = sorted((values["_cdc"]["raw"] or {"": None}).items())
    return repr(sorted(values.items()))


def replay(spark: SparkSession, lake: Path, manifest: int) -> None:
    """Forget the cuts after a manifest, so that the next merge begins there."""
    spark.sql(f"DELETE FROM delta.`{lake}/_deltatide/cuts` WHERE manifest > {manifest}")
