"""Dumps on request heal what the log never told: some rows by a condition, given keys, or all tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.installed import Installation, Running, assert_message
from tests.support.spark.lake import assert_lake, assert_landed, lake_rows, merge

LOST_CHANGES = """
    DELETE FROM things WHERE id IN (1, 2);
    UPDATE things SET value = 'healed' WHERE id IN (3, 4, 5)
"""


def create_things(place: Installation) -> None:
    place.database.script(
        "CREATE TABLE things (id int PRIMARY KEY, value text);"
        f"INSERT INTO things VALUES {', '.join(f'({n}, 0)' for n in range(1, 1001))};"
        "UPDATE things SET value = 'v';"
        "CREATE TABLE others (id int PRIMARY KEY); INSERT INTO others VALUES (1)"
    )


@pytest.fixture
def drifted(place: Installation, spark: Any) -> Installation:
    """A lake that has drifted from its source: 1 and 2 are ghosts, 3, 4 and 5 are stale."""
    create_things(place)
    with place.agent() as agent:
        place.wait_dumped(agent)
        place.database.changed_unseen(LOST_CHANGES)
        place.wait_caught_up(agent)
    merge(spark, place)
    return place


def dumped(place: Installation, agent: Running, *arguments: str) -> Any:
    """Ask for a dump through the command and wait for its end; gives its states by table."""
    request = place.json("dump", *arguments)["id"]

    def ended() -> Any:
        states = [s for s in place.newest.dumps if s.id.startswith(request)]
        return {s.table.name: s for s in states} if states and not any(s.active for s in states) else None

    return agent.wait_until(ended, "the dump has ended")


def things(place: Installation) -> dict[int, str]:
    return {id_: value for id_, value in lake_rows(place, "things", ["id", "value"]) if id_ < 7}


@pytest.mark.soak_on_mysql
@pytest.mark.soak_on_mariadb  # requests know no database; integration/mysql/test_dump reads by keys
def test_dumps_on_request_land_what_was_asked_for(place: Installation) -> None:
    create_things(place)
    with place.agent() as agent:
        place.wait_dumped(agent)
        place.database.changed_unseen(LOST_CHANGES)
        done = dumped(place, agent, place.table("things"), "--keys", "1,3,4711")["things"]
        assert (done.kind, done.state, done.rows) == ("keys", "complete", 3)
        done = dumped(place, agent, place.table("things"), "--where", "id = 4")["things"]
        assert (done.kind, done.state, done.rows) == ("where", "complete", 1)
        with pytest.raises(AssertionError, match="things: 1 of 998 rows missing, 2 too many"):
            assert_landed(place, "things")  # 2 is a ghost, and 5 is stale
        assert set(dumped(place, agent, "--all")) == {"things", "others"}
        assert [d["state"] for d in place.json("dumps")] == ["done"] * 6
    assert_landed(place, "things", "others")


@pytest.mark.soak  # what lands is the same above; spark/test_change_set merges chunks of keys
@pytest.mark.only_postgres
def test_dumps_on_request_heal_what_was_asked_for(drifted: Installation, spark: Any) -> None:
    place = drifted
    assert things(place) == dict.fromkeys(range(1, 7), "v")
    with place.agent() as agent:
        done = dumped(place, agent, place.table("things"), "--keys", "1,3,4711")["things"]
        assert (done.kind, done.state, done.rows) == ("keys", "complete", 3)
        done = dumped(place, agent, place.table("things"), "--where", "id = 4")["things"]
        assert (done.kind, done.state, done.rows) == ("where", "complete", 1)
        merge(spark, place)
        assert things(place) == {2: "v", 3: "healed", 4: "healed", 5: "v", 6: "v"}
        assert set(dumped(place, agent, "--all")) == {"things", "others"}
        merge(spark, place)
        listed = place.json("dumps")
        assert [d["state"] for d in listed] == ["done"] * 6
    assert things(place) == {3: "healed", 4: "healed", 5: "healed", 6: "v"}
    assert_lake(place, "things", "others")
    assert_landed(place, "things", "others")


@pytest.mark.soak_on_mysql
@pytest.mark.soak_on_mariadb  # requests know no database; integration/mysql/test_dump has its errors
def test_a_request_that_can_t_be_carried_out_ends_alone(place: Installation) -> None:
    place.database.script("CREATE TABLE things (id int PRIMARY KEY); INSERT INTO things VALUES (1)")
    with place.agent() as agent:
        place.wait_dumped(agent)
        failed = dumped(place, agent, place.table("things"), "--where", "no_such_column = 1")["things"]
        assert failed.state == "failed"
        assert "no_such_column" in failed.error
        failed = dumped(place, agent, place.table("things"), "--keys", "word")["things"]
        assert failed.state == "failed"
        assert "word" in failed.error
        assert_message(place.run("dump", place.table("thing")), f"did you mean {place.table('things')}")
        assert_message(place.run("dump"), "--all", status=2)
        assert_message(place.run("dump", "--all", "--where", "true"), "one table")
        done = dumped(place, agent, place.table("things"))["things"]
        assert done.state == "complete"
        assert place.run("status").returncode == 0
    assert_landed(place, "things")


@pytest.mark.only_postgres
@pytest.mark.only_mariadb
@pytest.mark.soak_on_mariadb  # control of dumps knows no database
def test_dumps_under_control_while_they_run(place: Installation, tmp_path: Path) -> None:
    create_things(place)
    place.configure(dump={"chunk_rows": 10, "workers": 1})
    with place.agent() as agent:
        place.wait_dumped(agent)
        place.run("set", "--delay-seconds", "0.2")
        wait_set(place, agent, "delay_seconds 0.2")
        request = place.json("dump", place.table("things"), "--id", "weekly")["id"]
        agent.wait_until(lambda: (listed(place, request) or {"chunks": 0})["chunks"] > 2, "it has begun")
        running = listed(place, request)
        assert (running["state"], running["rows_per_second"] > 0) == ("running", True)
        assert place.run("pause", request).returncode == 0
        agent.wait_until(lambda: listed(place, request)["state"] == "paused", "it is paused")
        file = tmp_path / "keys.txt"
        file.write_text("".join(f"{n}\n" for n in range(20_000)))
        done = dumped(place, agent, place.table("things"), "--keys-file", str(file))["things"]
        assert (done.kind, done.state, done.rows) == ("keys", "complete", 20_000)
    paused = listed(place, request)
    with place.agent() as agent:
        assert_message(place.run("cancel", "nope"), "no dump nope", f"{request} ({place.table('things')})")
        assert_message(place.run("pause"), "--all", status=2)
        assert_message(place.run("set"), "--defaults", status=2)
        assert place.run("set", "--workers", "0").returncode == 2
        place.run("dump", place.table("things"), "--id", "weekly")  # sent twice
        other = place.json("dump", place.table("things"))["id"]
        agent.wait_until(lambda: listed(place, other), "the other is queued")
        assert listed(place, request) == paused
        assert place.run("cancel", other).returncode == 0
        agent.wait_until(lambda: listed(place, other)["state"] == "cancelled", "it is cancelled")
        place.run("set", request, "--chunk-rows", "500", "--delay-seconds", "0")
        place.run("resume", "--all")
        agent.wait_until(lambda: listed(place, request)["state"] == "done", "it is done")
        assert listed(place, request)["chunks"] <= paused["chunks"] + 3  # however many were read until then
        assert listed(place, request)["share"] == 1
        place.run("set", "--defaults")
        wait_set(place, agent, "delay_seconds 0.0")
    assert_landed(place, "things")


def listed(place: Installation, dump: str) -> Any:
    return next((d for d in place.json("dumps") if d["id"] == dump), None)


def wait_set(place: Installation, agent: Running, text: str) -> None:
    agent.wait_until(lambda: text in place.run("dumps").stdout, "it is set")
