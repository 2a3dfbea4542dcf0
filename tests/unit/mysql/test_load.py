"""A watched replica is another server: whether the source is silent says nothing about it."""

from __future__ import annotations

from typing import Any

import pytest

from connector.config import SourceConfig
from connector.mysql.load import gauge, replicas
from connector.silence import Awaited, awaited_sessions, note_open


class Waiting:
    """A connection on which somebody waits for the server."""

    def __init__(self, url: str) -> None:
        self.awaited = Awaited()
        self.awaited.count = 1
        self.url = url


def test_a_replicas_session_is_none_of_those_that_the_sources_server_is_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The source's server does not have it: it would count as lost, and be ended with a warning."""
    opened: list[Waiting] = []

    def connect(url: str, name: str) -> Any:
        opened.append(Waiting(url))
        note_open(name, opened[-1], lambda _connection: 0, session=url)
        return opened[-1]

    monkeypatch.setattr("connector.silence._bytes_received", lambda _descriptor: 0)
    monkeypatch.setattr(gauge, "connect", connect)
    monkeypatch.setattr(replicas, "connect", connect)
    config = SourceConfig(name="watched", kind="mysql", url="mysql://u@source/d", tables=["d.*"])
    watches = gauge.MysqlGauge(config, ["mysql://u@replica/d"])
    with pytest.raises(AttributeError):  # it is no connection of the driver's
        watches._replicas[0].measure()
    assert [each.url for each in opened] == ["mysql://u@source/d", "mysql://u@replica/d"]
    assert list(awaited_sessions("deltatide watched")) == ["mysql://u@source/d"]
