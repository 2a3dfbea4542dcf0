"""A changed configuration, taken over by the running agent: by SIGHUP and by `deltatide reload`."""

from __future__ import annotations

import signal

import pytest

from connector.errors import ConfigurationError
from tests.support.agent.installed import Installation, assert_message
from tests.support.spark.lake import assert_landed


@pytest.mark.only_postgres
@pytest.mark.only_mariadb
@pytest.mark.soak_on_mariadb  # what is read again knows no database
def test_tables_and_limits_are_taken_over_by_a_running_agent(place: Installation) -> None:
    place.database.script(
        "CREATE TABLE things (id int PRIMARY KEY); INSERT INTO things VALUES (1);"
        "CREATE TABLE others (id int PRIMARY KEY); INSERT INTO others VALUES (1), (2)"
    )
    only = {"tables": [place.table("things")]}
    place.configure(source=only, limits={"store_seconds": 0.000000001})
    with place.agent() as agent:
        agent.wait_until(lambda: "dumps are held back" in agent.output, "dumps hold back")
        assert place.json("dump", place.table("things"))
        agent.wait_until(
            lambda: any("held back: store_seconds is" in (d["why"] or "") for d in place.json("dumps")),
            "the dumps say why",
        )
        agent.wait_until(lambda: "held back: store_seconds" in place.run("status").stdout, "so does status")
        with pytest.raises(ConfigurationError):
            place.configure(source=only, dump={"workers": "two"})
        agent.process.send_signal(signal.SIGHUP)
        agent.wait_says("keeping the configuration as it was")
        assert_message(place.run("reload"), "dump.workers: must be a whole number", status=2)
        place.configure()
        agent.process.send_signal(signal.SIGHUP)
        manifest = place.wait_dumped(agent)
        assert {table.name for table in manifest.tables} == {"things", "others"}
        place.configure(source=only)
        assert place.run("reload").returncode == 0
        place.wait(agent, lambda m: len(m.tables) == 1, "the other table is left")
        assert "reopening the log" not in agent.output
    assert_landed(place, "things")
