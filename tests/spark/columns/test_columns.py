"""Tables whose target has selected, renamed, masked columns and filtered rows: all of it in one."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from connector.config import Config, TableConfig
from connector.errors import ConfigurationError, DeltatideError
from connector.landing.event_batch import arrow_type
from connector.masking.columns import LandedColumns
from connector.masking.values import masked
from merge import explain_row, live, merge_once, rebuild, recorded_differences, verify
from merge.spark.unreachable import legible
from tests.support.landing.landed import Chunk, Event, Landed, config_of, schema_of

T = "public.people"
PEOPLE = schema_of(
    T, id="int", region="string", Mail="string", card="string", note="string", secret="string", born="date"
)
RENAMED = replace(
    PEOPLE, columns=tuple(replace(c, name="address") if c.name == "Mail" else c for c in PEOPLE.columns)
)
OLDER = replace(PEOPLE, columns=tuple(column for column in PEOPLE.columns if column.name != "region"))
SALT = "a salt of sixteen characters"
SECRETS = ("@example", "12345678", "dear", "hidden", "1066-10", "(1066, 10", "infinity", "not in the lake")
COLUMNS: dict[str, Any] = {
    "exclude_columns": ["secret"],
    "rename": {"id": "person", "mail": "email"},
    "mask": {"MAIL": "sha256", "card": "keep last 4", "note": "null", "born": "sha256"},
    "where": "region = 'EU' AND coalesce(secret, '') <> 'not in the lake'",
}


def salted(config: Config) -> Config:
    assert config.lake is not None
    return config.model_copy(update={"lake": config.lake.model_copy(update={"salt": SALT})})


def sha(text: str) -> str:
    return hmac.new(SALT.encode(), text.encode(), hashlib.sha256).hexdigest()


class People:
    """A landing zone with one table, and its lake."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.landed = spark, folder, Landed.local(folder / "landing")
        self.landed.table(PEOPLE)
        self.config = self.configured(**COLUMNS)

    def configured(self, **table: Any) -> Config:
        shapes = {"shapes": ["current", "history", "changes"]}
        found = config_of(
            str(self.folder / "landing"), str(self.folder / "lake"), public__people=shapes | table
        )
        return salted(found)

    def log(self, position: int, *events: Event) -> None:
        self.landed.commit(position, [self.landed.log(PEOPLE, events)])

    def rows(self, name: str = "people", columns: str = "*") -> list[Any]:
        table = f"delta.`{self.folder}/lake/public/{name}`"
        return sorted(self.spark.sql(f"SELECT {columns} FROM {table}").collect(), key=lambda row: row[0])


def person(key: int, region: str, **more: Any) -> dict[str, Any]:
    row = {"id": key, "region": region, "Mail": f"{key}@example", "card": f"12345678{key:04}", "note": "dear",
           "secret": "hidden", "born": date(1066, 10, 14)}  # fmt: skip
    return row | more


def insert(lsn: int, key: int, region: str, raw: dict[str, str] | None = None, **more: Any) -> Event:
    return Event("insert", lsn, 2 * key, person(key, region, **more), raw=raw)


def update(lsn: int, key: int, region: str, lacks: tuple[str, ...] = (), **more: Any) -> Event:
    row = person(key, region, **more)
    return Event("update", lsn, 2 * key, {n: v for n, v in row.items() if n not in lacks}, unchanged=lacks)


def plain(row: Any) -> tuple[Any, ...]:
    return (row["person"], row["email"], row["card"], row["born"], sorted(row["_cdc"]["missing"] or []))


def expected(key: int, missing: tuple[str, ...] = (), born: str = "1066-10-14") -> tuple[Any, ...]:
    values = {"email": sha(f"{key}@example"), "card": f"****{key:04}", "born": sha(born)}
    return (key, *(None if name in missing else value for name, value in values.items()), sorted(missing))


def written(folder: Path) -> str:
    """Return all that Delta's files hold, as text."""
    files = sorted(folder.rglob("*"))
    parts = [str(pq.read_table(path).to_pylist()) for path in files if path.name.endswith(".parquet")]
    return "\n".join([*parts, *(path.read_text() for path in files if path.suffix == ".json")])


def said(error: Any) -> str:
    return f"{error.error} {error.hint}"


def lacks(spark: SparkSession, error: Any, columns: str) -> bool:
    """Return whether an error names the columns that an update lacks; Spark 3.5 gives our errors no name."""
    return spark.version < "4" or f"an update lacks a column of its where ({columns})" in said(error)


def test_a_target_has_only_the_columns_and_rows_that_it_may_have_in_the_form_it_may(
    spark: SparkSession, tmp_path: Path
) -> None:
    its = People(spark, tmp_path)
    infinite = {"born": "infinity"}
    its.log(10, insert(1, 1, "EU"), insert(2, 2, "US"), insert(3, 3, "EU", raw=infinite, born=None),
            insert(4, 4, "EU", secret="not in the lake"), insert(5, 5, "EU"))  # fmt: skip
    assert not merge_once(spark, its.config).failed
    assert list(map(plain, its.rows())) == [expected(1), expected(3, born="infinity"), expected(5)]
    assert {(row["note"], row["_cdc"]["raw"]) for row in its.rows()} == {(None, None)}
    its.log(20, update(11, 1, "US"), update(12, 2, "EU", ("card", "note")), update(13, 3, "EU", ("Mail",)),
            update(14, 5, "US"), update(15, 5, "EU", ("note",)))  # fmt: skip
    now = [expected(2, ("card",)), expected(3), expected(5)]
    assert sorted(map(plain, live(spark, its.config, T).collect())) == now
    report = merge_once(spark, its.config)
    assert (report.failed, [t.missing for t in report.tables]) == ([], [1, 0, 0])
    assert list(map(plain, its.rows())) == now
    history = [(row["person"], row["_valid_from"]["lsn"], (row["_valid_to"] or {"lsn": None})["lsn"])
               for row in its.rows("people_history")]  # fmt: skip
    assert sorted(history, key=str) == [(1, 1, 11), (2, 12, None), (3, 13, None), (3, 3, 13), (5, 15, None),
                                        (5, 5, 14)]  # fmt: skip
    changes = [(row["person"], row["_cdc"]["op"], row["email"] is None) for row in its.rows("people_changes")]
    assert changes.count((1, "delete", True)) == changes.count((4, "delete", True)) == 1
    assert (3, "update", True) in changes

    dumped = [person(key, region) for key, region in ((1, "US"), (2, "EU"), (3, "EU"), (5, "EU"))]
    its.landed.commit(30, [its.landed.chunk(PEOPLE, Chunk(25, 28, dumped[:2]))])
    its.landed.verification(T, 7, 29, started_in=4, rows=4)
    its.landed.commit(35, [its.landed.verified(PEOPLE, Chunk(29, 32, dumped, dump=7))])
    assert merge_once(spark, its.config).exact
    whole = [expected(2), expected(3), expected(5)]
    assert list(map(plain, its.rows())) == whole
    assert verify(spark, its.config, "dump-7").equal
    spark.sql(f"UPDATE delta.`{tmp_path}/lake/public/people` SET email = 'x' WHERE person = 5")
    done = verify(spark, its.config, "dump-7", where="Mail = '5@example'")
    (difference,) = recorded_differences(spark, its.config, done.run).collect()
    assert (difference["key"], difference["source_value"]) == (["5"], sha("5@example"))
    explained = json.dumps(explain_row(spark, its.config, T, "2").to_dict(), default=str)
    rebuild(spark, its.config, T)
    assert list(map(plain, its.rows())) == whole
    assert not [text for text in SECRETS if text in written(tmp_path / "lake") + explained]
    assert SALT not in written(tmp_path / "lake")


def test_a_changed_key_without_a_column_of_the_condition_stops_the_table_and_no_command_tells_a_value(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such an update lands as a delete and an insert that lacks what the log has left out."""
    its = People(spark, tmp_path)
    its.log(10, insert(1, 1, "EU"))
    assert merge_once(spark, its.config).exact
    moved = Event("insert", 11, 3, {"id": 2, "card": "x"}, unchanged=("region", "Mail"))
    its.log(20, Event("delete", 11, 2, {"id": 1}), moved)
    assert lacks(spark, merge_once(spark, its.config).failed[0], "region, secret")
    its.landed.full_dump(T, 3, low=25, started_in=its.landed.number + 1)
    its.landed.commit(30, [its.landed.chunk(PEOPLE, Chunk(25, 28, [person(2, "EU", note="7")], dump=3))])
    config = its.configured(**COLUMNS | {"shapes": ["current"], "where": "CAST(note AS INT) = 7"})
    with legible(config):
        rebuild(spark, config, T)
    its.log(40, insert(31, 3, "EU"))
    with caplog.at_level(logging.DEBUG, "merge"):
        assert "withheld" in said(merge_once(spark, config).failed[0])
    ours = "\n".join(f"{r.getMessage()} {r.exc_text}" for r in caplog.records if r.name.startswith("merge"))
    assert "dear" not in ours, "Spark's own logger, which a caller may silence, says it"
    for command in (lambda: rebuild(spark, config, T), lambda: explain_row(spark, config, T, "3").to_dict()):
        with pytest.raises(DeltatideError, match="CAST_INVALID_INPUT") as failed, legible(config):
            command()
        assert "dear" not in str(failed.value)


def test_a_condition_that_fails_on_null_is_not_asked_of_deletes(spark: SparkSession, tmp_path: Path) -> None:
    its = People(spark, tmp_path)
    where = "6 / CASE region WHEN 'EU' THEN 1 WHEN 'US' THEN 2 ELSE 0 END = 6"
    config = its.configured(shapes=["current"], where=where)
    its.log(10, insert(1, 1, "EU"), insert(2, 2, "EU"), insert(3, 3, "US"), Event("delete", 4, 2, {"id": 1}))
    assert merge_once(spark, config).exact
    assert its.rows(columns="id") == [(2,)]


def test_a_masked_key_has_a_new_lake_refused_as_a_whole_and_later_its_table_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    its, new = People(spark, tmp_path), schema_of("public.new", id="int", region="string")
    its.config = its.configured(shapes=["current"])
    its.log(10, insert(6, 1, "EU"))
    for wrong in ({"mask": {"ID": "sha256"}}, {"exclude_columns": ["id"]}, {"columns": ["Mail"]}):
        with pytest.raises(ConfigurationError, match=r"public\.people: column 'id' is in the key") as refused:
            merge_once(spark, its.configured(**wrong))
        assert refused.value.hint == 'change [tables."public.people"] in the configuration'
        assert not (tmp_path / "lake").exists()
    assert merge_once(spark, its.config).exact

    its.landed.table(new)
    its.landed.commit(20, [its.landed.log(new, [Event("insert", 16, 18, {"id": 7, "region": "EU"})])])
    its.log(30, insert(26, 2, "EU"))
    config = its.config.model_copy(
        update={"tables": {**its.config.tables, new.table: TableConfig(columns=["region"])}}
    )
    (failed,) = (report := merge_once(spark, config)).failed
    assert "'id' is in the key" in said(failed)
    assert failed.table == new.table
    assert not report.exact
    assert [row["id"] for row in its.rows()] == [1, 2]
    assert not (tmp_path / "lake/public/new").exists()


def test_a_condition_that_fails_for_a_row_stops_the_table_with_a_hint_that_leads_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    its = People(spark, tmp_path)
    its.log(10, insert(6, 1, "EU"), insert(7, 2, "7"))
    (failed,) = merge_once(spark, its.configured(shapes=["current"], where="cast(region AS int) > 0")).failed
    assert failed.hint == (
        'the where in [tables."public.people"] may fail for a row: have it use try_cast, try_divide or the'
        " like, and then: deltatide rebuild public.people"
    )
    config = its.configured(shapes=["current"], where="try_cast(region AS int) > 0")
    assert rebuild(spark, config, T).exact
    assert [row["id"] for row in its.rows()] == [2]


@pytest.mark.soak
def test_a_changed_configuration_is_refused_until_the_table_is_rebuilt(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    its = People(spark, tmp_path)
    its.landed.table(OLDER)
    its.landed.commit(5, [its.landed.log(OLDER, [Event("insert", 1, 18, {"id": 9, "Mail": "9@example"})])])
    its.landed.table(PEOPLE)
    its.log(10, insert(6, 1, "EU"), insert(7, 2, "US"))
    wrong = its.configured(shapes=["current"], where="regoin = 'EU'")
    assert "where can't be evaluated" in str(merge_once(spark, wrong).failed[0].error)
    assert not (tmp_path / "lake/public").exists()
    laid_out = {
        "shapes": ["current"],
        "change_data_feed": True,
        "partition_by": ["REGION"],
        "rename": {"region": "region"},  # it was added in front of a column that will be masked
    }
    its.config = its.configured(**laid_out)
    assert not merge_once(spark, its.config).failed
    assert its.rows(columns="id, Mail") == [(1, "1@example"), (2, "2@example"), (9, "9@example")]
    its.config = its.configured(**laid_out, mask={"mail": "keep last 4"}, where="region = 'EU'")
    its.landed.commit(20)
    assert "deltatide rebuild public.people" in said(merge_once(spark, its.config).failed[0])
    assert [row["Mail"] for row in live(spark, its.config, T).collect()] == ["****mple"]
    with monkeypatch.context() as patched:
        patched.setattr("merge.table.apply", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rebuild(spark, its.config, T)
    its.log(30, insert(21, 3, "EU"))
    for config in (its.config, its.configured(**laid_out)):
        assert "is being rebuilt with other columns" in said(merge_once(spark, config).failed[0])
    assert rebuild(spark, its.config, T).exact
    its.log(40, insert(31, 4, "EU"))
    assert merge_once(spark, its.config).exact
    assert its.rows(columns="id, Mail") == [(1, "****mple"), (3, "****mple"), (4, "****mple")]
    feed = f"SELECT id, _change_type FROM table_changes_by_path('{tmp_path}/lake/public/people', 0)"
    changed = len(spark.sql(feed).collect())
    spark.sql(f"DELETE FROM delta.`{tmp_path}/lake/_deltatide/cuts` WHERE manifest > 4")
    assert merge_once(spark, its.config).exact, "what was merged is merged again"
    assert len(spark.sql(feed).collect()) == changed > 4
    others = its.configured(
        **laid_out | {"partition_by": ["card"]}, mask={"mail": "keep last 4"}, where="region = 'EU'"
    )
    its.log(45, insert(41, 5, "EU"))
    assert "restore the former partition_by" in said(merge_once(spark, others).failed[0])
    assert explain_row(spark, its.config, T, "1", at=2).delta is None
    assert explain_row(spark, its.config, T, "1").delta.differences == ()  # type: ignore[union-attr]
    undecided = Event("update", 46, 2, {"id": 1, "card": "x"}, unchanged=("region",))
    its.log(50, undecided)
    assert lacks(spark, merge_once(spark, its.config).failed[0], "region")
    its.landed.full_dump(T, 3, low=55, started_in=its.landed.number + 1)
    its.landed.commit(60, [its.landed.chunk(PEOPLE, Chunk(55, 58, [person(1, "EU")], dump=3))])
    assert merge_once(spark, its.config).exact
    assert its.rows(columns="id") == [(1,)]

    # The source renames a masked column; after the next rebuild, what landed before is masked, too.
    its.landed.table(RENAMED)
    row = {"address" if name == "Mail" else name: value for name, value in person(2, "EU").items()}
    its.landed.commit(70, [its.landed.log(RENAMED, [Event("insert", 61, 4, row)])])
    assert "'address' may be 'mail'" in said(merge_once(spark, its.config).failed[0])
    assert "address" not in spark.table(f"delta.`{tmp_path}/lake/public/people`").columns
    masks = {"mail": "keep last 4", "address": "keep last 4"}
    its.config = its.configured(**laid_out, mask=masks, where="region = 'EU'")
    rebuild(spark, its.config, T)
    assert its.rows(columns="id, Mail, address") == [(1, "****mple", None), (2, None, "****mple")]


TEXTS: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [0, -7],
    "bigint": [-(2**63)],
    "string": ["née", "", "12345678", "\u0000x"],
    "binary": [b"", b"\x00\xff"],
    "date": [date(1, 1, 1), date(1582, 10, 14), date(9999, 12, 31)],
    "timestamp": [
        datetime(1, 1, 1, tzinfo=timezone.utc),
        datetime(1969, 12, 31, 23, 59, 59, 120, timezone.utc),
    ],
    "timestamp_ntz": [datetime(33, 4, 3, 15, 0), datetime(9999, 12, 31, 23, 59, 59, 999_990)],
    "decimal(38,0)": [Decimal(10**37), Decimal(-1)],
}


@pytest.mark.parametrize("mask", ["sha256", pytest.param("keep last 3", marks=pytest.mark.soak)])
def test_a_value_masked_before_it_lands_is_as_one_that_the_merge_masks(
    spark: SparkSession, tmp_path: Path, mask: str
) -> None:
    names = {type_: f"c{number}" for number, type_ in enumerate(TEXTS)}
    layout = schema_of("public.texts", id="int", **{name: type_ for type_, name in names.items()})
    its = People(spark, tmp_path)
    settings = {"columns": ["id", *names.values()], "mask": dict.fromkeys(names.values(), mask)}
    found = its.config.model_dump(by_alias=True)
    found["tables"] = {"public.texts": settings}
    config = Config.model_validate(found)
    its.landed.table(layout)
    rows = [
        {"id": n, **{names[type_]: values[n % len(values)] for type_, values in TEXTS.items()}}
        for n in range(4)
    ]
    events = [Event("insert", n + 1, 2 * n, row) for n, row in enumerate(rows)]
    its.landed.commit(10, [its.landed.log(layout, events)])
    assert not merge_once(spark, config).failed
    for row in its.rows("texts"):
        for type_, name in names.items():
            value = pa.array([rows[row["id"]][name]], arrow_type(type_))
            assert [row[name]] == masked(mask, value, None, SALT.encode()).to_pylist(), type_


def test_a_table_masked_before_it_lands_is_the_same_in_the_lake_and_no_masks_are_mixed(
    spark: SparkSession, tmp_path: Path
) -> None:
    its = People(spark, tmp_path)
    wanted = ["id", "region", "Mail", "card"]
    settings = {"columns": wanted, "mask": {"mail": "sha256", "card": "keep last 4"}}
    its.config = its.configured(shapes=["current"], **settings)
    its.log(10, insert(1, 1, "EU"))
    assert not merge_once(spark, its.config).failed
    its.config = its.configured(shapes=["current"], **settings, mask_before_landing=True)
    landed = LandedColumns.of(its.config, PEOPLE.table)
    assert landed is not None
    layout = landed.layout(PEOPLE)
    its.landed.table(layout)
    row = {"id": 2, "region": "EU", "Mail": sha("2@example"), "card": "****0002"}
    its.landed.commit(20, [its.landed.log(layout, [Event("insert", 11, 4, row)])])
    assert not merge_once(spark, its.config).failed
    now = [{"id": n, "region": "EU", "Mail": sha(f"{n}@example"), "card": f"****000{n}"} for n in (1, 2)]
    assert [{name: row[name] for name in wanted} for row in its.rows()] == now
    assert its.config.lake is not None
    salted = its.config.lake.model_copy(update={"salt": "another salt of sixteen"})
    its.config = its.config.model_copy(update={"lake": salted})
    with pytest.raises(DeltatideError, match="another mask or salt") as refused:
        rebuild(spark, its.config, T)
    assert "deltatide dump public.people" in (refused.value.hint or "")
    landed = LandedColumns.of(its.config, PEOPLE.table)
    assert landed is not None
    layout = landed.layout(PEOPLE)
    its.landed.table(layout)
    again = [{**row, "Mail": "under the new salt"} for row in now]
    its.landed.full_dump(T, 2, 25, started_in=4)
    its.landed.commit(30, [its.landed.chunk(layout, Chunk(25, 26, again, dump=2))])
    rebuild(spark, its.config, T)
    assert {row["Mail"] for row in its.rows()} == {"under the new salt"}
