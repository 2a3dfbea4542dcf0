"""The lake's checksums of tables, computed while their databases compute their own.

They are of a table's version at the newest cut then, and stay right: a version never changes. What the
database computes may be of later, so only buckets of which nothing has landed since that cut are proven equal
(`merge.proof.checksums`), as of that cut; no merge is needed for that. Where this does not hold, they are
dropped, and the table is summed again at a later cut.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from connector.checksums.definition import MOST_BUCKETS, uncovered
from connector.config import Config
from connector.errors import GapError
from connector.landing.manifest import DumpState, LandedFile
from connector.schema import TableName
from merge.apply import LARGE_BYTES
from merge.lake.retry import TABLE_ERRORS
from merge.lake.widened import with_whole_filters
from merge.overlay import as_wide
from merge.plan import landed_between, last_full
from merge.proof.checksums import TEXTS, LakeBuckets, lake_buckets
from merge.proof.comparison import SHOWN, checked_columns, compared_layout, unlike
from merge.proof.opened_lake import ComparedVersion, OpenedLake, opened, settled
from merge.spark.session_settings import ANY_VERSION, COMPILED, applied_settings
from merge.table import FEW_ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_HELD = 4 * MOST_BUCKETS
"""Buckets held of all tables; beyond, tables are summed one by one when they are compared."""


@dataclass(frozen=True)
class TableSums:
    """Checksums of a table's version by bucket, over `columns`: names in the lake, with types.

    `schema_id`: the layout as of the version's manifest. `fresh`: see `Sides.fresh`.
    """

    at: ComparedVersion
    schema_id: str
    columns: dict[str, str]
    bits: int
    buckets: LakeBuckets
    fresh: tuple[LandedFile, ...] = ()


@dataclass
class LakeSums:
    """The lake's checksums of the tables of one request.

    `merge`: called once, if a table is not merged yet. `stop`: once it is set, no other table is begun.
    """

    config: Config
    merge: Callable[[], object]
    stop: threading.Event
    _known: dict[TableName, TableSums] = field(default_factory=dict)
    _tried: set[TableName] = field(default_factory=set)
    _merged: bool = False

    def compute(self, spark: SparkSession, dumps: Sequence[DumpState]) -> None:
        """Sum the tables whose buckets are known by now, each once; errors of a table are found later."""
        ready = {
            dump.table: dump for dump in dumps if dump.bits is not None and dump.table not in self._tried
        }
        if not ready or self._held > MOST_HELD:
            return
        if not self._merged:
            self._merged = True
            self._merge_if_behind(spark, ready.values())
        with opened(spark, self.config) as lake:
            for table, dump in ready.items():
                if self._held <= MOST_HELD and not self.stop.is_set():
                    self._tried.add(table)
                    if (found := _summed(lake, dump)) is not None:
                        self._known[table] = found

    def usable(self, lake: OpenedLake, dump: DumpState) -> TableSums | None:
        """Return a table's checksums if a dump that has ended can be compared with them, else None.

        The table must have been whole at their manifest, and since: in one epoch, with one key and layout,
        no full dump, nothing truncated.
        """
        found, landing, table = self._known.get(dump.table), lake.landing, dump.table
        if found is None or dump.bits != found.bits or dump.finished_in is None or table not in lake.targets:
            return None
        upto = max(found.at.manifest, dump.finished_in)
        try:
            landing.load(found.at.manifest, upto)
            fresh = landed_between(table, landing, found.at.manifest, upto)
            before, after = landing.get(found.at.manifest), landing.get(upto)
            if fresh is None or any(
                (known := landing.get(number).tables.get(table)) is None or known.state != "captured"
                for number in range(found.at.manifest, upto + 1)
            ):
                return None
        except GapError:
            return None
        same = (
            before.epoch == after.epoch == dump.epoch,
            last_full(table, before) == last_full(table, after),
            before.tables[table].key == after.tables[table].key,
            lake.frontiers.of(table).id == found.at.state.id,
            {found.schema_id} == {after.tables[table].schema_id, *(file.schema_id for file in fresh)},
            settled(before, table) and settled(after, table),
            not any(file.truncates for file in fresh),
        )
        return replace(found, fresh=tuple(fresh)) if all(same) else None

    @property
    def _held(self) -> int:
        return sum(len(sums.buckets) for sums in self._known.values())

    def _merge_if_behind(self, spark: SparkSession, dumps: Iterable[DumpState]) -> None:
        with opened(spark, self.config) as lake:
            newest = lake.newest.number if lake.newest is not None else 0
            behind = any(lake.frontier_at(dump.table, newest).manifest < newest for dump in dumps)
        if behind:
            self.merge()


def _summed(lake: OpenedLake, dump: DumpState) -> TableSums | None:
    """Sum a table at the newest cut; None if it can't be, or need not be."""
    target, table = lake.targets.get(dump.table), dump.table
    if lake.newest is None or target is None or lake.landing.projection(table) is not None:
        return None
    try:
        frontier = lake.frontier_at(table, lake.newest.number)
        if frontier.error is not None:
            return None
        at = lake.version_of(target, frontier.manifest)
        state = lake.landing.get(at.manifest).tables[table]
        schema_id = state.schema_id or ""
        layout = lake.landing.schemas([(table, schema_id)])[schema_id]
        few = (dump.rows_estimate or 0) <= FEW_ROWS and at.state.bytes <= LARGE_BYTES
        with applied_settings(lake.spark, {**ANY_VERSION, **TEXTS, **({} if few else COMPILED)}):
            frame = with_whole_filters(target.at(lake.spark, at.version), at.state)
            wide = compared_layout(frame, layout, state.key)
            columns = checked_columns(wide, layout)
            if uncovered(layout) is not None or unlike(frame, columns):
                return None
            shown = as_wide(frame, wide).where(SHOWN)
            buckets = lake_buckets(shown, columns, layout.key[0], dump.bits or 0)
    except TABLE_ERRORS:
        return None
    return TableSums(at, schema_id, columns, dump.bits or 0, buckets)
