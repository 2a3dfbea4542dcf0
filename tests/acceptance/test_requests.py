"""Dumps on request heal what the log never told: some rows by a condition, given keys, or all tables."""

from __future__ import annotations

from typing import Any

import pytest

from tests.installed import Installation, Running, assert_message
from tests.lake import assert_lake, assert_landed, lake_rows, merge

LOST_CHANGES = """
    ALTER PUBLICATION deltatide_shop SET (publish = 'insert');
    DELETE FROM things WHERE id IN (1, 2);
    UPDATE things SET value = 'healed' WHERE id IN (3, 4, 5);
    ALTER PUBLICATION deltatide_shop SET (publish = 'insert, update, delete, truncate');
"""


@pytest.fixture
def drifted(place: Installation, spark: Any) -> Installation:
    """A lake that has drifted from its source: 1 and 2 are ghosts, 3, 4 and 5 are stale."""
    place.database.execute(
        "CREATE TABLE things (id int PRIMARY KEY, value text);"
        "INSERT INTO things SELECT n, 'v' FROM generate_series(1, 1000) n;"
        "CREATE TABLE others (id int PRIMARY KEY); INSERT INTO others VALUES (1)"
    )
    with place.agent() as agent:
        place.wait_dumped(agent)
        for statement in filter(str.strip, LOST_CHANGES.split(";")):
            place.database.execute(statement)
        place.wait_caught_up(agent)
    merge(spark, place)
    return place


def dumped(place: Installation, agent: Running, *arguments: str) -> Any:
    """Ask for a dump through the command and wait for its end; gives its states by table."""
    request = place.json("dump", *arguments)["id"]

    def ended() -> Any:
        states = [s for s in place.newest.dumps if s.id.startswith(request)]
        return {s.table: s for s in states} if states and not any(s.active for s in states) else None

    return agent.wait_until(ended, "the dump has ended")


def things(place: Installation) -> dict[int, str]:
    return {id_: value for id_, value in lake_rows(place, "public.things", ["id", "value"]) if id_ < 7}


def test_dumps_on_request_heal_what_was_asked_for(drifted: Installation, spark: Any) -> None:
    place = drifted
    assert things(place) == dict.fromkeys(range(1, 7), "v")
    with place.agent() as agent:
        done = dumped(place, agent, "public.things", "--keys", "1,3,4711")["public.things"]
        assert (done.kind, done.state, done.rows) == ("keys", "complete", 3)
        done = dumped(place, agent, "public.things", "--where", "id = 4")["public.things"]
        assert (done.kind, done.state, done.rows) == ("where", "complete", 1)
        merge(spark, place)
        assert things(place) == {2: "v", 3: "healed", 4: "healed", 5: "v", 6: "v"}
        assert set(dumped(place, agent, "--all")) == {"public.things", "public.others"}
        merge(spark, place)
        listed = place.json("dumps")
        assert [d["state"] for d in listed] == ["complete"] * 6
    assert things(place) == {3: "healed", 4: "healed", 5: "healed", 6: "v"}
    assert_lake(place, "public.things", "public.others")
    assert_landed(place, "public.things", "public.others")


def test_a_request_that_can_t_be_carried_out_ends_alone(place: Installation) -> None:
    place.database.execute("CREATE TABLE things (id int PRIMARY KEY); INSERT INTO things VALUES (1)")
    with place.agent() as agent:
        place.wait_dumped(agent)
        failed = dumped(place, agent, "public.things", "--where", "no_such_column = 1")["public.things"]
        assert failed.state == "failed"
        assert "no_such_column" in failed.error
        failed = dumped(place, agent, "public.things", "--keys", "word")["public.things"]
        assert failed.state == "failed"
        assert "word" in failed.error
        assert_message(place.run("dump", "public.thing"), "public.thing", "did you mean public.things")
        assert_message(place.run("dump"), "--all", status=2)
        assert_message(place.run("dump", "--all", "--where", "true"), "one table")
        done = dumped(place, agent, "public.things")["public.things"]
        assert done.state == "complete"
        assert place.run("status").returncode == 0
    assert_landed(place, "public.things")
