"""Withholds rows of tables that hide columns, unless it is certain which columns they have.

The log names the columns of a row, and masks go by these names. Only the catalog has what stays with a
column when its name passes to another: its number, and a version that each ALTER of the column changes. A
look at the catalog shows both at a moment whose position in the log is not that of the rows. But looks show
transactions and ALTERs in their order (`connector.capture.column_looks`). So between two looks that show a
column with the same name, number and version, the log has that name for that column alone.

Invariant: of a table that masks or leaves out columns, rows land only if each name under which values would
land as they are is proven: in the log, by the look before and the look after the rows; in a dump, which reads
the numbers itself, by the last look, or by the one before if none has shown the column hidden. Logged rows
with other names land, too, if the table is in the catalog still, and no hidden column without a proven name
may be at their places (`connector.landing.column_names.Places`): then they are of columns that no look has
shown hidden. A table that was replaced and came back has no proven names until log up to then has landed: the
look before is that of the other table.

A hidden name that the log or a look has had in between, and the last look has not, may be that of a column
that came meanwhile. Until log has landed up to that look, it counts as a hidden column without a proven name.
In the log, the places of a description leave only some columns that may have been the one under that name, or
one alone (`connector.landing.column_names.Places`): that they may have had it stays known.

Rows wait in the landing zone, without a manifest, while a look does not show their transaction yet: it waits
for a synchronous standby. Log is read and landed on meanwhile; after `WAIT_SECONDS` they are withheld.

What does not land is withheld with its whole manifest's rows of that table: the next check queues a dump of
it, or it is no longer captured. Nobody has to do anything, and until then no cut is exact.

Example, where `ssn` is masked::

    before                 after                  description
    id 1, a 2, ssn 3       id 1, ssn 3            id, a, ssn: lands, unless 3 was altered: it may have been a
    id 1, ssn 2, note 3    id 1, note 2           id, note: does not land, as note may be 2; id, ssn: lands
    id 1, ssn 2, note 3    as before, all altered id, ssn, note, b: lands, as 2 is at its place
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from connector.capture.dumps.queue import DumpQueue
from connector.capture.dumps.tasks import FinishedChunk
from connector.capture.lander import LandedSegment
from connector.capture.tables import Tables, has_ids
from connector.config import Config, TableConfig
from connector.errors import TableError
from connector.landing.column_names import IDS_PER_TABLE, ColumnNames, table_of
from connector.landing.manifest import Manifest
from connector.logged_table import LoggedTable
from connector.masking.columns import check_renamed
from connector.schema import TableName, fold, folded
from connector.source import Source

log = logging.getLogger(__name__)

WITHHELD = "rows did not land, since columns that it masks or leaves out may have had another name"

WAIT_SECONDS = 30.0
"""How long all log waits for a description to become visible: a standby restarts in less."""

MOST_SECONDS = 60.0
"""The longest time without a manifest, however many descriptions come one after another."""

LOOK_SECONDS = 0.2
"""How often to look meanwhile."""


class HiddenColumns:
    """Judges what is about to be committed. Used by the capture loop's thread.

    A table's last description stays in question until it is certain, since the log may not repeat it; or
    until log has landed up to a look that shows it, and its table, and all changes that looks have seen. From
    there on the log describes the table as the look shows it, or again. Only one whose name outlives a rename
    (`LoggedTable.keeps_name`) may be used until the log is opened again, if another table has that name.

    So do those before it that no look shows yet: they may have a hidden name of a column that came with their
    transaction. Once a look shows them, that is noted before they are forgotten, and before a chunk lands.

    Quarantined tables are judged, too, but hold nothing back: once one is released, rows land that were read
    before, under a description from before.
    """

    def __init__(
        self,
        source: Source,
        tables: Tables,
        dumps: DumpQueue,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._tables, self._dumps, self._clock = source, tables, dumps, clock
        self._in_question: dict[TableName, list[LoggedTable]] = {}
        self._unseen_since: dict[LoggedTable, float] = {}
        self._look_again = 0.0
        self._waits_since: float | None = None
        self._epoch = 0

    def withhold(
        self, landed: LandedSegment, chunks: Sequence[FinishedChunk], newest: Manifest, config: Config
    ) -> bool:
        """Drop rows that must not land from `landed`, and dumps that have read such; may look at the catalog.

        `newest`: up to which log has landed. Return whether `landed` may be committed; if not, nothing has
        been dropped, and it may soon, or with what has landed by then. What may fail comes before any change.
        """
        if self._clock() < self._look_again:
            return False
        if newest.epoch != self._epoch:  # no position tells when those of another one are shown
            self._epoch, self._in_question = newest.epoch, {}
        for each in (each for some in self._in_question.values() for each in some):
            self._note_had(each, config)
        self._tables.note_landed(newest.position)
        self._forget_landed(newest.position)
        described = self._described(landed, chunks, config)
        layouts = [s for s, _ in landed.layouts]
        layouts += [c.schema for c in chunks if c.task.dump.kind != "checksums"]
        concerned = {table for table, some in described.items() if self._needs_look(some, config)}
        concerned |= self._tables.may_rename(layouts, landed.position)
        if concerned:
            self._tables.note_names(self._source.look_at_columns(concerned), concerned)
        if self._must_wait(described):
            self._look_again = self._clock() + LOOK_SECONDS
            return False
        for table, some in described.items():
            self._note_hidden_between(some, config)
            uncertain, before = self._uncertain(some, config), self._in_question.get(table, [])
            self._keep_in_question(table, some, uncertain)
            if all(file.table != table for file in landed.files):  # nothing is under one from before
                uncertain = [each for each in uncertain if each not in before]
            if uncertain and self._lands(table):
                self._drop(uncertain, landed, newest.number + 1)
        return True

    def log_opened(self) -> None:
        """Forget descriptions under names that other tables have by now: the log describes all anew."""
        for table, some in list(self._in_question.items()):
            self._set_in_question(table, [each for each in some if not self._outlives_name(each)])

    def _must_wait(self, described: Mapping[TableName, Sequence[LoggedTable]]) -> bool:
        """Return whether a transaction that has described a table may be visible soon; each may be late once.

        The time counts from its first look, also if the log is opened again meanwhile.
        """
        now = self._clock()
        logged = [e for table, some in described.items() if self._lands(table) for e in some if not e.numbers]
        logged = [each for each in logged if each not in self._in_question.get(each.table, ())]
        unseen = [each for each in logged if not self._tables.looks.tells_of(each)]
        self._unseen_since = {each: self._unseen_since.get(each, now) for each in unseen}
        waits = any(now < since + WAIT_SECONDS for since in self._unseen_since.values())
        since = now if self._waits_since is None else self._waits_since
        self._waits_since = since if waits and now < since + MOST_SECONDS else None
        return self._waits_since is not None

    def _forget_landed(self, position: int) -> None:
        """Drop descriptions in question that no row after a position has, or only as looks show them."""
        looks = self._tables.looks
        for table, some in list(self._in_question.items()):
            last = looks.last(table)
            if table not in self._tables.states:
                self._set_in_question(table, [])
            elif last.begun <= position and last.ids.get(table) and not self._names(table).upto:
                some = [each for each in some if not looks.tells_of(each) or self._outlives_name(each)]
                self._set_in_question(table, some)

    def _outlives_name(self, each: LoggedTable) -> bool:
        """Return whether the log may go on with a description though another table has its name by now."""
        ids = self._tables.looks.last(each.table).ids.get(each.table, {})
        return each.keeps_name and table_of(ids.values()) != each.id

    def _described(
        self, landed: LandedSegment, chunks: Iterable[FinishedChunk], config: Config
    ) -> dict[TableName, list[LoggedTable]]:
        """Return how tables that hide columns are described, those still in question first."""
        written = {file.table for file in landed.files} | {chunk.task.dump.table for chunk in chunks}
        logged = [each for table, some in self._in_question.items() if table in written for each in some]
        logged += [each for each in landed.logged if not each.former]
        logged += [each for chunk in chunks for each in chunk.read_from]
        found: dict[TableName, list[LoggedTable]] = {}
        for each in logged:
            if each.columns and self._hides(each.table, config):
                found.setdefault(each.table, []).append(each)
        return found

    def _hides(self, table: TableName, config: Config) -> bool:
        """Return whether a table hides columns which have numbers."""
        state = self._tables.states.get(table)
        return bool(state and has_ids(state) and _hidden(config.table(table)))

    def _lands(self, table: TableName) -> bool:
        return self._tables.states[table].state == "captured"

    def _names(self, table: TableName) -> ColumnNames:
        state = self._tables.states.get(table)
        return (state.column_names if state is not None else None) or ColumnNames()

    def _needs_look(self, described: Iterable[LoggedTable], config: Config) -> bool:
        """Return whether the last look may not tell what rows are of, or a dump has read other numbers."""
        return any(
            not self._is_certain(each, config) or bool(self._hidden_between(each, config))
            if each.numbers
            else each in self._in_question.get(each.table, ()) or not self._is_told(each)
            for each in described
        )

    def _hidden_between(self, each: LoggedTable, config: Config) -> dict[int, set[str]]:
        """Return hidden names that no look has shown, by the ids of columns that may have had them.

        In a dump, that is the column with this number; in the log, see `_had_in_log`.
        """
        names, hidden = self._names(each.table), _hidden(config.table(each.table))
        if table_of(names.ids.values()) != each.id:
            return {}
        if each.numbers:
            pairs = zip(map(fold, each.columns), each.numbers, strict=True)
            had = {id_: {name} & hidden for name, id_ in pairs}
        else:
            key = folded(self._tables.states[each.table].key)
            had = _had_in_log(each, names, hidden, key) if self._is_told(each) else {}
        looks = names.earlier, names.ids
        shown = {id_: {name, *names.names_of(id_)} for ids in looks for name, id_ in ids.items()}
        return {id_: new for id_, its in had.items() if (new := its - shown.get(id_, set()))}

    def _note_hidden_between(self, described: Iterable[LoggedTable], config: Config) -> None:
        for each in described:
            self._note_met(each, config)
            self._note_had(each, config)

    def _note_had(self, each: LoggedTable, config: Config) -> None:
        """Remember such names by columns. Quarantines a table in which such a column would land unmasked."""
        if not (had := self._hidden_between(each, config)):
            return
        names = self._names(each.table).had(had)
        self._tables.update(each.table, column_names=names)
        try:
            for name in (name for name, id_ in names.ids.items() if id_ in had):
                check_renamed(each.table, config.table(each.table), name, sorted(names.others_of(name)))
        except TableError as error:
            self._tables.quarantine_shown(error, each.lsn)

    def _note_met(self, each: LoggedTable, config: Config) -> None:
        """Remember hidden names in the log that no look has shown, also if no column came."""
        names = self._names(each.table)
        shown = {*names.ids, *names.before(each.id)}
        met = _hidden(config.table(each.table)).intersection(folded(each.columns)) - shown
        if met and not each.numbers and table_of(names.ids.values()) == each.id:
            upto = self._tables.looks.last(each.table).position
            self._tables.update(each.table, column_names=names.meeting(met, upto))

    def _uncertain(self, described: Iterable[LoggedTable], config: Config) -> list[LoggedTable]:
        return [each for each in described if not self._is_certain(each, config)]

    def _is_certain(self, each: LoggedTable, config: Config) -> bool:
        """Return whether no value of a hidden column can be under a name that lands as it is."""
        is_told = bool(each.numbers) or self._is_told(each)
        return is_told and may_land(each, self._names(each.table), config.table(each.table))

    def _is_told(self, each: LoggedTable) -> bool:
        """Return whether the last look shows the table and transaction of a description in the log."""
        looks = self._tables.looks
        its = looks.last(each.table).ids.get(each.table, {})
        return looks.tells_of(each) and table_of(its.values()) == each.id

    def _keep_in_question(
        self, table: TableName, described: Sequence[LoggedTable], uncertain: Sequence[LoggedTable]
    ) -> None:
        was_in_question = table in self._in_question
        logged = [each for each in described if not each.dumped]
        if logged:  # a chunk alone says nothing of the rows that follow in the log
            last, tells_of = logged[-1], self._tables.looks.tells_of
            others = {each.columns: each for each in logged if each.columns != last.columns}
            untold = [each for each in others.values() if not tells_of(each)]
            self._set_in_question(table, [*untold, last] if last in uncertain else untold)
        if uncertain and not was_in_question and self._lands(table):
            log.warning("%s: %s", table, WITHHELD)

    def _set_in_question(self, table: TableName, described: Sequence[LoggedTable]) -> None:
        self._in_question.pop(table, None)
        if described:
            self._in_question[table] = list(described)

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


def may_land(each: LoggedTable, names: ColumnNames, settings: TableConfig) -> bool:
    """Return whether no value of a hidden column can be under a name that lands as it is.

    `names`: as of the look before and the look after.
    """
    shown = _landing_as_they_are(each.columns, settings)
    if each.numbers:
        read = {*zip(map(fold, each.columns), each.numbers, strict=True)}
        proven = names.ids.items() | _never_hidden(names.earlier, names, settings)
        return shown.isdisjoint(name for name, _ in read - proven)
    if each.id in names.left:
        return False
    columns, lasted = [fold(name) for name in each.columns], names.lasted(each.id)
    places, moved = names.places(each.id, columns), _moved(names, each.id, lasted.values(), settings)
    unproven = [place for place, name in enumerate(columns) if name in shown and name not in lasted]
    return not any(places.may_have(place, id_) for place in unproven for id_ in moved)


def _had_in_log(
    each: LoggedTable, names: ColumnNames, hidden: Collection[str], key: Collection[str]
) -> dict[int, set[str]]:
    """Return hidden names in a description by the ids of columns that may have had them.

    A name is that of a column that a look shows with it, if this may be at its place. Otherwise it may be any
    that came, or was altered, between the two looks, but not one that was there under another name of the
    description, nor of the key, which can't be hidden. Of a table that came itself meanwhile, it may be any.
    """
    columns, had = [fold(name) for name in each.columns], dict[int, set[str]]()
    places, before = names.places(each.id, columns), {} if names.first_upto else names.before(each.id)
    were = {*before.values()}
    lasted = {*names.lasted(each.id).values()} if before else set[int]()
    altered = {
        id_
        for ids in (before, names.ids)
        for name, id_ in ids.items()
        if id_ not in lasted and (name not in key or (before and id_ not in were))
    } - names.generated
    shown = [{ids[name] for ids in (names.before(each.id), names.ids) if name in ids} for name in columns]
    own = [{id_ for id_ in ids if places.may_have(place, id_)} for place, ids in enumerate(shown)]
    altered -= {id_ for ids in own if len(ids) == 1 for id_ in ids & were}
    for place, name in ((place, name) for place, name in enumerate(columns) if name in hidden):
        for id_ in (id_ for id_ in altered if not own[place] and places.may_have(place, id_)):
            had.setdefault(id_, set()).add(name)
    return had


def _never_hidden(ids: Mapping[str, int], names: ColumnNames, settings: TableConfig) -> set[tuple[str, int]]:
    """Return the columns that had a hidden name in no look, nor in the log."""
    return {(name, id_) for name, id_ in ids.items() if _hidden(settings).isdisjoint(names.names_of(id_))}


def _hidden(settings: TableConfig) -> set[str]:
    """Return the names of the columns that are masked or left out."""
    return folded([*settings.mask, *settings.exclude_columns])


def _landing_as_they_are(columns: Iterable[str], settings: TableConfig) -> set[str]:
    """Return those of a description's names under which values reach the lake, and nobody has said so."""
    names = folded(columns) - _hidden(settings) - folded(settings.unmasked)
    return names if settings.columns is None else names & folded(settings.columns)


def _moved(names: ColumnNames, table: int, lasted: Collection[int], settings: TableConfig) -> set[int]:
    """Return the columns that were hidden under one of their names and may have had another one since."""
    hidden, looks = _hidden(settings), names.before(table).items()
    shown = {id_ for name, id_ in looks if not hidden.isdisjoint({name, *names.names_of(id_)})}
    came = set() if hidden.isdisjoint(names.met) else {(table + 1) * IDS_PER_TABLE - 1}  # for any that came
    return (shown - {*lasted} - names.generated) | came
