"""The types of events that hold rows are those that pymysqlreplication knows."""

from __future__ import annotations

from pymysqlreplication.constants import BINLOG

from connector.mysql.codec.compressed import PLAIN
from connector.mysql.codec.rows_event import OPERATIONS, TRUNCATE_KIND

KINDS = ("WRITE", "UPDATE", "DELETE", "PARTIAL_UPDATE")


def test_every_rows_event_has_its_operation() -> None:
    rows = {number for name, number in vars(BINLOG).items() if name.split("_ROWS")[0] in KINDS}
    assert rows == OPERATIONS.keys() - PLAIN.keys() - {TRUNCATE_KIND}
    assert set(PLAIN.values()) == rows - {BINLOG.PARTIAL_UPDATE_ROWS_EVENT}
