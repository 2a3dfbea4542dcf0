"""What the log of PostgreSQL shows of tables that no check of the catalog does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.logged_table import LoggedTable
from connector.postgres.catalog_fingerprint import unlogged
from connector.postgres.log.contradictions import contradicted_by_log
from connector.schema import TableName
from connector.source import UnloggedChange
from tests.unit.postgres.test_catalog_fingerprint import fingerprint

T, U, AWAY = (TableName("s", name) for name in ("t", "u", "away"))
KNOWN = {T: fingerprint(7), U: f"{fingerprint(8)} 81:1: 82:1:"}


def reasons_after(*logged: LoggedTable, repaired_upto: int = 0) -> dict[TableName, UnloggedChange | None]:
    """What the next check says of each table that the log shows otherwise, if it finds what was known."""
    found = contradicted_by_log(KNOWN, logged, lambda _table, _logged: repaired_upto)
    return {table: unlogged(doubt, KNOWN[table]) for table, doubt in found.items()}


@pytest.mark.parametrize(
    ("logged", "lost", "landed"),
    [
        (LoggedTable(7, T), None, None),
        (LoggedTable(99, AWAY), None, None),
        (LoggedTable(82, TableName("s", "u2"), U), None, None),
        (LoggedTable(7, AWAY), T, None),  # renamed for a time
        (LoggedTable(99, T), None, T),  # another table under its name
        (LoggedTable(7, U), T, U),
        (LoggedTable(83, TableName("s", "u3"), U), None, U),  # a partition that no check has seen
        (LoggedTable(7, T, U), T, U),  # attached for a time
        (LoggedTable(7, T, AWAY), T, None),
        (LoggedTable(82, TableName("s", "u2"), AWAY), None, U),  # its root was attached for a time
        (LoggedTable(82, TableName("s", "u2"), U, identified=False), None, U),
        (LoggedTable(7, U, dumped=True), None, U),  # another table under its name was dumped
        (LoggedTable(83, TableName("s", "u3"), U, dumped=True), None, U),
        (LoggedTable(7, T, AWAY, dumped=True), None, None),
        (LoggedTable(7, AWAY, former=True), None, T),  # renamed, and not described again
        (LoggedTable(99, T, former=True), None, T),
        (LoggedTable(7, T, former=True), None, T),  # renamed since the last check, which the next one sees
        (LoggedTable(82, TableName("s", "u2")), None, None),  # no longer a partition: the next check sees it
    ],
)
def test_what_the_log_shows_otherwise_than_the_catalog_is_found_whatever_the_next_check_finds(
    logged: LoggedTable, lost: TableName | None, landed: TableName | None
) -> None:
    found = reasons_after(replace(logged, lsn=5), repaired_upto=5)
    assert {table: what.lost for table, what in found.items() if what} == {
        **({landed: False} if landed else {}),
        **({lost: True} if lost else {}),
    }
    assert not reasons_after(replace(logged, lsn=4), repaired_upto=5), "a dump sees its effect"


def test_a_table_that_is_contradicted_again_is_found_again() -> None:
    """A check that began between the two is no answer to the second."""
    doubted = contradicted_by_log(KNOWN, [LoggedTable(7, AWAY, lsn=5)], lambda _table, _logged: 0)
    again = [LoggedTable(7, AWAY, lsn=6)]
    assert contradicted_by_log({**KNOWN, **doubted}, again, lambda _table, _logged: 0) == doubted


def test_a_table_of_which_rows_were_withheld_is_dumped_again_whatever_its_dumps_have_seen() -> None:
    assert reasons_after(LoggedTable(7, T, lsn=4, withheld=True), repaired_upto=5)[T] is not None
