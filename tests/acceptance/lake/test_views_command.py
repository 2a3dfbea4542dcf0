"""`deltatide views` on a lake merged from a landing zone written by hand: no database is asked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from connector.config import load
from merge import merge_once
from tests.support.agent.installed import landed_by_hand, run_command
from tests.support.landing.zone import Zone, insert


def test_views_are_listed_and_refreshed_by_the_command(spark: Any, spark_url: str, tmp_path: Path) -> None:
    zone = Zone(spark, tmp_path)
    zone.log(0x10, insert(5, 1, b="it's"), insert(5, 2))
    written = '[views.named]\nfile = "named.sql"\n[views.total]\nsql = "SELECT count(*) AS n FROM named"\n'
    file = landed_by_hand(tmp_path, written)
    (tmp_path / "named.sql").write_text("SELECT b, count(*) AS n FROM orders GROUP BY b; ")
    assert merge_once(spark, load(file)).exit_code == 0

    def views(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command(file, "views", *arguments, environment={"SPARK_REMOTE": spark_url})

    done = views("--json")
    assert done.returncode == 0, done
    assert [
        (view["name"], view["state"], view["rows"], view["inputs"]) for view in json.loads(done.stdout)
    ] == [
        ("named", "current", 2, ["public.orders"]),
        ("total", "current", 1, ["named"]),
    ]
    done = views("refresh", "named", "--full")
    assert done.returncode == 0, done
    lines = [line.split(",")[0:2] for line in done.stdout.splitlines()]
    assert lines == [["views.named: refreshed", " 2 rows"], ["views.total: refreshed", " 1 rows"]]
