"""Every script of `tests/schema_changes`, four times: with the log only, with a dump between each step, with
a restart of the agent between each step, and with tables that stay quiet after their last change of layout.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from connector.landing.manifest import Manifest, TableState
from connector.schema import TableName
from tests.schema_changes.captured import Place, as_text, captured_place, rows_of
from tests.schema_changes.script import Script, read_scripts
from tests.support.agent.captured import CapturedDatabase, landed_tables
from tests.support.landing.cuts import manifests_in
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.servers.postgres import Database

MODES = ("log only", "dumps between", "restarts between", "quiet after")


def run_steps(place: Place, captured: CapturedDatabase, mode: str) -> Manifest:
    """Run all scripts, a step of each at a time, and give the manifest behind the last one."""
    steps = {s.name: s.until_the_last_ddl() if mode == "quiet after" else s.steps for s in place.scripts}
    rounds = list(itertools.zip_longest(*steps.values()))
    if mode != "restarts between":
        with captured.running():
            captured.wait_settled()
            for number, one in enumerate(rounds):
                if mode == "dumps between" and number:
                    captured.dump()
                _run_round(place, one)
            return _release(place, captured, captured.wait_settled())
    for number, one in enumerate(rounds):
        with captured.running():
            captured.wait_settled()
            if number % 2 == 0:
                _run_round(place, one)
                captured.wait_settled()
        if number % 2:  # while no agent runs
            _run_round(place, one)
    with captured.running():
        return _release(place, captured, captured.wait_settled())


def _run_round(place: Place, steps: tuple[str | None, ...]) -> None:
    for script, step in zip(place.scripts, steps, strict=True):
        if step is not None:
            place.run(script, step)


def _release(place: Place, captured: CapturedDatabase, newest: Manifest) -> Manifest:
    names = [TableName(place.namespace(s), table) for s in place.scripts for table in s.released]
    quarantined = [n for n in names if n in newest.tables and newest.tables[n].state != "captured"]
    if not quarantined:
        return newest
    captured.dump(quarantined)
    return captured.wait_settled()


class Outcome:
    """What all scripts came to, and what of it is not as it should be."""

    def __init__(self, place: Place, captured: CapturedDatabase, newest: Manifest, mode: str) -> None:
        self.mode, self.place = mode, place
        self.states = newest.tables
        self.landed = landed_tables(captured.store)
        self.notices = _notices(captured)

    def problems(self) -> list[str]:
        """One line for each thing that is wrong."""
        return [f"{s.name}: {p}" for s in self.place.scripts for p in self._problems_of(s)]

    def _problems_of(self, script: Script) -> list[str]:
        names = set(self.place.tables(script)) - set(script.gone)
        problems = [p for table in sorted(names) for p in self._problems_of_table(script, table)]
        gone = [self._name(script, table) for table in script.gone]
        problems += [f"{name} is still captured" for name in gone if name in self.states]
        for table, text in script.notices if self.mode != "quiet after" else ():
            reported = self.notices.get(self._name(script, table), [])
            if not any(option in each for option in text.split(" | ") for each in reported):
                problems.append(f"no notice {text!r} of {table}, but {reported}")
        return problems

    def _name(self, script: Script, table: str) -> TableName:
        return TableName(self.place.namespace(script), table)

    def _problems_of_table(self, script: Script, table: str) -> list[str]:
        if self.place.is_postgres and self.place.is_partition(script, table):
            return []
        state = self.states.get(self._name(script, table))
        reason = script.quarantined.get(table)
        if state is None:
            return [f"{table} is not captured"]
        if reason is not None and not self._may_be_captured(state):
            wrong = state.state == "captured" or reason.lower() not in (state.reason or "").lower()
            return [f"{table} is {state.state}: {state.reason}, not for {reason!r}"] if wrong else []
        if state.state != "captured":
            return [f"{table} is {state.state}: {state.reason}"]
        return self._differences(script, table)

    def _may_be_captured(self, state: TableState) -> bool:
        """Whether a table that should be quarantined need not be: released by a dump, or not written to."""
        return self.mode in ("dumps between", "quiet after") and state.state == "captured"

    def _differences(self, script: Script, table: str) -> list[str]:
        columns, rows = self.place.rows(script, table)
        landed = self.landed.get(self._name(script, table))
        source = Counter(tuple(map(as_text, row)) for row in rows)
        key = self.states[self._name(script, table)].key
        there = rows_of(landed, columns, key, rows) if landed else []
        found = Counter(tuple(map(as_text, row)) for row in there)
        problems = []
        if source != found:
            problems.append(
                f"{table} differs: source has {sorted(source - found)}, landed {sorted(found - source)}"
            )
        if self.mode != "quiet after" and table in script.rows:
            header, *lines = script.rows[table]
            order = [columns.index(c) for c in header.split(" | ")]
            as_said = Counter(" | ".join(row[n] for n in order).strip() for row in source.elements())
            expected = Counter(lines)
            if as_said != expected:
                problems.append(f"{table} in the source is {sorted(as_said)}, the script says otherwise")
        return problems


def _notices(captured: CapturedDatabase) -> dict[TableName, list[str]]:
    reported: dict[TableName, list[str]] = {}
    for manifest in manifests_in(captured.store):
        for notice in manifest.notices:
            if notice.table is not None:
                reported.setdefault(notice.table, []).append(notice.text)
    return reported


def check_scripts(
    database: Database | MysqlDatabase,
    scripts: list[Script],
    mode: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Place(database, scripts) as place:
        captured = captured_place(place, folder, monkeypatch)
        newest = run_steps(place, captured, mode)
        problems = Outcome(place, captured, newest, mode).problems()
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("mode", MODES)
def test_postgres_scripts(
    database: Database, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = int(database.execute("SHOW server_version_num")[0][0]) // 10000
    scripts = [s for s in read_scripts("postgres") if s.suits("postgres", release)]
    check_scripts(database, scripts, mode, tmp_path, monkeypatch)


IN_CI = {("mariadb", "log only"), ("mariadb", "restarts between"), ("mysql", "quiet after")}
"""The others take as long again, and only `make soak` runs them."""


@pytest.mark.parametrize(
    ("server", "mode"),
    [
        pytest.param(server, mode, marks=() if (server, mode) in IN_CI else pytest.mark.soak)
        for server in ("mariadb", "mysql")
        for mode in MODES
    ],
)
def test_mysql_scripts(
    request: pytest.FixtureRequest,
    server: str,
    mode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database: MysqlDatabase = request.getfixturevalue(f"{server}_database")
    scripts = [s for s in read_scripts("mysql") if s.suits(server, 99)]
    check_scripts(database, scripts, mode, tmp_path, monkeypatch)
