"""The alert rules by promtool's own evaluation: each fires in its case, and not in the usual one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.linters import lint

RULES = Path(__file__).parents[3] / "conf" / "prometheus" / "deltatide.rules.yml"
MINUTES = 120
ON = f"1x{MINUTES}"
OFF = f"0x{MINUTES}"


def agent(source: str, host: str, active: str) -> dict[str, str]:
    """The series that every agent has; `active`: its values, as promtool expands them."""
    labels = f'job="deltatide", instance="{host}"'
    there = active.replace("0x", "1x")
    return {
        f'deltatide_info{{{labels}, source="{source}", kind="postgres", version="1"}}': there,
        f'deltatide_state{{{labels}, state="active"}}': active,
    }


USUAL = agent("shop", "a", ON) | agent("shop", "b", OFF) | agent("crm", "c", ON)


@dataclass
class Case:
    """Series by name beside the usual ones, and the alert with the label values that fire at a minute."""

    alert: str
    series: Mapping[str, str]
    fires: list[Mapping[str, str]] = field(default_factory=list)
    minute: int = 100
    usual: Mapping[str, str] = field(default_factory=lambda: USUAL)


SHOP = {"source": "shop"}
A, B = {"job": "deltatide", "instance": "a"}, {"job": "deltatide", "instance": "b"}
ON_A, ON_B = ('job="deltatide", instance="a"', 'job="deltatide", instance="b"')

CASES = {
    "all is well": Case("DeltatideDown", {}),
    "nothing was ever scraped": Case("DeltatideDown", {}, [{}], usual={}),
    "of two sources one has only a standby": Case(
        "DeltatideDown", {}, [SHOP], usual=agent("shop", "b", OFF) | agent("crm", "c", ON)
    ),
    "of two sources one is gone": Case(
        "DeltatideDown", {}, [SHOP], usual=agent("shop", "a", f"1x20 _x{MINUTES}") | agent("crm", "c", ON)
    ),
    "a standby took over": Case(
        "DeltatideDown",
        {},
        usual=agent("shop", "a", f"1x20 _x{MINUTES}")
        | agent("shop", "b", f"0x21 1x{MINUTES}")
        | agent("crm", "c", ON),
    ),
    "a gap that an agent finds at its start": Case(
        "DeltatideGap",
        {f"deltatide_last_gap_timestamp_seconds{{{ON_A}}}": f"_x89 {89 * 60}x{MINUTES}"},
        [A],
    ),
    "a gap that is still on record": Case(
        "DeltatideGap", {f"deltatide_last_gap_timestamp_seconds{{{ON_A}}}": f"{20 * 60}x{MINUTES}"}
    ),
    "a gap that a standby finds as it takes over": Case(
        "DeltatideGap",
        {
            f"deltatide_last_gap_timestamp_seconds{{{ON_A}}}": f"0x60 _x{MINUTES}",
            f"deltatide_last_gap_timestamp_seconds{{{ON_B}}}": f"_x89 {89 * 60}x{MINUTES}",
        },
        [B],
    ),
    "a loop that hangs": Case(
        "DeltatideStuck", {f'deltatide_state{{{ON_A}, state="stuck"}}': ON}, [{**A, "state": "stuck"}]
    ),
    "lag": Case("DeltatideLagging", {f"deltatide_lag_seconds{{{ON_A}}}": f"301x{MINUTES}"}, [A]),
    "lag that passes": Case("DeltatideLagging", {f"deltatide_lag_seconds{{{ON_A}}}": f"1x97 900x{MINUTES}"}),
    "log that is kept": Case(
        "DeltatideRetainsLog", {f"deltatide_retained_log_bytes{{{ON_A}}}": f"21000000000x{MINUTES}"}, [A]
    ),
    "a quarantined table": Case(
        "DeltatideTableQuarantined",
        {f'deltatide_table_quarantined{{{ON_A}, table="public.t"}}': ON},
        [{**A, "table": "public.t"}],
    ),
    "a store that fails": Case(
        "DeltatideStoreErrors",
        {f'deltatide_store_errors_total{{{ON_A}, operation="{name}"}}': f"0+6x{MINUTES}" for name in "ab"},
        [A],
    ),
    "a store that fails at times": Case(
        "DeltatideStoreErrors", {f'deltatide_store_errors_total{{{ON_A}, operation="a"}}': f"0+1x{MINUTES}"}
    ),
    "a log that is lost again and again": Case(
        "DeltatideReconnects", {f"deltatide_reconnects_total{{{ON_A}}}": f"0+1x{MINUTES}"}, [A]
    ),
    "dumps that are held back": Case(
        "DeltatideDumpsHeldBack", {f"deltatide_dumps_held_back{{{ON_A}}}": ON}, [A]
    ),
    "a dump that failed": Case(
        "DeltatideDumpFailed", {f'deltatide_dumps{{{ON_A}, state="failed"}}': ON}, [{**A, "state": "failed"}]
    ),
    "rows that differ": Case(
        "DeltatideDifferences",
        {f'deltatide_differing_keys{{{ON_A}, lake="l", table="public.t"}}': f"3x{MINUTES}"},
        [{**A, "lake": "l", "table": "public.t"}],
    ),
    "rows that were verified long ago": Case(
        "DeltatideNotVerified",
        {f'deltatide_verified_oldest_timestamp_seconds{{{ON_A}, lake="l"}}': f"-600000x{MINUTES}"},
        [{**A, "lake": "l"}],
    ),
    "a merge that has not ended for long": Case(
        "DeltatideMergeLate",
        {'deltatide_merge_end_timestamp_seconds{source="shop"}': f"60x{MINUTES}"},
        [SHOP],
    ),
    "merges that end": Case(
        "DeltatideMergeLate", {'deltatide_merge_end_timestamp_seconds{source="shop"}': f"0+60x{MINUTES}"}
    ),
    "a table that does not merge": Case(
        "DeltatideMergeFails", {'deltatide_merge_failed_tables{source="shop"}': ON}, [SHOP]
    ),
}


def rules() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_every_rule_has_a_case_in_which_it_fires() -> None:
    assert {case.alert for case in CASES.values() if case.fires} == rules().keys()


def test_promtool_evaluates_the_rules_as_meant(tmp_path: Path) -> None:
    """Texts are left out: promtool compares them only if they are given."""
    known = rules()
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": s, "values": v} for s, v in {**case.usual, **case.series}.items()],
            "alert_rule_test": [
                {
                    "eval_time": f"{case.minute}m",
                    "alertname": case.alert,
                    "exp_alerts": [
                        {"exp_labels": {**known[case.alert]["labels"], **labels}} for labels in case.fires
                    ],
                }
            ],
        }
        for name, case in CASES.items()
    ]
    stripped = [{k: v for k, v in rule.items() if k != "annotations"} for rule in known.values()]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "deltatide", "rules": stripped}]}))
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "tests": tests}))
    lint("promtool", "test", "rules", tmp_path / "tests.yml")
