"""Which rows of a lake were verified when: the record of continuous verification.

Pure, except for reading it.

::

    consumers/<lake's id>/verified-0.json     written in turn, as Spark replaces an object by deleting it
    consumers/<lake's id>/verified-1.json     first; the one of the greater `number` counts

Invariants:

- A table's ranges are a partition of all integers: each begins where the previous one ends, and the last is
  unbounded. So every key has a range, whenever it was added. A table whose key can't be divided has one
  range.
- `verified_at` is set only by a conclusive comparison, whether it found differences or not: the time when the
  compared cut was merged, or later. What has changed since is verified in the next round.
- Ranges are tried in order of their last attempt, conclusive or not, so none can keep the others from their
  turn.
- A lost or outdated record claims too little: its ranges are verified again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from connector.errors import FormatError
from connector.landing.format import CONSUMERS, FORMAT, encode
from connector.schema import TableName

if TYPE_CHECKING:
    from connector.store.protocol import Store

PREFIX = "verified-"

DAY = timedelta(days=1)

NEVER = datetime.min.replace(tzinfo=timezone.utc)

Ends = tuple[int | None, int | None]
"""Bounds on a key's first column: after (exclusive) and up to (inclusive); None: unbounded."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class VerifiedRange(_Part):
    """Keys after those of the previous range, up to `upto`; None: all that follow.

    `rows`: as last counted. `tried_at`, `verified_at` (UTC): when it was last compared, and last compared
    conclusively; None: never. `differences`: keys that differed in that comparison, whose id is `run`.
    """

    upto: int | None = None
    rows: int = 0
    tried_at: datetime | None = None
    verified_at: datetime | None = None
    differences: int = 0
    run: str | None = None


class Piece(_Part):
    """Keys of a table to compare, after `after` up to `upto`, with the number of their rows in the lake."""

    after: int | None = None
    upto: int | None = None
    rows: int = 0


class Asked(_Part):
    """A piece of a table that the agent was asked to read, in these ranges; without any: the whole table."""

    request: str
    table: TableName
    at: datetime
    piece: Piece = Piece()
    ranges: list[Ends] = Field(default_factory=list)


class Verified(_Part):
    """A lake's record: each table's ranges, and what is being read. `began_at`: start of the last run."""

    format: int = FORMAT
    lake: str
    number: int = 0
    began_at: datetime | None = None
    tables: dict[TableName, list[VerifiedRange]] = Field(default_factory=dict)
    asked: list[Asked] = Field(default_factory=list)

    def changed(self, **fields: object) -> Verified:
        """Return a copy with some fields changed."""
        return self.model_copy(update=fields)

    def naming(self, tables: Collection[TableName]) -> Verified:
        """Return the record restricted to these tables; new ones have never been verified."""
        return self.changed(tables={name: self.tables.get(name) or [VerifiedRange()] for name in tables})

    def differing_pieces(self) -> list[tuple[TableName, Piece]]:
        """List the ranges whose keys differed when last compared."""
        return [
            (name, piece)
            for name in self.tables
            for range_, piece in self._pieces(name)
            if range_.differences
        ]

    def by_age(self) -> list[tuple[TableName, Piece]]:
        """List all ranges, those tried longest ago or never first."""
        found = [
            (r.tried_at or NEVER, name, piece) for name in self.tables for r, piece in self._pieces(name)
        ]
        return [(name, piece) for _, name, piece in sorted(found, key=lambda each: each[0])]

    def _pieces(self, table: TableName) -> Iterator[tuple[VerifiedRange, Piece]]:
        after = None
        for range_ in self.tables[table]:
            yield range_, Piece(after=after, upto=range_.upto, rows=range_.rows)
            after = range_.upto

    def counted(self, table: TableName, piece: Piece, rows: int) -> Verified:
        """Return the record with the row count of one of its ranges."""
        ranges = [
            range_.model_copy(update={"rows": rows}) if range_.upto == piece.upto else range_
            for range_ in self.tables[table]
        ]
        return self.changed(tables={**self.tables, table: ranges})

    def tried(
        self, table: TableName, piece: Piece, at: datetime, found: int | None = None, run: str | None = None
    ) -> Verified:
        """Return the record after a piece of a table was compared; `found` None: inconclusive.

        The rest of a range that the piece covers partly keeps what is known of the range, except its row
        count. After an inconclusive comparison, the piece keeps what is known of the range within it that was
        verified longest ago. A table that was removed from the record meanwhile stays removed.
        """
        if table not in self.tables:
            return self
        before: list[VerifiedRange] = []
        after: list[VerifiedRange] = []
        inside: list[VerifiedRange] = []
        for range_, whole in self._pieces(table):
            rest = {"rows": max(0, range_.rows - piece.rows)}
            if _from(whole.after) < _from(piece.after):
                cut = _from(piece.after) < _to(whole.upto)
                before.append(range_.model_copy(update={"upto": piece.after, **rest}) if cut else range_)
            if _to(whole.upto) > _to(piece.upto):
                cut = _from(whole.after) < _to(piece.upto)
                after.append(range_.model_copy(update=rest) if cut else range_)
            if _from(whole.after) < _to(piece.upto) and _from(piece.after) < _to(whole.upto):
                inside.append(range_)
        new: dict[str, object] = {"upto": piece.upto, "rows": piece.rows, "tried_at": at}
        if found is not None:
            new |= {"verified_at": at, "differences": found, "run": run if found else None}
        known = min(inside, key=lambda range_: range_.verified_at or NEVER)
        ranges = [*before, known.model_copy(update=new), *after]
        return self.changed(tables={**self.tables, table: _joined(ranges)})

    @property
    def rows(self) -> int:
        """Return the number of rows of all ranges that have been counted."""
        return sum(range_.rows for ranges in self.tables.values() for range_ in ranges)

    def share_since(self, since: datetime) -> float | None:
        """Return the share of the counted rows that were verified since then; None if there are none."""
        ranges = (range_ for ranges in self.tables.values() for range_ in ranges)
        verified = sum(range_.rows for range_ in ranges if (range_.verified_at or NEVER) >= since)
        return verified / self.rows if self.rows else None

    def uncounted(self) -> list[TableName]:
        """List the tables whose rows were never counted."""
        return [name for name, ranges in self.tables.items() if ranges == [VerifiedRange()]]

    def never(self) -> list[TableName]:
        """List the tables with rows that have never been verified."""
        return [n for n, ranges in self.tables.items() if any(r.verified_at is None for r in ranges)]

    def oldest(self) -> datetime | None:
        """Return when the longest-unverified range was verified; None if one never was, or there is none."""
        found = [range_.verified_at or NEVER for ranges in self.tables.values() for range_ in ranges]
        oldest = min(found, default=NEVER)
        return None if oldest == NEVER else oldest

    def differing(self) -> dict[TableName, int]:
        """Return how many keys differed in each table when they were last verified, if any did."""
        found = {name: sum(r.differences for r in ranges) for name, ranges in self.tables.items()}
        return {name: count for name, count in found.items() if count}


def _from(after: int | None) -> float:
    return -math.inf if after is None else after


def _to(upto: int | None) -> float:
    return math.inf if upto is None else upto


def _joined(ranges: Iterable[VerifiedRange]) -> list[VerifiedRange]:
    """Join neighbors that differ only in keys and rows, if their last comparison found no difference."""
    joined: list[VerifiedRange] = []
    for range_ in ranges:
        same = {"upto": range_.upto, "rows": range_.rows}
        alike = joined and joined[-1].tried_at and not joined[-1].differences
        if alike and joined[-1].model_copy(update=same) == range_:
            rows = joined.pop().rows + range_.rows
            joined.append(range_.model_copy(update={"rows": rows}))
        else:
            joined.append(range_)
    return joined


def verified_path(lake: str, number: int) -> str:
    """Return the path of the record of this number of the lake with this id."""
    return f"{CONSUMERS}/{encode(lake)}/{PREFIX}{number % 2}.json"


def is_verified(path: str) -> bool:
    """Return whether an object among the consumers is such a record, or part of one."""
    return "".join(path.split("/")[2:3]).startswith(PREFIX)


def newest_verified(texts: Iterable[tuple[str, str | bytes]]) -> Verified | None:
    """Parse records, each with its name, and return the newest; None if there are none.

    `FormatError` if one is not a record. A partial record is never seen: Spark shows only complete objects.
    """
    found = [_parsed(name, text) for name, text in texts if text]
    return max(found, key=lambda record: record.number, default=None)


def read_verified(store: Store) -> list[Verified]:
    """Return the records of all lakes, by name."""
    texts: dict[str, list[tuple[str, bytes]]] = {}
    for path in store.list(f"{CONSUMERS}/"):
        parts = path.split("/")
        hidden = any(part.startswith(("_", ".")) for part in parts)
        if not hidden and is_verified(path) and (data := store.read(path)):
            texts.setdefault(parts[1], []).append((f"{store.url}/{path}", data))
    records = (newest_verified(found) for found in texts.values())
    return sorted((record for record in records if record), key=lambda record: record.lake)


def _parsed(name: str, text: str | bytes) -> Verified:
    try:
        record = Verified.model_validate_json(text)
    except ValidationError as error:
        raise FormatError(
            f"{name} is not a record of verification: {error.errors()[0]['msg']}",
            hint="remove it: what was verified is then verified again",
        ) from error
    if record.format > FORMAT:
        raise FormatError(
            f"{name} has format {record.format}; this deltatide reads formats up to {FORMAT}",
            hint="upgrade deltatide where it reads this landing zone",
        )
    return record
