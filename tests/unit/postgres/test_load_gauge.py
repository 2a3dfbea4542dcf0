"""What is measured of a PostgreSQL server's load by a role that does not see everything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connector.postgres import load_gauge, preflight
from connector.postgres.load_gauge import MIB, PostgresGauge


@pytest.mark.parametrize("may_see", [False, True])
def test_the_slots_lag_needs_no_right_of_the_role(monkeypatch: pytest.MonkeyPatch, may_see: bool) -> None:
    config: Any = SimpleNamespace(name="shop", slot="s", url=SimpleNamespace(get_secret_value=lambda: ""))
    monkeypatch.setattr(load_gauge, "connect", lambda *_: None)
    monkeypatch.setattr(load_gauge, "one_row", lambda *_: (3, 2 * MIB, 5 * MIB, 7 * MIB, may_see))
    found = PostgresGauge(config).measure()
    others = {"active_sessions": 3.0, "standby_lag_mib": 2.0} if may_see else {}
    assert found == {"slot_lag_mib": 5.0, "retained_log_mib": 7.0, **others}


@pytest.mark.parametrize("may_see", [False, True])
def test_a_check_warns_that_a_role_does_not_see_the_load(
    monkeypatch: pytest.MonkeyPatch, may_see: bool
) -> None:
    monkeypatch.setattr(preflight, "_row", lambda *_: (may_see,))
    context: Any = SimpleNamespace(connection=None, role="reader")
    fixes = [(f.state, f.fix) for f in preflight._check_load(context)]
    assert fixes == ([] if may_see else [("warning", 'GRANT pg_read_all_stats TO "reader";')])
