"""Rewrites all rows of a Delta table in one commit, from the landing zone.

A rewrite does what no merge does: it trusts no row of the table as it is now. One is due if somebody else
changed the table (`merge.job`), or if it is asked for (`merge.rebuilding`). One commit replaces all rows,
so readers see either the old rows or the new ones. Its mark (`Mark.rebuild_after`) exceeds those of all
commits before. If another job commits first, Delta refuses or skips the rewrite, which is then done again.

Where deletes are soft, the landing zone alone may not know a deleted row, or its last values: what is
positioned before the last full dump does not count. Such rows come from the newest version that a cut
recorded and that the table still has:

- all rows of it, with what landed since, if that version is sound (`continued`);
- only those marked as deleted, under everything that landed, if no row is to be trusted (`whole`), and those
  from before the last full dump, which may have ended since: it deletes what it lacks, and overrules the
  rest. The others are in the dump, or landed after it. Without one, the landing zone knows them all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.config import Config
from connector.errors import TableError
from merge.commits import Mark, newest_unchanged, read_commits
from merge.control_table import Frontier, recorded_frontiers
from merge.landing_zone import LandingZone
from merge.plan import TablePlan, plan_past_holes
from merge.report import TableReport
from merge.retry import SPARK_ERRORS, is_lost_file
from merge.sql import position_literal
from merge.table import Base, TableJob, check_origin, is_lost
from merge.target import Target, read_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

GONE = "_cdc.op = 'delete'"
"""Rows that are marked as deleted."""


@dataclass(frozen=True)
class Rewrite:
    """The rewriting of one Delta table up to manifest number `upto`.

    `into`: another Delta table to write to, which holds no rows; missing columns are then not requested.
    `show`: called with the number of events that are about to be read.
    """

    spark: SparkSession
    config: Config
    landing: LandingZone
    upto: int
    target: Target
    show: Callable[[int], None] = lambda _: None
    into: Target | None = None

    def continued(self, frontier: Frontier, last: Mark | None) -> TableReport:
        """Rewrite a table that others have changed since a frontier; `last`: its greatest mark."""
        known = self._recorded(frontier)
        if known is None or known.version is None:
            return self.from_nothing(last)
        return self._rewritten(known.manifest, Base(self.target, known.version), last)

    def whole(self, frontier: Frontier) -> TableReport:
        """Rewrite a table without trusting any of its rows but, where deletes are soft, the deleted ones.

        Refuse a table that was merged from another landing zone.
        """
        written = self.into or self.target
        last = None
        if read_state(self.spark, written) is not None:
            last = read_commits(self.spark, written, self.config.source.name, Frontier(0)).last
            check_origin(self.landing, written, last)
        swept, state = self.plan(0).swept, read_state(self.spark, self.target)
        continues = state is not None and state.id == frontier.id
        known = self._recorded(frontier) if continues and swept is not None else None
        if known is None or known.version is None or swept is None:
            return self.from_nothing(last)
        swept_since = f"(_cdc.epoch, _cdc.lsn, _cdc.seq) < {position_literal(swept)}"
        return self._rewritten(0, Base(self.target, known.version, f"{GONE} OR {swept_since}"), last)

    def from_nothing(self, last: Mark | None) -> TableReport:
        """Rewrite a table from the landing zone alone; `last`: its greatest mark."""
        return self._commit(0, None, last)

    def _recorded(self, frontier: Frontier) -> Frontier | None:
        """Return the newest frontier that has the rows marked as deleted; None if there is none."""
        if self.config.table(self.target.table).deletes != "soft" or frontier.id is None:
            return None
        known = recorded_frontiers(self.spark, self.config, self.target.table, frontier.id, frontier.manifest)
        source = self.config.source.name
        # Usually the newest one, whose history is short.
        return newest_unchanged(self.spark, self.target, source, known[:1]) or newest_unchanged(
            self.spark, self.target, source, known
        )

    def _rewritten(self, after: int, base: Base, last: Mark | None) -> TableReport:
        """Rewrite from a base and what landed after a manifest; from the landing zone alone if that is gone.

        The base itself must be found to be gone: what a rewrite can't read may be another file, or come back.
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
        job = TableJob.prepared(
            self.spark, self.config, self.landing, target, plan, state, asks=self.into is None
        )
        self.show(job.plan.rows)
        merged = job.merge(Frontier(0), job.mark.rebuild_after(last), base)
        if merged.why_broken is not None:
            raise TableError(
                target.table,
                f"{target.name} changed while it was rebuilt: {merged.why_broken}",
                hint="stop other writers to that Delta table; the next merge tries again",
            )
        return merged.report
