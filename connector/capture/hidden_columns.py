"""Withholds rows of tables that hide columns, unless it is certain which columns they have.

The log names the columns of a row, and masks go by these names. Only the catalog has what stays with a column
when its name passes to another: its number. It shows that at moments, whose position in the log is not that
of the rows. So a row's columns are those of a check of the catalog only as far as this follows from what the
row's description, the check before and the check after have in common.

Invariant: of a table that masks or leaves out columns, a row lands only if each of these columns has one
place in the row's layout, by the checks before and after it, and there the name that one of them shows; or
if its dump has read the numbers itself. Logged rows of a table that the check after does not show never do.

A hidden column may have come after the check before, and have another name by the check after. So each of
the columns that came meanwhile may be one whose name only the log shows, and its names stay known.

What does not land is withheld with its whole manifest's rows of that table: the next check queues a dump of
it, or it is no longer captured. Nobody has to do anything, and until then no cut is exact.

Numbers grow and are never used again, and columns are in their order. So between two checks a column has at
most as many columns on its left as before, and at least as many as after; on its right at least those that
both have::

    before: id 1, a 2, ssn 3      after: id 1, ssn 3
    id, ssn                       ssn is 3
    id, a, ssn                    3 may be ssn or a: a was dropped, 3 became a, and a new ssn came and went
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from connector.capture.dumps.queue import DumpQueue
from connector.capture.dumps.tasks import FinishedChunk
from connector.capture.lander import LandedSegment
from connector.capture.tables import Tables
from connector.config import Config, TableConfig
from connector.errors import TableError
from connector.landing.column_names import ColumnNames, table_of
from connector.landing.manifest import InvisibleCommit, Manifest
from connector.logged_table import LoggedTable
from connector.masking.columns import check_renamed
from connector.schema import TableName, fold, folded
from connector.source import Source

log = logging.getLogger(__name__)

WITHHELD = "rows did not land, since columns that it masks or leaves out may have had another name"


class HiddenColumns:
    """Judges what is about to be committed. Used by the capture loop's thread.

    A description stays in question until it is certain, since the log may not repeat it; or until log has
    landed up to a check that shows it, and all changes that checks have seen. From there on the log describes
    the table as the check shows it, or again.
    """

    def __init__(self, source: Source, tables: Tables, dumps: DumpQueue) -> None:
        self._source, self._tables, self._dumps = source, tables, dumps
        self._in_question: dict[TableName, LoggedTable] = {}

    def withhold(
        self,
        landed: LandedSegment,
        chunks: Sequence[FinishedChunk],
        newest: Manifest,
        invisible: Collection[InvisibleCommit],
        config: Config,
    ) -> None:
        """Drop rows that must not land from `landed`, and dumps that have read such; may check the catalog.

        `newest`: up to which log has landed. `invisible`: commits that a check need not show. What may fail
        comes before any change.
        """
        self._tables.note_landed(newest.position)
        self._forget_landed(newest.position)
        described = self._described(landed, chunks, config)
        layouts = [s for s, _ in landed.layouts]
        layouts += [c.schema for c in chunks if c.task.dump.kind != "checksums"]
        may_rename = self._tables.may_rename(layouts, landed.position)
        if not (described or may_rename):
            return
        if may_rename or self._needs_check(described, config):
            self._tables.note_names(self._source.check_catalog(self._tables.fingerprints()))
        unseen = {commit.lsn for commit in invisible}
        for table, some in described.items():
            self._note_hidden_between(some, config)
            uncertain = [
                each
                for each in some
                if not self._is_certain(each, config) or (each.lsn in unseen and not each.numbers)
            ]
            self._keep_in_question(table, some, uncertain)
            if uncertain and self._tables.states[table].state == "captured":
                self._drop(uncertain, landed, newest.number + 1)

    def _forget_landed(self, position: int) -> None:
        """Drop descriptions in question that no row after a position has, or only as checks show them."""
        seen_at, states = self._tables.names_seen_at, self._tables.states
        for table, each in list(self._in_question.items()):
            names = states[table].column_names if table in states else None
            is_pending = names is not None and (names.earlier or names.upto)
            if each.lsn < seen_at <= position and self._tables.shows(each.xid) and not is_pending:
                del self._in_question[table]

    def _described(
        self, landed: LandedSegment, chunks: Iterable[FinishedChunk], config: Config
    ) -> dict[TableName, list[LoggedTable]]:
        """Return how tables that hide columns are described, those still in question first."""
        written = {file.table for file in landed.files}
        logged = [each for table, each in self._in_question.items() if table in written]
        logged += [each for each in landed.logged if not each.former]
        logged += [each for chunk in chunks for each in chunk.read_from]
        found: dict[TableName, list[LoggedTable]] = {}
        for each in logged:
            if each.columns and self._hides(each.table, config):
                found.setdefault(each.table, []).append(each)
        return found

    def _hides(self, table: TableName, config: Config) -> bool:
        """Return whether a table lands that hides columns which have numbers."""
        state, settings = self._tables.states.get(table), config.table(table)
        hides = bool(settings.mask or settings.exclude_columns)
        return hides and bool(state and state.state == "captured" and _ids(state.column_names))

    def _needs_check(self, described: Mapping[TableName, Sequence[LoggedTable]], config: Config) -> bool:
        """Return whether the last check may not show what rows are of, or a dump has read other numbers."""
        every = [each for some in described.values() for each in some]
        if any(each in self._in_question.values() for each in every):
            return True
        return any(
            not self._is_certain(each, config) or bool(self._hidden_between(each, config))
            if each.numbers
            else each.lsn >= self._tables.names_seen_at or not self._tables.shows(each.xid)
            for each in every
        )

    def _hidden_between(self, each: LoggedTable, config: Config) -> dict[int, set[str]]:
        """Return hidden names that no check has shown, by the ids of columns that may have had them.

        In a dump, that is the column with this number; in the log, any that came between the two checks, and
        of a table that came itself, any but those of the key, which can't be hidden.
        """
        state, settings = self._tables.states[each.table], config.table(each.table)
        names = state.column_names
        if names is None or table_of(names.ids.values()) != each.id:
            return {}
        hidden = folded([*settings.mask, *settings.exclude_columns]).intersection(folded(each.columns))
        if each.numbers:
            pairs = zip(map(fold, each.columns), each.numbers, strict=True)
            had = {id_: {name} & hidden for name, id_ in pairs}
        else:
            before = names.before(each.id)
            unshown, passed = hidden - names.ids.keys() - before.keys(), () if before else folded(state.key)
            came = (id_ for name, id_ in names.ids.items() if name not in passed)
            had = {id_: unshown for id_ in came if id_ not in before.values()}
        shown = {id_: {name, *names.others_of(name)} for name, id_ in names.ids.items()}
        return {id_: new for id_, its in had.items() if (new := its - shown.get(id_, set()))}

    def _note_hidden_between(self, described: Iterable[LoggedTable], config: Config) -> None:
        """Remember such names. Quarantines a table in which such a column would land unmasked."""
        for each in described:
            if not (had := self._hidden_between(each, config)):
                continue
            names = (self._tables.states[each.table].column_names or ColumnNames()).had(had)
            self._tables.update(each.table, column_names=names)
            try:
                for name in (name for name, id_ in names.ids.items() if id_ in had):
                    check_renamed(each.table, config.table(each.table), name, sorted(names.others_of(name)))
            except TableError as error:
                self._tables.quarantine_unfit(error, each.lsn)

    def _is_certain(self, each: LoggedTable, config: Config) -> bool:
        """Return whether each hidden column may have just one name in a description, and that is shown."""
        names, settings = self._tables.states[each.table].column_names, config.table(each.table)
        if names is None:
            return False
        after, earlier = names.ids, names.earlier or names.ids
        shows = each.table in self._tables.numbered and table_of(after.values()) == each.id
        if not (each.numbers or shows):
            return False
        before = earlier if table_of(earlier.values()) == each.id else {}
        for id_ in _hidden(names, before, settings):
            may_have = _names_of(id_, each, before.values(), after.values())
            shown = {name for ids in (before, after) for name, its in ids.items() if its == id_}
            if may_have is None or len(may_have) > 1 or not may_have <= {*shown, *folded(settings.unmasked)}:
                return False
        return True

    def _keep_in_question(
        self, table: TableName, described: Sequence[LoggedTable], uncertain: Sequence[LoggedTable]
    ) -> None:
        was_in_question = table in self._in_question
        last = next((each for each in reversed(described) if not each.dumped), None)
        if last is not None:  # a chunk alone says nothing of the rows that follow in the log
            self._in_question.pop(table, None)
            if last in uncertain:
                self._in_question[table] = last
        if uncertain and not was_in_question:
            log.warning("%s: %s", table, WITHHELD)

    def _drop(self, uncertain: Sequence[LoggedTable], landed: LandedSegment, number: int) -> None:
        """Drop a table's rows, and have it dumped.

        A dump that has read nothing uncertain goes on, and the next one waits for it: otherwise, if rows are
        withheld more often than dumps finish, none would ever end. A verification would miss the rows.
        """
        table, position = uncertain[0].table, landed.position
        loses_rows = any(file.table == table for file in landed.files)
        landed.files = [file for file in landed.files if file.table != table]
        landed.layouts = [found for found in landed.layouts if found[0].table != table]
        landed.logged.append(replace(uncertain[0], lsn=position, dumped=False, withheld=True))
        has_read = any(each.dumped for each in uncertain)
        for dump in self._dumps.active_of(table):
            if dump.state != "waiting" and (has_read or dump.verifies):
                self._dumps.end(dump, "cancelled", WITHHELD)
        if not self._tables.has_key(table):
            if loses_rows:  # no dump brings them back
                self._tables.notice(table, "gap", WITHHELD)
            return
        is_waiting = self._dumps.require(table, position, None)
        if self._tables.states[table].fingerprint is None and not is_waiting:  # else the next check adds one
            self._dumps.add(table, manifest=number, reason="repair", floor=position)


def _names_of(
    id_: int, each: LoggedTable, before: Collection[int], after: Collection[int]
) -> set[str] | None:
    """Return the names that a column may have in a description; None if that does not fit the checks."""
    columns = [fold(name) for name in each.columns]
    if each.numbers:
        return {name for name, number in zip(columns, each.numbers, strict=True) if number == id_}
    places = places_of(id_, len(columns), before, after)
    return {columns[place] for place in places} if places or id_ not in after else None


def places_of(id_: int, columns: int, before: Collection[int], after: Collection[int]) -> range:
    """Return the places that a column may have had among so many, between two checks that show these ids.

    Empty if it can't have been there, or the checks don't fit together.
    """
    left, most_left = sum(other < id_ for other in after), sum(other < id_ for other in before)
    right = sum(other > id_ for other in {*before} & {*after})
    return range(left, min(most_left, columns - 1 - right) + 1)


def _ids(names: ColumnNames | None) -> Mapping[str, int]:
    return names.ids if names is not None else {}


def _hidden(names: ColumnNames, earlier: Mapping[str, int], settings: TableConfig) -> list[int]:
    """Return the ids of the columns that were masked or left out under one of their names."""
    hidden = folded([*settings.mask, *settings.exclude_columns])
    return [
        id_
        for name, id_ in earlier.items()
        if not hidden.isdisjoint({name, *names.renamed.get(str(id_), ())})
    ]
