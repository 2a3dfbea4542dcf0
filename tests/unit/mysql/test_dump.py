"""What becomes of a dump that MySQL or MariaDB refuses."""

from __future__ import annotations

import pymysql
import pytest

from connector.errors import NotYetError, RequestError, TableError
from connector.mysql.dump import _failure, _proof
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


@pytest.mark.parametrize(
    "error",
    [
        (1227, "Access denied; you need the REPLICATION CLIENT privilege"),
        (3062, "Cannot use WAIT_FOR_EXECUTED_GTID_SET when GTID_MODE = OFF"),
    ],
)
def test_a_proof_that_the_server_refuses_is_not_the_tables_fault_nor_a_conditions(
    error: tuple[int, str],
) -> None:
    """A right was taken away, or GTIDs turned off; a dump of a new column's values was one of all rows."""
    with pytest.raises(NotYetError), _proof(T):
        raise pymysql.err.OperationalError(*error)
    with pytest.raises(pymysql.err.OperationalError), _proof(T):
        raise pymysql.err.OperationalError(2013, "Lost connection")
    refused = pymysql.err.OperationalError(*error)
    assert isinstance(_failure(T, "needs_super(a)", refused, of_rows=True), RequestError)
