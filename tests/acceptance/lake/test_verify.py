"""The lake is verified while source, agent and merges go on: what differs is found, and repaired."""

from __future__ import annotations

import json
from typing import Any

import pytest

from merge.proof.key_ranges import KeyRange
from merge.proof.sampling import choose
from tests.support.agent.installed import Installation, assert_message
from tests.support.source.shop_writer import ShopWriter
from tests.support.spark.lake import assert_lake, merge

LONG = "word " * 2000
PLANTED = """
    DELETE FROM things WHERE id = 1;
    UPDATE things SET value = NULL WHERE id = 2;
    UPDATE things SET amount = amount + 0.01 WHERE id = 3;
    INSERT INTO things VALUES (1000, 'new', 1)
"""
FEW = "DELETE FROM things WHERE id = 7; UPDATE things SET amount = 1 WHERE id = 8"
FOUND = {
    ("1", None, "ghost", None, None),
    ("2", "value", "different", None, LONG[:5]),
    ("3", "amount", "different", "3.01", "3.00"),
    ("1000", None, "missing", None, None),
}


@pytest.fixture
def things(shop: Installation) -> str:
    """Create a table of two ranges of 256 rows, some long; return its name."""
    shop.database.script(
        "CREATE TABLE things (id int PRIMARY KEY, value text, amount numeric(10,2));"
        f"INSERT INTO things VALUES {', '.join(f'({n}, NULL, {n})' for n in range(1, 500))};"
        "UPDATE things SET value = 'short';"
        f"UPDATE things SET value = '{LONG}' WHERE id < 20"
    )
    shop.configure(landing={"flush_seconds": 2})  # few files
    return shop.table("things")


@pytest.mark.soak  # verified with its merges and repairs in test_proof
def test_what_the_log_never_told_is_found_under_a_running_writer_and_repaired(
    shop: Installation, spark: Any, things: str
) -> None:
    assert_message(shop.run("verify", things, "--keys", "1", "--where", "id = 1"), "combined", status=2)
    assert_message(shop.run("verify", "--keys", "1"), "name the table", status=2)
    with shop.agent() as agent:
        shop.wait_dumped(agent)
        assert_message(shop.run("verify", shop.table("thing")), f"did you mean {things}")
        assert_message(shop.run("verify", things, "--keys", "word"), "word")
        shop.database.changed_unseen(PLANTED)
        merge(spark, shop)
        with ShopWriter(shop.database, seed=70, pause=0.05) as writer:
            before = writer.transactions
            ended = shop.run("verify", things, shop.table("items"), "--json", "--repair", seconds=540)
            assert writer.transactions > before + 10
        assert ended.returncode == 0, ended
        done = json.loads(ended.stdout)
        tables = {table["table"]: table for table in done["verified"][0]["tables"]}
        assert sorted(tables) == [shop.table("items"), things]
        wrong = {
            n: t for n, t in tables.items() if t["missing"] + t["ghosts"] + t["different"] + bool(t["error"])
        }
        assert list(wrong) == [things], wrong
        assert (wrong[things]["missing"], wrong[things]["ghosts"], wrong[things]["different"]) == (1, 1, 2)
        assert {found_in(row) for row in done["differences"]} == FOUND
        assert [result["equal"] for result in done["repaired"]] == [True]
        assert {d["kind"] for d in shop.json("dumps")} >= {"verify", "verify_rows", "keys"}
        shop.wait_caught_up(agent)
        merge(spark, shop)
        assert_lake(shop, "things")


@pytest.mark.soak_on_mysql
@pytest.mark.soak_on_mariadb
def test_checksums_find_what_differs_under_a_running_writer(
    shop: Installation, spark: Any, things: str
) -> None:
    with shop.agent() as agent:
        shop.wait_dumped(agent)
        shop.database.changed_unseen(FEW)
        merge(spark, shop)
        with ShopWriter(shop.database, seed=71, pause=0.05):
            summed = shop.run("verify", things, shop.table("items"), "--checksums", "--json", seconds=540)
    assert summed.returncode == 1, summed
    found = {
        table["table"]: table
        for result in json.loads(summed.stdout)["verified"]
        for table in result["tables"]
    }
    assert sorted(found) == [shop.table("items"), things]
    assert not found[shop.table("items")]["ghosts"] + found[shop.table("items")]["different"]
    table = found[things]
    assert (table["missing"], table["ghosts"], table["different"]) == (0, 1, 1), table
    assert (table["checked"], table["by_rows"]) == (498, None)
    assert 200 < table["rows"] < 260, "a bucket has 256 rows"


@pytest.mark.soak  # by conditions, by samples: the same in tests/spark/proof, without commands
def test_a_condition_or_a_sample_finds_what_differs_there(
    shop: Installation, spark: Any, things: str
) -> None:
    with shop.agent() as agent:
        shop.wait_dumped(agent)
        shop.database.changed_unseen(FEW)
        merge(spark, shop)
        some = shop.run("verify", things, "--where", "id < 10", seconds=400)
        seed = seed_of_first(things)
        sampled = shop.run("verify", things, "--sample", "50%", "--seed", seed, "--json", seconds=400)
    assert some.returncode == 1, some
    assert "1 different" in some.stdout
    assert "1 ghosts" in some.stdout, "the source did not return it, and was asked for its key"
    assert sampled.returncode == 1, sampled
    (result,) = json.loads(sampled.stdout)["verified"]
    (table,) = result["tables"]
    assert (table["missing"], table["ghosts"], table["different"]) == (0, 1, 1), table
    assert table["sample"] == {"ranges": 1, "of_ranges": 2, "of_rows": 499}, "as the lake has them"
    assert 200 < table["rows"] < 260, "a range has 256 rows"


def seed_of_first(table: str) -> str:
    """Return a seed that chooses the first of two ranges."""
    both = [KeyRange(None, 0, 1), KeyRange(0, None, 1)]
    return next(str(seed) for seed in range(99) if choose(both, 0.5, f"{seed} {table}") == both[:1])


def found_in(row: dict[str, Any]) -> tuple[Any, ...]:
    (key,) = row["key"]
    lake = row["lake_value"]
    return key, row["column"], row["kind"], row["source_value"], lake and lake[:5]
