"""The types of events that hold rows are those that pymysqlreplication knows."""

from __future__ import annotations

import pytest
from pymysqlreplication.constants import BINLOG

from connector.mysql.codec.compressed import PLAIN
from connector.mysql.codec.rows_event import OPERATIONS, TRUNCATE_KIND
from connector.mysql.log.events import MARIADB_GTID, parse_begin

KINDS = ("WRITE", "UPDATE", "DELETE", "PARTIAL_UPDATE")


def test_every_rows_event_has_its_operation() -> None:
    rows = {number for name, number in vars(BINLOG).items() if name.split("_ROWS")[0] in KINDS}
    assert rows == OPERATIONS.keys() - PLAIN.keys() - {TRUNCATE_KIND}
    assert set(PLAIN.values()) == rows - {BINLOG.PARTIAL_UPDATE_ROWS_EVENT}


@pytest.mark.parametrize(
    ("flags", "without_effect"),
    [
        ("29000000000000", False),
        ("29020000000000", True),  # START ALTER
        ("29040600000000000000", False),  # COMMIT ALTER, with the number of its START
        ("29081000000000000000", True),  # ROLLBACK ALTER
        ("2b0201010101010101", False),  # with an id of its group commit, and no other flags
        ("2b020101010101010102", True),
        ("2b020101010101010104" + "0600000000000000", False),
        ("29010200000000", False),  # the number of other engines
        ("4c0200000001007101ff", False),  # XA, whose format's number is 2
        ("29", False),
    ],
)
def test_a_statement_that_only_begins_or_was_rolled_back_is_without_effect(
    flags: str, without_effect: bool
) -> None:
    """As MariaDB 10.11 and 11.4 log it with binlog_alter_two_phase."""
    begin = parse_begin(MARIADB_GTID, 1, 1, bytes(12) + bytes.fromhex(flags))
    assert (begin.without_effect, begin.standalone) == (without_effect, bytes.fromhex(flags)[0] % 2 == 1)
