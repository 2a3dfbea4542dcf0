"""The data source in the order in which Spark calls it, without Spark: new, restarted, limited, refused."""

from __future__ import annotations

import json
import math
import pickle
import shutil
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4")

from connector.cli.maintain import landing_zone_findings
from connector.control.source_view import SourceView
from connector.control.status import status
from connector.errors import ConfigurationError, DeltatideError
from connector.landing import consumers
from connector.landing.consumers import read_consumers
from connector.landing.format import RETENTION
from connector.landing.manifest_object import Retained
from connector.maintenance.landing_maintenance import check_lake
from connector.store.local import LocalStore
from merge.reading import change_source
from merge.reading.change_source import DeltatideSource, StreamReader
from tests.support.landing.landed import AT, Landed, config_of, schema_of
from tests.support.landing.zone import ORDERS, T, insert

ITEMS = schema_of("public.items", id="int", b="string")


@pytest.fixture
def landed(tmp_path: Path) -> Landed:
    """A landing zone of ten manifests, each with two events: of key n at 10 n - 5, and of 100 + n."""
    landed = Landed.local(tmp_path)
    landed.table(ORDERS)
    land(landed, *range(1, 11))
    return landed


def land(landed: Landed, *numbers: int) -> None:
    for n in numbers:
        landed.commit(10 * n, [landed.log(ORDERS, [insert(10 * n - 5, n), insert(10 * n - 5, 100 + n)])])


def source(landed: Landed, **options: str) -> DeltatideSource:
    found = DeltatideSource({"landing": landed.url, "source": "shop", "table": T, **options})
    assert ", `b` string, `_cdc` struct<op:string,epoch:int," in found.schema()
    return pickle.loads(pickle.dumps(found))  # Spark makes it in one process and uses it in others


def stream(landed: Landed, **options: str) -> StreamReader:
    return source(landed, **{"consumer": "loader", **options}).streamReader(None)  # type: ignore[arg-type]


def keys(reader: Any, partitions: list[Any]) -> list[int]:
    sent = pickle.loads(pickle.dumps(partitions))
    return sorted(key for each in sent for batch in reader.read(each) for key in batch["id"].to_pylist())


def both(*numbers: int) -> list[int]:
    return sorted([*numbers, *(100 + n for n in numbers)])


def consumer(landed: Landed) -> tuple[str, int]:
    (found,) = read_consumers(LocalStore(Path(landed.url) / "shop"))
    return found.title, found.manifest


def test_a_new_query_is_registered_before_it_reads_and_keeps_its_limits(
    landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "RECORD_MANIFESTS", 4)
    reader = stream(landed, after="1", max_manifests="3")
    end = reader.latestOffset()
    assert consumer(landed) == ("stream loader", 1)
    start = reader.initialOffset()
    assert (start["manifest"], end["manifest"]) == (1, 4)
    assert keys(stream(landed), reader.partitions(start, end)) == both(2, 3, 4)
    following = reader.latestOffset()
    assert (following["manifest"], reader.latestOffset()) == (7, following)
    reader.commit(end)
    assert consumer(landed) == ("stream loader", 4)
    assert keys(reader, reader.partitions(end, following)) == both(5, 6, 7)
    last = reader.latestOffset()
    assert keys(reader, reader.partitions(following, last)) == both(8, 9, 10)
    assert reader.latestOffset() == last
    assert reader.partitions(last, last) == []
    land(landed, 11)
    assert reader.latestOffset()["manifest"] == 11


def test_a_query_that_is_started_again_goes_on_where_it_was(landed: Landed) -> None:
    first = stream(landed, max_rows="8")
    start, middle = first.initialOffset(), first.latestOffset()
    assert middle["manifest"] == 4
    again = stream(landed, max_rows="5")
    assert keys(again, again.partitions(start, middle)) == both(1, 2, 3, 4)  # a batch that was not committed
    assert again.latestOffset()["manifest"] == 7
    resumed = stream(landed, max_rows="5")
    assert resumed.partitions(middle, middle) == []  # as Spark tells where it is
    assert resumed.latestOffset()["manifest"] == 7
    at_once = stream(landed, max_rows="5")  # the trigger availableNow asks before that
    end = at_once.latestOffset()
    assert keys(at_once, at_once.partitions(middle, end)) == both(5, 6, 7, 8, 9, 10)


def test_a_query_that_is_started_again_keeps_what_its_last_batch_has_to_read_again(landed: Landed) -> None:
    """Spark first tells the end of that batch, processed or not: all before it could then be removed."""
    first = stream(landed, after="2", max_manifests="3")
    start, end = first.initialOffset(), first.latestOffset()
    again = stream(landed, after="2", max_manifests="3")
    assert (again.partitions(end, end), consumer(landed)) == ([], ("stream loader", 2))
    assert keys(again, again.partitions(start, end)) == both(3, 4, 5)
    assert consumer(landed) == ("stream loader", 2)
    forgotten = LocalStore(Path(landed.url) / "shop")
    consumers.forget(forgotten, *read_consumers(forgotten))
    again = stream(landed, max_manifests="3")
    assert (again.partitions(end, end), again.latestOffset()["manifest"]) == ([], 8)
    assert keys(again, again.partitions(end, again.latestOffset())) == both(6, 7, 8)
    assert consumer(landed) == ("stream loader", 5)


def test_a_query_from_the_newest_on_starts_where_it_began(landed: Landed) -> None:
    """Between its first end and its start, or before its first batch is processed, more may land."""
    reader = stream(landed, after="newest")
    end = reader.latestOffset()
    land(landed, 11)
    start = reader.initialOffset()
    assert (start["manifest"], end["manifest"], reader.partitions(start, end)) == (10, 10, [])
    reused = stream(landed, after="newest")
    end = reused.latestOffset()
    land(landed, 12)
    assert (reused.initialOffset()["manifest"], end["manifest"]) == (11, 11)
    land(landed, 13)
    end = reused.latestOffset()
    land(landed, 14)
    again = stream(landed, after="newest")
    assert again.partitions(end, end) == []
    start = again.initialOffset()
    assert (start["manifest"], end["manifest"]) == (11, 13)
    assert keys(again, again.partitions(start, end)) == both(12, 13)


def test_a_query_of_another_table_under_its_name_has_a_query_skip_nothing(landed: Landed) -> None:
    """Of a query that stopped before its first batch was processed, only the record says where it began."""
    landed.table(ITEMS)
    first = stream(landed, after="newest")
    assert first.latestOffset()["manifest"] == 10
    land(landed, 11, 12)
    end = first.latestOffset()
    land(landed, 13)
    with suppress(DeltatideError):
        stream(landed, table="public.items", after="12").initialOffset()
    land(landed, 14)
    again = stream(landed, after="newest")
    assert again.partitions(end, end) == []
    assert keys(again, again.partitions(again.initialOffset(), end)) == both(11, 12)


def test_a_consumer_of_another_table_is_refused_until_it_is_forgotten(landed: Landed) -> None:
    landed.table(ITEMS)
    land(landed, 11)
    start, end = stream(landed).initialOffset(), stream(landed).latestOffset()
    other = {"table": "public.items"}
    refusal = r"'loader' is a query of public.orders, and .* public.items; hint: .*--forget \"stream loader\""
    for begin in (
        lambda: stream(landed, **other).initialOffset(),
        lambda: stream(landed, **other).latestOffset(),
        lambda: stream(landed, **other).partitions(start, end),
        lambda: stream(landed, **other).commit(end),
    ):
        with pytest.raises(DeltatideError, match=refusal):
            begin()
    assert consumer(landed) == ("stream loader", 0)
    assert keys(stream(landed), stream(landed).partitions(start, end)) == both(*range(1, 12))
    assert stream(landed, consumer="of-items", after="9", **other).initialOffset()["manifest"] == 9
    batch = source(landed, **other).reader(None)  # type: ignore[arg-type]
    assert batch.partitions() == []
    store = LocalStore(Path(landed.url) / "shop")
    consumers.forget(store, *(found for found in read_consumers(store) if found.lake == "loader"))
    assert stream(landed, after="8", **other).initialOffset()["manifest"] == 8
    with pytest.raises(DeltatideError, match=r"'loader' is a query of public\.items"):
        stream(landed).partitions(start, end)


def test_a_record_that_names_no_table_is_of_the_query_that_goes_on_first(landed: Landed) -> None:
    landed.table(ITEMS)
    land(landed, 11)
    store, first = LocalStore(Path(landed.url) / "shop"), stream(landed, max_manifests="4")
    start, middle = first.initialOffset(), first.latestOffset()
    old = {
        "format": 1,
        "id": "stream-loader",
        "kind": "stream",
        "lake": "loader",
        "manifest": 2,
        "at": str(AT),
    }
    store.put(consumers.record_path("stream-loader", "stream"), json.dumps(old).encode())
    assert consumer(landed) == ("stream loader", 2)
    again = stream(landed)
    assert keys(again, again.partitions(start, middle)) == both(1, 2, 3, 4)
    (found,) = read_consumers(store)
    assert (found.format, str(found.table), found.manifest) == (1, T, 0)
    with pytest.raises(DeltatideError, match=r"'loader' is a query of public\.orders"):
        stream(landed, table="public.items").latestOffset()


def test_a_query_older_than_what_was_kept_is_refused_before_it_reads_or_registers(landed: Landed) -> None:
    start, end = (stream(landed).initialOffset(), stream(landed).latestOffset())
    store = LocalStore(Path(landed.url) / "shop")
    for found in read_consumers(store):
        consumers.forget(store, found)
    store.put(RETENTION, Retained(first=5, at=AT + timedelta(days=9)).to_json())
    for begin in (lambda: stream(landed).initialOffset(), lambda: stream(landed).partitions(start, end)):
        with pytest.raises(DeltatideError, match=r"manifests 1 to 4 were removed.*hint: start after"):
            begin()
    assert read_consumers(store) == []
    assert stream(landed, after="4").initialOffset()["manifest"] == 4


def test_a_query_that_is_asked_for_its_end_first_is_checked_and_does_not_go_back(landed: Landed) -> None:
    begun = stream(landed)
    start, end = begun.initialOffset(), begun.latestOffset()
    renamed = stream(landed, consumer="renamed", max_manifests="4")
    early = renamed.latestOffset()
    with pytest.raises(DeltatideError, match=r"is at manifest 10, .*'renamed'.*at 4; hint: .*after=10"):
        renamed.partitions(end, early)
    for ask_first in (lambda reader: reader.latestOffset(), lambda reader: reader.commit(end)):
        again = stream(landed)
        ask_first(again)
        with pytest.raises(DeltatideError, match="the landing zone was replaced"):
            again.partitions({**end, "write_id": "another"}, end)
    assert keys(begun, begun.partitions(start, end)) == both(*range(1, 11))


def test_a_query_stops_once_the_landing_zone_is_replaced_while_it_runs(
    landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new zone's first manifests have numbers that the query has passed: it would never read them."""
    reader = stream(landed)
    start, end = reader.initialOffset(), reader.latestOffset()
    assert keys(reader, reader.partitions(start, end)) == both(*range(1, 11))
    reader.commit(end)
    folder = Path(landed.url)
    shutil.rmtree(folder / "shop")
    replaced = Landed.local(folder, writer="another-")
    replaced.table(ORDERS)
    land(replaced, *range(20, 30))
    monkeypatch.setattr(change_source, "IDLE_CHECK_SECONDS", math.inf)
    assert reader.latestOffset() == end
    land(replaced, 30)
    with pytest.raises(DeltatideError, match="the landing zone was replaced"):
        reader.partitions(end, reader.latestOffset())
    with pytest.raises(DeltatideError, match="the landing zone was replaced"):
        stream(replaced).partitions(start, end)  # the first batch, planned but not processed before


def test_an_idle_query_stops_though_the_new_landing_zone_has_fewer_manifests_yet(
    landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_source, "IDLE_CHECK_SECONDS", 0)
    reader = stream(landed)
    start, end = reader.initialOffset(), reader.latestOffset()
    reader.partitions(start, end)
    assert reader.latestOffset() == end
    shutil.rmtree(Path(landed.url) / "shop")
    replaced = Landed.local(Path(landed.url), writer="another-")
    replaced.table(ORDERS)
    land(replaced, 1)
    with pytest.raises(DeltatideError, match="the landing zone was replaced"):
        reader.latestOffset()


def test_a_configuration_file_names_the_landing_zone(landed: Landed, tmp_path: Path) -> None:
    lines = ['[source]\nname = "shop"\nkind = "postgres"\nurl = "postgresql://u@h/shop"\ntables = ["*.*"]']
    (tmp_path / "shop.toml").write_text("\n".join([*lines, f'[landing]\nurl = "{landed.url}"\n']))
    found = DeltatideSource({"config": str(tmp_path / "shop.toml"), "table": T, "after": "0/5A"})
    found.schema()
    reader = found.reader(None)  # type: ignore[arg-type]
    assert keys(reader, reader.partitions()) == both(10)


def test_a_table_that_the_configuration_masks_is_refused(landed: Landed, tmp_path: Path) -> None:
    lines = ['[source]\nname = "shop"\nkind = "postgres"\nurl = "postgresql://u@h/shop"\ntables = ["*.*"]']
    lines += [f'[landing]\nurl = "{landed.url}"', f'[tables."{T}"]\nmask = {{ b = "null" }}\n']
    (tmp_path / "shop.toml").write_text("\n".join(lines))
    with pytest.raises(DeltatideError, match=r"selects, renames, masks or filters.*name landing and source"):
        DeltatideSource({"config": str(tmp_path / "shop.toml"), "table": T}).schema()
    (tmp_path / "shop.toml").write_text("\n".join(lines).replace(T, T.upper()))
    with pytest.raises(DeltatideError, match=r"says which columns or rows.*but the table's name is"):
        DeltatideSource({"config": str(tmp_path / "shop.toml"), "table": T}).schema()


def test_a_query_is_shown_beside_the_lakes_and_can_be_forgotten(landed: Landed) -> None:
    config = config_of(landed.url, "/lake")
    stream(landed, after="3").initialOffset()
    shown = [(found.lake, found.manifest) for found in status(SourceView(config)).lakes]
    assert shown == [("stream loader", 3)]
    with pytest.raises(ConfigurationError, match="no lake loader") as refused:
        check_lake(config, "loader")
    assert "stream loader" in (refused.value.hint or "")
    (finding,) = (f for f in landing_zone_findings(config, forget="stream loader") if f.action == "forget")
    assert (finding.subject, finding.reason) == ("stream loader", "it can't continue past what is gone")
    assert status(SourceView(config)).lakes == []


def test_a_type_that_is_not_as_wide_as_the_query_s_is_refused(landed: Landed) -> None:
    reader = stream(landed)
    wide = schema_of(T, id="int", a="bigint", b="string")
    landed.table(wide)
    landed.commit(110, [landed.log(wide, [insert(105, 11)])])
    start = reader.initialOffset()
    with pytest.raises(DeltatideError, match="'a' landed as bigint, and is int in this query; hint: start"):
        reader.partitions(start, reader.latestOffset())
    again = stream(landed)
    assert len(keys(again, again.partitions(start, again.latestOffset()))) == 21


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("batch", {"table": "orders"}, "not a table name"),
        ("batch", {"after": "noon"}, "neither a manifest"),
        ("batch", {"max_rows": "1"}, "a batch query has no option max_rows"),
        ("batch", {"dumps": "perhaps"}, "option dumps"),
        ("batch", {"config": "shop.toml"}, "both landing and source"),
        ("stream", {"upto": "3"}, "a streaming query has no option upto"),
        ("stream", {"consumer": "a/b"}, "option consumer"),
        ("stream", {"max_manifests": "0"}, "option max_manifests"),
        ("stream", {}, "option consumer is missing"),
    ],
)
def test_wrong_options_are_named(landed: Landed, kind: str, options: dict[str, str], said: str) -> None:
    def plan() -> object:
        found = source(landed, **options)
        return found.reader(None).partitions() if kind == "batch" else found.streamReader(None)  # type: ignore[arg-type]

    with pytest.raises(DeltatideError, match=said):
        plan()
