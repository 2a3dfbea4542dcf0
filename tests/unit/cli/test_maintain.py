"""What `deltatide maintain` says of a landing zone, and does."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from connector.cli import maintain
from connector.cli.maintain import landing_zone_findings
from connector.errors import ConfigurationError
from connector.landing import format
from connector.maintenance import compaction
from connector.store.local import LocalStore
from tests.support.landing.landed import Event, Landed, config_of, schema_of

T = schema_of("public.t", id="int")


def test_small_files_are_counted_joined_and_removed_and_each_step_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format, "MANIFESTS_PER_BLOCK", 10)
    landed, store = Landed.local(tmp_path / "landing"), LocalStore(tmp_path / "landing/shop")
    landed.table(T)
    for number in range(1, 41):
        landed.commit(10 * number, [landed.log(T, [Event("insert", 10 * number, 0, {"id": number})])])
    config = config_of(str(tmp_path / "landing"), str(tmp_path / "lake"))
    settings = config.landing.model_copy(update={"retention_days": 36_500})
    config = config.model_copy(update={"landing": settings})
    before = set(store.list(""))

    def said(*, dry_run: bool = False) -> list[str]:
        findings = list(landing_zone_findings(config, dry_run=dry_run))
        return [f"{f.status}: {f.subject}: {f.action} ({f.reason})" for f in findings]

    (planned,) = said(dry_run=True)
    assert planned.startswith("planned: landing zone: compact 39 landing files (")
    assert planned.endswith("into 4 (small ones of 4 blocks of manifests, each complete for an hour)")
    assert set(store.list("")) == before
    assert said() == [planned.replace("planned", "done", 1)]
    assert said() == []
    monkeypatch.setattr(compaction, "GRACE", timedelta(0))
    expected = "landing zone: remove 39 landing files (compacted a day ago or longer)"
    assert said(dry_run=True) == [f"planned: {expected}"]
    assert said() == [f"done: {expected}"]
    assert len(list(store.list("data/"))) == 1 + 4


def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format, "MANIFESTS_PER_BLOCK", 20)
    landed = Landed.local(tmp_path / "landing")
    landed.table(T)
    for number in range(1, 21):
        file = landed.log(T, [Event("insert", 10 * number, 0, {"id": number})])
        landed.commit(10 * number, [file])
    (tmp_path / "landing/shop" / landed.get(5).files[0].path).unlink()
    config = config_of(str(tmp_path / "landing"), str(tmp_path / "lake"))
    settings = config.landing.model_copy(update={"retention_days": 36_500})
    (finding,) = landing_zone_findings(config.model_copy(update={"landing": settings}))
    assert finding.status == "failed"
    assert "log-4.parquet is missing or not as it was written" in finding.reason


def test_an_unknown_lake_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starts(*_: object, **__: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr(maintain, "stopping", starts)
    monkeypatch.setattr(maintain, "log_to_stderr", lambda **_: None)
    file = tmp_path / "shop.toml"
    file.write_text(
        '[source]\nname = "shop"\nkind = "postgres"\nurl = "postgresql://h/shop"\ntables = ["public.*"]\n'
        f'[landing]\nurl = "{tmp_path / "landing"}"\n[lake]\nurl = "{tmp_path / "lake"}"\n'
    )
    with pytest.raises(ConfigurationError, match="no lake s3://other/lake"):
        maintain.maintain(file, dry_run=False, forget="s3://other/lake", as_json=False)
