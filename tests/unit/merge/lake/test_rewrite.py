"""Which recorded version a rebuild with soft deletes goes on from."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("pyspark")

from merge.lake import rewrite as module
from merge.lake.commits import Mark
from merge.lake.control_table import AS_LANDED, Built, Frontier
from merge.lake.rewrite import Rewrite
from merge.lake.target import COLUMNS_PROPERTY, GENERATION_PROPERTY, Target, TargetState
from tests.support.landing.landed import config_of

T = Target(Mock(), "orders", columns="{}", soft=True)
MASKED = Built(T.built_with)


def gone_on_from(
    monkeypatch: pytest.MonkeyPatch, *known: Frontier, generation: int = 0, last: int = 0
) -> int | None:
    """Return the version of those recorded, newest first; `last`: the generation of the greatest mark."""
    properties = {COLUMNS_PROPERTY: "{}", GENERATION_PROPERTY: str(generation)}
    monkeypatch.setattr(module, "recorded_frontiers", lambda *_: [*known])
    monkeypatch.setattr(module, "read_state", lambda *_: TargetState("id", {}, properties, 1, 1))
    monkeypatch.setattr(module, "newest_unchanged", lambda *given: next(iter(given[-1]), None))
    unused: Any = None
    rewrite = Rewrite(unused, config_of("/landing", "/lake"), unused, 9, T)
    found = rewrite._recorded(Frontier(9, 7, "id"), Mark("shop", 8, generation=last))
    return None if found is None else found.version


def test_after_a_restore_no_rows_of_a_version_with_other_masks_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The properties are those of the restored version. What an earlier release recorded names no masks."""
    plain, masked = Frontier(8, 6, "id", built=AS_LANDED), Frontier(6, 2, "id", built=MASKED)
    assert gone_on_from(monkeypatch, plain, masked, last=1) == 2
    assert gone_on_from(monkeypatch, plain) is None
    unknown = Frontier(8, 6, "id")
    assert gone_on_from(monkeypatch, unknown, masked) == 6
    assert gone_on_from(monkeypatch, unknown, masked, generation=1, last=1) == 6
    assert gone_on_from(monkeypatch, unknown, masked, last=1) == 2
