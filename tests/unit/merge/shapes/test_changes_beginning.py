"""Where a new table of changes begins if earlier log has types that can't become today's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from connector.landing.manifest import CompactedBlock, CompactedTable, LandedFile
from connector.schema import TableName, TableSchema
from merge.lake.control_table import Frontier
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


def begun(zone: Zone, monkeypatch: pytest.MonkeyPatch) -> list[LandedFile]:
    """Return the files that a new table of changes begins with."""
    config = config_of("/landing", "/lake", public__t={"shapes": ["current", "changes"]})
    shapes = shapes_of(config)
    (name,) = shapes
    target = targets_with_shapes(config, [T], shapes)[name]
    job = ChangesJob(
        cast(Any, None), config, cast(Any, zone), zone.get(zone.number), Shape(T, "changes"), target,
        lambda _: None,
    )  # fmt: skip
    appended: list[LandedFile] = []

    class BegunError(Exception):
        pass

    def append(_: ChangesJob, state: object, files: list[LandedFile]) -> Any:
        appended.extend(files)
        raise BegunError

    monkeypatch.setattr(ChangesJob, "_appended", append)
    with pytest.raises(BegunError):
        job.write(Frontier(0), None)
    return appended


@pytest.mark.parametrize("compacted", [False, True])
def test_new_changes_have_all_log_since_a_change_of_type(
    compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it, the block had files enough to be joined, since then only a few, which stay as they are."""
    zone = Zone()
    zone.table(NUMBERS)
    before = [zone.log(NUMBERS, [Event("insert", lsn, 0, {"id": lsn, "a": lsn})]) for lsn in (10, 20)]
    for file in before:
        zone.commit(file.last.lsn + 1, [file])
    zone.table(TEXTS)
    since = [zone.log(TEXTS, [Event("insert", lsn, 0, {"id": lsn, "a": "x"})]) for lsn in (30, 40)]
    for file in since:
        zone.commit(file.last.lsn + 1, [file])
    if compacted:
        joined = before[0].model_copy(update={"path": "joined", "last": before[1].last})
        table = CompactedTable(files=[joined], replaced=[file.path for file in before])
        zone.manifests[-1].compacted = CompactedBlock(first=1, last=4, at=AT, tables={T: table})
    later = zone.log(TEXTS, [Event("insert", 50, 0, {"id": 50, "a": "x"})])
    zone.commit(51, [later])
    assert begun(zone, monkeypatch) == [*since, later]
