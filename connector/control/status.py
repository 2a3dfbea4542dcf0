"""A source's status: the active agent, how far the log has landed, and the state of each table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from pydantic import TypeAdapter

from connector.control.source_view import SourceView
from connector.landing.lease import AgentFigures, Holder
from connector.landing.verified import DAY, Verified


@dataclass(frozen=True)
class TableStatus:
    """The state of a table; `reason` and `hint` are set if it is quarantined.

    For a captured table, they say what its before-images lack.
    `verifications`: how many of its active dumps are verifications. `only_changes`: it has no key, and is
    never dumped.
    """

    state: str
    dumped: bool
    active_dumps: int
    reason: str | None
    hint: str | None
    verifications: int = 0
    only_changes: bool = False


@dataclass(frozen=True)
class LakeStatus:
    """A lake that merges from the landing zone: up to which manifest all tables are merged, as of `at`.

    Or a streaming query, ``stream NAME``: the manifest up to which it has read. `failing`: tables that did
    not merge, with the reasons; `failing_unnamed`: how many more.
    """

    lake: str
    manifest: int
    at: datetime
    failing: Mapping[str, str] = field(default_factory=dict)
    failing_unnamed: int = 0


@dataclass(frozen=True)
class VerifiedStatus:
    """The result of a lake's continuous verification; `began_at`: when its last run began.

    `share_last_day`: the share of all rows, as last counted, that was verified in the last day; None: nothing
    was counted yet. `oldest_at`: when the range verified longest ago was verified; None: some ranges, of
    `never_verified` tables, never were. `differences`: by table, keys that differed when last compared.
    """

    lake: str
    began_at: datetime | None
    tables: int
    share_last_day: float | None
    oldest_at: datetime | None
    never_verified: int
    differences: Mapping[str, int]

    @classmethod
    def of(cls, record: Verified, now: datetime) -> VerifiedStatus:
        """Sum up a record."""
        differing = {str(name): count for name, count in record.differing().items()}
        share, never = record.share_since(now - DAY), len(record.never())
        tables, oldest = len(record.tables), record.oldest()
        return cls(record.lake, record.began_at, tables, share, oldest, never, differing)


@dataclass(frozen=True)
class Status:
    """The status by the newest manifest and the lease. `agent`: for people; `figures`: the agent's. UTC."""

    source: str
    agent: str
    figures: AgentFigures
    manifest: int
    position: str
    epoch: int
    committed_at: datetime
    source_committed_at: datetime | None
    exact: bool
    gaps: int
    tables: Mapping[str, TableStatus]
    lakes: list[LakeStatus]
    verified: list[VerifiedStatus] = field(default_factory=list)

    @property
    def quarantined(self) -> list[str]:
        """Return the tables that need attention."""
        return [name for name, table in self.tables.items() if table.state == "quarantined"]

    def as_json(self) -> dict[str, Any]:
        """Return the status for ``--json`` and the HTTP API."""
        fields: dict[str, Any] = _STATUS.dump_python(self, mode="json")
        return fields


_STATUS = TypeAdapter(Status)


def status(view: SourceView) -> Status:
    """Return the current status; `PreconditionError` if nothing has landed yet."""
    manifest = view.newest()
    active = Counter(d.table for d in manifest.dumps if d.active)
    verifying = Counter(d.table for d in manifest.dumps if d.active and d.verifies)
    return Status(
        source=f"{manifest.source.name} ({manifest.source.kind} {manifest.source.version or ''})".strip(),
        agent=_agent_line(view.lease()),
        figures=view.figures(),
        manifest=manifest.number,
        position=manifest.position_text,
        epoch=manifest.epoch,
        committed_at=manifest.committed_at,
        source_committed_at=manifest.source_committed_at,
        exact=manifest.exact,
        gaps=len(manifest.gaps),
        tables={
            str(name): TableStatus(
                t.state,
                t.dumped,
                active[name],
                t.reason,
                t.hint,
                verifying[name],
                only_changes=t.schema_id is not None and not t.key,
            )
            for name, t in sorted(manifest.tables.items())
        },
        lakes=[LakeStatus(c.title, c.manifest, c.at, c.failing, c.failing_unnamed) for c in view.lakes()],
        verified=[VerifiedStatus.of(record, datetime.now(timezone.utc)) for record in view.verified()],
    )


def _agent_line(lease: Holder | None) -> str:
    if lease is None or not lease.active:
        return "none active"
    process = f"process {lease.pid} on {lease.host}"
    if lease.until < datetime.now(timezone.utc):  # by the clocks of both, so it may be wrong
        ran_out = f"{lease.until:%Y-%m-%d %H:%M:%S}Z"
        return f"probably none: the lease of {process} expired at {ran_out}"
    return f"{process} since {lease.since:%Y-%m-%d %H:%M:%S}Z, term {lease.term}"
