"""Writers on a real database, and what every table must hold after any of their transactions.

Invariants:

- The balances of `accounts` and `vaults` sum to zero after each transaction. `counters` only grow.
- Each transaction of writer `w` sets row `w` of `counters` to its number, so a state of that table tells
  which transactions of each writer are in it.
- What a transaction does is remembered once its commit is known, as amounts added to balances (they commute,
  so the order of writers does not matter) and as rows that only this writer touches. So the state of all
  tables after given transactions of each writer is computed without reading the database.
- A commit whose answer was lost is looked up under the lock of the writer's row in `counters`, which the
  transaction holds until it ends.
"""

from __future__ import annotations

import contextlib
import random
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.support.background import Background
from tests.support.source.tested_database import TestedDatabase
from tests.support.waiting import wait_until

Key = tuple[Any, ...]
Row = tuple[Any, ...]
State = dict[str, dict[Key, Row]]
"""By table, then by key: rows with their columns in the order of `COLUMNS`."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "accounts": ("id", "owner", "balance"),
    "vaults": ("region", "number", "balance"),
    "counters": ("id", "value"),
    "notes": ("id", "writer", "n", "body"),
}
KEYS: Mapping[str, int] = {"accounts": 1, "vaults": 2, "counters": 1, "notes": 1}
"""How many of the columns, from the first on, are the key."""

ACCOUNTS, REGIONS, VAULTS, SHARED = 600, 4, 40, 5
"""Rows at the beginning; the shared counters have the ids 101 to 105."""

LONG = 3000
"""Characters of a long body: PostgreSQL keeps it outside of the row, and leaves it out of updates."""

_SCHEMA = (
    "CREATE TABLE accounts (id bigint PRIMARY KEY, owner varchar(40) NOT NULL, balance bigint NOT NULL)",
    "CREATE TABLE vaults (region varchar(20), number int, balance bigint NOT NULL,"
    " PRIMARY KEY (region, number))",
    "CREATE TABLE counters (id int PRIMARY KEY, value bigint NOT NULL)",
    "CREATE TABLE notes (id bigint PRIMARY KEY, writer int NOT NULL, n bigint NOT NULL, body text)",
)


@dataclass
class Effects:
    """What a transaction changes: amounts by table and key, and the writer's own rows (None: deleted)."""

    amounts: dict[tuple[str, Key], int] = field(default_factory=dict)
    rows: dict[tuple[str, Key], Row | None] = field(default_factory=dict)
    changes: int = 0

    def add(self, table: str, key: Key, amount: int) -> None:
        """Add an amount to a balance or counter."""
        self.amounts[table, key] = self.amounts.get((table, key), 0) + amount
        self.changes += 1

    def put(self, table: str, key: Key, row: Row | None) -> None:
        """Set or delete a row of the writer's own."""
        self.rows[table, key] = row
        self.changes += 1


class Journal:
    """The committed transactions of each writer, for each expected state until that takes them in."""

    def __init__(self, writers: int) -> None:
        self.last = dict.fromkeys(range(1, writers + 1), 0)
        self._times: dict[int, list[float]] = {writer: [] for writer in self.last}
        self._states: list[ExpectedState] = []

    def record(self, writer: int, number: int, effects: Effects) -> None:
        """Remember a committed transaction."""
        for state in self._states:
            state.waiting[writer].append((number, effects))
        self._times[writer].append(time.time())
        self.last[writer] = number

    def lacking(self, numbers: Mapping[int, int], at: datetime | None) -> dict[int, tuple[int, int]]:
        """Return the writers of which a state lacks transactions: what it has, and what it must have.

        `at`: when the last transaction in it was committed, by the server's clock, which is ours. What was
        known to be committed before comes before it in the log: a state that is merely old is wrong as well.
        """
        least = {w: bisect_left(times, at.timestamp()) if at else 0 for w, times in self._times.items()}
        return {w: (numbers[w], least[w]) for w in least if numbers[w] < least[w]}

    def expected_state(self) -> ExpectedState:
        """Return a state that takes in what is recorded from now on, which is from the beginning."""
        assert not any(self.last.values())
        state = ExpectedState(self)
        self._states.append(state)
        return state


class ExpectedState:
    """The state of all tables after given transactions of each writer; goes only forward."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.waiting: dict[int, deque[tuple[int, Effects]]] = {w: deque() for w in journal.last}
        self.tables = initial_state(len(journal.last))

    def advance(self, numbers: Mapping[int, int]) -> set[tuple[str, Key]]:
        """Take in the transactions of each writer up to a number; return the rows that they change.

        AssertionError if one was not committed.
        """
        changed = set()
        for writer, upto in numbers.items():
            wait_until(
                lambda w=writer, n=upto: self._journal.last[w] >= n,  # type: ignore[misc]
                f"writer {writer} has committed transaction {upto}",
                seconds=30,
            )
            entries = self.waiting[writer]
            while entries and entries[0][0] <= upto:
                effects = entries.popleft()[1]
                self._apply(effects)
                changed |= effects.rows.keys() | effects.amounts.keys()
            self.tables["counters"][(writer,)] = (writer, upto)
        return changed

    def _apply(self, effects: Effects) -> None:
        for (table, key), row in effects.rows.items():
            if row is None:
                del self.tables[table][key]
            else:
                self.tables[table][key] = row
        for (table, key), amount in effects.amounts.items():
            *rest, value = self.tables[table][key]
            self.tables[table][key] = (*rest, value + amount)


def initial_state(writers: int) -> State:
    """Return what `create_tables` creates."""
    shared = [(100 + n, 0) for n in range(1, SHARED + 1)]
    rows: dict[str, list[Row]] = {
        "accounts": [(n, f"owner {n}", 0) for n in range(1, ACCOUNTS + 1)],
        "vaults": [(f"region {n % REGIONS}", n, 0) for n in range(1, VAULTS + 1)],
        "counters": [(w, 0) for w in range(1, writers + 1)] + shared,
        "notes": [(-n, 0, 0, "z" * (LONG if n % 5 == 0 else 5)) for n in range(1, 301)],
    }
    return {table: {row[: KEYS[table]]: row for row in rows[table]} for table in rows}


def create_tables(database: TestedDatabase, writers: int) -> None:
    """Create the tables, with rows that predate the captured log."""
    database.script(";".join(_SCHEMA))
    if database.kind == "postgres":
        database.script("ALTER TABLE notes ALTER body SET STORAGE EXTERNAL")
    for table, rows in initial_state(writers).items():
        values = ", ".join(
            "(" + ", ".join(f"'{v}'" if isinstance(v, str) else str(v) for v in row) + ")"
            for row in rows.values()
        )
        database.script(f"INSERT INTO {table} VALUES {values}")


class Writer(Background):
    """One session that writes until stopped, about `per_second` transactions; reconnects when it is lost.

    `commits` and `changes` count transactions and changed rows.
    """

    def __init__(
        self, database: TestedDatabase, journal: Journal, number: int, *, seed: int, per_second: float
    ) -> None:
        super().__init__(f"writer {number}")
        self.number = number
        self.commits = 0
        self.changes = 0
        self._database, self._journal = database, journal
        self._random = random.Random(seed * 1000 + number)
        self._pause = 1 / per_second
        self._n = 0
        self._fresh = number * 10_000_000
        self._own: dict[str, dict[Key, Row]] = {"accounts": {}, "notes": {}}
        self._kinds: dict[Callable[[Any, Effects], None], int] = {
            self._transfer: 40,
            self._count: 10,
            self._write_note: 12,
            self._edit_notes: 12,
            self._drop_notes: 8,
            self._renumber_note: 5,
            self._open_account: 6,
            self._close_account: 5,
            self._change_mind: 4,
            self._pay_all: 1,
        }

    def work(self) -> None:
        """Write, over a new connection when one is lost; nothing is written after `stop`."""
        while not self.stopping.is_set():
            try:
                self._write()
            except self._database.lost:
                self.stopping.wait(0.2)  # the server is restarting, or two writers met in a deadlock
            except Exception as error:
                if "deadlock" not in str(error).lower():
                    raise

    def _write(self) -> None:
        session = self._database.session()
        try:
            kinds, weights = list(self._kinds), list(self._kinds.values())
            while not self.stopping.wait(self._random.expovariate(1 / self._pause)):
                effects = Effects()
                with session.cursor() as cursor:
                    cursor.execute("UPDATE counters SET value = value + 1 WHERE id = %s", (self.number,))
                    self._random.choices(kinds, weights)[0](cursor, effects)
                if self._random.random() < 0.05:
                    session.rollback()
                    continue
                self._commit(session, effects)
        finally:
            with contextlib.suppress(*self._database.lost):
                session.close()

    def _commit(self, session: Any, effects: Effects) -> None:
        try:
            session.commit()
        except self._database.lost:
            if not self._is_committed():
                raise
        self._n += 1
        for (table, key), row in effects.rows.items():
            if row is None:
                self._own[table].pop(key, None)
            else:
                self._own[table][key] = row
        self._journal.record(self.number, self._n, effects)
        self.commits += 1
        self.changes += effects.changes + 1

    def _is_committed(self) -> bool:
        """Return whether the transaction whose commit was not answered is there, once it has ended."""
        while True:
            try:
                session = self._database.session()
                with session.cursor() as cursor:
                    cursor.execute("SELECT value FROM counters WHERE id = %s FOR UPDATE", (self.number,))
                    ((value,),) = cursor.fetchall()
                session.close()
            except self._database.lost:
                self.stopping.wait(0.2)
            else:
                return bool(value == self._n + 1)

    # Each kind of transaction executes its statements and notes their effects.

    def _transfer(self, cursor: Any, effects: Effects) -> None:
        amount = self._random.randint(-500, 500)
        account, vault = self._random.randint(1, ACCOUNTS), self._random.randint(1, VAULTS)
        self._add_account(cursor, effects, account, amount)
        self._add_vault(cursor, effects, vault, -amount)

    def _add_account(self, cursor: Any, effects: Effects, account: int, amount: int) -> None:
        cursor.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, account))
        effects.add("accounts", (account,), amount)

    def _add_vault(self, cursor: Any, effects: Effects, vault: int, amount: int) -> None:
        key = f"region {vault % REGIONS}", vault
        cursor.execute(
            "UPDATE vaults SET balance = balance + %s WHERE region = %s AND number = %s", (amount, *key)
        )
        effects.add("vaults", key, amount)

    def _count(self, cursor: Any, effects: Effects) -> None:
        shared = 100 + self._random.randint(1, SHARED)
        cursor.execute("UPDATE counters SET value = value + 1 WHERE id = %s", (shared,))
        effects.add("counters", (shared,), 1)

    def _pay_all(self, cursor: Any, effects: Effects) -> None:
        """Change hundreds of rows in one transaction."""
        begin = self._random.randint(1, ACCOUNTS - 300)
        cursor.execute(
            "UPDATE accounts SET balance = balance + 1 WHERE id BETWEEN %s AND %s", (begin, begin + 299)
        )
        for account in range(begin, begin + 300):
            effects.add("accounts", (account,), 1)
        self._add_vault(cursor, effects, self._random.randint(1, VAULTS), -300)

    def _open_account(self, cursor: Any, effects: Effects) -> None:
        """Insert an account of this writer's own, and pay into it from a vault."""
        self._fresh += 1
        row = (self._fresh, f"writer {self.number}", self._random.randint(1, 99))
        cursor.execute("INSERT INTO accounts VALUES (%s, %s, %s)", row)
        effects.put("accounts", row[:1], row)
        self._add_vault(cursor, effects, self._random.randint(1, VAULTS), -row[2])

    def _close_account(self, cursor: Any, effects: Effects) -> None:
        if (row := self._any("accounts")) is None:
            return self._open_account(cursor, effects)
        cursor.execute("DELETE FROM accounts WHERE id = %s", row[:1])
        effects.put("accounts", row[:1], None)
        return self._add_vault(cursor, effects, self._random.randint(1, VAULTS), row[2])

    def _write_note(self, cursor: Any, effects: Effects) -> None:
        self._fresh += 1
        row = (self._fresh, self.number, self._n + 1, self._body())
        cursor.execute("INSERT INTO notes VALUES (%s, %s, %s, %s)", row)
        effects.put("notes", row[:1], row)

    def _edit_notes(self, cursor: Any, effects: Effects) -> None:
        """Change a note several times, with and without its body."""
        if (row := self._any("notes")) is None:
            return self._write_note(cursor, effects)
        for step in range(self._random.randint(1, 3)):
            body = self._body() if self._random.random() < 0.3 else row[3]
            if body == row[3]:
                cursor.execute("UPDATE notes SET n = %s WHERE id = %s", (step, row[0]))
            else:
                cursor.execute("UPDATE notes SET n = %s, body = %s WHERE id = %s", (step, body, row[0]))
            row = (row[0], row[1], step, body)
        return effects.put("notes", row[:1], row)

    def _drop_notes(self, cursor: Any, effects: Effects) -> None:
        for _ in range(2):
            if (row := self._any("notes")) is not None and ("notes", row[:1]) not in effects.rows:
                cursor.execute("DELETE FROM notes WHERE id = %s", row[:1])
                effects.put("notes", row[:1], None)

    def _renumber_note(self, cursor: Any, effects: Effects) -> None:
        """Change a key; half of the time, the old one gets a new row at once."""
        if (row := self._any("notes")) is None:
            return self._write_note(cursor, effects)
        self._fresh += 1
        moved = (self._fresh, *row[1:])
        cursor.execute("UPDATE notes SET id = %s WHERE id = %s", (moved[0], row[0]))
        effects.put("notes", row[:1], None)
        effects.put("notes", moved[:1], moved)
        if self._random.random() < 0.5:
            again = (row[0], self.number, self._n + 1, self._body())
            cursor.execute("INSERT INTO notes VALUES (%s, %s, %s, %s)", again)
            effects.put("notes", again[:1], again)
        return None

    def _change_mind(self, cursor: Any, effects: Effects) -> None:
        """Roll back to a savepoint; what came before it and after the rollback stays."""
        self._transfer(cursor, effects)
        cursor.execute("SAVEPOINT doubt")
        self._write_note(cursor, Effects())
        self._pay_all(cursor, Effects())
        cursor.execute("ROLLBACK TO SAVEPOINT doubt")
        self._count(cursor, effects)

    def _any(self, table: str) -> Row | None:
        own = self._own[table]
        return own[self._random.choice(list(own))] if own else None

    def _body(self) -> str | None:
        size = self._random.choice([0, 9, 40, LONG])
        return None if self._random.random() < 0.1 else f"{self._random.random()}"[:8] * (size // 8 + 1)
