"""`deltatide query` on a lake merged from a landing zone written by hand: no database is asked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.support.agent.installed import assert_message, landed_by_hand, run_command
from tests.support.landing.zone import Zone, insert


def test_a_query_reads_one_cut_or_live_rows_and_refuses_the_rest(
    spark: Any, spark_url: str, tmp_path: Path
) -> None:
    zone = Zone(spark, tmp_path)
    zone.log(0x10, insert(5, 1, b="it's"))
    zone.merge()
    zone.log(0x20, insert(0x15, 2))
    file = landed_by_hand(tmp_path)

    def query(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command(file, "query", *arguments, environment={"SPARK_REMOTE": spark_url})

    rows = "SELECT id, b, _cdc.committed_at FROM orders ORDER BY id -- by key"
    done = query(rows, "--at", "0/1F", "--json")
    assert (done.returncode, len(json.loads(done.stdout))) == (0, 1), done
    assert json.loads(done.stdout)[0] == {"id": 1, "b": "it's", "committed_at": "2026-01-02 03:04:05"}
    assert "as of manifest 1, position 1:0/10, last commit 2026-01-02 03:04:05Z\n" in done.stderr
    done = query(rows, "--live", "--limit", "1")
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["id", "b"], ["1", "it's"]], done
    assert "manifest 2" in done.stderr
    assert "only the first 1 rows are shown" in done.stderr
    assert_message(query(rows, "--live", "--at", "1"), "--live can't be combined", status=2)
    assert_message(query(rows, "--at", "noon"), "neither a manifest", "hint: write 120", status=2)
    assert_message(query("SELECT 1 FROM items", "--at", "1"), "can't be run", "`orders`", status=2)
