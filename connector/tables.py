"""The captured tables: their schema as last landed, and which of them are set aside.

Invariants:

- A table's schema follows the log: a layout is adopted when a manifest commits the first file of it, and
  never an older one after a newer (chunks may be committed late).
- A table that is set aside lands nothing more until a full dump of it is asked for; that dump sees all that
  did not land meanwhile (`DumpState.floor`), and sweeps what is left of older rows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone

from connector.event import SetAside
from connector.manifest import LandedFile, Notice, TableState
from connector.schema import TableSchema

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Repair:
    """What a change of a table's layout leaves to be read: the rows that hold a new column, or all (None)."""

    table: str
    columns: tuple[str, ...] | None


@dataclass
class Tables:
    """All captured tables of a source. Used by the capture loop's thread alone, but for `key`."""

    states: dict[str, TableState]
    schemas: dict[str, TableSchema]
    notices: list[Notice] = field(default_factory=list)
    _adopted_at: dict[str, int] = field(default_factory=dict)

    def key(self, table: str) -> tuple[str, ...]:
        """Give the key columns of a captured table."""
        return tuple(self.states[table].key)

    def add(self, schema: TableSchema) -> None:
        """Begin to capture a table."""
        name = str(schema.table)
        self.states[name] = TableState(schema_id=schema.id, key=list(schema.key))
        self.schemas[name] = schema

    def remove(self, table: str) -> None:
        """Stop capturing a table; taken up again it will be dumped anew."""
        del self.states[table]
        self.schemas.pop(table, None)
        self.notice(table, "schema", "is no longer among the captured tables")

    def captured(self) -> list[str]:
        """List the tables that land."""
        return [name for name, state in self.states.items() if state.state == "captured"]

    def adopt(self, schema: TableSchema, seen_at: int) -> Repair | None:
        """Take over the layout of a file that is about to be committed, as of the lsn `seen_at`.

        Gives what must be dumped again, since the change itself wrote no row events: a column that came with
        values (a default, a rename), a changed type, or a column that was dropped and is there again: the
        lake holds its old values. A changed key sets the table aside.
        """
        name = str(schema.table)
        state, known = self.states.get(name), self.schemas.get(name)
        if state is None or state.state == "set_aside":
            return None
        if state.schema_id == schema.id or seen_at < self._adopted_at.get(name, 0):
            self.schemas.setdefault(name, schema)
            return None
        if list(schema.key) != state.key:
            self.set_aside(
                SetAside(name, seen_at, f"its key changed from {state.key} to {list(schema.key)}", HINT)
            )
            return None
        self._adopted_at[name] = seen_at
        state.schema_id, self.schemas[name] = schema.id, schema
        return self._repair_after(name, known, schema)

    def _repair_after(self, name: str, known: TableSchema | None, schema: TableSchema) -> Repair | None:
        before = {c.name: c for c in known.columns} if known else {}
        added = tuple(c.name for c in schema.columns if c.name not in before)
        dropped = sorted(before.keys() - {c.name for c in schema.columns})
        changed = [c.name for c in schema.columns if c.name in before and _rewritten(before[c.name], c)]
        for verb, names in (("added", added), ("dropped", dropped), ("changed type", changed)):
            if names:
                self.notice(name, "schema", f"columns {verb}: {', '.join(names)}")
        once = set(self.states[name].dropped)
        self.states[name].dropped = sorted((once | set(dropped)) - set(added))
        if known is None or changed or once & set(added):
            return Repair(name, None)
        return Repair(name, added) if added else None

    def set_aside(self, found: SetAside) -> None:
        """Set a table aside from its transaction `found.lsn` on."""
        state = self.states.get(found.table)
        if state is None or state.state == "set_aside":
            return
        log.error("%s is set aside: %s (%s)", found.table, found.reason, found.hint)
        state.state, state.reason, state.hint, state.since = "set_aside", found.reason, found.hint, found.lsn
        self.notice(found.table, "set_aside", found.reason)

    def release(self, table: str, schema: TableSchema | None) -> None:
        """Land a table again that was set aside; the caller has queued a full dump of it."""
        state = self.states[table]
        if state.state == "captured":
            return
        state.state, state.reason, state.hint, state.since = "captured", None, None, None
        state.dumped = False
        if schema is not None:
            state.key, state.schema_id = list(schema.key), schema.id
            self.schemas[table] = schema
        self.notice(table, "released", "lands again, a full dump follows")

    def landing(self, files: Iterable[LandedFile]) -> list[LandedFile]:
        """Keep the files of the tables that land."""
        captured = set(self.captured())
        return [file for file in files if file.table in captured]

    def notice(self, table: str | None, kind: str, text: str) -> None:
        """Tell people something, in the next manifest."""
        self.notices.append(Notice(table=table, kind=kind, text=text, at=datetime.now(timezone.utc)))  # type: ignore[arg-type]

    def take_notices(self) -> list[Notice]:
        """Hand over the notices for a manifest."""
        taken, self.notices = self.notices, []
        return taken

    def snapshot(self) -> dict[str, TableState]:
        """Copy the states, for a manifest."""
        return {name: state.model_copy() for name, state in self.states.items()}


HINT = "mend the table, then ask for a full dump of it: deltatide dump TABLE"


def _rewritten(before: object, after: object) -> bool:
    """Tell whether a change of type may have changed values; a longer varchar has not."""
    return _bare(before) != _bare(after)


def _bare(column: object) -> tuple[str, str]:
    source_type, type_ = getattr(column, "source_type", ""), getattr(column, "type", "")
    return re.sub(r"\(.*?\)", "", source_type), type_
