"""A segment of the log with what was found out about its tables when it was read, before it is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from connector.event import EventBatch, SetAside
from connector.source import Segment


@dataclass
class ToldSegment:
    """A segment with what was found when the log was read: tables set aside, layouts that no row shows yet.

    The layouts are `announced` as batches without rows, in position order.
    """

    inner: Segment
    set_aside: Sequence[SetAside]
    announced: Sequence[EventBatch] = ()

    @property
    def position(self) -> int:
        """The boundary behind the last whole transaction."""
        return self.inner.position

    @property
    def committed_at(self) -> datetime | None:
        """The commit time of that transaction."""
        return self.inner.committed_at

    @property
    def gtids(self) -> str | None:
        """The transactions executed up to `position`."""
        return self.inner.gtids

    @property
    def gtids_needed(self) -> str | None:
        """What a server must have executed of these."""
        return self.inner.gtids_needed

    @property
    def rows(self) -> int:
        """How many messages of changes it holds."""
        return self.inner.rows

    def decode(self) -> Iterator[EventBatch | SetAside]:
        """Decode into batches; the tables set aside come first, and have no batch."""
        aside = {found.table for found in self.set_aside}
        yield from self.set_aside
        left = [batch for batch in self.announced if str(batch.schema.table) not in aside]
        for found in self.inner.decode():
            if isinstance(found, SetAside):
                yield found
            elif str(found.schema.table) not in aside:
                while left and left[0].first < found.first:
                    yield left.pop(0)
                yield found
        yield from left
