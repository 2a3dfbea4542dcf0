"""Reads the scripts: see the package's docstring for what one holds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
CAPTURED = "-- captured"
_DIRECTIVE = re.compile(r"-- (rows|notice|quarantined|gone|released|only|since) ?([^:]*?)(?:: (.*))?")
_DDL = re.compile(r"^\s*(ALTER|CREATE|DROP|RENAME|VACUUM|CLUSTER|TRUNCATE|OPTIMIZE|COMMENT)\b", re.M | re.I)


@dataclass
class Script:
    """One case. `rows`: for each table its columns and rows, all as the source's text."""

    name: str
    title: str
    before: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    rows: dict[str, list[str]] = field(default_factory=dict)
    notices: list[tuple[str, str]] = field(default_factory=list)
    quarantined: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    only: str | None = None
    since: int = 0

    def until_the_last_ddl(self) -> list[str]:
        """The steps without the changes of rows that follow the last change of a layout, if there is one."""
        changes = [n for n, step in enumerate(self.steps, 1) if _DDL.search(step)]
        return self.steps[: changes[-1]] if changes else self.steps

    def suits(self, kind: str, release: int) -> bool:
        """Whether the script is for this server."""
        return self.only in (None, kind) and release >= self.since


def read_scripts(folder: str) -> list[Script]:
    """All scripts of a folder, by name."""
    return [parse(path.stem, path.read_text()) for path in sorted((FOLDER / folder).glob("*.sql"))]


def parse(name: str, text: str) -> Script:
    """Read one script; `AssertionError` names the line that is no statement and no directive."""
    first, *lines = text.splitlines()
    script, statements, rows = Script(name, first.removeprefix("-- ")), [], []
    for number, line in enumerate(lines, 2):
        if line == CAPTURED:
            script.before, statements = _steps(statements), []
        elif match := _DIRECTIVE.fullmatch(line):
            rows = _note(script, *match.groups())
        elif line.startswith("--"):
            rows.append(line[2:].strip())
        else:
            assert not script.rows, f"{name}:{number}: a statement behind the expected rows"
            statements.append(line)
    script.steps = _steps(statements)
    assert script.steps, f"{name}: nothing happens after {CAPTURED!r}"
    return script


def _note(script: Script, word: str, table: str, text: str | None) -> list[str]:
    if word == "rows":
        return script.rows.setdefault(table, [text or ""])
    if word == "notice":
        script.notices.append((table, text or ""))
    elif word == "quarantined":
        script.quarantined[table] = text or ""
    elif word == "only":
        script.only = table
    elif word == "since":
        script.since = int(table)
    else:
        getattr(script, word).append(table)
    return []


def _steps(lines: list[str]) -> list[str]:
    steps: list[str] = []
    open_: list[str] = []
    for line in lines:
        open_.append(line)
        in_transaction = open_[0] == "BEGIN;" and line not in ("COMMIT;", "ROLLBACK;")
        if line.endswith(";") and not in_transaction:
            steps.append("\n".join(open_))
            open_ = []
    assert not any(open_), f"not ended: {open_}"
    return steps
