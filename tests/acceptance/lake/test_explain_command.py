"""A row is explained and a table rebuilt by the installed command."""

from __future__ import annotations

import json

import pytest

from tests.support.agent.installed import Installation, assert_message
from tests.support.spark.lake import assert_lake

pytestmark = pytest.mark.only_postgres


@pytest.mark.soak  # explained and rebuilt in Python: test_proof
def test_a_row_is_explained_and_a_table_whose_rebuild_was_killed_is_rebuilt(shop: Installation) -> None:
    with shop.agent() as agent:
        shop.wait_dumped(agent)
        shop.database.execute("UPDATE parts SET quantity = -5 WHERE number = 10")
        shop.wait_caught_up(agent)
    assert shop.run("merge", seconds=240).returncode == 0
    done = shop.run("explain", "public.parts", "Area 3", "10", "--json", seconds=240)
    found = json.loads(done.stdout)
    assert (done.returncode, found["delta"]["differences"]) == (0, []), done
    assert found["result"]["values"]["quantity"] == found["delta"]["row"]["values"]["quantity"] == "-5"
    dumped, updated = found["events"]
    assert (dumped["op"], dumped["verdict"], updated["op"]) == ("dump", "chunk lost to log", "update")
    assert (updated["supplies"], bool(updated["txid"])) == (["quantity", "label"], True)
    assert all((shop.landing / "shop" / event["file"]).exists() for event in found["events"])
    never = shop.run("explain", "public.parts", "Area 3", "-5", seconds=240)
    assert (never.returncode, "no event of this key has landed" in never.stdout) == (1, True), never
    said = ("1 value given", "(area, number)", "hint: ")
    assert_message(shop.run("explain", "public.parts", "Area 3", seconds=240), *said, status=2)
    with shop.start("rebuild", "public.parts", kill_at="table-rebuilt") as killed:
        assert killed.wait(240) == -9, killed.output
    done = shop.run("rebuild", "public.parts", seconds=240)
    assert (done.returncode, "public.parts: rebuilt from" in done.stdout) == (0, True), done
    assert_lake(shop, "parts")
