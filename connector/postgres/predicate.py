"""User-supplied conditions: untrusted SQL that may choose rows and do nothing else.

Invariants:

- *One expression.* Before use, the server parses the condition twice: bare (``WHERE condition``) and in
  parentheses (``WHERE (condition)``). It refuses a second statement (`Driver.prepare_alone`). A text that
  closes a parenthesis it did not open, or ends in an open comment or string, fails bare; one that
  continues after a whole expression (``UNION``, ``LIMIT``, ``FOR UPDATE``) fails in parentheses. A text that
  passes both is one expression wherever it is in parentheses.
- *Only the row.* It contains no subquery, so it reads no other table or view, and calls none of PostgreSQL's
  functions that show statements of other sessions or read tables by name. The role may see more than those
  who write conditions: other captured tables, and what its rights for figures show.
- *No side effect.* It runs in a read-only transaction that is rolled back, for a limited time, and names no
  function declared volatile, as are those that change settings, slots, sessions, files or sequences.
- *No influence on values.* The condition only picks row identifiers. Another statement reads the rows, after
  whatever the first one did to the session's settings was rolled back.
- *No value shown.* What the server says when the condition fails for a row may quote the row (``v::int``), so
  only its error's name is passed on (`without_values`): it would be in log, manifest and status page.

The role's rights limit the rest: a condition can call functions of the database's owners that are declared
immutable or stable, rightly or not, or stand behind an operator, a cast or a domain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg2
from psycopg2 import errorcodes
from psycopg2.extensions import connection as Connection

from connector.errors import RequestError
from connector.postgres.connection import all_rows, literal, quote
from connector.postgres.driver.choice import driver
from connector.postgres.driver.interface import CopyError

ROW_ALONE = "it may only use the row's own columns; to choose rows by other tables, request their keys"

_GAP = r"(?:\s|/\*.*?\*/|\*/|--[^\n]*\n)*"
_CALL = re.compile(rf"""(?:"((?:[^"]|"")+)"|([^\W\d][\w$]*)){_GAP}\(""", re.DOTALL)
"""A name before a parenthesis, in the condition's text or in a string in it; comments may be nested."""

_TOKEN = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")*)"(\(?)|([^\W\d][\w$]*)(\(?)""")
"""A string, a quoted name or a name, as EXPLAIN writes them, with the parenthesis of a function call."""

_VOLATILE = """
    SELECT DISTINCT proname::pg_catalog.text FROM pg_catalog.pg_proc
    WHERE provolatile OPERATOR(pg_catalog.=) 'v'::pg_catalog."char"
        AND proname OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.name[])
    ORDER BY 1"""

_REVEALING = """
    SELECT DISTINCT proname::pg_catalog.text FROM pg_catalog.pg_proc
    WHERE provolatile OPERATOR(pg_catalog.=) 's'::pg_catalog."char"
        AND pronamespace OPERATOR(pg_catalog.=) 11::pg_catalog.oid
        AND proname::pg_catalog.text OPERATOR(pg_catalog.~) '^pg_|_to_xml'
        AND proname OPERATOR(pg_catalog.<>) ALL ('{pg_typeof,pg_column_size}'::pg_catalog.name[])
        AND proname OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.name[])
    ORDER BY 1"""
"""PostgreSQL's functions about sessions and the server, and those that run queries (11: pg_catalog's oid)."""

_WITHOUT_VALUES = ("08", "25", "40", "53", "57")
"""Classes of SQLSTATEs about connections, transactions and resources, whose messages never quote a value.
Others may, also those about names and syntax: ``v::regclass`` takes a value for a name."""

_SUBQUERY = re.compile(r"\s*(?:Init|Sub)Plan\b")
"""How a line of a plan begins at which a subquery does."""

TYPE_SCHEMAS = """
    SELECT n.nspname
    FROM pg_catalog.pg_opclass c
        JOIN pg_catalog.pg_am a ON a.oid OPERATOR(pg_catalog.=) c.opcmethod
        JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.opcnamespace
    WHERE c.opcdefault AND a.amname OPERATOR(pg_catalog.=) 'btree'
        AND n.nspname OPERATOR(pg_catalog.<>) ALL ('{pg_catalog,public}'::pg_catalog.name[])"""
"""A query: schemas of types with an order of their own, as extensions bring them, but public."""

_SEARCH_PATH = f"""pg_catalog.concat_ws(', ', (
    SELECT pg_catalog.string_agg(DISTINCT pg_catalog.quote_ident(s.nspname), ', ') FROM ({TYPE_SCHEMAS}) s),
    'public')"""


def any_not_null(columns: Sequence[str]) -> str:
    """Return the predicate that is true for rows where any of these columns is not null. Pure.

    A composite value that has a null field, beside others, is neither IS NULL nor IS NOT NULL.
    """
    return " OR ".join(f"{quote(column)} IS DISTINCT FROM NULL" for column in columns)


@contextmanager
def bounded(connection: Connection, seconds: float) -> Iterator[None]:
    """Limit each statement's time, then undo what they did to the session. Call in a transaction.

    Within, names in schema public need no qualification, as people write conditions, nor do operators of
    extensions' types. So here everything of our own is named with its schema, and operators, too.
    """
    _run(connection, "SAVEPOINT predicate")
    _run(connection, f"SELECT pg_catalog.set_config('search_path', {_SEARCH_PATH}, true)")
    _run(connection, f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
    yield  # after an error the whole transaction is rolled back
    _run(connection, "ROLLBACK TO SAVEPOINT predicate")


@contextmanager
def without_values() -> Iterator[None]:
    """Withhold the message of an error that may hold a row's values. Around what evaluates a condition."""
    try:
        yield
    except (CopyError, psycopg2.Error) as error:
        state = error.sqlstate if isinstance(error, CopyError) else error.pgcode
        if state is None or state.startswith(_WITHOUT_VALUES):
            raise
        name = next((name for name, code in vars(errorcodes).items() if code == state), state)
        name = name.lower().replace("_", " ")
        raise CopyError(f"the condition fails for a row: {name}", state) from None


def check_predicate(connection: Connection, relation: str, where: str) -> None:
    """Make sure that a condition on ``relation t`` is one boolean expression without side effects.

    Raises the server's error (`CopyError`) or `RequestError`. Runs none of it. Call within `bounded`.
    """
    driver().prepare_alone(connection, f"SELECT 1 FROM {relation} t WHERE {where}\n")
    driver().prepare_alone(connection, f"SELECT 1 FROM {relation} t WHERE ({where}\n)")
    explain = f"EXPLAIN (VERBOSE, COSTS OFF) SELECT ({where}\n) FROM {relation} t"
    lines = [line for (line,) in driver().run_alone(connection, explain)]
    called = [*called_functions("\n".join(lines)), *named_functions(where)]
    if volatile := [name for (name,) in all_rows(connection, _VOLATILE, (called,))]:
        raise RequestError(
            f"the condition calls {', '.join(volatile)}, declared volatile",
            hint="a condition may only call functions that are immutable or stable",
        )
    if any(map(_SUBQUERY.match, lines)):
        raise RequestError("a condition may not contain a subquery", hint=ROW_ALONE)
    if revealing := [name for (name,) in all_rows(connection, _REVEALING, (called,))]:
        raise RequestError(f"the condition calls {', '.join(revealing)}", hint=ROW_ALONE)


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
        "SELECT t.tableoid::bigint::pg_catalog.text, pg_catalog.array_agg(t.ctid)::pg_catalog.text"
        f" FROM {relation} t{conditions} GROUP BY t.tableoid",
    )
    by_table = [
        f"(tableoid OPERATOR(pg_catalog.=) {int(table)}::pg_catalog.oid"
        f" AND ctid OPERATOR(pg_catalog.=) ANY ({literal(rows)}::pg_catalog.tid[]))"
        for table, rows in picked
    ]
    return " OR ".join(by_table) or "false"


def _run(connection: Connection, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
