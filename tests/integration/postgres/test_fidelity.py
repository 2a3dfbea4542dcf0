from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.postgres_table import PostgresTypes
from tests.support.servers.postgres import Database, postgres_versions


@pytest.mark.parametrize("postgres", postgres_versions(), indirect=True)
def test_every_type_is_the_same_from_dump_and_log_under_hostile_settings(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = PostgresTypes(database, tmp_path, monkeypatch)
    types.capture()
    problems = types.problems()
    assert not problems, "\n".join(problems)
