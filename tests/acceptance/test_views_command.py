"""`deltatide views` on a lake merged from a landing zone written by hand: no database is asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from connector.config import load
from merge import merge_once
from tests.support.agent.installed import REPOSITORY
from tests.support.landing.zone import Zone, insert


def test_views_are_listed_and_refreshed_by_the_command(spark: Any, tmp_path: Path) -> None:
    zone = Zone(spark, tmp_path)
    zone.log(0x10, insert(5, 1, b="it's"), insert(5, 2))
    file = tmp_path / "shop.toml"
    file.write_text(
        '[source]\nname = "shop"\nkind = "postgres"\nurl = "postgresql://u@h/shop"\ntables = ["*.*"]\n'
        f'[landing]\nurl = "{tmp_path}/landing"\n[lake]\nurl = "{tmp_path}/lake"\n'
        '[views.named]\nfile = "named.sql"\n[views.total]\nsql = "SELECT count(*) AS n FROM named"\n'
    )
    (tmp_path / "named.sql").write_text("SELECT b, count(*) AS n FROM orders GROUP BY b; ")
    assert merge_once(spark, load(file)).exit_code == 0

    def views(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "connector.cli", "views", "-c", str(file), *arguments]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)

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
