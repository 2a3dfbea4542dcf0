"""What an operator may get wrong: a message of one to three lines and nothing written."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extras
import pytest

from connector.demo.servers.postgres import PostgresServer
from connector.landing.format import manifest_path
from tests.support.agent.installed import Installation, assert_message
from tests.support.servers.postgres import Database

pytestmark = pytest.mark.only_postgres


@pytest.fixture
def things(place: Installation) -> Installation:
    """A database with one table that could be captured."""
    place.database.execute("CREATE TABLE things (id int PRIMARY KEY); INSERT INTO things VALUES (1)")
    return place


def traces(place: Installation) -> tuple[Any, ...]:
    """What a command could have left: in the landing zone, and in the database."""
    files = sorted(
        (str(path.relative_to(place.folder)), path.read_bytes())
        for path in place.folder.rglob("*")
        if path.is_file() and path.name != ".lock" and path.suffix not in (".toml", ".log")
    )
    slots = place.database.execute(
        "SELECT slot_name, confirmed_flush_lsn::text FROM pg_replication_slots ORDER BY 1"
    )
    publications = place.database.execute("SELECT pubname FROM pg_publication ORDER BY 1")
    return files, slots, publications


def refused(place: Installation, *expected: str, status: int = 1, command: str = "run") -> None:
    """Run the command, which must fail with a message and leave everything as it was."""
    before = traces(place)
    assert_message(place.run(command), *expected, status=status)
    assert traces(place) == before, "something was written"


def other_url(place: Database, **changes: str) -> str:
    return place.server.url(**{"database": place.name, **changes})


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            lambda d: {"url": other_url(d, password="wr0ng-pass")},
            ["password authentication failed", "source.url"],
        ),
        (lambda d: {"url": other_url(d, user="nobody_here")}, ["nobody_here", "source.url"]),
        (lambda d: {"url": other_url(d, database="no_such_db")}, ["no_such_db", "source.url"]),
        (lambda d: {"tables": ["public.thing"]}, ["public.thing", "source.tables"]),
        (lambda d: {"tables": ["public.things", "sales.*"]}, ["sales.*", "source.tables"]),
    ],
    ids=["password", "user", "database", "table", "pattern"],
)
def test_a_source_that_can_t_be_had(
    things: Installation, settings: Callable[[Database], dict[str, Any]], expected: list[str]
) -> None:
    things.configure(source=settings(things.database))
    refused(things, *expected)
    assert "wr0ng-pass" not in things.run("run").stderr


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@127.0.0.1:{port}/d", "can't reach postgres at 127.0.0.1"),
        ("postgresql://u@no-such-host.invalid/d", "no-such-host"),
    ],
    ids=["port", "host"],
)
def test_a_source_that_does_not_answer_is_waited_for(things: Installation, url: str, expected: str) -> None:
    things.configure(source={"url": url.format(port=closed_port())})
    before = traces(things)
    with things.start("run") as agent:
        agent.wait_says("check host and port in source.url")
        assert agent.stop() == 0, agent.output
    assert expected in agent.output
    assert traces(things) == before, "something was written"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[source\n", ["malformed TOML", "line"]),
        ("[landing]\nflush_second = 3\n", ["flush_second", "flush_seconds"]),
        ("[dump]\nworkers = 'two'\n", ["dump.workers"]),
        ("[sourse]\n", ["sourse", "source"]),
    ],
    ids=["malformed", "unknown-setting", "wrong-type", "unknown-section"],
)
@pytest.mark.parametrize(
    "command",
    ["run", *(pytest.param(other, marks=pytest.mark.soak) for other in ("check", "status")), "merge"],
)
def test_a_configuration_that_can_t_be_read(
    things: Installation, line: str, expected: list[str], command: str
) -> None:
    text = things.file.read_text()
    if line.split("]")[0] + "]" in text:
        section, setting = line.split("\n", 1)
        text = "\n".join(
            row for row in text.splitlines() if row.partition(" ")[0] != setting.partition(" ")[0]
        )
        text = text.replace(section, f"{section}\n{setting}")
    else:
        text += line
    things.file.write_text(text)
    refused(things, *expected, status=2, command=command)


def test_a_configuration_that_is_not_there(things: Installation) -> None:
    things.file = things.folder / "none.toml"
    before = traces(things)
    assert_message(things.run("run"), "none.toml", "no such file", status=2)
    assert traces(things) == before


def test_a_landing_zone_in_the_way_of_which_is_a_file(things: Installation) -> None:
    (things.folder / "file").write_text("something else")
    things.configure(landing={"url": str(things.folder / "file" / "landing")})
    refused(things, str(things.folder / "file"), "hint: ")


def test_a_landing_zone_that_can_t_be_written_to(things: Installation) -> None:
    if os.getuid() == 0:
        (things.folder / "file.log").write_text("where root may not write either")
        things.configure(landing={"url": str(things.folder / "file.log" / "landing")})
        refused(things, "file.log", "hint: ")
        return
    folder = things.folder / "locked"
    folder.mkdir(mode=0o500)
    things.configure(landing={"url": str(folder / "landing")})
    refused(things, str(folder), "hint: ")


def test_a_table_whose_updates_would_not_tell_the_key(things: Installation) -> None:
    things.database.execute("ALTER TABLE things REPLICA IDENTITY NOTHING")
    assert_message(things.run("run"), "public.things", 'ALTER TABLE "public"."things" REPLICA IDENTITY')
    assert traces(things)[1:] == ([], []), "something was made in the database"


def test_a_slot_in_use_by_another(things: Installation) -> None:
    name = things.slot
    things.database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    things.database.execute("CREATE PUBLICATION somebody_s FOR TABLE things")
    other = psycopg2.connect(
        things.database.url, connection_factory=psycopg2.extras.LogicalReplicationConnection
    )
    try:
        with other.cursor() as cursor:
            cursor.start_replication(
                slot_name=name, options={"proto_version": "1", "publication_names": "somebody_s"}
            )
            before = traces(things)
            assert_message(things.run("run"), f"slot {name} is in use", "hint: ")
            lease = things.landing / "shop" / "lease.json"
            assert json.loads(lease.read_text())["released"]
            lease.unlink()
            assert traces(things) == before, "something else than a released lease was written"
    finally:
        other.close()


def test_a_slot_of_another_database(things: Installation) -> None:
    elsewhere = Database(things.database.server, "postgres")
    elsewhere.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (things.slot,))
    try:
        refused(things, things.slot, "postgres", "source.slot")
    finally:
        elsewhere.execute("SELECT pg_drop_replication_slot(%s)", (things.slot,))


def test_a_server_without_logical_decoding(
    things: Installation, tmp_path: Path, servers_folder: Path
) -> None:
    with PostgresServer.start(
        servers_folder / "replica", bin_dir=things.database.server.bin_dir, settings={"wal_level": "replica"}
    ) as server:
        database = Database(server, "postgres")
        database.execute("CREATE TABLE things (id int PRIMARY KEY)")
        refused(Installation(tmp_path, database), "wal_level", "ALTER SYSTEM SET wal_level", "restart")


def test_the_landing_zone_of_another_database(things: Installation, tmp_path: Path) -> None:
    with things.agent() as agent:
        things.wait_dumped(agent)
    things.database.execute("CREATE DATABASE another_one")
    another = Database(things.database.server, "another_one")
    try:
        another.execute("CREATE TABLE things (id int PRIMARY KEY)")
        second = Installation(tmp_path, another)
        refused(second, things.database.name, "another_one", "source.name or landing.url")
    finally:
        things.database.execute("DROP DATABASE another_one WITH (FORCE)")


@pytest.mark.parametrize("command", ["run", "status", "merge"])
def test_a_manifest_of_a_newer_format(things: Installation, command: str) -> None:
    path = things.landing / "shop" / manifest_path(7)
    path.parent.mkdir(parents=True)
    path.write_text('{"format": 99, "number": 7}')
    refused(things, "format 99", "upgrade deltatide", command=command)


@pytest.mark.parametrize("command", ["status", "dumps"])
def test_a_landing_zone_with_nothing_in_it(things: Installation, command: str) -> None:
    refused(things, "has no manifest yet", "deltatide run", command=command)
