"""The demo's source: a small shop, its tables and first rows.

`documents` has long texts. PostgreSQL leaves them out of its log (TOAST) where an update does not touch them.
`carts` is small and is truncated while it is captured. There are no foreign keys, since the writer changes
keys.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from connector.demo.source import DemoSource, Dialect

TABLES = ("customers", "orders", "order_items", "documents", "carts")

COLUMNS = {
    "customers": """
        id bigint PRIMARY KEY,
        name {text} NOT NULL,
        email varchar(80),
        points int NOT NULL,
        vip boolean NOT NULL,
        born date,
        changed_at {moment} NOT NULL""",
    "orders": """
        id bigint PRIMARY KEY,
        customer_id bigint NOT NULL,
        status {text} NOT NULL,
        total numeric(12, 2) NOT NULL,
        note {text},
        ordered_at {moment} NOT NULL,
        ship_on {local_time}""",
    "order_items": """
        order_id bigint,
        line smallint,
        product {text} NOT NULL,
        quantity int NOT NULL,
        price numeric(10, 4) NOT NULL,
        discount double precision,
        PRIMARY KEY (order_id, line)""",
    "documents": """
        id bigint PRIMARY KEY,
        title {text} NOT NULL,
        body text NOT NULL,
        views int NOT NULL,
        labels {labels},
        attributes {json}""",
    "carts": """
        id {uuid} PRIMARY KEY,
        customer_id bigint NOT NULL,
        items int NOT NULL,
        seen_at {moment} NOT NULL""",
}
"""Columns of each table; types in braces come from the dialect."""

LOAD = {
    "customers": """
        SELECT i, 'Customer ' || i, CASE WHEN i % 7 > 0 THEN 'customer' || i || '@example.org' END,
               i * 7 % 1000, i % 50 = 0,
               CASE WHEN i % 11 > 0 THEN CAST({born} AS date) END, {changed_at}
        FROM {series}""",
    "orders": """
        SELECT i, 1 + i * 31 % {customers},
               CASE i % 4 WHEN 0 THEN 'open' WHEN 1 THEN 'paid' WHEN 2 THEN 'sent' ELSE 'returned' END,
               CAST(i * 7919 % 1000000 AS decimal(12)) / 100,
               CASE WHEN i % 5 = 0 THEN 'Note für Auftrag № ' || i END,
               {ordered_at}, CASE WHEN i % 3 > 0 THEN {ship_on} END
        FROM {series}""",
    "order_items": """
        SELECT 1 + (i - 1 - (i - 1) % 2) / 2, 1 + (i - 1) % 2, 'Product ' || (i * 17 % 5000), 1 + i % 9,
               CAST(i * 104729 % 100000000 AS decimal(12)) / 10000,
               CASE WHEN i % 4 = 0 THEN (i % 30) / 100.0 END
        FROM {series}""",
    "documents": """
        SELECT i, 'Document ' || i, {body}, 0, CASE WHEN i % 3 = 0 THEN {some_labels} END,
               CASE WHEN i % 2 = 0 THEN {json_object}('pages', i % 90, 'language', 'de') END
        FROM {series}""",
    "carts": """
        SELECT CAST(substr({digest}, 1, 12) || '4' || substr({digest}, 14, 3) || 'a'
               || substr({digest}, 18) AS {uuid}), 1 + i % {customers}, i % 12, {seen_at}
        FROM {series}""",
}
"""A query for each table's first rows, computed from the row number `i`."""

_TIMES = {
    "born": ("1950-01-01 00:00:00", "i * 13 % 20000 * 86400"),
    "changed_at": ("2026-01-01 00:00:00", "i * 1.000001"),
    "ordered_at": ("2026-02-01 00:00:00", "i * 0.700007"),
    "ship_on": ("2026-02-03 08:00:00", "i * 60"),
    "seen_at": ("2026-03-01 00:00:00", "i"),
}


def long_text(dialect: Dialect, seed: str) -> str:
    """Build a 4 kB text from the seed, a literal or column; it consists of digests, which don't compress."""
    parts = dialect.series.format(first=1, last=128, name="part")
    digest = dialect.digest.format(text=f"{seed} || ':' || part")
    joined = dialect.joined.format(text=digest)
    return f"(SELECT {joined} FROM {parts})"


@dataclass(frozen=True)
class Sizes:
    """Number of rows that each table starts with; in total about as many as requested."""

    customers: int
    orders: int
    order_items: int
    documents: int
    carts: int

    @classmethod
    def of(cls, rows: int) -> Sizes:
        """Distribute `rows` rows; `documents` and `carts` stay small."""
        documents, carts = min(5_000, 10 + rows // 100), min(2_000, 10 + rows // 100)
        rest = max(rows - documents - carts, 100)
        customers, orders = rest // 10, rest * 3 // 10
        return cls(customers, orders, rest - customers - orders, documents, carts)


def create_shop(source: DemoSource, sizes: Sizes) -> None:
    """Create the tables and load their first rows, one transaction each; analyzed on return."""
    dialect = source.dialect
    with closing(source.connect()) as connection, connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"CREATE TABLE {table} ({COLUMNS[table].format(**dialect.types)})")
            cursor.execute(f"INSERT INTO {table} {_first_rows(dialect, table, sizes)}")
            connection.commit()
        cursor.execute(dialect.analyze.format(tables=", ".join(TABLES)))
        connection.commit()


def _first_rows(dialect: Dialect, table: str, sizes: Sizes) -> str:
    times = {name: dialect.later.format(base=base, seconds=n) for name, (base, n) in _TIMES.items()}
    return LOAD[table].format(
        series=dialect.series.format(first=1, last=getattr(sizes, table), name="i"),
        customers=sizes.customers,
        digest=dialect.digest.format(text="'' || i"),
        body=long_text(dialect, "i"),
        json_object=dialect.json_object,
        some_labels=dialect.some_labels,
        uuid=dialect.types["uuid"],
        **times,
    )
