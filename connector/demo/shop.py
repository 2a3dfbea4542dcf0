"""The demonstration's source: a small shop, its tables and its first rows.

`documents` carries texts that PostgreSQL stores out of line (TOAST): updates of its other columns do not
bring them into the log. `carts` is small and is truncated while it is captured. Foreign keys are left out,
since the writer changes keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg2

TABLES = ("customers", "orders", "order_items", "documents", "carts")
"""In the schema `public`."""

SCHEMA = """
CREATE TABLE customers (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    email varchar(80),
    points int NOT NULL,
    vip boolean NOT NULL,
    born date,
    changed_at timestamptz NOT NULL
);
CREATE TABLE orders (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    status text NOT NULL,
    total numeric(12, 2) NOT NULL,
    note text,
    ordered_at timestamptz NOT NULL,
    ship_on timestamp
);
CREATE TABLE order_items (
    order_id bigint,
    line smallint,
    product text NOT NULL,
    quantity int NOT NULL,
    price numeric(10, 4) NOT NULL,
    discount double precision,
    PRIMARY KEY (order_id, line)
);
CREATE TABLE documents (
    id bigint PRIMARY KEY,
    title text NOT NULL,
    body text NOT NULL,
    views int NOT NULL,
    labels text[],
    attributes jsonb
);
CREATE TABLE carts (
    id uuid PRIMARY KEY,
    customer_id bigint NOT NULL,
    items int NOT NULL,
    seen_at timestamptz NOT NULL
);
"""

# md5 texts do not compress, so that 4 kB of them are stored out of line.
LONG_TEXT = "(SELECT string_agg(md5({seed}::text || ':' || part), '') FROM generate_series(1, 128) part)"

LOAD = {
    "customers": """
        INSERT INTO customers
        SELECT i, 'Customer ' || i, CASE WHEN i % 7 > 0 THEN 'customer' || i || '@example.org' END,
               i * 7 % 1000, i % 50 = 0,
               CASE WHEN i % 11 > 0 THEN date '1950-01-01' + (i * 13 % 20000)::int END,
               timestamptz '2026-01-01 00:00:00Z' + i * interval '1.000001 second'
        FROM generate_series(1, {rows}::bigint) i""",
    "orders": """
        INSERT INTO orders
        SELECT i, 1 + i * 31 % {customers}, (ARRAY['open', 'paid', 'sent', 'returned'])[1 + i % 4],
               (i * 7919 % 1000000)::numeric / 100, CASE WHEN i % 5 = 0 THEN 'Note für Auftrag № ' || i END,
               timestamptz '2026-02-01 00:00:00Z' + i * interval '0.700007 second',
               CASE WHEN i % 3 > 0 THEN timestamp '2026-02-03 08:00' + i * interval '1 minute' END
        FROM generate_series(1, {rows}::bigint) i""",
    "order_items": """
        INSERT INTO order_items
        SELECT 1 + (i - 1) / 2, 1 + (i - 1) % 2, 'Product ' || i * 17 % 5000, 1 + i % 9,
               (i * 104729 % 100000000)::numeric / 10000, CASE WHEN i % 4 = 0 THEN (i % 30) / 100.0 END
        FROM generate_series(1, {rows}::bigint) i""",
    "documents": f"""
        INSERT INTO documents
        SELECT i, 'Document ' || i, {LONG_TEXT.format(seed="i")}, 0,
               CASE WHEN i % 3 = 0 THEN ARRAY['a' || i % 10, NULL, 'with "quotes", and commas'] END,
               CASE WHEN i % 2 = 0 THEN jsonb_build_object('pages', i % 90, 'language', 'de') END
        FROM generate_series(1, {{rows}}::bigint) i""",
    "carts": """
        INSERT INTO carts
        SELECT md5(i::text)::uuid, 1 + i % {customers}, i % 12, timestamptz '2026-03-01Z' + i * interval '1 s'
        FROM generate_series(1, {rows}::bigint) i""",
}
"""A statement for each table's first rows; the numbers of rows and customers are still to be filled in."""


@dataclass(frozen=True)
class Sizes:
    """How many rows each table begins with; together about as many as asked for."""

    customers: int
    orders: int
    order_items: int
    documents: int
    carts: int

    @classmethod
    def of(cls, rows: int) -> Sizes:
        """Share out `rows` rows; the tables with long texts and with carts stay small."""
        documents, carts = min(5_000, 10 + rows // 100), min(2_000, 10 + rows // 100)
        rest = max(rows - documents - carts, 100)
        customers, orders = rest // 10, rest * 3 // 10
        return cls(customers, orders, rest - customers - orders, documents, carts)


def create_shop(url: str, sizes: Sizes) -> None:
    """Create the tables and load their first rows, a transaction for each; analysed on return."""
    connection = psycopg2.connect(url)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(SCHEMA)
            for table in TABLES:
                cursor.execute(LOAD[table].format(rows=getattr(sizes, table), customers=sizes.customers))
            cursor.execute("ANALYZE")
    finally:
        connection.close()
