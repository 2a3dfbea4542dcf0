"""Decides whether the log continues where the newest manifest ends. If not, that is a gap or a failover.

Invariants:

- The epoch grows whenever log between the newest manifest's position and what the source still has is
  missing, and when another server's log continues it (a failover): positions there mean something else.
- The manifest that begins the new epoch records the gap and queues the repair dumps, so a gap can't be
  forgotten.
- After a crash between creating the new slot and that manifest, the gap is found again: the slot's position
  is then ahead of the newest manifest's.
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Any

from connector.capture.dumps.queue import DumpQueue
from connector.capture.manifest_history import ManifestHistory, check_identity
from connector.capture.tables import Tables
from connector.config import Config
from connector.errors import GapError
from connector.landing.manifest import Gap, Manifest
from connector.source import Failover, ResumePoint, Source

log = logging.getLogger(__name__)


def resume_point_of(manifest: Manifest) -> ResumePoint:
    """Return the point after a manifest where the log resumes."""
    return ResumePoint(
        manifest.position,
        tuple(manifest.not_yet_visible),
        manifest.gtids,
        manifest.source.server,
        manifest.gtids_needed,
        manifest.last_commit,
    )


def recorded(resume_point: ResumePoint) -> dict[str, Any]:
    """Return the fields by which a manifest records a resume point, but for its server."""
    return {
        "position": resume_point.position,
        "gtids": resume_point.gtids,
        "gtids_needed": resume_point.gtids_needed,
        "not_yet_visible": list(resume_point.not_yet_visible),
        "last_commit": resume_point.last_commit,
    }


def check_for_gap(
    source: Source, manifest_history: ManifestHistory, tables: Tables, dumps: DumpQueue, config: Config
) -> bool:
    """Check whether the log after the newest manifest is complete; if not, begin a new epoch and return True.

    Durable on return: the new epoch's manifest, with the gap and a repair dump of each table that lands.
    After a failover, unfinished work continues instead.
    `FencedError` if the log is ahead because another agent has taken over.
    """
    newest = manifest_history.newest
    reason = newest.pending_gap or source.check_resumable(resume_point_of(newest))
    if reason is None:
        return False
    manifest_history.verify()  # another agent's progress looks like a gap, and its slot is not ours to drop
    check_identity(newest.source, source.identity(newest))  # the address may now lead to another database
    if isinstance(reason, Failover):
        _resume_after_failover(manifest_history, tables, dumps, reason)
        return True
    if config.source.on_gap == "stop":
        raise GapError(
            f"the log after {newest.position_text} is lost: {reason}",
            hint='set source.on_gap = "repair" to begin a new epoch and dump all tables again',
        )
    log.error("gap: the log after %s is lost: %s; dumping all tables again", newest.position_text, reason)
    resume_point = source.begin_log(fresh=True, stopping=manifest_history.is_stopping)
    epoch = newest.epoch + 1
    dumps.restart_in_epoch(epoch)
    for name in filter(tables.has_key, tables.captured()):
        dumps.add(name, manifest=manifest_history.next_number, reason="repair")
    gap = Gap(
        epoch=epoch,
        after=newest.position,
        before=resume_point.position,
        reason=reason,
        found_at=datetime.now(timezone.utc),
    )
    tables.notice(None, "gap", reason)
    tables.begin_epoch(log_is_lost=True)
    _commit_epoch(manifest_history, tables, dumps, resume_point, gaps=[*newest.gaps, gap], pending_gap=None)
    return True


def _resume_after_failover(
    manifest_history: ManifestHistory, tables: Tables, dumps: DumpQueue, failover: Failover
) -> None:
    """Continue in another server's log, which is complete: in a new epoch, or in the same one."""
    log.warning("failover: %s", failover.reason)
    if failover.same_positions:
        tables.notice(None, "failover", failover.reason)
        manifest_history.commit(
            notices=tables.take_notices(),
            source=manifest_history.newest.source.model_copy(update={"server": failover.resume_point.server}),
        )
        return
    dumps.continue_in_epoch(manifest_history.newest.epoch + 1, manifest=manifest_history.next_number)
    tables.notice(None, "failover", failover.reason)
    tables.begin_epoch(log_is_lost=False)
    _commit_epoch(manifest_history, tables, dumps, failover.resume_point)


def _commit_epoch(
    manifest_history: ManifestHistory,
    tables: Tables,
    dumps: DumpQueue,
    resume_point: ResumePoint,
    **changes: Any,
) -> None:
    manifest_history.commit(
        notices=tables.take_notices(),
        source=manifest_history.newest.source.model_copy(update={"server": resume_point.server}),
        epoch=dumps.epoch,
        **recorded(resume_point),
        **tables.recorded(manifest_history.next_number, dumps.needs.copy()),
        **dumps.recorded(),
        **changes,
    )
