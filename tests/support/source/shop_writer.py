"""A small shop in a real database, and a writer that changes it in every way, in its own thread."""

from __future__ import annotations

import contextlib
import random
from typing import Any

from tests.support.background import Background
from tests.support.source.tested_database import TestedDatabase

POSTGRES = """
    CREATE TABLE items (
        id bigint PRIMARY KEY, name text NOT NULL, price numeric(12,2), note text,
        at timestamptz DEFAULT clock_timestamp(), extra jsonb);
    ALTER TABLE items ALTER note SET STORAGE EXTERNAL;
    CREATE TABLE parts (
        area text, number int, quantity int, label text, PRIMARY KEY (area, number));
    CREATE TABLE small (id int PRIMARY KEY, value text);
    INSERT INTO items SELECT n, concat('item ', n), n / 7.0,
        CASE WHEN n % 5 = 0 THEN repeat(concat('long text ', n), 300) ELSE 'short' END,
        clock_timestamp(), jsonb_build_object('n', n)
        FROM generate_series(1, {rows}) n;
    INSERT INTO parts SELECT concat('Area ', n % 7), n, n, concat('part ', n)
        FROM generate_series(1, {half}) n;
    INSERT INTO small SELECT n, concat('value ', n) FROM generate_series(1, 20) n;
"""
MARIADB = """
    CREATE TABLE items (
        id bigint PRIMARY KEY, name text NOT NULL, price decimal(12,2), note text,
        at datetime(6) DEFAULT current_timestamp(6), extra json);
    CREATE TABLE parts (
        area varchar(50), number int, quantity int, label text, PRIMARY KEY (area, number));
    CREATE TABLE small (id int PRIMARY KEY, value text);
    INSERT INTO items SELECT seq, concat('item ', seq), seq / 7.0,
        CASE WHEN seq % 5 = 0 THEN repeat(concat('long text ', seq), 300) ELSE 'short' END,
        now(6), json_object('n', seq)
        FROM seq_1_to_{rows};
    INSERT INTO parts SELECT concat('Area ', seq % 7), seq, seq, concat('part ', seq) FROM seq_1_to_{half};
    INSERT INTO small SELECT seq, concat('value ', seq) FROM seq_1_to_20;
"""
TABLES = ("items", "parts", "small")


def create_shop(database: TestedDatabase, rows: int = 2000) -> None:
    """Create the tables, with rows that predate the captured log."""
    text = POSTGRES if database.kind == "postgres" else MARIADB
    database.script(text.format(rows=rows, half=rows // 2))


class ShopWriter(Background):
    """Writes until stopped, reconnecting when the connection is lost. `transactions` counts commits."""

    def __init__(
        self,
        database: TestedDatabase,
        *,
        seed: int = 1,
        pause: float = 0.004,
        rows: int = 2000,
        truncates: bool = True,
    ) -> None:
        super().__init__("writer")
        self.transactions = 0
        self._database, self._pause, self._rows = database, pause, rows
        self._random = random.Random(seed)
        self._fresh = 1_000_000 * seed
        self._kinds = {
            self._insert: 20,
            self._update_short: 20,
            self._update_long: 6,
            self._delete: 10,
            self._change_keys: 8,
            self._swap_keys: 4,
            self._insert_and_update: 8,
            self._change_mind: 8,
            self._give_up: 4,
            self._update_many: 2,
            self._empty_small: 2 if truncates else 0,
            self._fill_small: 6,
        }

    def work(self) -> None:
        """Write, over a new connection when one is lost."""
        while not self.stopping.is_set():
            try:
                self._write()
            except self._database.lost:
                self.stopping.wait(0.1)  # the server is restarting

    def _write(self) -> None:
        connection = self._database.session()
        kinds, weights = list(self._kinds), list(self._kinds.values())
        try:
            while not self.stopping.wait(self._pause):
                with connection.cursor() as cursor:
                    self._random.choices(kinds, weights)[0](cursor)
                connection.commit()
                self.transactions += 1
        finally:
            with contextlib.suppress(*self._database.lost):
                connection.close()

    def _new_id(self) -> int:
        self._fresh += 1
        return self._fresh

    def _id(self) -> int:
        """Return a key that may exist: one of the first rows, or one of the latest written."""
        if self._random.random() < 0.7:
            return self._random.randint(1, self._rows)
        return self._random.randint(max(self._fresh - 300, 1), self._fresh)

    def _insert(self, cursor: Any) -> None:
        cursor.execute(
            "INSERT INTO items VALUES (%s, %s, %s, %s, current_timestamp, NULL)",
            (self._new_id(), "new", self._random.randint(0, 9999), "x" * self._random.choice([0, 9, 3000])),
        )
        cursor.execute(
            "INSERT INTO parts VALUES (%s, %s, 1, NULL)",
            (f"Area {self._random.randint(0, 6)}", self._new_id()),
        )

    def _update_short(self, cursor: Any) -> None:
        cursor.execute(
            "UPDATE items SET name = %s, price = price + 1 WHERE id = %s",
            (f"n{self._new_id()}", self._id()),
        )

    def _update_long(self, cursor: Any) -> None:
        cursor.execute("UPDATE items SET note = %s WHERE id = %s", (f"{self._new_id()}" * 500, self._id()))

    def _delete(self, cursor: Any) -> None:
        cursor.execute("DELETE FROM items WHERE id = %s", (self._id(),))
        cursor.execute("DELETE FROM parts WHERE number = %s", (self._id(),))

    def _change_keys(self, cursor: Any) -> None:
        cursor.execute("UPDATE items SET id = %s WHERE id = %s", (self._new_id(), self._id()))
        cursor.execute(
            "UPDATE parts SET area = 'Moved', number = %s WHERE number = %s", (self._new_id(), self._id())
        )

    def _swap_keys(self, cursor: Any) -> None:
        one, other = self._random.sample(range(1, 300), 2)
        free = self._new_id()
        for new, old in ((free, one), (one, other), (other, free)):
            cursor.execute("UPDATE items SET id = %s WHERE id = %s", (new, old))

    def _insert_and_update(self, cursor: Any) -> None:
        number = self._new_id()
        cursor.execute(
            "INSERT INTO items (id, name, price, note) VALUES (%s, 'one', 1, %s)", (number, "y" * 3000)
        )
        cursor.execute("UPDATE items SET name = 'two' WHERE id = %s", (number,))
        if self._random.random() < 0.3:
            cursor.execute("DELETE FROM items WHERE id = %s", (number,))

    def _change_mind(self, cursor: Any) -> None:
        cursor.execute("UPDATE parts SET quantity = quantity + 1 WHERE number = %s", (self._id(),))
        cursor.execute("SAVEPOINT s")
        cursor.execute("DELETE FROM items WHERE id = %s", (self._id(),))
        cursor.execute("INSERT INTO parts VALUES ('Lost', %s, 0, 'never')", (self._new_id(),))
        cursor.execute("ROLLBACK TO s")
        cursor.execute("UPDATE items SET extra = NULL WHERE id = %s", (self._id(),))

    def _give_up(self, cursor: Any) -> None:
        cursor.execute("UPDATE items SET name = 'never' WHERE id = %s", (self._id(),))
        cursor.execute("ROLLBACK")

    def _update_many(self, cursor: Any) -> None:
        start = self._id()
        cursor.execute(
            "UPDATE parts SET label = %s WHERE number BETWEEN %s AND %s",
            (f"l{self._new_id()}", start, start + 50),
        )

    def _empty_small(self, cursor: Any) -> None:
        cursor.execute("TRUNCATE small")
        cursor.execute("INSERT INTO small VALUES (1, 'after the truncate')")

    def _fill_small(self, cursor: Any) -> None:
        number = self._random.randint(1, 30)
        cursor.execute("UPDATE small SET value = %s WHERE id = %s", (f"v{self._new_id()}", number))
        if not cursor.rowcount:
            cursor.execute("INSERT INTO small VALUES (%s, %s)", (number, f"v{self._new_id()}"))
