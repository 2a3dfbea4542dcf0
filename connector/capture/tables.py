"""The captured tables: the schema of each as last landed, and which are quarantined.

Invariants:

- A table's schema follows the log: a layout is adopted when a manifest commits its first file, and an older
  layout never replaces a newer one (chunks may be committed late).
- Column names are remembered regardless of case, as the lake compares them: a dropped `note` that comes back
  as `Note` is the same column in the lake, with the old values.
- A table without a key (`shapes = ["changes"]`) has the log from here on and is never dumped: it counts as
  dumped from the start. Where other tables would be dumped again, it only gets a notice.
- A quarantined table lands nothing until a full dump of it is requested. That dump sees everything that did
  not land meanwhile (`DumpState.floor`), and sweeps leftover older rows.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from connector.capture.column_looks import ColumnLooks
from connector.capture.column_traits import ColumnTraits
from connector.capture.dumps.needs import DumpNeeds
from connector.config import Config, TableConfig
from connector.errors import TableError
from connector.landing.column_names import ColumnNames
from connector.landing.event_batch import QuarantineNotice, TableRedefined
from connector.landing.manifest import DumpState, LandedFile, Notice, TableState
from connector.logged_table import ColumnLook
from connector.masking.columns import check_renamed, landed_masked
from connector.position import Position
from connector.schema import TableComments, TableName, TableSchema, folded

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Repair:
    """A dump needed after a layout change: of the rows that hold a new column, or of all (None)."""

    table: TableName
    columns: tuple[str, ...] | None


@dataclass
class Tables:
    """All captured tables of a source. Used only by the capture loop's thread, except for `key`.

    `joined`: those that the log began to carry lately, and that no check of the catalog has seen since.
    `columns_keep_order`: see `Source.keeps_column_order`. `config`: its tables say what is `unmasked`.
    `comments_news`: comments have changed since the last `snapshot`. `former_names`: of the columns of tables
    that are no longer captured.
    """

    states: dict[TableName, TableState]
    schemas: dict[TableName, TableSchema]
    notices: list[Notice] = field(default_factory=list)
    joined: set[TableName] = field(default_factory=set)
    columns_keep_order: bool = False
    config: Config | None = None
    comments_news: bool = False
    former_names: dict[TableName, ColumnNames] = field(default_factory=dict)
    looks: ColumnLooks = field(default_factory=ColumnLooks)
    traits: ColumnTraits = field(default_factory=ColumnTraits)
    _adopted_at: dict[TableName, int] = field(default_factory=dict)
    _in_manifest: dict[TableName, TableState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._in_manifest = dict(self.states)

    def key(self, table: TableName) -> tuple[str, ...]:
        """Return the key columns of a captured table; `TableError` once it is no longer captured."""
        state = self.states.get(table)
        if state is None:
            raise TableError(table, "is no longer captured")
        return tuple(state.key)

    def add(self, schema: TableSchema) -> None:
        """Start capturing a table."""
        name, known = schema.table, self.states.get(schema.table)
        names = self.former_names.pop(name, None) if known is None else known.column_names
        self.states[name] = TableState(
            schema_id=schema.id, key=list(schema.key), dumped=not schema.key, column_names=names
        )
        self.schemas[name] = schema

    def has_key(self, table: TableName) -> bool:
        """Return whether a table's rows can be dumped; if not, only its changes land."""
        state = self.states[table]
        return bool(state.key) or state.schema_id is None

    def keep_only_changes(self, schema: TableSchema) -> bool:
        """Continue with a table's changes alone if so configured by now; return whether it is."""
        state = self.states.get(schema.table)
        if schema.key or state is None or not state.key:
            return False
        self.update(schema.table, key=[], schema_id=schema.id, dumped=state.state == "captured")
        self.schemas[schema.table] = schema
        self.notice(schema.table, "schema", "from here on only its changes are captured")
        return True

    def remove(self, table: TableName) -> None:
        """Stop capturing a table; if captured again, it is dumped again."""
        names = self.states.pop(table).column_names
        if names is not None and names.lasting != ColumnNames():
            self.former_names[table] = names
        self.schemas.pop(table, None)
        self.notice(table, "schema", "is no longer captured")

    def fingerprints(self) -> dict[TableName, str]:
        """Return the remembered fingerprints. May be called from any thread."""
        states = list(self.states.items())
        return {name: state.fingerprint for name, state in states if state.fingerprint is not None}

    def captured(self) -> list[TableName]:
        """Return the tables that land."""
        return [name for name, state in self.states.items() if state.state == "captured"]

    def adopt(self, schema: TableSchema, seen_at: int) -> Repair | None:
        """Adopt the layout of a file that is about to be committed, as of the lsn `seen_at`.

        Returns the dump that is needed if the change altered values without row events: a column that came
        with values (a default, a rename), a changed type, names that changed places, or a dropped column that
        is back, since the lake holds its old values. A changed key quarantines the table, as does a column
        that landed masked and would now land as it is, under another name.
        """
        name = schema.table
        state, known = self.states.get(name), self.schemas.get(name)
        if state is None or state.state == "quarantined":
            return None
        if state.schema_id == schema.id or seen_at < self._adopted_at.get(name, 0):
            self.schemas.setdefault(name, schema)
            return None
        if list(schema.key) != state.key:
            changed = key_changed(name, state.key, schema.key)
            self.quarantine(QuarantineNotice(name, seen_at, changed.reason, HINT))
            return None
        if self.quarantine_unmasked(schema, seen_at):
            return None
        self._adopted_at[name] = seen_at
        if not schema.before_images:
            self.note_before_images({name: None})
        self.update(name, schema_id=schema.id)
        self.schemas[name] = schema
        return self._repair_after(name, known, schema)

    def _repair_after(self, name: TableName, known: TableSchema | None, schema: TableSchema) -> Repair | None:
        before = {c.name: c for c in known.columns} if known else {}
        added = tuple(c.name for c in schema.columns if c.name not in before)
        dropped = sorted(before.keys() - {c.name for c in schema.columns})
        changed = [c.name for c in schema.columns if c.name in before and before[c.name].is_rewritten_as(c)]
        moved = self._renamed_among_themselves(list(before), [c.name for c in schema.columns])
        for verb, names in (
            ("added", added),
            ("dropped", dropped),
            ("changed type", changed),
            ("renamed or replaced", moved),
        ):
            if names:
                self.notice(name, "schema", f"columns {verb}: {', '.join(names)}")
        self._note_came(name, list(before), [c.name for c in schema.columns])
        once = folded([*self.states[name].dropped, *dropped])
        self.update(name, dropped=sorted(once - folded(added)))
        if not schema.key:
            return None
        if known is None or changed or moved or once & folded(added):
            return Repair(name, None)
        return Repair(name, added) if added else None

    def _renamed_among_themselves(self, before: Sequence[str], now: Sequence[str]) -> list[str]:
        """Return the columns of both layouts whose names moved to other columns, or came back at the end."""
        if not self.columns_keep_order:
            return []
        both = zip([n for n in before if n in now], [n for n in now if n in before], strict=True)
        return [new for old, new in both if old != new]

    def note_before_images(self, found: Mapping[TableName, str | None]) -> None:
        """Warn about tables whose before-images are no longer complete, with what to do; None: they are."""
        for table, hint in found.items():
            state = self.states.get(table)
            if state is None or state.state == "quarantined" or (state.hint is None) == (hint is None):
                continue
            self.update(table, reason=NOT_WHOLE if hint else None, hint=hint)
            if hint:
                log.warning("%s: %s (%s)", table, NOT_WHOLE, hint)
            self.notice(table, "schema", f"{NOT_WHOLE}: {hint}" if hint else "its before-images are whole")

    def begin_epoch(self, *, log_is_lost: bool) -> None:
        """Forget where layouts were seen: positions of different epochs can't be compared.

        Lost log may also have redefined tables. Without a loss, they are what they were.
        """
        self._adopted_at.clear()
        self.looks.forget()
        self.traits.forget()
        for table in self.states if log_is_lost else ():
            self.update(table, traits=None)
        self.note_landed(sys.maxsize)
        self.former_names = {table: its.landed(sys.maxsize) for table, its in self.former_names.items()}

    def note_columns(self, table: TableName, columns: Collection[str]) -> None:
        """Remember which columns are gone, as of a check of the catalog.

        If a column is dropped and added again while no row is written, no layout in the log shows it, and the
        lake still holds the old values.
        """
        state, known = self.states[table], self.schemas.get(table)
        before = [c.name for c in known.columns] if known else []
        once = folded([*state.dropped, *before])
        self.update(table, dropped=sorted(once - folded(columns)))

    def note_landed(self, position: int) -> None:
        """Forget the ids of columns that only log up to a position may have had."""
        for table, state in self.states.items():
            if (names := state.column_names) is not None and (now := names.landed(position)) is not names:
                self.update(table, column_names=now)

    def note_names(self, look: ColumnLook, among: Iterable[TableName] | None = None) -> None:
        """Remember the names of columns that a look at these tables, or all, has found.

        See `adopt` for masked ones. If a later look is known, only names remain of this one.
        """
        self.looks.note(look, self.states if among is None else among)
        for table in look.ids.keys() & self.states.keys():
            before, ids = self.states[table].column_names or ColumnNames(), look.ids[table]
            if self.looks.last(table) is look:
                versions, published = look.versions.get(table), look.published.get(table, 0)
                names = before.seen(ids, look.position, versions, published)
            else:
                names = before.seen_late(ids, self.looks.last(table).position)
            self.update(table, column_names=names)
            if not (table in self.schemas and self.quarantine_unmasked(self.schemas[table], look.begun)):
                self._quarantine_renamed(table, before, names, look.begun)

    def _quarantine_renamed(self, table: TableName, before: ColumnNames, now: ColumnNames, lsn: int) -> None:
        """Quarantine a table if a look has found a masked column, which may not have landed yet, renamed."""
        if (before.ids, before.renamed) == (now.ids, now.renamed):
            return
        settings = self.config.table(table) if self.config is not None else TableConfig()
        try:
            for name, others in ((name, now.others_of(name)) for name in now.ids):
                if (before.ids.get(name), before.others_of(name)) != (now.ids[name], others):
                    check_renamed(table, settings, name, sorted(others))
        except TableError as error:
            self.quarantine_shown(error, lsn)

    def quarantine_unmasked(self, schema: TableSchema, seen_at: int) -> bool:
        """Quarantine a table if a layout would show a column that has landed masked; return whether."""
        known, state = self.schemas.get(schema.table), self.states.get(schema.table)
        names = state.column_names if state is not None else None
        settings = self.config.table(schema.table) if self.config is not None else TableConfig()
        if known is None or names is None:
            return False
        shown = landed_masked(names, known, schema, settings)
        if shown is not None:
            self.quarantine_shown(shown, seen_at)
        return shown is not None

    def quarantine_shown(self, shown: TableError, lsn: int) -> None:
        """Quarantine a table; if it is, add this reason: whoever has it dumped must know what would land."""
        state = self.states[shown.table]
        if state.state == "quarantined" and shown.reason not in (state.reason or ""):
            hint = f"{shown.hint}; and {state.hint}"
            self.update(shown.table, reason=f"{shown.reason}; {state.reason}", hint=hint)
            self.notice(shown.table, "quarantined", shown.reason)
        self.quarantine_unfit(shown, lsn)

    def note_redefined(self, found: Iterable[TableRedefined], config: Config) -> None:
        """Remember which tables the log redefines, also quarantined ones, and the names given to columns.

        Quarantines a table in which a column that lands masked has been given the name of one that doesn't.
        """
        known = [each for each in found if each.table in self.states]
        self.traits.note_redefined(known)
        for table in {each.table for each in known}:
            self.update(table, traits=None)
        for each in (each for each in known if each.names):
            names = (self.states[each.table].column_names or ColumnNames()).told(each.names)
            self.update(each.table, column_names=names)
            try:
                for _, name in each.names:
                    check_renamed(each.table, config.table(each.table), name, names.told_of(name))
            except TableError as error:
                self.quarantine_shown(error, each.lsn)

    def _note_came(self, name: TableName, before: Collection[str], now: Collection[str]) -> None:
        """Remember which columns came while which were gone, if columns have no ids."""
        state, were, are = self.states[name], folded(before), folded(now)
        known = state.column_names or ColumnNames()
        new = known.after(are - were, {*state.dropped, *were} - (were & are))
        if new is not known:
            self.update(name, column_names=new)

    def may_rename(self, schemas: Iterable[TableSchema], position: int) -> set[TableName]:
        """Return the tables that land, whose columns have ids, and one of whose layouts is new.

        Not up to a `position` from before the last look, which has seen the names of now.
        """
        known = ((schema, self.states.get(schema.table)) for schema in schemas)
        new = [(s.table, its) for s, its in known if its is not None and its.schema_id != s.id]
        landing = {table for table, its in new if its.state == "captured" and has_ids(its)}
        return {table for table in landing if position > self.looks.last(table).begun}

    def readds_dropped_column(self, table: TableName, columns: Collection[str]) -> bool:
        """Return whether one of these columns was dropped before."""
        return not folded(self.states[table].dropped).isdisjoint(folded(columns))

    def has_comments(self, found: TableComments) -> bool:
        """Return whether a table's recorded comments are these."""
        known = self.states[found.table].comments
        return found.empty if known is None else known.endswith(found.digest)

    def note_comments(self, landed: Mapping[str, TableComments]) -> None:
        """Record the ids of comments that have landed."""
        for id_, found in landed.items():
            self.update(found.table, comments=id_)
            self.comments_news = True

    def quarantine(self, found: QuarantineNotice) -> None:
        """Quarantine a table from its transaction `found.lsn` on."""
        state = self.states.get(found.table)
        if state is None or state.state == "quarantined":
            return
        hint = _until_dumped(found.table, found.hint)
        log.error("%s is quarantined: %s (%s)", found.table, found.reason, hint)
        self.update(found.table, state="quarantined", reason=found.reason, hint=hint, since=found.lsn)
        self.notice(found.table, "quarantined", found.reason)

    def quarantine_unfit(self, problem: TableError, lsn: int) -> None:
        """Quarantine a table, new or known, that can't be captured as it is; seen at `lsn`."""
        if problem.table not in self.states:
            names = self.former_names.pop(problem.table, None)
            self.states[problem.table] = TableState(column_names=names)
        self.quarantine(QuarantineNotice(problem.table, lsn, problem.reason, problem.hint or "fix it"))

    def lacks_layout(self, table: TableName) -> bool:
        """Return whether a table is new, or has never had a layout that could be captured."""
        state = self.states.get(table)
        return state is None or state.schema_id is None

    def begins_with(self, schema: TableSchema) -> bool:
        """Return whether capture begins with this layout and a dump, even if changes have landed before."""
        state = self.states.get(schema.table)
        gains_key = state is not None and state.state == "captured" and not state.key and bool(schema.key)
        return gains_key or self.lacks_layout(schema.table)

    def release(self, table: TableName, schema: TableSchema | None) -> None:
        """Resume landing a quarantined table; the caller has queued a full dump of it."""
        if self.states[table].state == "captured":
            return
        only_changes = schema is not None and not schema.key
        self.update(table, state="captured", reason=None, hint=None, since=None, dumped=only_changes)
        if schema is not None:
            before, now = self.schemas.get(table, schema).columns, [c.name for c in schema.columns]
            self._note_came(table, [c.name for c in before], now)
            self.note_columns(table, now)
            self.update(table, key=list(schema.key), schema_id=schema.id)
            self.schemas[table] = schema
        follows = "what happened meanwhile is lost" if only_changes else "a full dump follows"
        self.notice(table, "released", f"released; {follows}")

    def dumped_by(self, dump: DumpState) -> None:
        """Record a full dump whose last chunk is committed."""
        self.states[dump.table] = self.states[dump.table].dumped_by(dump)

    def landing(self, files: Iterable[LandedFile]) -> list[LandedFile]:
        """Return the files of the tables that land."""
        captured = set(self.captured())
        return [file for file in files if file.table in captured]

    def notice(self, table: TableName | None, kind: str, text: str) -> None:
        """Report something to people in the next manifest."""
        self.notices.append(Notice(table=table, kind=kind, text=text, at=datetime.now(timezone.utc)))  # type: ignore[arg-type]

    def has_news(self, position: int) -> bool:
        """Return whether a manifest at a position has news of tables that land without rows."""
        return self.comments_news or self.traits.is_due(position)

    def take_notices(self) -> list[Notice]:
        """Hand over the notices for a manifest."""
        taken, self.notices = self.notices, []
        return taken

    def update(self, table: TableName, **fields: object) -> None:
        """Change some fields of a table's state."""
        self.states[table] = self.states[table].changed(**fields)

    def recorded(self, manifest: int, needs: DumpNeeds) -> dict[str, Any]:
        """Return what the manifest of this number records of tables; see `snapshot`."""
        return {"tables": self.snapshot(manifest, needs), "former_names": dict(self.former_names)}

    def snapshot(self, manifest: int, needs: DumpNeeds | None = None) -> dict[TableName, TableState]:
        """Return the states for the manifest of this number; layouts that are new in it get that number.

        `needs`: of tables that need a full dump, and so don't count as dumped; and gaps.
        """
        needs = needs or DumpNeeds()
        for name, known in self.states.items():
            need = needs.by_table.get(name)
            state = known.changed(need=need, dumped=known.dumped and need is None)
            before = self._in_manifest.get(name)
            state = state.changed(gaps=_open_gaps(before, state, needs.gaps.get(name, ())))
            if state is not before:
                same = before is not None and before.schema_id == state.schema_id
                since = before.schema_since if before is not None and same else manifest
                state = state.changed(schema_since=since)
            self.states[name] = state
        self._in_manifest = dict(self.states)
        self.comments_news = False
        return dict(self.states)


def _open_gaps(
    before: TableState | None, state: TableState, more: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Add to a table's gaps, and drop those from before a full dump that ended in an earlier manifest.

    A gap that begins and ends within one manifest is still named by it.
    """
    if not state.key:  # no row is known by a key
        return []
    gaps, dump = sorted({*state.gaps, *more}), before.full_dump if before is not None else None
    return [gap for gap in gaps if dump is None or Position.of_gap(*gap) >= dump.position]


def _until_dumped(table: TableName, hint: str) -> str:
    """Add to a hint that a dump is needed afterwards, unless it says so."""
    says_so = "deltatide dump " in hint or "dump it again" in hint
    return hint if says_so else f"{hint.removesuffix(';')}; then: deltatide dump {shlex.quote(str(table))}"


def key_changed(table: TableName, before: Sequence[str], now: Sequence[str]) -> TableError:
    """Build the error for a table whose key has changed."""
    return TableError(table, f"its key changed from {list(before)} to {list(now)}", hint=HINT)


def has_ids(state: TableState) -> bool:
    """Return whether a table's columns have ids."""
    return state.column_names is not None and bool(state.column_names.ids)


NOT_WHOLE = "its before-images lack columns, since the log does"
"""Why a captured table needs attention: updates or deletes landed so, as `_before` says."""

HINT = "fix the table if needed"
"""The command that dumps it is added."""
