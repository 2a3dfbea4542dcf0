"""Generate docs/types.md from the fidelity matrix: ``python -m tests.fidelity.page``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.fidelity import mysql, postgres
from tests.fidelity.literals import Literals

PAGE = Path(__file__).resolve().parents[2] / "docs" / "types.md"
HEAD = """# Types

What each type of the source lands as, and is in the Delta table. Tests write the values that stand here into
real servers, and find them equal in the log, in a dump, in the Delta table, and in the source's own text,
whatever the settings of role, database and server.

- **Exact in the column**: examples of values that the Delta type holds.
- **In `_cdc.raw`**: examples of values that it cannot hold. The column is null, and the map `_cdc.raw` has
  the source's own text of the value under the column's name.
- A type that is not listed lands as `string`, in the source's own text.

This page is written by `python -m tests.fidelity.page`.
"""
SHOWN = 3
LONGEST = 44
SERVERS = {mysql.MARIADB: "MariaDB", mysql.MYSQL: "MySQL", ("mysql",): "MySQL from release 9 on"}


def page() -> str:
    """Return the text of the page."""
    return "\n".join(
        [
            HEAD,
            *_section("PostgreSQL", postgres.LITERALS),
            "",
            *_section("MySQL and MariaDB", mysql.LITERALS),
            "",
        ]
    )


def _section(title: str, rows: Sequence[Literals]) -> list[str]:
    lines = [f"## {title}", "", "| source type | Delta type | exact in the column | in `_cdc.raw` | |"]
    lines.append("|---|---|---|---|---|")
    return lines + [_row(row) for row in rows]


def _row(row: Literals) -> str:
    notes = [row.note] if row.note else []
    if row.since:
        notes.append(f"from release {row.since} on")
    if row.servers:
        notes.append(SERVERS[row.servers])
    cells = [_code(row.type), _code(row.landing), _examples(row.exact), _examples(row.raw), "; ".join(notes)]
    return f"| {' | '.join(cells)} |"


def _examples(values: Sequence[str]) -> str:
    shown = [value for value in values if value.strip() and value.isprintable()]
    return ", ".join(map(_code, sorted(shown[: SHOWN + 2], key=len)[:SHOWN]))


def _code(text: str) -> str:
    escaped = text.replace("|", "\\|")
    short = escaped if len(escaped) <= LONGEST else f"{escaped[: LONGEST - 1]}…"
    return f"`` {short} ``" if "`" in short else f"`{short}`"


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
