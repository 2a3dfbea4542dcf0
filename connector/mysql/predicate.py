"""User-supplied conditions: untrusted SQL that may choose rows and do nothing else.

Invariants:

- *One expression.* Before use, the server prepares the condition twice: bare (``WHERE condition``) and in
  parentheses (``WHERE (condition)``). PREPARE refuses a second statement. A text that closes a parenthesis it
  did not open, or ends in an open comment or string, fails bare; one that continues after a whole expression
  (``UNION``, ``INTO OUTFILE``, ``FOR UPDATE``) fails in parentheses. A text that passes both is one
  expression wherever it is in parentheses.
- *Only the row.* It contains no subquery, so it reads no other table. The user may see more than those who
  write conditions: other captured tables, and the statements of other sessions (``PROCESS``).
- *No write and no lock.* It runs in a read-only transaction that is rolled back, for a limited time, names no
  built-in function that waits, locks or reads files, and contains no locking read: a read-only transaction
  may lock the rows of any table (``LOCK IN SHARE MODE``). Executable comments can hide all of that
  (``/*!50000sleep(9)*/``), so none are allowed.
- *No value shown.* What the server says when the condition fails for a row may quote the row
  (``extractvalue(1, concat('~', v))``), so only its number is passed on (`FAILED`): it would be in log,
  manifest and status page.

The user's rights limit the rest: a stored function that the user may EXECUTE can read all that its definer
may, and change the session.
"""

from __future__ import annotations

import re
from typing import Any

from pymysql.connections import Connection

from connector.errors import RequestError
from connector.mysql.connection import literal, query

FAILED = "the condition fails for a row, with the server's error"

_SPACE = r"(?:\s|/\*.*?\*/|--[^\n]*\n|\#[^\n]*\n)"
_FORBIDDEN = (
    "sleep benchmark get_lock release_lock release_all_locks load_file master_pos_wait source_pos_wait"
    " master_gtid_wait wait_for_executed_gtid_set wait_until_sql_thread_after_gtids nextval setval"
).split()
_CALL = re.compile(rf"\b({'|'.join(_FORBIDDEN)})\b`?{_SPACE}*\(", re.IGNORECASE | re.DOTALL)

_START = r"(?:\b|(?<=\d))"  # a keyword may directly follow a number: 1.5FOR UPDATE
_CLAUSES = ("for (?:update|share)", "lock in share", "next value")
_LOCK = re.compile(
    "|".join(_START + clause.replace(" ", f"{_SPACE}+") + r"\b" for clause in _CLAUSES),
    re.IGNORECASE | re.DOTALL,
)
"""Clauses that lock rows or advance a sequence, in the condition's text or in a string in it."""

_SUBQUERY = re.compile(rf"(?<![`.]){_START}(?:select|table)\b", re.IGNORECASE)
"""What every subquery that reads a table has, in the condition's text or in a string in it. Not the name of a
column: a keyword there follows no quote and no dot."""


def limit_time(connection: Connection[Any], mariadb: bool, seconds: float) -> None:
    """Limit each SELECT of the session to `seconds`; 0: no limit."""
    limit = (
        f"max_statement_time = {seconds:.3f}" if mariadb else f"max_execution_time = {int(seconds * 1000)}"
    )
    query(connection, f"SET SESSION {limit}")


def check_predicate(connection: Connection[Any], relation: str, where: str) -> None:
    """Verify that a condition on ``relation t`` is one expression without side effects.

    Raises the server's error or `RequestError`. Call in a read-only transaction.
    """
    refuse_effects(where)
    for statement in (
        f"SELECT 1 FROM {relation} t WHERE {where}\n",
        f"SELECT 1 FROM {relation} t WHERE ({where}\n)",
    ):
        query(connection, f"SET @deltatide_condition = {literal(statement)}")
        query(connection, "PREPARE deltatide_condition FROM @deltatide_condition")
        query(connection, "DEALLOCATE PREPARE deltatide_condition")


def refuse_effects(where: str) -> None:
    """Raise `RequestError` if a condition's text waits, locks, reads other tables, or may hide that it does.

    Pure.
    """
    if re.search(r"/\*M?!", where, re.IGNORECASE):
        raise RequestError("a condition may not contain /*!, a comment that the server executes")
    if match := _CALL.search(where):
        raise RequestError(
            f"a condition may not call {match[1].lower()}()", hint="it may only use the row's values"
        )
    if match := _LOCK.search(where):
        raise RequestError(
            f"a condition may not contain {match[0]!r}, which may lock rows",
            hint="inside a string, split it, as in concat('for ', 'update')",
        )
    if match := _SUBQUERY.search(where):
        raise RequestError(
            f"a condition may not contain {match[0]!r}: no subqueries",
            hint="it may only use the row's own columns; to choose rows by other tables, request their keys;"
            " inside a string, split the word, as in concat('sel', 'ect')",
        )
