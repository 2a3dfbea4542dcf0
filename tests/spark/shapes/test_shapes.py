"""The shapes that lie beside the current rows of a table: random histories through the real merge."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from connector.config import Config
from connector.errors import ConfigurationError
from connector.landing.consumers import read_consumers
from connector.position import CHUNK_SEQ, Position
from connector.store.local import LocalStore
from merge import as_of, cuts, live, merge_once
from merge.job import MergeRun
from merge.key_pruning import key_conditions
from merge.keys import TargetLayout
from merge.lake.upkeep import upkeep
from merge.shapes import history
from merge.shapes.versions import EVENT_FIELDS, as_events, once, true_at_low, versions
from tests.spark.test_oracle import ONE, formatted, key_of, known
from tests.support.landing.histories import COLUMNS, KEY, Key, World
from tests.support.landing.landed import Landed, config_of, schema_of
from tests.support.landing.versions import Version
from tests.unit.merge.shapes.test_history import Zone, expected

TABLE = str(ONE.table)
SHAPES = ("history", "changes")


def shaped(folder: Path, *shapes: str) -> Config:
    return config_of(
        str(folder / "landing"), str(folder / "lake"), public__one={"shapes": ["current", *shapes]}
    )


def rows(spark: SparkSession, folder: Path, name: str) -> list[Any]:
    return spark.table(f"delta.`{folder}/lake/public/{name}`").collect()


def versions_in(found: list[Any]) -> dict[Key, list[Version]]:
    """Return the versions of each key, in order."""
    found_of: dict[Key, list[Version]] = {}
    for row in found:
        begins, ends = row["_valid_from"], row["_valid_to"]
        assert begins["committed_at"] is not None
        found_of.setdefault(key_of(row, row["_cdc"]["raw"]), []).append(
            Version(
                Position(*begins[:3]),
                begins["seen"],
                known(row).columns,
                None if ends is None else Position(*ends[:3]),
                None if ends is None else ends["seen"],
            )
        )
    return {key: sorted(its, key=lambda version: version.since) for key, its in found_of.items()}


def changed(row: Any) -> tuple[Any, ...]:
    cdc = row["_cdc"]
    raw = sorted((cdc["raw"] or {}).items())
    values = tuple(row[name] for name in COLUMNS)
    return (*values, cdc["op"], cdc["epoch"], cdc["lsn"], cdc["seq"], sorted(cdc["unchanged"] or []), raw)


def landed_changes(world: World) -> list[tuple[Any, ...]]:
    """Each change that has landed, once."""
    return [
        (
            *(event.values.get(name) for name in COLUMNS),
            *(event.op, *event.position, sorted(event.unchanged), sorted((event.raw or {}).items())),
        )
        for batch in world.batches
        for event in map(formatted, batch.log)
    ]


def run(zone: Zone, dumps: float) -> None:
    """Let a few manifests land, with now and then a full dump."""
    for _ in range(3):
        for _ in range(zone.r.randint(1, 5)):
            zone.world.step()
        if zone.r.random() < dumps:
            zone.dump_in_full()
        zone.commit()


def zone_of(folder: Path, world: World, loses: bool) -> Zone:
    landed = Landed.local(folder / "landing")
    landed.formats = formatted
    return Zone(world.r, world, loses, landed, ONE)


def check(spark: SparkSession, folder: Path, zone: Zone) -> None:
    found = Counter(map(repr, map(changed, rows(spark, folder, "one_changes"))))
    assert found == Counter(map(repr, landed_changes(zone.world)))
    check_history(spark, folder, zone)


def check_history(spark: SparkSession, folder: Path, zone: Zone) -> None:
    landed = {key: its for key, its in expected(zone).items() if its}
    assert versions_in(rows(spark, folder, "one_history")) == landed


@pytest.mark.soak
def test_shapes_have_all_that_has_landed_at_every_cut_whatever_happens_to_merges(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = zone_of(tmp_path, World(random.Random(7), size=1, truncates=True), loses=False)
    landed, config = zone.landed, shaped(tmp_path, *SHAPES)
    for cut in range(3):
        run(zone, dumps=0.3)
        if cut == 0:  # shapes are added to a table that was merged
            assert not merge_once(spark, shaped(tmp_path)).failed
        if cut == 1:  # a merge is killed before its cut
            with monkeypatch.context() as patched:
                patched.setattr(MergeRun, "record_cut", lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    merge_once(spark, config)
        if cut == 2:  # the next merge begins long before what the tables have
            table = f"delta.`{tmp_path}/lake/_deltatide/cuts`"
            spark.sql(f"DELETE FROM {table} WHERE manifest > {landed.number - 6}")
        report = merge_once(spark, config)
        assert not report.failed, report.failed
        check(spark, tmp_path, zone)
    newest = cuts(spark, config).first()
    assert newest is not None
    assert {newest["tables"][f"{TABLE}_{shape}"]["manifest"] for shape in SHAPES} == {landed.number}
    shown = as_of(spark, config, landed.number)
    assert shown[f"{TABLE}_changes"].count() == len(landed_changes(zone.world))
    current = Counter(map(repr, map(known, shown[TABLE].collect())))
    still_open = shown[f"{TABLE}_history"].where("_valid_to IS NULL")
    assert Counter(map(repr, map(known, still_open.collect()))) == current
    findings = [f for f in upkeep(spark, config) if f.subject != TABLE]
    assert {f"{TABLE}_{shape}" for shape in SHAPES} <= {f.subject for f in findings}
    assert not [f for f in findings if f.status == "failed"]
    with pytest.raises(Exception, match="DELTA_CANNOT_MODIFY_APPEND_ONLY"):
        spark.sql(f"DELETE FROM delta.`{tmp_path}/lake/public/one_changes`")
    assert not merge_once(spark, config).recorded
    with pytest.raises(ConfigurationError, match="is not a source table; if it holds the changes"):
        live(spark, config, f"{TABLE}_changes")
    # Without the shapes, their tables stay as they are; asked for again, they go on.
    run(zone, dumps=0)
    assert {str(table.table) for table in merge_once(spark, shaped(tmp_path)).tables} == {TABLE}
    run(zone, dumps=0)
    assert not merge_once(spark, config).failed
    check(spark, tmp_path, zone)
    # A history that others have changed is merged no further.
    spark.sql(f"DELETE FROM delta.`{tmp_path}/lake/public/one_history`")
    run(zone, dumps=0)
    report = merge_once(spark, config)
    assert [
        (str(t.table), "no longer the history that we merged" in str(t.error)) for t in report.failed
    ] == [(f"{TABLE}_history", True)]
    assert not report.exact


def test_histories_have_right_versions_with_ghosts_late_chunks_and_dumps(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = zone_of(tmp_path, World(random.Random(3), size=40), loses=True)
    for dumps in (1, 1, 0):
        if not dumps:
            while zone.full:
                zone.commit()
            zone.lose_log()
        run(zone, dumps)
        while zone.full and not dumps:
            zone.commit()
        if not dumps:  # a large table is read only where the changed keys can be
            assert not merge_once(spark, shaped(tmp_path, "history")).failed
            run(zone, dumps)
            monkeypatch.setattr(history, "LARGE_BYTES", 0)
            monkeypatch.setattr(history, "key_conditions", conditions := Mock(wraps=key_conditions))
        report = merge_once(spark, shaped(tmp_path, "history"))
        assert not report.failed, report.failed
        check_history(spark, tmp_path, zone)
    assert zone.ended
    assert conditions.call_count == 1
    assert SparkSession.getActiveSession() is spark  # not one of the merge's own


def test_versions_of_one_key(spark: SparkSession) -> None:
    """The example of `merge.shapes.versions`; an update and an unchanged row after a gap."""
    layout, chunk = TargetLayout({"id": "int", "a": "int", "b": "string"}, ("id",), ()), CHUNK_SEQ + 1
    rows = [
        (1, 1, "x", ("dump", 1, 10, chunk, None)),
        (1, 2, None, ("update", 1, 20, 0, ["b"])),
        (1, 2, "x", ("dump", 1, 25, chunk, None)),
        (1, 3, "x", ("dump", 1, 30, chunk, None)),
        (1, None, None, ("delete", 1, 40, 0, None)),
        (1, 4, "y", ("insert", 1, 50, 0, None)),
        (1, 5, None, ("update", 2, 60, 0, ["b"])),
        (1, 5, "z", ("dump", 2, 70, chunk, None)),
        (1, 5, "z", ("dump", 3, 80, chunk, None)),
    ]
    cdc = "_cdc struct<op:string,epoch:int,lsn:bigint,seq:bigint,unchanged:array<string>>"
    frame = spark.createDataFrame(rows, f"id int, a int, b string, {cdc}")
    gaps = [Position(2, 0, -1), Position(3, 79, CHUNK_SEQ)]
    found = versions(as_events(frame, layout), layout, gaps, partial=True).collect()
    ends = ((r["a"], r["b"], r["_valid_from"], r["_valid_to"] or (None,) * 5) for r in found)
    found = ((a, b, begin[1], begin[4], end[1], end[4]) for a, b, begin, end in ends)
    assert sorted(found, key=lambda version: version[2]) == [
        (1, "x", 10, False, 20, True),
        (2, "x", 20, True, 30, False),
        (3, "x", 30, False, 40, True),
        (4, "y", 50, True, 60, False),
        (5, None, 60, True, 70, False),
        (5, "z", 70, False, 80, False),
        (5, "z", 80, False, None, None),
    ]


def test_a_key_column_may_be_called_like_any_name_in_the_code(spark: SparkSession) -> None:
    key = ("logged", "raw", "at", "row", "epoch", "whole", "unchanged")
    layout = TargetLayout(dict.fromkeys(key, "int") | {"a": "int"}, key, ())
    columns = ", ".join(f"{name} {type_}" for name, type_ in layout.columns.items())
    frame = spark.createDataFrame(
        [], f"{columns}, _cdc struct<{', '.join(f'{n}:{t}' for n, t in EVENT_FIELDS.items())}>"
    )
    events = as_events(frame, layout)
    assert true_at_low(events, once(events, layout), layout, []).columns == [*layout.columns, "_cdc"]


def test_a_new_lake_is_refused_as_a_whole_if_a_shape_has_no_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    landed = Landed.local(tmp_path / "landing")
    landed.table(ONE)
    landed.table(schema_of("public.one_changes", KEY, **COLUMNS))
    landed.commit(1)
    with pytest.raises(ConfigurationError, match=r"would lie where table .*one_changes does") as refused:
        merge_once(spark, shaped(tmp_path, "changes"))
    assert 'take "changes" out' in str(refused.value.hint)
    assert not (tmp_path / "lake").exists()


def test_a_shape_without_a_place_keeps_no_table_from_being_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A pattern may capture a table of such a name long after the shape was configured."""
    other = schema_of("public.one_changes", KEY, **COLUMNS)
    landed = Landed.local(tmp_path / "landing")
    landed.table(ONE)
    landed.commit(1)
    config = shaped(tmp_path, "changes")
    assert merge_once(spark, config).exact
    landed.table(other)
    landed.commit(2)
    report = merge_once(spark, config)
    assert not report.exact
    assert {str(each.table) for each in report.failed} == {"public.one_changes"}
    reasons = [each.error or "" for each in report.failed]
    assert any("would lie where table public.one_changes does" in reason for reason in reasons)
    assert any("holds the changes table public.one" in reason for reason in reasons), reasons
    (lake,) = read_consumers(LocalStore(tmp_path / "landing/shop"))
    assert all(reason in lake.failing["public.one_changes"] for reason in reasons)
    assert [(str(t.table), t.manifest) for t in report.tables if t.error is None] == [("public.one", 2)]
    (tmp_path / "lake/public/one_changes").rename(tmp_path / "kept")  # as the hint of the table says
    landed.commit(3)
    report = merge_once(spark, shaped(tmp_path))  # as that of the shape says
    assert (report.failed, report.exact) == ([], True)
