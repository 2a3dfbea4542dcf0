"""Rewrites all rows of a Delta table in one commit, from the landing zone.

Unlike a merge, a rewrite trusts none of the table's current rows. It runs when somebody else has changed the
table (`merge.job`), or on request (`merge.proof.rebuilding`). One commit replaces all rows, so readers see
either the old rows or the new ones. Its mark (`Mark.rebuild_after`) exceeds those of all earlier commits. If
another job commits first, Delta refuses or skips the rewrite, and it starts over.

Where deletes are soft, the landing zone alone may not know a deleted row, or its last values: what is
positioned before the last full dump does not count. Such rows come from the newest version that a cut
recorded and that the table still has:

- all rows of it, with what landed since, if that version is sound (`continued`);
- none of a version with other columns, masks or rows (`merge.columns.projection`) than today's;
- if no row is to be trusted (`whole`), only rows marked as deleted, overruled by everything that landed; of
  these only ones from before the last full dump. That dump may have ended since: it deletes rows that it
  lacks, and overrules the rest. Later rows are in the dump, or landed after it. Without a full dump, the
  landing zone knows all rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from connector.config import Config
from connector.errors import TableError
from merge.lake.commits import Mark, newest_unchanged, read_commits
from merge.lake.consumer import record_rebuilt
from merge.lake.control_table import Frontier
from merge.lake.retry import SPARK_ERRORS, is_lost_file
from merge.lake.schema import change_properties, check_layout
from merge.lake.target import (
    CHANGING,
    COLUMNS_PROPERTY,
    COLUMNS_SINCE_PROPERTY,
    GENERATION_PROPERTY,
    Target,
    TargetState,
    ownership_error,
    read_state,
)
from merge.landing_zone import LandingZone
from merge.plan import TablePlan, plan_past_holes
from merge.report import TableReport
from merge.sql_formatting import position_literal
from merge.table import Base, TableJob, check_origin, is_lost, recorded_frontiers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

GONE = "_cdc.op = 'delete'"
"""Rows that are marked as deleted."""


@dataclass(frozen=True)
class Rewrite:
    """The rewriting of one Delta table up to manifest number `upto`.

    `into`: another Delta table to write to, which holds no rows; missing columns are then not requested.
    `show`: called with the number of events that are about to be read. `changes_columns`: whether the table
    may get other columns, masks or rows than it was built with. Not in a merge, whose configuration may be
    the former one: the table may have been rebuilt with today's masks meanwhile.
    """

    spark: SparkSession
    config: Config
    landing: LandingZone
    upto: int
    target: Target
    show: Callable[[int], None] = lambda _: None
    into: Target | None = None
    changes_columns: bool = False

    def continued(self, frontier: Frontier, last: Mark | None) -> TableReport:
        """Rewrite a table that others have changed since a frontier; `last`: its greatest mark."""
        known = self._recorded(frontier, last)
        if known is None or known.version is None:
            return self.from_nothing(last)
        return self._rewritten(known.manifest, Base(self.target, known.version), last)

    def whole(self, frontier: Frontier) -> TableReport:
        """Rewrite a table, trusting none of its rows except, where deletes are soft, the deleted ones.

        Refuse a table that was merged from another landing zone.
        """
        written = self.into or self.target
        last = None
        if read_state(self.spark, written) is not None:
            last = read_commits(self.spark, written, self.config.source.name, Frontier(0)).last
            check_origin(self.landing, written, last)
        plan, state = self.plan(0), read_state(self.spark, self.target)
        swept, source = plan.swept, self.config.source.name
        continues = state is not None and state.id == frontier.id
        if state is not None and ownership_error(state, self.target, source, plan.state.key):
            continues = False  # its rows have another key
        known = self._recorded(frontier, last) if continues and swept is not None else None
        if known is None or known.version is None or swept is None:
            if self._forgets(state):
                log.warning(
                    "%s: rows deleted before the last full dump are lost, as they have other columns",
                    self.target.name,
                )
            return self.from_nothing(last)
        swept_since = f"(_cdc.epoch, _cdc.lsn, _cdc.seq) < {position_literal(swept)}"
        return self._rewritten(0, Base(self.target, known.version, f"{GONE} OR {swept_since}"), last)

    def from_nothing(self, last: Mark | None) -> TableReport:
        """Rewrite a table from the landing zone alone; `last`: its greatest mark."""
        return self._commit(0, None, last)

    def _recorded(self, frontier: Frontier, last: Mark | None) -> Frontier | None:
        """Return the newest recorded frontier, which has the rows marked as deleted, or None.

        `last`: the table's greatest mark.
        """
        if not self.target.soft or frontier.id is None:
            return None
        known = recorded_frontiers(self.spark, self.config, self.target.table, frontier.id, frontier.manifest)
        state = read_state(self.spark, self.target)
        since, generation = (0, 0) if state is None else (state.built_since, state.generation)
        # After a RESTORE, newer versions may have other columns or masks than these properties say.
        restored = last is not None and last.generation > generation
        known = [
            at
            for at in known
            if (at.version or 0) >= since
            and (not restored if at.built is None else at.is_built_with(self.target.built_with))
        ]
        source = self.config.source.name
        # Usually the newest one, whose history is short.
        return newest_unchanged(self.spark, self.target, source, known[:1]) or newest_unchanged(
            self.spark, self.target, source, known
        )

    def _forgets(self, state: TargetState | None) -> bool:
        """Return whether a table has deleted rows with other columns or masks than today's."""
        differs = state is not None and state.built_with != self.target.columns
        return differs and self.target.soft

    def _rewritten(self, after: int, base: Base, last: Mark | None) -> TableReport:
        """Rewrite from a base and what landed after a manifest; without a base, from the landing zone alone.

        Gives up the base only if its files are found to be gone: what can't be read may be another file, or
        come back.
        """
        try:
            return self._commit(after, base, last)
        except SPARK_ERRORS as error:
            if not (is_lost_file(error) and is_lost(self.spark, base.target, base.version)):
                raise
            log.warning(
                "%s: files of its version %s are gone; rows deleted before the last full dump are lost",
                base.target.name,
                base.version,
            )
        return self.from_nothing(last)

    def plan(self, after: int) -> TablePlan:
        """Plan to read what landed after a manifest; `GapError` if a part of it is gone."""
        self.landing.load(after + 1, self.upto)
        return plan_past_holes(self.target.table, self.landing, after, self.upto)

    def _commit(self, after: int, base: Base | None, last: Mark | None) -> TableReport:
        target, plan = self.into or self.target, self.plan(after)
        state = read_state(self.spark, target)
        if self.changes_columns and state is not None and state.built_with != target.columns:
            return self._with_other_columns(target, plan, state, last)
        return self._written(target, plan, state, base, last)

    def _with_other_columns(
        self, target: Target, plan: TablePlan, state: TargetState, last: Mark | None
    ) -> TableReport:
        """Rewrite a table that was built with other columns, masks or rows, from the landing zone alone.

        Changes the property that says what the table was built with, before and after writing the rows. So if
        merges still run with the old configuration, Delta refuses those under way, and we refuse later ones.
        Of one that read the table before and starts to write only after this, Delta skips the commit
        (`Mark.generation`). If this is killed, the table stays refused until it is rebuilt.
        """
        known, source = replace(target, columns=state.built_with), self.config.source.name
        schemas = self.landing.schemas((plan.table, id_) for id_ in plan.schema_ids)
        newest, *others = (schemas[id_] for id_ in plan.of_key(schemas).schema_ids)
        self.landing.check_settings(plan.table, plan.state.schema_id)
        check_layout(known, state, source, newest, others)
        mark = Mark(source, plan.upto, write_id=self.landing.get(plan.upto).write_id)
        change_properties(self.spark, target, mark, {COLUMNS_PROPERTY: CHANGING})
        changing, generation = replace(target, columns=CHANGING), _generation(state, last) + 1
        record_rebuilt(self.landing, target.table, state.id, generation)
        report = self._written(changing, plan, read_state(self.spark, target), None, last, generation)
        built = {
            COLUMNS_PROPERTY: target.columns,
            COLUMNS_SINCE_PROPERTY: str(report.version),
            GENERATION_PROPERTY: str(generation),
        }
        change_properties(self.spark, target, mark, built)
        return report

    def _written(
        self,
        target: Target,
        plan: TablePlan,
        state: TargetState | None,
        base: Base | None,
        last: Mark | None,
        generation: int | None = None,
    ) -> TableReport:
        """Write the rows in one commit; `generation`: the new one, if columns, masks or rows change."""
        like = None if self.into is None or base is None else read_state(self.spark, base.target)
        job = TableJob.prepared(
            self.spark, self.config, self.landing, target, plan, state, asks=self.into is None, like=like
        )
        self.show(job.plan.rows)
        is_restored = generation is None and _generation(job.state, last) > job.state.generation
        if generation is None:
            generation = _generation(job.state, last)
        built_with = (self.into or self.target).built_with  # not that it is changing
        mark = replace(
            job.mark.rebuild_after(last),
            once=self.into is not None,
            built_with=built_with,
            generation=generation,
        )
        merged = job.merge(Frontier(0), mark, base)
        if merged.why_broken is not None:
            raise TableError(
                target.table,
                f"{target.name} changed while it was rebuilt: {merged.why_broken}",
                hint="stop other writers to that Delta table; the next merge tries again",
            )
        if is_restored:  # from before a rebuild; only now, since `_recorded` must know it if this is killed
            change_properties(self.spark, target, job.mark, {GENERATION_PROPERTY: str(generation)})
        return merged.report


def _generation(state: TargetState, last: Mark | None) -> int:
    """Return a table's generation; `last`: its greatest mark, which a RESTORE of the properties leaves."""
    return max(state.generation, last.generation if last is not None else 0)
