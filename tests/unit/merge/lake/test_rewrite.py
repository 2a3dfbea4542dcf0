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
from merge.table import Merged
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


@pytest.mark.parametrize(("generation", "steps"), [(0, ["rows 1", "property"]), (1, ["rows 1"])])
def test_a_table_is_known_to_be_restored_until_its_rows_are_written(
    monkeypatch: pytest.MonkeyPatch, generation: int, steps: list[str]
) -> None:
    """Else the next merge, after a failure, takes a version with other masks for one that fits."""
    done: list[str] = []

    def write(_: Frontier, mark: Mark, base: object) -> Merged:
        done.append(f"rows {mark.generation}")
        return Merged(Mock(), None)

    job = Mock(state=Mock(generation=generation), mark=Mark("shop", 9), merge=write)
    monkeypatch.setattr(module.TableJob, "prepared", lambda *_, **__: job)
    monkeypatch.setattr(module, "change_properties", lambda *_: done.append("property"))
    unused: Any = None
    rewrite = Rewrite(unused, config_of("/landing", "/lake"), unused, 9, T)
    rewrite._written(T, Mock(), Mock(), None, Mark("shop", 8, generation=1))
    assert done == steps
