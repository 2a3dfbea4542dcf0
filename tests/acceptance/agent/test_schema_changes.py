"""Tables change their layout: while running, between two chunks, across a restart and a kill."""

from __future__ import annotations

import itertools
import json
import shlex
from typing import Any

import pytest

from connector.schema import TableName
from tests.support.agent.installed import Installation, Meddler, Running, assert_message
from tests.support.spark.lake import (
    assert_lake,
    assert_landed,
    lake_columns,
    lake_comment,
    lake_rows,
    merge,
    merge_until_whole,
)

TABLES = {
    "postgres": """
        CREATE TABLE wide (id int PRIMARY KEY, name varchar(20), price numeric(12,2), old text, size int);
        INSERT INTO wide SELECT n, 'name', n, concat('old ', n), n FROM generate_series(1, 2000) n;
        CREATE TABLE other (area int, number int, value text, PRIMARY KEY (area, number));
        INSERT INTO other SELECT n % 3, n, 'v' FROM generate_series(1, 1000) n;
        CREATE TABLE still (id int PRIMARY KEY, value text);
        INSERT INTO still VALUES (1, 'v')
    """,
    "mariadb": """
        CREATE TABLE wide (id int PRIMARY KEY, name varchar(20), price numeric(12,2), old text, size int);
        INSERT INTO wide SELECT seq, 'name', seq, concat('old ', seq), seq FROM seq_1_to_2000;
        CREATE TABLE other (area int, number int, value text, PRIMARY KEY (area, number));
        INSERT INTO other SELECT seq % 3, seq, 'v' FROM seq_1_to_1000;
        CREATE TABLE still (id int PRIMARY KEY, value text);
        INSERT INTO still VALUES (1, 'v')
    """,
}
ALTERATIONS = {
    "postgres": (
        "COMMENT ON TABLE wide IS 'What''s wide'; COMMENT ON COLUMN wide.name IS 'what it is called';"
        "ALTER TABLE wide ADD COLUMN stock int",
        "UPDATE wide SET stock = id WHERE id % 10 = 0",
        "ALTER TABLE wide ADD COLUMN colour text DEFAULT 'red'",
        "ALTER TABLE wide DROP COLUMN old",
        "ALTER TABLE wide RENAME COLUMN price TO cost",
        "ALTER TABLE wide ALTER name TYPE varchar(100)",
        "ALTER TABLE wide ALTER size TYPE bigint",
        "UPDATE wide SET size = 5000000000 WHERE id % 100 = 0",
        "ALTER TABLE other ADD COLUMN note text",
        "ALTER TABLE other ADD COLUMN at timestamptz NOT NULL DEFAULT now()",
    ),
    "mariadb": (
        "ALTER TABLE wide ADD COLUMN stock int FIRST",
        "UPDATE wide SET stock = id WHERE id % 10 = 0",
        "ALTER TABLE wide ADD COLUMN colour varchar(9) DEFAULT 'red' AFTER id",
        "ALTER TABLE wide DROP COLUMN old",
        "ALTER TABLE wide RENAME COLUMN price TO cost",
        "ALTER TABLE wide MODIFY name varchar(100)",
        "ALTER TABLE wide MODIFY size bigint",
        "UPDATE wide SET size = 5000000000 WHERE id % 100 = 0",
        "ALTER TABLE other ADD COLUMN note text",
        "ALTER TABLE other ADD COLUMN at datetime(6) NOT NULL DEFAULT now(6)",
    ),
}
REPLACE_KEY = {
    "postgres": "ALTER TABLE other DROP CONSTRAINT other_pkey, ADD CONSTRAINT other_key PRIMARY KEY (number)",
    "mariadb": "ALTER TABLE other DROP PRIMARY KEY, ADD PRIMARY KEY (number)",
}


def of(place: Installation, statements: dict[str, Any]) -> Any:
    """What is said in the words of the database."""
    return statements["postgres" if place.database.kind == "postgres" else "mariadb"]


class Changes:
    """Changes that no alteration disturbs, one transaction at each call."""

    def __init__(self, place: Installation) -> None:
        self._script = place.database.script
        self._numbers = itertools.count(10_000)

    def __call__(self) -> None:
        n = next(self._numbers)
        self._script(
            f"INSERT INTO wide (id, name) VALUES ({n}, 'new');"
            f"UPDATE wide SET name = 'n{n}' WHERE id % 400 = {n} % 400;"
            f"DELETE FROM wide WHERE id = {n} % 1900;"
            f"UPDATE other SET value = 'v{n}' WHERE number = {n} % 900;"
            f"UPDATE still SET value = '{n}'"
        )


def alter(place: Installation, agent: Running, statements: tuple[str, ...], changes: Changes) -> None:
    """Run the statements, with changes between them that reach the agent under each layout."""
    for statement in statements:
        place.database.execute(statement)
        changes()
        end = place.end_of_log()
        place.wait(agent, lambda m, end=end: m.position >= end, f"the log with {statement!r} is landed")


@pytest.mark.soak  # integration/test_schema_changes lands the same; spark/lake/test_schema merges it
@pytest.mark.only_postgres  # merges cost much; the others run the same without, below
def test_columns_altered_while_running_arrive_in_the_lake(place: Installation, spark: Any) -> None:
    place.database.script(of(place, TABLES))
    changes = Changes(place)
    with place.agent() as agent:
        with Meddler(changes, 0.03):
            place.wait_dumped(agent)
            merge(spark, place)
            alter(place, agent, of(place, ALTERATIONS), changes)
        place.wait_caught_up(agent)
        wide = TableName.parse(place.table("wide"))
        place.wait(agent, lambda m: m.tables[wide].comments is not None, "the comments have landed")
        merge_until_whole(spark, place, agent)
        assert place.run("status").returncode == 0
    notices = [n.text for m in place.history() for n in m.notices if n.kind == "schema"]
    assert any("colour" in text for text in notices)
    assert_landed(place, "wide", "other", "still")
    assert_lake(place, "wide", spark=spark)
    assert_lake(place, "other", "still")
    columns = lake_columns(place, "wide")
    assert {"old", "price"} <= columns.keys(), "dropped columns stay"
    assert (columns["name"], lake_comment(place, "wide")) == ("what it is called", "What's wide")


@pytest.mark.only_mariadb
@pytest.mark.only_mysql
@pytest.mark.soak_on_mariadb  # MariaDB's agent is MySQL's
def test_columns_altered_while_running_are_whole(place: Installation) -> None:
    place.database.script(of(place, TABLES))
    changes = Changes(place)
    with place.agent() as agent:
        with Meddler(changes, 0.03):
            place.wait_dumped(agent)
            alter(place, agent, of(place, ALTERATIONS), changes)
        place.wait_caught_up(agent)
        assert place.run("status").returncode == 0
    assert any("colour" in n.text for m in place.history() for n in m.notices if n.kind == "schema")
    assert_landed(place, "wide", "other", "still")


@pytest.mark.only_postgres
@pytest.mark.only_mariadb
@pytest.mark.soak  # integration/test_schema_changes dumps between any two statements
def test_columns_altered_between_two_chunks_are_whole(place: Installation) -> None:
    place.configure(dump={"chunk_rows": 50, "workers": 1, "delay_seconds": 1})
    place.database.script(of(place, TABLES))
    changes = Changes(place)
    with place.agent() as agent:
        for number, statement in enumerate(of(place, ALTERATIONS)):
            # Each alteration lies between two chunks of the table that is read first, or of another.
            place.wait(agent, lambda m, n=number: sum(d.chunks for d in m.dumps) > 2 * n, "chunks are read")
            place.database.execute(statement)
            changes()
        assert any(d.active for d in place.newest.dumps), "the dump ended before the alterations did"
        assert place.run("set", "--delay-seconds", "0").returncode == 0
        place.wait_caught_up(agent)
    place.history()
    assert_landed(place, "wide", "other", "still")


@pytest.mark.only_postgres
@pytest.mark.only_mysql
@pytest.mark.soak  # integration/test_schema_changes restarts between any two; kills are in test_kill
def test_columns_altered_across_restarts_and_kills_are_whole(place: Installation) -> None:
    place.database.script(of(place, TABLES))
    changes = Changes(place)
    statements = iter(of(place, ALTERATIONS))
    for number, pair in enumerate(zip(statements, statements, strict=True)):
        with place.start("run", kill_at="files-landed:3" if number % 3 == 1 else "") as agent:
            if number % 3 == 1:
                with Meddler(changes, 0.1):  # there must be a third manifest to be killed at
                    agent.wait()
            elif number % 3 == 0:
                place.wait_caught_up(agent)
                assert agent.stop() == 0, agent.output
        for statement in pair:
            changes()
            place.database.execute(statement)
        changes()
    with place.agent() as agent:
        place.wait_caught_up(agent)
    place.history()
    assert_landed(place, "wide", "other", "still")


@pytest.mark.soak_on_mysql
@pytest.mark.soak_on_mariadb  # integration/test_schema_changes replaces keys there
def test_a_table_whose_key_is_replaced_is_quarantined_loudly_and_released_by_a_dump(
    place: Installation, request: pytest.FixtureRequest
) -> None:
    other = place.table("other")
    name = TableName.parse(other)
    place.database.script(of(place, TABLES))
    changes = Changes(place)
    with place.agent() as agent:
        with Meddler(changes, 0.03):
            place.wait_dumped(agent)
            place.database.execute(of(place, REPLACE_KEY))
            quarantined = place.wait(
                agent, lambda m: m.tables[name].state == "quarantined", "it is quarantined"
            )
            assert "key" in quarantined.tables[name].reason
            assert not quarantined.exact
            place.wait(agent, lambda m: m.number > quarantined.number + 2, "the others go on")
            assert f"{other} is quarantined" in agent.output
            status = place.run("status")
            assert status.returncode == 1
            assert "quarantined" in status.stdout
            assert "deltatide dump" in status.stdout
            assert place.json("status")["tables"][place.table("still")]["state"] == "captured"
            assert_message(place.run("dump", place.table("othr")), f"did you mean {other}")
            assert place.run("dump", other).returncode == 0
            place.wait(agent, lambda m: m.tables[name].dumped, "it is dumped again")
        place.wait_caught_up(agent)
        assert place.run("status").returncode == 0
    kinds = [n.kind for m in place.history() for n in m.notices if str(n.table) == other]
    assert "quarantined" in kinds
    assert "released" in kinds
    assert_landed(place, "wide", "still")
    if place.database.kind == "postgres":
        merge(request.getfixturevalue("spark"), place)
        assert_lake(place, "wide", "other", "still")
        assert lake_rows(place, "still", ["id"]).total() == 1


@pytest.mark.soak_on_mariadb  # MariaDB's agent is MySQL's
def test_a_table_without_a_key_is_quarantined_alone_and_taken_up_by_following_the_hint(
    place: Installation,
) -> None:
    place.database.script(
        "CREATE TABLE good (id int PRIMARY KEY); INSERT INTO good VALUES (1);"
        "CREATE TABLE bare (id int NOT NULL); INSERT INTO bare VALUES (1), (2)"
    )
    good, bare = (TableName.parse(place.table(name)) for name in ("good", "bare"))
    with place.agent() as agent:
        first = place.wait(agent, lambda m: m.tables[good].dumped, "the other table is dumped")
        assert (first.tables[bare].state, first.exact) == ("quarantined", False)
    with place.agent() as agent:  # a restart with the table unmended
        number = place.newest.number
        place.database.execute("INSERT INTO good VALUES (2)")
        place.wait(agent, lambda m: m.number > number, "the other table goes on")
        status = place.run("status", "--json")
        assert status.returncode == 1
        reported = json.loads(status.stdout)["tables"][str(bare)]
        assert reported["reason"] == "it has no primary key"
        place.database.execute("ALTER TABLE bare ADD PRIMARY KEY (id)")
        command = shlex.split(reported["hint"].split("; then: deltatide ")[1])
        assert place.run(*command).returncode == 0
        place.wait(agent, lambda m: m.tables[bare].dumped, "it is dumped")
        place.database.execute("INSERT INTO bare VALUES (3)")
        place.wait_caught_up(agent)
        assert place.run("status").returncode == 0
    assert_landed(place, "good", "bare")
