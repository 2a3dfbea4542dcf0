"""The demo's writer: a shop's transactions, of many kinds and sizes, in its own thread.

They include rolled-back savepoints and transactions, keys changed and swapped, long texts changed and left
unchanged, thousands of rows in one transaction, and a table truncated and refilled.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from connector.demo.shop import Sizes, long_text
from connector.demo.source import Cursor, DemoSource


class Writer:
    """Writes about `changes_per_second` committed row changes until it is stopped; it can be restarted.

    `changes` and `transactions` count what was committed; `failure` is the error that ended it before `stop`.
    """

    def __init__(self, source: DemoSource, sizes: Sizes, *, changes_per_second: int, seed: int = 1) -> None:
        self.changes_per_second = changes_per_second
        self.changes = 0
        self.transactions = 0
        self.failure: BaseException | None = None
        self._source, self._dialect = source, source.dialect
        self._sizes = sizes
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._next_id = sizes.customers + sizes.orders + sizes.documents + 1
        self._kinds: dict[Callable[[Cursor], int], int] = {
            self._place_order: 30,
            self._change_orders: 15,
            self._earn_points: 15,
            self._cancel_order: 10,
            self._change_mind: 8,
            self._give_up: 4,
            self._renumber_lines: 5,
            self._swap_customers: 4,
            self._read_documents: 8,
            self._rewrite_document: 3,
            self._renumber_document: 1,
            self._reprice: 1,
            self._import_orders: 1,
            self._purge: 1,
            self._empty_carts: 2,
            self._fill_carts: 6,
        }

    def start(self) -> None:
        """Start writing."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current transaction; nothing is written after return."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            with closing(self._source.connect()) as connection:
                self._write(connection)
        except BaseException as error:  # the main thread reports it
            self.failure = error

    def _write(self, connection: Any) -> None:
        began, before = time.monotonic(), self.changes
        kinds, weights = list(self._kinds), list(self._kinds.values())
        while not self._stopping.is_set():
            kind = self._random.choices(kinds, weights)[0]
            with connection.cursor() as cursor:
                changed = kind(cursor)
            connection.commit()
            self.changes += changed
            self.transactions += 1 if changed else 0
            ahead = (self.changes - before) / self.changes_per_second - (time.monotonic() - began)
            if ahead > 0:
                self._stopping.wait(ahead)

    # Each kind of transaction returns the number of row changes that it leaves to commit.

    def _place_order(self, cursor: Cursor) -> int:
        order, lines = self._new_id(), self._random.randint(1, 5)
        cursor.execute(
            f"INSERT INTO orders VALUES (%s, %s, 'open', %s, %s, {self._dialect.now}, NULL)",
            (order, self._customer(), self._price(), self._random.choice([None, "", "Ring twice \\ 2×\n"])),
        )
        for line in range(1, lines + 1):
            cursor.execute(
                "INSERT INTO order_items VALUES (%s, %s, %s, %s, %s, %s)",
                (order, line, f"Product {line}", line, self._price(), self._random.choice([None, 0.1])),
            )
        # A second change of the same row in the same transaction.
        cursor.execute("UPDATE orders SET total = total + 1 WHERE id = %s", (order,))
        return 2 + lines

    def _change_orders(self, cursor: Cursor) -> int:
        start = self._order()
        cursor.execute(
            f"UPDATE orders SET status = %s, ship_on = {self._dialect.now} WHERE id BETWEEN %s AND %s",
            (self._random.choice(["paid", "sent", "returned"]), start, start + self._random.randint(0, 40)),
        )
        return cursor.rowcount

    def _earn_points(self, cursor: Cursor) -> int:
        cursor.execute(
            f"UPDATE customers SET points = points + 1, changed_at = {self._dialect.now} WHERE id IN %s",
            (tuple(self._customer() for _ in range(20)),),
        )
        return cursor.rowcount

    def _cancel_order(self, cursor: Cursor) -> int:
        order = self._order()
        cursor.execute("DELETE FROM order_items WHERE order_id = %s", (order,))
        items = cursor.rowcount
        cursor.execute("DELETE FROM orders WHERE id = %s", (order,))
        return items + cursor.rowcount

    def _change_mind(self, cursor: Cursor) -> int:
        """Roll back to a savepoint; what came before it and after the rollback stays."""
        kept = self._earn_points(cursor)
        cursor.execute("SAVEPOINT doubt")
        self._place_order(cursor)
        self._cancel_order(cursor)
        cursor.execute("ROLLBACK TO SAVEPOINT doubt")
        return kept + self._change_orders(cursor)

    def _give_up(self, cursor: Cursor) -> int:
        self._place_order(cursor)
        self._earn_points(cursor)
        cursor.connection.rollback()
        return 0

    def _renumber_lines(self, cursor: Cursor) -> int:
        """Change one column of a composite key."""
        cursor.execute(
            "UPDATE order_items SET line = line + 100 WHERE order_id = %s AND line < 100", (self._order(),)
        )
        return cursor.rowcount

    def _swap_customers(self, cursor: Cursor) -> int:
        """Swap the keys of two rows, by way of a third key."""
        one, other = self._customer(), self._customer()
        if one == other:
            return 0
        changed = 0
        for before, after in ((one, -1), (other, one), (-1, other)):
            cursor.execute("UPDATE customers SET id = %s WHERE id = %s", (after, before))
            changed += cursor.rowcount
        return changed

    def _read_documents(self, cursor: Cursor) -> int:
        """Change documents but not their long text, which is then not in the log."""
        documents = tuple(self._random.randint(1, self._sizes.documents) for _ in range(10))
        cursor.execute("UPDATE documents SET views = views + 1 WHERE id IN %s", (documents,))
        return cursor.rowcount

    def _rewrite_document(self, cursor: Cursor) -> int:
        """Insert a document or change its text, then change it again without the text, in one transaction."""
        document = self._random.choice([self._new_id(), self._random.randint(1, self._sizes.documents)])
        body = long_text(self._dialect, f"'{self._random.random()}'")
        replace_body = self._dialect.replace_body
        cursor.execute(
            f"INSERT INTO documents VALUES (%s, 'Draft', {body}, 0, NULL, '{{}}') {replace_body}",
            (document,),
        )
        labels = self._dialect.final_labels
        cursor.execute(f"UPDATE documents SET labels = {labels} WHERE id = %s", (document,))
        return 2

    def _renumber_document(self, cursor: Cursor) -> int:
        """Change a document's key: its long text is not in the log, so the new key has to be dumped."""
        cursor.execute(
            "UPDATE documents SET id = %s WHERE id = %s",
            (self._new_id(), self._random.randint(1, self._sizes.documents)),
        )
        return cursor.rowcount

    def _reprice(self, cursor: Cursor) -> int:
        """Change a few thousand rows in one transaction."""
        start = self._order()
        cursor.execute(
            "UPDATE order_items SET price = price * 1.05 WHERE order_id BETWEEN %s AND %s",
            (start, start + self._bulk()),
        )
        return cursor.rowcount

    def _import_orders(self, cursor: Cursor) -> int:
        count = self._bulk()
        first, self._next_id = self._next_id, self._next_id + count
        cursor.execute(
            f"INSERT INTO orders SELECT i, %s, 'imported', i %% 1000 / 7.0, NULL, {self._dialect.now}, NULL"
            f" FROM {self._series(first, first + count - 1)}",
            (self._customer(),),
        )
        return cursor.rowcount

    def _purge(self, cursor: Cursor) -> int:
        start = self._order()
        stop = start + self._bulk() // 4
        cursor.execute("DELETE FROM order_items WHERE order_id BETWEEN %s AND %s", (start, stop))
        items = cursor.rowcount
        cursor.execute("DELETE FROM orders WHERE id BETWEEN %s AND %s", (start, stop))
        return items + cursor.rowcount

    def _empty_carts(self, cursor: Cursor) -> int:
        """Truncate, and half of the time insert, in the same transaction unless TRUNCATE ends it."""
        cursor.execute("TRUNCATE carts")
        return 1 + (self._fill_carts(cursor) if self._random.random() < 0.5 else 0)

    def _fill_carts(self, cursor: Cursor) -> int:
        cursor.execute(
            f"INSERT INTO carts SELECT {self._dialect.new_uuid}, %s, i, {self._dialect.now}"
            f" FROM {self._series(1, 20)}",
            (self._customer(),),
        )
        return cursor.rowcount

    def _series(self, first: int, last: int) -> str:
        return self._dialect.series.format(first=first, last=last, name="i")

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _customer(self) -> int:
        return self._random.randint(1, self._sizes.customers)

    def _order(self) -> int:
        return self._random.randint(1, self._sizes.orders)

    def _bulk(self) -> int:
        return min(2_000, max(10, self._sizes.orders // 10))

    def _price(self) -> Any:
        return f"{self._random.randint(1, 99_999) / 100:.2f}"
