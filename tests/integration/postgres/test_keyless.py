"""Tables without a key on a real PostgreSQL: their changes are captured once they have a replica identity."""

from __future__ import annotations

from connector.postgres.source import PostgresSource
from tests.support.servers.postgres import Database
from tests.support.source.log_scenarios import assert_changes_without_a_key
from tests.support.source.postgres_source import source_of
from tests.support.source.reading import events, following, ops, read_rows


def only_changes(database: Database, **more: object) -> PostgresSource:
    return source_of(database, settings={"public.t": {"shapes": ["changes"], **more}})


def test_changes_of_a_table_without_a_key_land_as_they_are(database: Database) -> None:
    database.execute("CREATE TABLE t (n int, v text); ALTER TABLE t REPLICA IDENTITY FULL")
    source = only_changes(database, before_images=True)
    (schema,) = source.tables().schemas
    assert schema.key == ()
    with following(source) as log:
        before = source.check_catalog().tables[schema.table]
        database.execute("INSERT INTO t VALUES (1, 'a'), (1, 'a'), (NULL, NULL)")
        database.execute("UPDATE t SET v = 'b' WHERE n = 1; DELETE FROM t WHERE n IS NULL; DELETE FROM t")
        database.execute("TRUNCATE t")
        found = events(read_rows(log, 9))
        assert source.check_catalog().tables[schema.table].split()[0] == before.split()[0]
    assert_changes_without_a_key(found)


def test_a_table_whose_writers_publishing_would_stop_is_refused_with_what_it_needs(
    database: Database,
) -> None:
    database.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
    plain, source = source_of(database), only_changes(database)
    (problem,) = plain.tables().unfit
    assert (problem.reason, 'shapes = ["changes"]' in (problem.hint or "")) == ("it has no primary key", True)
    (problem,) = source.tables().unfit
    assert "no replica identity" in problem.reason
    (found,) = [f for f in source.check() if f.table and str(f.table) == "public.t"]
    assert (found.state, found.fix) == ("failed", 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL;')
    source.prepare()
    database.execute("UPDATE t SET n = 2")  # its writers go on
    database.execute(found.fix)
    (found,) = [f for f in source.check() if f.name == "table public.t"]
    assert (found.state, found.detail[:15]) == ("ok", "its changes can")
    source.prepare()
    database.execute("UPDATE t SET n = 3")
    plain.close()
    source.close()


def test_a_keyed_table_whose_changes_alone_are_wanted_has_the_key_in_its_deletes(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with following(only_changes(database)) as log:
        database.execute("INSERT INTO t VALUES (1, 'a'); UPDATE t SET id = 2; DELETE FROM t")
        found = events(read_rows(log, 3))
    assert ops(found, "id", "v") == [("insert", 1, "a"), ("update", 2, "a"), ("delete", 2, None)]
