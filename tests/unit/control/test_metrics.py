"""The metrics of an agent, and that dashboard and alert rules name no other."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from connector.capture import request_intake
from connector.cli.merge_output import ENDED, OF_MERGE
from connector.control.metrics import _landed as collect_landed
from connector.control.metrics import _verified as collect_verified
from connector.errors import TransientError
from connector.landing.event_batch import QuarantineNotice
from connector.landing.manifest import Gap, Manifest
from connector.landing.manifest_store import newest_manifest
from connector.landing.verified import Piece, Verified, verified_path
from connector.schema import TableName
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import insert, shop
from tests.support.agent.status_page import client_of, live_agent, page_of
from tests.support.landing.landed import Landed
from tests.support.linters import lint

ITEMS, PARTS = TableName("public", "items"), TableName("public", "parts")
CONF = Path(__file__).parents[3] / "conf"


def metrics_of(client: Any) -> dict[tuple[str, ...], float]:
    """Return each sample by its name and the values of its labels, in the order of the labels' names."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {
        (s.name, *(s.labels[label] for label in sorted(s.labels))): s.value
        for f in families
        for s in f.samples
    }


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], float]:
    """The metrics of an agent that has captured and dumped, with a paused dump and a quarantined table."""
    monkeypatch.setattr(request_intake, "POLL_SECONDS", 0.02)
    database, store = shop(rows=10), MemoryStore()
    with page_of(database, store) as (client, agent):
        agent.wait_dumped()
        insert(database, 100)
        agent.wait_caught_up()
        client.post("/api/pause", json={"all": True})
        agent.wait(lambda m: m.dump_control and m.dump_control.pause_new, "new dumps begin paused")
        client.post("/api/dump", json={"id": "d", "tables": ["public.items"]})
        agent.wait(lambda m: any(d.paused for d in m.dumps), "the dump is paused")
        notice = QuarantineNotice(TableName("public", "parts"), database.end, "its key is gone", "add one")
        agent.capture._tables.quarantine(notice)
        agent.wait(lambda m: not m.exact, "the table is quarantined")
    agent.capture.progress.load = {"retained_log_mib": 3.0, "active_sessions": 7.0}  # it measures no more
    live = live_agent(store, agent)
    live._observed.errors["put"] += 2
    at = datetime.now(timezone.utc)
    record = Verified(lake="lake", began_at=at).naming([PARTS, ITEMS]).counted(ITEMS, Piece(), 100)
    record = record.tried(ITEMS, Piece(upto=9, rows=25), at, 2, "run")
    store.put(verified_path("1", 1), record.model_dump_json().encode())
    live.look_at_lakes()
    with client_of(live) as other:
        return metrics_of(other)


def test_what_a_dba_asks_for(metrics: dict[tuple[str, ...], float]) -> None:
    expected = {
        ("deltatide_state", "active"): 1,
        ("deltatide_state", "stuck"): 0,
        ("deltatide_rows_total", "insert", "public.items"): 1,
        ("deltatide_rows_total", "dump", "public.items"): 10,
        ("deltatide_store_errors_total", "put"): 2,
        ("deltatide_retained_log_bytes",): 3 << 20,
        ("deltatide_source_load", "active_sessions"): 7,
        ("deltatide_lag_bytes",): 0,
        ("deltatide_lease_held",): 1,
        ("deltatide_tables", "quarantined"): 1,
        ("deltatide_table_quarantined", "public.parts"): 1,
        ("deltatide_exact",): 0,
        ("deltatide_gaps",): 0,
        ("deltatide_dumps", "paused"): 1,
        ("deltatide_dumps_held_back",): 0,
        ("deltatide_dump_rows", "d", "public.items"): 0,
        ("deltatide_verified_share", "lake"): 0.25,
        ("deltatide_never_verified_tables", "lake"): 2,
        ("deltatide_differing_keys", "lake", "public.items"): 2,
        ("deltatide_differing_keys", "lake", "public.parts"): 0,
    }
    assert {name: metrics.get(name) for name in expected} == expected
    assert metrics["deltatide_lag_seconds",] < 60
    assert metrics["deltatide_lease_term",] >= 1
    for what in ("flush", "chunk", "commit"):
        count = metrics[f"deltatide_{what}_duration_seconds_count",]
        assert count == metrics[f"deltatide_{what}_duration_seconds_bucket", "+Inf"] > 0


def test_the_time_of_the_oldest_verified_range_is_known_once_all_were_verified() -> None:
    at = datetime(2026, 3, 1, tzinfo=timezone.utc)
    record = Verified(lake="lake", began_at=at).naming([ITEMS]).counted(ITEMS, Piece(), 100)
    record = record.tried(ITEMS, Piece(upto=9, rows=25), at, 0, "run")

    def oldest(record: Verified) -> list[float]:
        return [s.value for f in collect_verified([record]) for s in f.samples if "oldest" in s.name]

    assert oldest(record) == []
    later = at.replace(day=2)
    whole = record.tried(ITEMS, Piece(after=9, rows=75), later, 0, "run")
    assert oldest(whole) == [at.timestamp()]
    assert oldest(whole.tried(ITEMS, Piece(upto=9, rows=25), later, 0, "run")) == [later.timestamp()]


def test_dashboard_and_rules_name_metrics_that_there_are(metrics: dict[tuple[str, ...], float]) -> None:
    known = {name[0] for name in metrics} | {"deltatide_dump_share"}  # of tables whose rows are estimated
    known.add("deltatide_verified_oldest_timestamp_seconds")  # once all tables were
    known |= {*OF_MERGE, ENDED, *(family.name for family in collect_landed(with_gaps(0)))}
    board = json.loads((CONF / "grafana" / "deltatide.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    expressions += [rule["expr"] for rule in rules()]
    expressions.append(board["templating"]["list"][1]["query"])
    assert len(expressions) > 25
    named = {name for expression in expressions for name in re.findall(r"\bdeltatide_\w+", expression)}
    assert named - known == set()
    states = set(re.findall(r'deltatide_(?:state|tables|dumps)\{[^}]*state="(\w+)"', " ".join(expressions)))
    assert states <= {name[1] for name in metrics if len(name) == 2}


def rules() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load((CONF / "prometheus" / "deltatide.rules.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_rules_are_complete() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules()) == 14
    assert all(rule["labels"]["severity"] and rule["annotations"]["summary"] for rule in rules())


def with_gaps(*minutes: int) -> Manifest:
    """A manifest with gaps that were found at these minutes of an hour."""
    store = MemoryStore()
    Landed(put=store.put).commit(10)
    newest = newest_manifest(store)
    assert newest is not None
    at = datetime(2026, 3, 1, tzinfo=timezone.utc)
    gaps = [Gap(epoch=2, after=1, before=2, reason="", found_at=at.replace(minute=each)) for each in minutes]
    return newest.model_copy(update={"gaps": gaps})


def test_the_last_gap_tells_its_time_whenever_the_agent_began() -> None:
    """Alerts go by it: an agent that finds a gap at its start has never shown fewer gaps."""

    def last(manifest: Manifest) -> list[float]:
        return [s.value for f in collect_landed(manifest) for s in f.samples if "last_gap" in s.name]

    assert last(with_gaps()) == []
    assert last(with_gaps(10, 50)) == [datetime(2026, 3, 1, 0, 50, tzinfo=timezone.utc).timestamp()]


def test_promtool_takes_rules_and_metrics(tmp_path: Path) -> None:
    assert "14 rules found" in lint("promtool", "check", "rules", CONF / "prometheus" / "deltatide.rules.yml")
    board = json.loads((CONF / "grafana" / "deltatide.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    variables = {"$__rate_interval": "5m", "$source": "shop", "$table": "t", "$lake": "l"}
    as_rules = []
    for number, expression in enumerate(asked):
        for name, value in variables.items():
            expression = expression.replace(name, value)
        as_rules.append({"record": f"dashboard:{number}", "expr": expression})
    file = tmp_path / "dashboard.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": as_rules}]}))
    lint("promtool", "check", "rules", file)
    with page_of(shop(rows=10), MemoryStore()) as (client, agent):
        agent.wait_dumped()
        lint("promtool", "check", "metrics", text=client.get("/metrics").text)


def test_a_scrape_asks_the_store_for_nothing_and_a_standby_has_its_state() -> None:
    store = MemoryStore()
    live = live_agent(store)
    live.stand_by()
    with client_of(live) as client:
        store.calls.clear()
        store.fail("read", times=100, error=TransientError())
        found = metrics_of(client)
    assert found["deltatide_state", "standby"] == 1
    assert found["deltatide_lease_held",] == 0
    assert not store.calls
