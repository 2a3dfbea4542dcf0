"""What becomes of a dump that MySQL or MariaDB refuses."""

from __future__ import annotations

import pymysql
import pytest

from connector.errors import NotYetError, RequestError, TableError
from connector.mysql.dump import _failure
from connector.schema import TableName

T = TableName("d", "t")


@pytest.mark.parametrize("where", [None, "a = 1", "given keys"])
def test_a_table_that_is_gone_for_a_moment_is_waited_for(where: str | None) -> None:
    """As between DROP and CREATE. Quarantined, it would stay so; if it is gone for good, it is left."""
    gone = pymysql.err.ProgrammingError(1146, "Table 'd.t' doesn't exist")
    assert isinstance(_failure(T, where, gone, of_rows=False), NotYetError)


@pytest.mark.parametrize("of_rows", [False, True])
def test_a_condition_whose_function_reads_a_table_that_is_gone_is_refused(of_rows: bool) -> None:
    """It would wait for that table, which nobody watches, for ever."""
    gone = pymysql.err.ProgrammingError(1146, "Table 'd.rates' doesn't exist")
    assert isinstance(_failure(T, "rate(a) > 1", gone, of_rows=of_rows), RequestError)


def test_a_condition_whose_function_reads_what_we_may_not_is_refused_and_its_table_goes_on() -> None:
    """Whoever could request a dump could have any table quarantined."""
    denied = pymysql.err.OperationalError(1142, "SELECT command denied to user 'a'@'b' for table 'rates'")
    assert isinstance(_failure(T, "rate(a) > 1", denied, of_rows=True), RequestError)
    assert isinstance(_failure(T, None, denied, of_rows=False), TableError)


def test_a_right_on_the_server_that_was_taken_away_is_not_the_tables_fault() -> None:
    denied = pymysql.err.OperationalError(1227, "Access denied; you need the REPLICATION CLIENT privilege")
    assert isinstance(_failure(T, None, denied, of_rows=False), NotYetError)
    assert isinstance(_failure(T, "needs_super(a)", denied, of_rows=True), RequestError)
