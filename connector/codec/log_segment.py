"""A segment of the log together with what reading it revealed about its tables, before it is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from connector.landing.event_batch import (
    Decoded,
    EventBatch,
    QuarantineNotice,
    TableRedefined,
    UnloggedNotice,
)
from connector.logged_table import LoggedTable
from connector.source import ResumePoint, Segment


@dataclass
class LogSegment:
    """A segment with what reading it revealed: quarantined tables, and layouts that no row shows yet.

    Those layouts are `announced` as batches without rows, in position order. `statements`: what some did to
    tables.
    """

    inner: Segment
    quarantined: Sequence[QuarantineNotice]
    announced: Sequence[EventBatch] = ()
    statements: Sequence[TableRedefined | UnloggedNotice] = ()

    @property
    def position(self) -> int:
        """The boundary after the last whole transaction."""
        return self.inner.position

    @property
    def committed_at(self) -> datetime | None:
        """The commit time of that transaction."""
        return self.inner.committed_at

    @property
    def end(self) -> ResumePoint:
        """Where reading resumes after it."""
        return self.inner.end

    @property
    def logged(self) -> Sequence[LoggedTable]:
        """The tables as the log names them."""
        return self.inner.logged

    @property
    def rows(self) -> int:
        """The number of change messages it holds."""
        return self.inner.rows

    def decode(self) -> Iterator[Decoded]:
        """Decode into batches; first what statements did, and quarantined tables, which have no batch."""
        quarantined = {found.table for found in self.quarantined}
        yield from self.statements
        yield from self.quarantined
        left = [batch for batch in self.announced if batch.schema.table not in quarantined]
        for found in self.inner.decode():
            if not isinstance(found, EventBatch):
                yield found
            elif found.schema.table not in quarantined:
                while left and left[0].first < found.first:
                    yield left.pop(0)
                yield found
        yield from left
