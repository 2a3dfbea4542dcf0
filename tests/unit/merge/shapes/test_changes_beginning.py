"""Where a table of changes begins, or goes on, in log of which a part has types that can't become today's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from connector.landing.manifest import CompactedBlock, CompactedTable, LandedFile
from connector.position import Position
from connector.schema import TableName, TableSchema
from merge.lake.control_table import Frontier
from merge.lake.target import targets_of
from merge.shapes.changes_job import ChangesJob
from merge.shapes.shape import Shape, shapes_of, targets_with_shapes
from tests.support.landing.landed import AT, Event, Landed, config_of, schema_of

NUMBERS, TEXTS = schema_of("public.t", id="int", a="int"), schema_of("public.t", id="int", a="string")
T = NUMBERS.table


class Zone(Landed):
    """A landing zone as a merge reads it."""

    root = "/landing/shop"

    def load(self, first: int, last: int) -> None:
        """All manifests are there."""

    def check_settings(self, table: TableName, schema_id: str | None) -> None:
        """Nothing is configured."""

    def schemas(self, wanted: Iterable[tuple[TableName, str]]) -> dict[str, TableSchema]:
        known = {schema.id: schema for schema in (NUMBERS, TEXTS)}
        return {id_: known[id_] for _, id_ in wanted}


def appended(
    zone: Zone, monkeypatch: pytest.MonkeyPatch, merged: int = 0
) -> tuple[list[LandedFile], Position]:
    """Return the files that are appended after manifest `merged`, and the position after which they count."""
    config = config_of("/landing", "/lake", public__t={"shapes": ["current", "changes"]})
    shapes = shapes_of(config)
    (name,) = shapes
    target = targets_with_shapes(config, targets_of(config, [T]), shapes)[name]
    job = ChangesJob(
        cast(Any, None), config, cast(Any, zone), zone.get(zone.number), Shape(T, "changes"), target,
        lambda _: None,
    )  # fmt: skip
    found: list[tuple[list[LandedFile], Position]] = []

    class AppendedError(Exception):
        pass

    def append(_: ChangesJob, state: object, files: list[LandedFile], after: Position) -> Any:
        found.append((files, after))
        raise AppendedError

    monkeypatch.setattr(ChangesJob, "_appended", append)
    with pytest.raises(AppendedError):
        job.write(Frontier(merged), None)
    return found[0]


def land(zone: Zone, schema: TableSchema, *lsns: int) -> list[LandedFile]:
    """Land an event in a manifest of its own at each of these positions."""
    zone.table(schema)
    value = "x" if schema is TEXTS else 1
    files = [zone.log(schema, [Event("insert", lsn, 0, {"id": lsn, "a": value})]) for lsn in lsns]
    for file in files:
        zone.commit(file.last.lsn + 1, [file])
    return files


def compact(zone: Zone, files: list[LandedFile]) -> LandedFile:
    """Join files of all manifests so far, which are a block."""
    joined = files[0].model_copy(update={"path": "joined", "last": files[-1].last})
    table = CompactedTable(files=[joined], replaced=[file.path for file in files])
    zone.manifests[-1].compacted = CompactedBlock(first=1, last=zone.number, at=AT, tables={T: table})
    return joined


@pytest.mark.parametrize("compacted", [False, True])
def test_new_changes_have_all_log_since_a_change_of_type(
    compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it, the block had files enough to be joined, since then only a few, which stay as they are."""
    zone = Zone()
    before, since = land(zone, NUMBERS, 10, 20), land(zone, TEXTS, 30, 40)
    if compacted:
        compact(zone, before)
    later = land(zone, TEXTS, 50)
    assert appended(zone, monkeypatch) == ([*since, *later], before[-1].last)


def test_of_types_that_were_changed_and_changed_back_the_log_before_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the table would have what is before a hole, and what is after it."""
    zone = Zone()
    before, (changed,), back = land(zone, NUMBERS, 10, 20), land(zone, TEXTS, 30), land(zone, NUMBERS, 40, 50)
    joined = compact(zone, before + back)
    later = land(zone, NUMBERS, 60)
    assert appended(zone, monkeypatch) == ([joined, *later], changed.last)


def test_what_had_landed_when_a_table_was_merged_last_is_left_out_though_its_block_was_compacted_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its types can't become today's: the table began after it, and was stopped by it now."""
    for joins_before in (True, False):
        zone = Zone()
        before, since = land(zone, NUMBERS, 10, 20), land(zone, TEXTS, 30, 40)
        joined = compact(zone, before if joins_before else since)
        later = land(zone, TEXTS, 50)
        files, after = appended(zone, monkeypatch, merged=3)
        assert files == ([since[1], *later] if joins_before else [joined, *later])
        assert since[0].last < after < since[1].first
