"""User-supplied conditions: untrusted SQL that may choose rows and do nothing else.

Invariants:

- *One expression.* Before use, the server parses the condition twice: bare (``WHERE condition``) and in
  parentheses (``WHERE (condition)``). It refuses a second statement (`Driver.prepare_alone`). A text that
  closes a parenthesis it did not open, or ends in an open comment or string, fails bare; one that
  continues after a whole expression (``UNION``, ``LIMIT``, ``FOR UPDATE``) fails in parentheses. A text that
  passes both is one expression wherever it is in parentheses.
- *No side effect.* It runs in a read-only transaction that is rolled back, for a limited time, and calls no
  function declared volatile, as are those that change settings, slots, sessions, files or sequences.
- *No influence on values.* The condition only picks row identifiers. Another statement reads the rows, after
  whatever the first one did to the session's settings was rolled back.

The role's rights limit the rest: a condition can read all that the role may read, and call functions that are
declared immutable or stable, rightly or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg2.extensions import connection as Connection

from connector.errors import RequestError
from connector.postgres.connection import all_rows, literal
from connector.postgres.driver.choice import driver

_GAP = r"(?:\s|/\*.*?\*/|\*/|--[^\n]*\n)*"
_CALL = re.compile(rf"""(?:"((?:[^"]|"")+)"|([^\W\d][\w$]*)){_GAP}\(""", re.DOTALL)
"""A name before a parenthesis, in the condition's text or in a string in it; comments may be nested."""

_TOKEN = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")*)"(\(?)|([^\W\d][\w$]*)(\(?)""")
"""A string, a quoted name or a name, as EXPLAIN writes them, with the parenthesis of a function call."""

_VOLATILE = (
    "SELECT DISTINCT proname::text FROM pg_proc WHERE provolatile = 'v' AND proname = ANY (%s) ORDER BY 1"
)


@contextmanager
def bounded(connection: Connection, seconds: float) -> Iterator[None]:
    """Limit each statement's time, then undo what they did to the session. Call in a transaction."""
    _run(connection, "SAVEPOINT predicate")
    _run(connection, f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
    yield  # after an error the whole transaction is rolled back
    _run(connection, "ROLLBACK TO SAVEPOINT predicate")


def check_predicate(connection: Connection, relation: str, where: str) -> None:
    """Make sure that a condition on ``relation t`` is one boolean expression without side effects.

    Raises the server's error (`CopyError`) or `RequestError`. Runs none of it. Call within `bounded`.
    """
    driver().prepare_alone(connection, f"SELECT 1 FROM {relation} t WHERE {where}\n")
    driver().prepare_alone(connection, f"SELECT 1 FROM {relation} t WHERE ({where}\n)")
    explain = f"EXPLAIN (VERBOSE, COSTS OFF) SELECT ({where}\n) FROM {relation} t"
    plan = driver().run_alone(connection, explain)
    called = [*called_functions("\n".join(line for (line,) in plan)), *named_functions(where)]
    if volatile := [name for (name,) in all_rows(connection, _VOLATILE, (called,))]:
        raise RequestError(
            f"the condition calls {', '.join(volatile)}, declared volatile",
            hint="a condition may only call functions that are immutable or stable",
        )


def called_functions(plan: str) -> Iterator[str]:
    """Find the names of functions in a plan's text. Pure."""
    for match in _TOKEN.finditer(plan):
        quoted, call, bare, bare_call = match.groups()
        if call:
            yield quoted.replace('""', '"')
        elif bare_call:
            yield bare


def named_functions(where: str) -> Iterator[str]:
    """Find possible function names in a condition: a plan does not show those in a LIMIT. Pure."""
    if re.search('[uU]&"', where):
        raise RequestError('a condition may not write names as U&"..."')
    for match in _CALL.finditer(where):
        yield match[1].replace('""', '"') if match[1] else match[2].lower()


def pick_rows(connection: Connection, relation: str, conditions: str) -> str:
    """Return the condition that matches the rows of ``relation t`` that a WHERE clause picks now.

    Valid only within the transaction's snapshot. Call within `bounded`.
    """
    picked = driver().run_alone(
        connection,
        f"SELECT t.tableoid::bigint::text, array_agg(t.ctid)::text FROM {relation} t{conditions}"
        " GROUP BY t.tableoid",
    )
    by_table = [
        f"(tableoid = {int(table)} AND ctid = ANY ({literal(rows)}::tid[]))" for table, rows in picked
    ]
    return " OR ".join(by_table) or "false"


def _run(connection: Connection, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
