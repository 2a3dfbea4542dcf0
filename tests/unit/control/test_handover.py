"""`deltatide handover` says who took over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from connector.control import handover
from connector.control.handover import request_handover
from connector.errors import RequestError
from connector.landing.lease import Holder, Lease
from connector.testing.memory_store import MemoryStore


def asked(monkeypatch: pytest.MonkeyPatch, **other: Any) -> handover.Handover:
    """Hand over to an agent that differs from the former one in this."""
    held = Lease.acquire(MemoryStore(), 15).state.model_copy(
        update={"host": "node-1", "pid": 1, "machine": "node-1/boot/pid:[1]", "process_start": "100"}
    )
    leases: list[Holder] = [held]
    taken = held.model_copy(update={"term": held.term + 1, "holder": "other", **other})
    monkeypatch.setattr(handover, "request_control", lambda _view, kind: leases.append(taken) or kind)
    return request_handover(cast(Any, SimpleNamespace(lease=lambda: leases[-1], store=MemoryStore())))


@pytest.mark.parametrize(
    "other", [{"machine": "node-1/boot/pid:[2]"}, {"process_start": "200"}, {"host": "node-2"}]
)
def test_an_agent_with_the_same_host_and_process_id_in_another_container_has_taken_over(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    assert asked(monkeypatch, **other).term == 2


def test_the_same_agent_continues_if_nobody_took_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="so the same agent continues"):
        asked(monkeypatch)
