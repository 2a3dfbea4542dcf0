"""The numbers of events and column types are those that pymysqlreplication knows."""

from __future__ import annotations

import pytest
from pymysqlreplication.constants import BINLOG, FIELD_TYPE

from connector.mysql.codec import types
from connector.mysql.codec.compressed import PLAIN
from connector.mysql.codec.rows_event import OPERATIONS
from connector.mysql.codec.segment import TABLE_MAP
from connector.mysql.log import events

EVENTS = {
    "QUERY": "QUERY_EVENT",
    "STOP": "STOP_EVENT",
    "ROTATE": "ROTATE_EVENT",
    "FORMAT": "FORMAT_DESCRIPTION_EVENT",
    "XID": "XID_EVENT",
    "INCIDENT": "INCIDENT_EVENT",
    "HEARTBEAT": "HEARTBEAT_LOG_EVENT",
    "EXECUTE_LOAD_QUERY": "EXECUTE_LOAD_QUERY_EVENT",
    "GTID": "GTID_LOG_EVENT",
    "ANONYMOUS_GTID": "ANONYMOUS_GTID_LOG_EVENT",
    "XA_PREPARE": "XA_PREPARE_EVENT",
    "MARIADB_GTID": "MARIADB_GTID_EVENT",
    "START_ENCRYPTION": "MARIADB_START_ENCRYPTION_EVENT",
}


@pytest.mark.parametrize(("ours", "theirs"), EVENTS.items())
def test_an_event_has_its_number(ours: str, theirs: str) -> None:
    assert getattr(events, ours) == getattr(BINLOG, theirs)


KINDS = ("WRITE", "UPDATE", "DELETE", "PARTIAL_UPDATE")


def test_rows_events_and_table_maps_have_their_numbers() -> None:
    rows = {number for name, number in vars(BINLOG).items() if name.split("_ROWS")[0] in KINDS}
    assert rows == OPERATIONS.keys() - PLAIN.keys() - {255}
    assert TABLE_MAP == BINLOG.TABLE_MAP_EVENT


@pytest.mark.parametrize("name", ["TINY", "SHORT", "LONG", "FLOAT", "DOUBLE", "JSON", "NEWDECIMAL"])
def test_a_column_type_has_its_number(name: str) -> None:
    assert getattr(types, name) == getattr(FIELD_TYPE, name)
