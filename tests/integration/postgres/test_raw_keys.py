"""Keys that no Spark type holds (infinity, NaN, years out of range): the same from dump and log."""

from __future__ import annotations

import pytest

from connector.schema import TableName
from tests.support.landing.raw_keys import assert_the_same
from tests.support.servers.postgres import Database
from tests.support.source.postgres_source import source_of
from tests.support.source.reading import events, following, read_rows

TABLE = TableName("public", "t")
KEYS = {
    "timestamptz": ("-infinity", "0044-03-15 12:00:00+00 BC", "2026-01-31 00:00:00+00", "infinity"),
    "timestamp": ("-infinity", "0044-03-15 12:00:00 BC", "290000-01-01 00:00:00", "infinity"),
    "date": ("-infinity", "0044-03-15 BC", "2026-01-31", "290000-01-01", "infinity"),
    "numeric": ("-1.5", "2", "NaN"),
    "numeric(6,2)": ("-1.50", "2.00", "NaN"),
    "float8": ("-Infinity", "-0", "1.5", "Infinity", "NaN"),
}  # fmt: skip


@pytest.mark.parametrize("type_", KEYS)
def test_rows_by_such_keys_are_the_same_from_dump_and_log_in_any_chunks(
    database: Database, type_: str
) -> None:
    texts = KEYS[type_]
    database.execute(f"CREATE TABLE t (id int, k {type_}, v int, PRIMARY KEY (id, k))")
    source = source_of(database)
    with following(source) as log:
        rows = ", ".join(f"({n}, '{k}', 0)" for n in (1, 2) for k in texts)
        database.execute(f"INSERT INTO t VALUES {rows}")
        database.execute(
            f"UPDATE t SET v = 1; UPDATE t SET k = '{texts[1]}', id = 3 WHERE k = '{texts[-1]}' AND id = 1"
        )
        segment = read_rows(log, 2 * len(texts) * 2 + 1)
        tables = source.open_tables()
        assert_the_same(tables, TABLE, events(segment), texts)
        tables.close()
