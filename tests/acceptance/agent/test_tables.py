"""Tables of other shapes: partitioned, without a primary key, with long values left unchanged."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.agent.installed import Installation, Meddler
from tests.support.spark.lake import assert_lake, assert_landed, merge, merge_until_whole

TABLES = """
    CREATE TABLE events (id bigint, day date, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
    CREATE TABLE events_2025 PARTITION OF events FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
    CREATE TABLE events_2026 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')
        PARTITION BY HASH (id);
    CREATE TABLE events_2026_0 PARTITION OF events_2026 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
    CREATE TABLE events_2026_1 PARTITION OF events_2026 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
    INSERT INTO events SELECT n, date '2025-01-01' + n % 700, 'event ' || n FROM generate_series(1, 1000) n;

    CREATE TABLE tags (area int NOT NULL, name text NOT NULL, value text, CONSTRAINT one UNIQUE (name, area));
    ALTER TABLE tags REPLICA IDENTITY USING INDEX one;
    INSERT INTO tags SELECT n % 9, 'Tag ' || n, 'v' || n FROM generate_series(1, 500) n;

    CREATE TABLE logs (id int NOT NULL UNIQUE, at timestamptz, text text);
    ALTER TABLE logs REPLICA IDENTITY FULL;
    INSERT INTO logs SELECT n, now(), NULL FROM generate_series(1, 500) n;

    CREATE TABLE full_pages (id int PRIMARY KEY, title text, body text, raw bytea);
    ALTER TABLE full_pages ALTER body SET STORAGE EXTERNAL, ALTER raw SET STORAGE EXTERNAL,
        REPLICA IDENTITY FULL;
    CREATE TABLE pages (LIKE full_pages INCLUDING ALL);
    INSERT INTO pages SELECT n, 'title', repeat('body ' || n, 700), decode(repeat('0bff', 2000), 'hex')
        FROM generate_series(1, 300) n;
    INSERT INTO full_pages SELECT * FROM pages;
"""
NAMES = ["public.events", "public.tags", "public.logs", "public.full_pages", "public.pages"]


class Changes:
    """One transaction of changes to all the tables at each call."""

    def __init__(self, place: Installation, seed: int) -> None:
        self._connection = place.database.connect(autocommit=False)
        self._random = random.Random(seed)
        self._fresh = 10_000

    def __call__(self) -> None:
        self._fresh += 1
        values = {"id": self._random.randint(1, 400), "new": self._fresh, "n": self._random.randint(0, 699)}
        with self._connection.cursor() as cursor:
            for statement in STATEMENTS:
                if self._random.random() < 0.6:
                    cursor.execute(statement, values)
        self._connection.commit()


STATEMENTS = """
    UPDATE events SET note = 'changed ' || %(new)s WHERE id = %(id)s
    UPDATE events SET day = date '2025-01-01' + %(n)s WHERE id = %(id)s + 100
    INSERT INTO events VALUES (%(new)s, date '2025-01-01' + %(n)s, 'new')
    DELETE FROM events WHERE id = %(n)s
    INSERT INTO tags VALUES (%(n)s, 'new ' || %(new)s, NULL)
    UPDATE tags SET value = 'changed ' || %(new)s WHERE name = 'Tag ' || %(id)s
    UPDATE tags SET area = %(new)s WHERE name = 'Tag ' || %(n)s
    DELETE FROM tags WHERE name = 'Tag ' || %(id)s + 50
    INSERT INTO logs VALUES (%(new)s, NULL, 'new')
    UPDATE logs SET text = %(new)s WHERE id = %(id)s
    UPDATE logs SET id = -%(new)s WHERE id = %(n)s
    DELETE FROM logs WHERE id = %(id)s + 77
    UPDATE pages SET title = %(new)s WHERE id = %(id)s
    UPDATE pages SET id = %(new)s WHERE id = %(n)s
    UPDATE pages SET body = %(new)s WHERE id = %(id)s + 7
    UPDATE full_pages SET title = %(new)s WHERE id = %(id)s
    UPDATE full_pages SET id = %(new)s WHERE id = %(n)s
    UPDATE full_pages SET body = %(new)s WHERE id = %(id)s + 7
    INSERT INTO pages VALUES (%(new)s + 1000000, 'a', repeat('b', 4000), NULL)
    UPDATE pages SET title = 'b' WHERE id = %(new)s + 1000000
""".strip().splitlines()


@pytest.mark.only_postgres
def test_tables_of_every_shape_equal_the_source(place: Installation, spark: Any) -> None:
    place.database.execute(TABLES)
    place.configure(
        source={"exclude": ["public.events_*"]},
        tables={"public.tags": {"key": ["area", "name"]}, "public.logs": {"key": ["id"]}},
    )
    changes = Changes(place, seed=30)
    with place.agent() as agent:
        with Meddler(changes, 0.005):
            place.wait_dumped(agent)
            merge(spark, place)
            place.database.execute(
                "CREATE TABLE events_2027 PARTITION OF events"
                " FOR VALUES FROM ('2027-01-01') TO ('2028-01-01');"
                "INSERT INTO events SELECT n, '2027-05-05' FROM generate_series(20001, 20050) n;"
                "UPDATE events SET day = '2027-06-06' WHERE id BETWEEN 500 AND 520"
            )
        place.wait_caught_up(agent)
        merge_until_whole(spark, place, agent)
        manifests = place.history()
    assert set(map(str, manifests[-1].tables)) == set(NAMES), "partitions land under their root"
    partial = {str(f.table) for m in manifests for f in m.files if f.partial}
    assert partial == {"public.pages"}, "a value that was not sent is marked, and only where it was not sent"
    assert_lake(place, *NAMES)
    assert_landed(place, *NAMES, unchanged=("body", "raw"))
