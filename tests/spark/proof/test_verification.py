"""The lake compared with the source: never a false alarm, and each planted difference found and named.

Random histories are compared while they go on; then a table of every common type, of which the source has one
value off in each column.
"""

from __future__ import annotations

import math
import random
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.errors import ConfigurationError
from connector.landing.manifest import LandedFile
from connector.schema import TableName
from merge import merge_once, recorded_differences, verify
from merge.proof.differences import differing_keys
from tests.spark.test_oracle import MANY, formatted, land
from tests.support.landing.histories import NAMES, World
from tests.support.landing.landed import Chunk, Event, Landed, config_of, schema_of


def read_all(world: World, keyed: bool = False) -> tuple[int, list[Chunk], int]:
    """Read all keys to verify them; return the lowest low watermark, the chunks, and their dump's number."""
    low, known = min(h.low(world.position) for h in world.histories), len(world.pending)
    share = 0.3 if keyed else 1.0
    keys = [(h.h, name) for h in world.histories for name in NAMES if h.r.random() <= share]
    world.chunk(keys, keyed)
    chunks = world.pending[known:]
    del world.pending[known:]
    return low, chunks, world.dump


def found(spark: SparkSession, config: Any, run: str) -> list[tuple[Any, ...]]:
    columns = ("key", "column", "source_value", "lake_value", "kind")
    rows = recorded_differences(spark, config, run).select(*(f"`{name}`" for name in columns)).collect()
    return sorted((tuple(row["key"]), *row[1:]) for row in rows)


@pytest.mark.soak
def test_what_changes_meanwhile_is_no_difference_and_what_is_planted_is_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    r = random.Random(3)
    world, landed = World(r, size=60), Landed.local(tmp_path / "landing")
    landed.formats = formatted
    landed.table(MANY)
    config = config_of(str(tmp_path / "landing"), str(tmp_path / "lake"))
    name = f"delta.`{tmp_path}/lake/public/many`"

    def commit(files: list[LandedFile] | None = None) -> None:
        batch = world.commit(world.lsn)
        landed.commit(batch.position, [*land(landed, MANY, batch, r), *(files or [])])

    def live_on(steps: int) -> None:
        for _ in range(steps):
            world.step()

    live_on(2)
    world.chunk([(h.h, k) for h in world.histories for k in NAMES], keyed=False)  # the first dump
    first = list(world.pending)
    while any(chunk in world.pending for chunk in first):
        commit()
    live_on(2)
    begun = landed.number + 1
    readings = [read_all(world), read_all(world, keyed=True)]
    live_on(3)
    commit()
    assert not merge_once(spark, config).failed
    live_on(2)
    for (low, chunks, number), kind in zip(readings, ("verify", "verify_rows"), strict=True):
        rows = sum(len(chunk.rows) + len(chunk.absent) for chunk in chunks)
        landed.verification("public.many", number, low, started_in=begun, rows=rows, kind=kind)  # type: ignore[arg-type]
    commit([landed.verified(MANY, chunk) for _, chunks, _ in readings for chunk in chunks])
    with pytest.raises(ConfigurationError, match="no verification nope"):
        verify(spark, config, "nope")
    too_early = verify(spark, config, f"dump-{readings[0][2]}")
    assert "merge first" in str(too_early.tables[0].hint)
    live_on(2)
    commit()
    assert not merge_once(spark, config).failed
    for _, _, number in readings:
        done = verify(spark, config, f"dump-{number}")
        (table,) = done.tables  # some rows wait for columns: nobody fills them here
        assert (table.conclusive, table.differing) == (True, 0), (done, found(spark, config, done.run))
        assert table.rows > 50
        assert done.tables[0].manifest == landed.number
    live_on(3)
    commit()  # the agent is ahead, the lake lags
    (table,) = verify(spark, config, f"dump-{readings[0][2]}").tables
    assert (table.conclusive, table.differing) == (True, 0)

    keys = sorted(row["h"] for row in spark.table(name).where("k = '2026-01-31'").collect())
    mine, gone, twice = keys[1], keys[2], keys[3]
    at = "k = '2026-01-31' AND h ="
    spark.sql(f"UPDATE {name} SET a = a + 1, b = 'mine', _cdc.missing = NULL WHERE {at} {mine}")
    spark.sql(f"DELETE FROM {name} WHERE {at} {gone}")
    spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE {at} {twice}")
    spark.sql(f"INSERT INTO {name} (h, k) VALUES (4712, DATE'2026-01-31')")  # as others do: without _cdc
    spark.sql(f"INSERT INTO {name} SELECT 4711 AS h, k, a, b, c, _cdc FROM {name} WHERE {at} {mine}")
    done = verify(spark, config, f"dump-{readings[0][2]}", tables=[MANY.table, TableName("public", "lost")])
    table, lost = done.tables
    assert "is no longer in the manifests" in str(lost.error)
    assert (table.missing, table.ghosts, table.different) == (1, 3, 1)
    assert "by another writer" in str(table.note)
    shown = found(spark, config, done.run)
    assert {(key, column, kind) for key, column, _, _, kind in shown if kind != "waiting"} == {
        ((str(mine), "2026-01-31"), "a", "different"),
        ((str(mine), "2026-01-31"), "b", "different"),
        ((str(gone), "2026-01-31"), None, "missing"),
        ((str(twice), "2026-01-31"), None, "ghost"),
        (("4711", "2026-01-31"), None, "ghost"),
        (("4712", "2026-01-31"), None, "ghost"),
    }
    values = {column: (source, lake) for _, column, source, lake, kind in shown if kind == "different"}
    assert int(values["a"][1]) == int(values["a"][0]) + 1
    assert values["b"][1] == "mine"
    assert len(differing_keys(spark, config, done.run, TableName("public", "many")) or []) == 5


TYPED = schema_of(
    "public.typed",
    id="int", s="string", n="int", big="bigint", d="decimal(20,4)", f="float", g="double", t="timestamp",
    tn="timestamp_ntz", dt="date", x="binary", y="boolean", ns="array<int>", gs="array<double>",
    raw="decimal(5,2)", far="timestamp", tiny="tinyint", short="smallint", fine="decimal(38,38)",
    huge="decimal(20,0)", texts="array<string>", shorts="array<smallint>", bigs="array<bigint>",
)  # fmt: skip
LONG = "word " * 5000
AT = datetime(2026, 3, 29, 1, 30, tzinfo=timezone.utc)
VALUES: dict[str, tuple[Any, Any, str, str]] = {
    "s": (None, LONG, "", ""),
    "n": (7, 8, "7", "8"),
    "big": (2**62, 2**62 + 1, str(2**62), str(2**62 + 1)),
    "d": (Decimal("1.0000"), Decimal("1.0001"), "1.0000", "1.0001"),
    "f": (0.1, 0.10000001, "0.1", "0.10000001"),
    "g": (-0.0, 0.0, "-0.0", "0.0"),
    "t": (AT, AT.replace(microsecond=1), "2026-03-29 01:30:00+00", "2026-03-29 01:30:00.000001+00"),
    "far": (10**18 + 1, 10**18, *(f"{micros} microseconds since 1970" for micros in (10**18 + 1, 10**18))),
    "tn": (datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 1), "2026-01-01 00:00:00", "2026-01-01 00:00:01"),
    "dt": (date(1, 1, 1), date(1, 1, 2), "0001-01-01", "0001-01-02"),
    "x": (b"\x00\xff", b"\x00\xfe", "\\x00ff", "\\x00fe"),
    "y": (True, False, "true", "false"),
    "ns": ([1, None], [1, 0], '{"1",NULL}', '{"1","0"}'),
    "tiny": (127, 126, "127", "126"),
    "short": (-32768, -32767, "-32768", "-32767"),
    "fine": (Decimal("0E-38"), Decimal("1E-38"), f"0.{'0' * 38}", f"0.{'0' * 37}1"),
    "huge": (Decimal(2**64 - 1), Decimal(2**64 - 2), str(2**64 - 1), str(2**64 - 2)),
    "texts": (['a"', ""], ['a"', None], r'{"a\"",""}', r'{"a\"",NULL}'),
    "shorts": ([1], [1, 1], '{"1"}', '{"1","1"}'),
    "bigs": ([2**62], [2**62 + 1], f'{{"{2**62}"}}', f'{{"{2**62 + 1}"}}'),
    "gs": ([0.0, math.nan], [-0.0, math.nan], '{"0.0","NaN"}', '{"-0.0","NaN"}'),
}
"""A value of the source, one of the lake, and how they are shown."""


def typed(key: int, **values: Any) -> dict[str, Any]:
    same = {name: lake for name, (_, lake, _, _) in VALUES.items()} | {"g": math.nan, "raw": None}
    return {"id": key, **same, **values}


@pytest.mark.soak
def test_one_value_off_of_each_type_is_found_and_shown_in_any_time_zone(
    spark: SparkSession, tmp_path: Path
) -> None:
    landed = Landed.local(tmp_path / "landing")
    landed.table(TYPED)
    config = config_of(str(tmp_path / "landing"), str(tmp_path / "lake"), public__typed={"deletes": "soft"})
    lake = {100 + n: typed(100 + n, **{name: VALUES[name][1]}) for n, name in enumerate(VALUES)}
    source = {100 + n: typed(100 + n, **{name: VALUES[name][0]}) for n, name in enumerate(VALUES)}
    lake |= {n: typed(n) for n in (1, 2, 3, 4)} | {5: typed(5, **dict.fromkeys(VALUES))}
    source |= {n: lake[n] for n in (1, 3, 5)} | {6: typed(6)}
    raws = {3: {"raw": "Infinity"}, 4: {"raw": "NaN"}}
    log = [Event("insert", 1, 2 * n, lake[n], raw=raws.get(n)) for n in lake]
    late = {name: value for name, value in typed(7).items() if name not in ("s", "y")}
    log.append(Event("update", 1, 1000, late, unchanged=("s", "y")))
    source[7] = typed(7, y=None)
    landed.commit(10, [landed.log(TYPED, [*log, Event("delete", 2, 0, {"id": 4})])])
    rows = [row for row in source.values() if row["id"] != 3]
    files = [landed.verified(TYPED, Chunk(20, 20, rows, dump=1)), _of_raw(landed, source[3])]
    landed.verification("public.typed", 1, 20, started_in=2, rows=len(source))
    landed.commit(20, files)
    some = [landed.verified(TYPED, Chunk(20, 20, [source[1]], [{"id": 4}], dump=2))]
    landed.verification("public.typed", 2, 20, started_in=3, rows=2, kind="verify_rows")
    landed.commit(20, some)
    assert not merge_once(spark, config).failed
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        done = verify(spark, config, "dump-1")
        shown = {(key, column): row for key, column, *row in found(spark, config, done.run)}
        keyed = verify(spark, config, "dump-2", where="id < 3 AND s IS NOT NULL")
        odd = verify(spark, config, "dump-2", where="s ~* 'no Spark'")
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    (table,) = done.tables
    assert (table.missing, table.ghosts, table.different) == (1, 1, len(VALUES) + 1)
    # The lake lacks two columns of a row; one of them is null in the source.
    assert (table.waiting, table.suspects, table.equal) == (1, [["7"]], False)
    assert shown.pop((("7",), "s"))[1:] == [None, "waiting"]
    assert ["7"] not in (differing_keys(spark, config, done.run, TYPED.table) or [])
    assert shown.pop((("6",), None)) == [None, None, "missing"]
    assert shown.pop((("2",), None)) == [None, None, "ghost"]
    assert shown.pop((("3",), "raw")) == ["NaN", "Infinity", "different"]
    long = shown.pop((("100",), "s"))
    assert (long[0], long[1][:5], "25000 characters" in long[1]) == (None, "word ", True)
    expected = {
        ((str(100 + n),), name): [source, lake, "different"]
        for n, (name, (_, _, source, lake)) in enumerate(VALUES.items())
        if name != "s"
    }
    assert shown == expected
    assert (keyed.tables[0].differing, keyed.tables[0].suspects) == (0, [["2"]])
    assert not keyed.equal, "the lake alone has that row, which was not asked for"
    _assert_lost(spark, config, landed)
    (unclear,) = odd.tables
    assert (odd.equal, unclear.differing, unclear.suspects) == (False, 0, None)
    assert "Spark can't evaluate the condition" in str(unclear.incomplete)


def _assert_lost(spark: SparkSession, config: Any, landed: Landed) -> None:
    """Check what is said of a lost file of rows that were read to verify."""
    zone = Path(landed.url) / "shop"
    read = landed.manifests[1].files[0].path
    content = (zone / read).read_bytes()
    (zone / read).unlink()
    (lost,) = verify(spark, config, "dump-1").tables
    assert f"{read} is missing" in str(lost.error)
    assert lost.hint == "verify again"
    (zone / read).write_bytes(content)


def test_every_type_that_lands_has_its_planted_value() -> None:
    page = (Path(__file__).parents[3] / "docs/types.md").read_text()
    landed = {row.split("|")[2].strip(" `") for row in page.splitlines() if row.startswith("| `")}
    planted = {column.type.partition("(")[0] for column in TYPED.columns if column.name in VALUES}
    assert {type_.partition("(")[0] for type_ in landed} <= planted


def _of_raw(landed: Landed, row: dict[str, Any]) -> LandedFile:
    """A row of which the source has a value that the column can't hold, and another one than the lake."""
    file = landed.log(TYPED, [Event("dump", 20, (1 << 62) + 1, row, raw={"raw": "NaN"})])
    return file.model_copy(update={"kind": "verify", "dump": "dump-1", "chunk": 99, "low": 20, "high": 20})
