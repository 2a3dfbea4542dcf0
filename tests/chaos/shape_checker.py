"""Compares the other shapes of a table, its changes and its history, with what they must hold at a cut.

The rules need no list of what should be there:

- `counters` only grow by one, so the changes of each, in the order of their positions, are a run of numbers
  that ends at the cut's; so are the versions of its history. After a crash of a server that may have lost
  log, a row that is dumped again begins a version, changed or not.
- What a key's last change makes of it is the row of the cut, or that there is none.
- A key's versions lie one after the other, and the open ones are the rows of the cut.
- Each insert and update among the changes begins a version, at its position, and nothing else that was seen.

What was there before is still there: a run begins at the same number at each cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from tests.chaos.writers import COLUMNS, KEYS, Key, Row

SHAPED = ("counters", "notes")
"""The tables that the lake keeps in all shapes: one that is only updated, and one with everything else."""

Place = tuple[int, int, int]


class Change(NamedTuple):
    """A landed change; `unchanged`: columns that it does not carry."""

    at: Place
    op: str
    unchanged: tuple[str, ...]
    row: Row


class Version(NamedTuple):
    """A version of a row. `seen`: whether a log event began it; `until` None: it is open."""

    since: Place
    seen: bool
    until: Place | None
    row: Row


class ShapeChecker:
    """Checks changes and history of one table, cut after cut, each a later one."""

    def __init__(self, table: str) -> None:
        self.table = table
        self._columns, self._key = COLUMNS[table], KEYS[table]
        self._begun: dict[Key, Any] = {}

    def wrong(self, changes: list[Change], versions: list[Version], rows: Mapping[Key, Row]) -> Iterator[str]:
        """Yield what is wrong at a cut whose rows are these."""
        changed = self._by_key(sorted(changes, key=lambda change: change.at))
        kept = self._by_key(sorted(versions, key=lambda version: version.since))
        if len({change.at for change in changes}) < len(changes):
            yield "a change is there twice"
        for key, found in changed.items():
            yield from self._wrong_end(key, found[-1], rows.get(key))
        for key, line in kept.items():
            yield from self._wrong_line(key, line)
        yield from self._wrong_open(versions, rows)
        yield from self._wrong_beginnings(changes, versions)
        if self.table == "counters":
            yield from self._wrong_runs("changes", changed)
            yield from self._wrong_runs("history", kept)

    def _by_key(self, found: Iterable[Any]) -> dict[Key, list[Any]]:
        by_key: dict[Key, list[Any]] = defaultdict(list)
        for each in found:
            by_key[each.row[: self._key]].append(each)
        return by_key

    def _wrong_end(self, key: Key, last: Change, row: Row | None) -> Iterator[str]:
        if last.op == "delete":
            if row is not None:
                yield f"the last change of {key} is a delete, but the row is there"
        elif row is None:
            yield f"the last change of {key} is an {last.op}, but there is no row"
        else:
            for name, value, wanted in zip(self._columns, last.row, row, strict=True):
                if name not in last.unchanged and value != wanted:
                    yield f"the last change of {key} sets {name} to {value!r:.40}, the row has {wanted!r:.40}"

    @staticmethod
    def _wrong_line(key: Key, line: list[Version]) -> Iterator[str]:
        for one, next_ in pairwise(line):
            if one.until is None or one.until > next_.since:
                yield f"a version of {key} from {one.since} lasts beyond the next, from {next_.since}"

    def _wrong_open(self, versions: list[Version], rows: Mapping[Key, Row]) -> Iterator[str]:
        open_ = {version.row[: self._key]: version.row for version in versions if version.until is None}
        for key in sorted({*open_, *rows}, key=repr):
            if open_.get(key) != rows.get(key):
                yield f"the open version of {key} is {open_.get(key)!r:.80}, the row {rows.get(key)!r:.80}"

    @staticmethod
    def _wrong_beginnings(changes: list[Change], versions: list[Version]) -> Iterator[str]:
        begins = {change.at for change in changes if change.op in ("insert", "update")}
        seen = {version.since for version in versions if version.seen}
        for at in sorted(begins - seen):
            yield f"the change at {at} begins no version"
        for at in sorted(seen - begins):
            yield f"a version begins at {at}, where no change is"

    def _wrong_runs(self, shape: str, found: Mapping[Key, list[Any]]) -> Iterator[str]:
        for key, line in found.items():
            for one, next_ in pairwise(line):
                again = isinstance(next_, Version) and not next_.seen and next_.row == one.row
                if next_.row[1] != one.row[1] + 1 and not again:
                    yield f"{shape} of {key}: {next_.row[1]} follows {one.row[1]}"
            first = line[0].row[1]
            begun = self._begun.setdefault((shape, *key), first)
            if first != begun:
                yield f"{shape} of {key} begin with {first}, and began with {begun}"
