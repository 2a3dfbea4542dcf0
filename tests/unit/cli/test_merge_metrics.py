"""The figures of a merge in a file for Prometheus."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from connector.cli.merge_output import ENDED, OF_MERGE, OF_TABLE, MetricsFile
from connector.errors import ConfigurationError
from connector.schema import TableName
from merge.report import MergeReport, TableReport

ORDERS = TableReport(TableName("public", 'the "orders"\n'), 7, 3, rows=12, missing=2)
FAILED = TableReport(TableName("public", "items"), 5, 1, error="disk full", missing=None)


def values(path: Path) -> dict[tuple[str, ...], float]:
    """The samples of a file, by name and labels."""
    families = text_string_to_metric_families(path.read_text())
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_each_merge_replaces_the_figures_of_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "deltatide.prom"
    metrics = MetricsFile(file)
    metrics.write(MergeReport("shop", 7, exact=True, seconds=2.5, tables=[ORDERS, FAILED]), lambda: 99.0)
    found = values(file)
    assert {name for name, *_ in found} == {*OF_MERGE, *OF_TABLE, ENDED}
    assert found["deltatide_merge_manifest", "shop"] == 7
    assert found["deltatide_merge_failed_tables", "shop"] == 1
    assert found["deltatide_merge_table_events", "shop", str(ORDERS.table)] == 12
    assert found["deltatide_merge_table_failed", "shop", "public.items"] == 1
    assert found[ENDED, "shop"] == 99
    metrics.write(MergeReport("shop", 8, exact=False, seconds=1), lambda: 100.0)
    again = values(file)
    assert (again["deltatide_merge_manifest", "shop"], again["deltatide_merge_exact", "shop"]) == (8, 0)
    assert not [name for name, *_ in again if name in OF_TABLE]


def test_a_missing_folder_is_refused_at_once_and_a_lost_one_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigurationError, match="is not a folder"):
        MetricsFile(tmp_path / "missing" / "deltatide.prom")
    folder = tmp_path / "there"
    folder.mkdir()
    metrics = MetricsFile(folder / "deltatide.prom")
    folder.rmdir()
    with caplog.at_level(logging.ERROR):
        metrics.write(MergeReport("shop", 1))
    assert "can't write" in caplog.text
