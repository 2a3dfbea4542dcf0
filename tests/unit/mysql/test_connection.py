"""Which of the server's errors pass, and which stop a table."""

from __future__ import annotations

import pymysql
import pytest

from connector.errors import TableError, TransientError
from connector.mysql.dump import _failure
from connector.schema import TableName

TABLE = TableName("shop", "orders")


@pytest.mark.parametrize(
    "error",
    [
        (1021, "Disk full (/tmp/#sql); waiting for someone to free some space..."),
        (1041, "Out of memory."),
        (1047, "WSREP has not yet prepared node for application use"),
        (2013, "Lost connection to MySQL server during query"),
    ],
)
def test_a_chunk_that_a_server_in_need_refuses_is_read_again(error: tuple[int, str]) -> None:
    failure = _failure(TABLE, None, pymysql.OperationalError(*error), of_rows=False)
    assert isinstance(failure, TransientError)


def test_a_chunk_of_a_damaged_table_is_not_read_again() -> None:
    error = pymysql.OperationalError(1034, "Incorrect key file for table 'orders'; try to repair it")
    assert isinstance(_failure(TABLE, None, error, of_rows=False), TableError)
