"""What a caller's session is set to, and what others do to a Delta table in the midst of a merge."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from connector.errors import ConfigurationError, TableError
from connector.schema import Column, TableSchema
from merge import apply as applying
from merge import as_of, cuts, job, live, merge_once, table
from merge.landing_zone import LandingZone
from merge.shapes import changes_job, history_job
from merge.spark.session_pool import offers_own_sessions
from merge.spark.session_settings import analyzes_late, applied_settings
from tests.support.landing.landed import Event, config_of, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, insert, update_of_a
from tests.support.spark.spark_sessions import another_session

LENIENT = {"spark.sql.files.ignoreMissingFiles": "true", "spark.sql.files.ignoreCorruptFiles": "true"}
MARKED = {"spark.databricks.delta.write.txnAppId": "mine", "spark.databricks.delta.write.txnVersion": "1"}


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


@pytest.fixture
def odd(spark: SparkSession) -> Iterator[None]:
    """A session that skips files it can't read, and marks what it writes."""
    for setting, value in (LENIENT | MARKED).items():
        spark.conf.set(setting, value)
    yield
    for setting in LENIENT | MARKED:
        spark.conf.unset(setting)


@pytest.mark.usefixtures("odd")
def test_no_file_is_skipped_and_no_cut_whatever_the_callers_session_is_set_to(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    zone.merge()
    zone.log(20, insert(15, 2))
    zone.merge()
    assert [cut.manifest for cut in cuts(zone.spark, zone.config).collect()] == [2, 1]
    zone.log(30, insert(25, 3))
    landed = zone.folder / "landing/shop" / zone.landed.manifests[-1].files[0].path
    whole = landed.read_bytes()
    landed.write_bytes(b"not parquet")
    assert zone.merge().failed
    landed.unlink()
    assert zone.merge().failed
    with pytest.raises(ConfigurationError, match="ignoreMissingFiles is true") as refused:
        zone.live()
    assert "spark.conf.set" in (refused.value.hint or "")
    landed.write_bytes(whole)
    for file in (zone.folder / "lake/public/orders").glob("*.parquet"):
        file.write_bytes(b"not parquet")
    assert zone.merge().failed


ALTERED = {
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.parquet.int96RebaseModeInWrite": "EXCEPTION",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.retainGroupColumns": "false",
    "spark.sql.sources.useV1SourceList": "",
    "spark.sql.legacy.createEmptyCollectionUsingStringType": "true",
    "spark.sql.session.timeZone": "Asia/Tokyo",
}


@pytest.fixture
def altered(spark: SparkSession) -> Iterator[None]:
    """A session that reads texts, names, dates and instants in another way than usual."""
    before = {setting: spark.conf.get(setting) for setting in ALTERED}
    for setting, value in ALTERED.items():
        spark.conf.set(setting, value)
    yield
    for setting, value in before.items():
        spark.conf.set(setting, value)


@pytest.mark.soak
@pytest.mark.usefixtures("altered")
def test_names_keys_dates_and_instants_come_as_they_are_whatever_the_callers_session_makes_of_them(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes ``${env:HOME}`` in any SQL for the driver's variable, and ``${else}`` for nothing."""
    monkeypatch.setattr(applying, "LARGE_BYTES", 0)  # so that the keys' bounds are in the MERGE
    name, key = "it's ${env:HOME}\\", "z${env:HOME}\\ ${else}"
    k = "k${env:HOME}"
    odd = schema_of("public.odd", (k,), **{k: "string", name: "string"}, d="date", z="timestamp")
    odd = TableSchema(odd.table, (*odd.columns, Column("e", "enum('${env:HOME}')", "string")), odd.key)
    row = {
        k: key,
        name: "x",
        "d": date(1500, 1, 1),
        "z": datetime(1500, 1, 1, tzinfo=timezone.utc),
        "e": "y",
    }
    zone.landed.table(odd)
    zone.landed.commit(10, [zone.landed.log(odd, [Event("insert", 5, 0, row)])])
    assert zone.merge().exact
    zone.landed.commit(
        20, [zone.landed.log(odd, [Event("update", 15, 0, row | {name: None, "e": "n"}, unchanged=(name,))])]
    )
    frames = [live(zone.spark, zone.config, "public.odd")]
    assert zone.merge().exact
    frames += [
        live(zone.spark, zone.config, "public.odd"),
        as_of(zone.spark, zone.config, 2)["public.odd"],
    ]
    assert frames[1].schema["e"].metadata["comment"] == "enum('${env:HOME}')"
    for frame in frames:
        named = frame.toDF("k", "name", "d", "z", "e", "_cdc")
        formatted = [F.col(c).cast("string") for c in ("k", "name", "d", "e")]
        found = named.select(*formatted, F.unix_micros("z")).collect()
        assert [tuple(r) for r in found] == [(key, "x", "1500-01-01", "n", -14831769600000000)]
    assert {setting: zone.spark.conf.get(setting) for setting in ALTERED} == ALTERED


def test_a_session_in_which_merge_may_add_columns_adds_none(zone: Zone) -> None:
    """Changes have fields in `_cdc` that no table has: the next merge took them for somebody else's."""
    zone.begin(insert(5, 1))
    with applied_settings(zone.spark, {"spark.databricks.delta.schema.autoMerge.enabled": "true"}):
        for position in (20, 30):
            zone.log(position, update_of_a(position - 5, 1, position))
            assert zone.merge().exact
    assert zone.rows() == [(1, 30, "x")]


JUDGED = {
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.legacy.typeCoercion.datetimeToString.enabled": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
}


def test_a_condition_holds_of_the_same_rows_whatever_the_callers_session_is_set_to(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the caller's other threads see nothing of how it is evaluated, while the landing zone is read."""
    where = "to_date(at) = DATE'2026-01-01' AND size(tags) < 3 AND at < '2026-1-2'"
    zone = Zone(spark, tmp_path, public__orders={"where": where})
    seen, newest = [], LandingZone.newest

    def spied(landing: LandingZone, *given: Any) -> int:
        seen.append({setting: spark.conf.get(setting) for setting in JUDGED})
        return newest(landing, *given)

    monkeypatch.setattr(LandingZone, "newest", spied)
    typed = schema_of(T, id="int", at="timestamp", tags="array<string>")
    zone.landed.table(typed)
    evening = datetime(2026, 1, 1, 20, tzinfo=timezone.utc)
    before = evening - timedelta(days=1)
    rows = [(1, evening, ["a"]), (2, evening, None), (3, before, ["a"])]
    events = [Event("insert", 5, 2 * n, {"id": n, "at": at, "tags": tags}) for n, at, tags in rows]
    zone.landed.commit(10, [zone.landed.log(typed, events)])
    for setting, value in JUDGED.items():
        spark.conf.set(setting, value)
    try:
        if analyzes_late(spark):
            with pytest.raises(TableError, match=r"is \S+ in this session: over Spark Connect") as refused:
                live(spark, zone.config, T)
            for setting in JUDGED:
                assert f'"{setting}"' in (refused.value.hint or "")
        else:
            assert [row["id"] for row in live(spark, zone.config, T).collect()] == [1]
        by_pattern = {"where": "to_date(tags[0], 'yyyy-MM-dd') < '2026-01-01'"}
        with pytest.raises(TableError, match="timeParserPolicy is LEGACY in this session"):
            live(spark, config_of(str(tmp_path / "landing"), str(tmp_path), public__orders=by_pattern), T)
        assert zone.merge().exact
        assert zone.rows("id") == [(1,)]
        if offers_own_sessions(spark):
            assert [found for found in seen if found != JUDGED] == []
    finally:
        for setting in JUDGED:
            spark.conf.unset(setting)
        spark.conf.set("spark.sql.session.timeZone", "UTC")


READ_OTHERWISE = {
    'name <> "alias"': {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    },
    "name <> '${spark.app.name}'": {"spark.sql.variable.substitute": "true"},
    r"name <> 'a\\b'": {"spark.sql.parser.escapedStringLiterals": "true"},
    "`n.me` <> 'x'": {"spark.sql.parser.quotedRegexColumnNames": "true"},
}


@pytest.mark.parametrize(
    "where",
    [where if "\\" in where else pytest.param(where, marks=pytest.mark.soak) for where in READ_OTHERWISE],
)
def test_a_text_in_a_condition_is_the_same_one_whatever_the_callers_session_is_set_to(
    spark: SparkSession, tmp_path: Path, where: str
) -> None:
    zone = Zone(spark, tmp_path, public__orders={"where": where})
    typed = schema_of(T, id="int", name="string", alias="string", **{"n.me": "string"})
    zone.landed.table(typed)
    names = ("x", "alias", r"a\b", r"a\\b", "${spark.app.name}")
    rows = [{"id": n, "name": name, "alias": "x", "n.me": name} for n, name in enumerate(names)]
    events = [Event("insert", 5, 2 * n, row) for n, row in enumerate(rows, 1)]
    zone.landed.commit(10, [zone.landed.log(typed, events)])
    settings = {"spark.sql.ansi.enabled": "true", **READ_OTHERWISE[where]}
    for setting, value in settings.items():
        spark.conf.set(setting, value)
    try:
        if analyzes_late(spark):
            with pytest.raises(TableError, match=r"is true in this session: over Spark Connect") as refused:
                live(spark, zone.config, T)
            exec(refused.value.hint or "", {"spark": spark})
        shown = [(row["id"],) for row in live(spark, zone.config, T).collect()]
        assert zone.merge().exact
        assert sorted(shown) == sorted(zone.rows("id"))
        assert len(shown) == len(names) - 1
    finally:
        for setting in {**settings, "spark.sql.variable.substitute": ""}:
            spark.conf.unset(setting)


@pytest.mark.soak
def test_an_instant_that_a_condition_makes_is_one_whatever_timestamps_are_in_the_callers_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without a zone, 23:30-05:00 would be before midnight."""
    where = "to_timestamp(at, 'yyyy-MM-dd HH:mmXXX') >= DATE'2026-01-02'"
    zone = Zone(spark, tmp_path, public__orders={"where": where})
    typed = schema_of(T, id="int", at="string")
    zone.landed.table(typed)
    rows = [{"id": 1, "at": "2026-01-01 23:30-05:00"}, {"id": 2, "at": "2026-01-02 01:30+05:00"}]
    events = [Event("insert", 5, 2 * n, row) for n, row in enumerate(rows)]
    zone.landed.commit(10, [zone.landed.log(typed, events)])
    settings = {"spark.sql.ansi.enabled": "true", "spark.sql.timestampType": "TIMESTAMP_NTZ"}
    for setting, value in settings.items():
        spark.conf.set(setting, value)
    try:
        if analyzes_late(spark):
            with pytest.raises(TableError, match=r"timestampType is TIMESTAMP_NTZ in this") as refused:
                live(spark, zone.config, T)
            exec(refused.value.hint or "", {"spark": spark})
        shown = [(row["id"],) for row in live(spark, zone.config, T).collect()]
        assert zone.merge().exact
        assert shown == zone.rows("id") == [(1,)]
    finally:
        for setting in settings:
            spark.conf.unset(setting)


@pytest.mark.soak
def test_a_condition_reads_and_writes_json_in_one_way_whatever_the_callers_session_is_set_to(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whether a part that can't be read takes the rest along, where it is, and whether nulls are written."""
    part = "from_json(doc, 's STRUCT<b: INT, c: INT>').s.c = 1"
    whole = """to_json(from_json(doc, 'a INT, n INT')) = '{"a":3}'"""
    broken = "from_json(doc, 'a INT, _corrupt_record STRING')._corrupt_record = 'broken'"
    zone = Zone(spark, tmp_path, public__orders={"where": f"{part} OR {whole} OR {broken}"})
    typed = schema_of(T, id="int", doc="string")
    zone.landed.table(typed)
    docs = ['{"s":{"b":"x","c":1}}', '{"s":{"b":2,"c":1}}', '{"a":3}', '{"a":4}', "broken"]
    events = [Event("insert", 5, 2 * n, {"id": n, "doc": doc}) for n, doc in enumerate(docs, 1)]
    zone.landed.commit(10, [zone.landed.log(typed, events)])
    settings = {
        "spark.sql.columnNameOfCorruptRecord": "other",
        "spark.sql.json.enablePartialResults": "false",
        "spark.sql.jsonGenerator.ignoreNullFields": "false",
    }
    for setting, value in settings.items():
        spark.conf.set(setting, value)
    try:
        with pytest.raises(TableError, match=r"is (false|other) in this session: a where .* JSON") as refused:
            live(spark, zone.config, T)
        assert zone.merge().exact
        assert sorted(zone.rows("id")) == [(1,), (2,), (3,), (5,)]
        exec(refused.value.hint or "", {"spark": spark})
        assert sorted(row["id"] for row in live(spark, zone.config, T).collect()) == [1, 2, 3, 5]
    finally:
        for setting in settings:
            spark.conf.unset(setting)


@pytest.mark.soak
def test_a_table_that_somebody_emptied_is_not_overwritten_after_another_job_built_it_anew(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone.begin(insert(5, 1), insert(5, 2))
    zone.spark.sql(f"DELETE FROM delta.`{zone.folder}/lake/public/orders`")
    zone.log(20, insert(15, 3))
    zone.log(30, insert(25, 4))
    apply = table.apply

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(table, "apply", apply)
        assert merge_once(another_session(zone.spark), zone.config, until=2).exact
        return apply(*arguments)

    monkeypatch.setattr(table, "apply", overtaken)
    assert zone.merge().exact
    assert zone.rows("id") == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize("killed", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_table_dropped_amid_a_merge_is_built_whole_though_that_merge_writes_first(
    zone: Zone, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Another job creates it again; the first one, at the same manifest, merges into that, and is killed.

    The other one goes on, or is killed, too, before it writes.
    """
    zone.begin(insert(5, 1))
    zone.log(20, insert(15, 2))
    apply = table.apply

    def dropped(*late: Any) -> Any:
        def created(*arguments: Any) -> Any:
            monkeypatch.setattr(table, "apply", apply)
            apply(*late)
            if killed:
                raise KeyboardInterrupt
            return apply(*arguments)

        shutil.rmtree(zone.folder / "lake/public/orders")
        monkeypatch.setattr(table, "apply", created)
        assert merge_once(another_session(zone.spark), zone.config).exact
        raise KeyboardInterrupt

    monkeypatch.setattr(table, "apply", dropped)
    with pytest.raises(KeyboardInterrupt):
        zone.merge()
    assert not killed or zone.merge().exact
    assert zone.rows("id") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("kind", "module", "name"),
    [
        pytest.param("history", history_job, "apply_versions", marks=pytest.mark.soak),
        ("changes", changes_job, "append_changes"),
    ],
)
def test_so_a_shape_is_refused_until_it_is_dropped_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, module: Any, name: str
) -> None:
    zone = Zone(spark, tmp_path, public__orders={"shapes": ["current", kind]})
    zone.log(10, insert(5, 1))
    zone.merge()
    zone.log(20, insert(15, 2))
    write, folder = getattr(module, name), zone.folder / f"lake/public/orders_{kind}"

    def dropped(*late: Any) -> Any:
        def created(*arguments: Any) -> Any:
            monkeypatch.setattr(module, name, write)
            write(*late)
            return write(*arguments)

        shutil.rmtree(folder)
        monkeypatch.setattr(module, name, created)
        assert not merge_once(another_session(spark), zone.config).exact
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, dropped)
    with pytest.raises(KeyboardInterrupt):
        zone.merge()
    (failed,) = zone.merge().failed
    assert "a merge into the table that was dropped" in str(failed.error)
    assert "then drop it" in (failed.hint or "")
    shutil.rmtree(folder)
    assert zone.merge().exact
    assert zone.rows("id", f"public/orders_{kind}") == [(1,), (2,)]


@pytest.mark.soak
def test_a_table_that_others_always_write_to_stops_no_other_table(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = schema_of("public.people", id="int")
    zone.landed.table(people)
    orders = zone.landed.log(ORDERS, [insert(5, 1)])
    zone.landed.commit(10, [orders, zone.landed.log(people, [Event("insert", 5, 0, {"id": 1})])])
    apply, append = table.apply, job.append_cut
    conflicts = [True]

    def busy(spark: Any, target: Any, *arguments: Any) -> Any:
        if str(target.table) == T:
            raise PySparkException("DELTA_CONCURRENT_APPEND")
        return apply(spark, target, *arguments)

    def busy_once(*arguments: Any, **more: Any) -> None:
        if conflicts:
            conflicts.clear()
            raise PySparkException("DELTA_METADATA_CHANGED")
        append(*arguments, **more)

    monkeypatch.setattr(table, "apply", busy)
    monkeypatch.setattr(job, "append_cut", busy_once)
    report = zone.merge()
    (failed,) = report.failed
    assert (str(failed.table), report.recorded, report.exact) == (T, True, False)
    assert "another job keeps writing there" in str(failed.error)
    assert live(zone.spark, zone.config, "public.people").count() == 1
    assert zone.rows("id", "public/people") == [(1,)]


@pytest.mark.parametrize("history", [pytest.param(True, marks=pytest.mark.soak), False])
def test_rows_that_somebody_has_cached_decide_nothing(
    spark: SparkSession, tmp_path: Path, history: bool
) -> None:
    """Another application has merged since: a truncate deletes the rows that it brought, too."""
    shapes = {"shapes": ["current", "history"] if history else ["current"]}
    tables = ["orders", "orders_history"] if history else ["orders"]
    zone = Zone(spark, tmp_path, public__orders=shapes)
    lake, other = tmp_path / "lake", tmp_path / "other"
    zone.log(10, insert(5, 1))
    zone.merge()
    cached = [spark.table(f"delta.`{lake}/public/{name}`").cache() for name in tables]
    try:
        assert [frame.count() for frame in cached] == [1] * len(tables)
        shutil.copytree(lake, other)
        zone.log(20, insert(15, 2))
        theirs = config_of(str(tmp_path / "landing"), str(other), public__orders=shapes)
        assert merge_once(spark, theirs).exact
        shutil.copytree(other, lake, dirs_exist_ok=True)
        zone.log(30, Event("truncate", 25, 0, {}), insert(26, 3))
        assert zone.merge().exact
    finally:
        for frame in cached:
            frame.unpersist()
    assert zone.rows() == [(3, 3, "x")]
    if history:
        versions = zone.rows("id, _valid_to.lsn", table="public/orders_history")
        assert versions == [(1, 25), (2, 25), (3, None)]
