"""The data source on a real S3 server, as Spark's Python processes read it: with the store's own client."""

from __future__ import annotations

import pickle

import pytest

from connector.landing.consumers import read_consumers
from tests.integration.store.test_s3 import opened
from tests.support.landing.landed import Landed
from tests.support.landing.zone import ORDERS, T, insert
from tests.support.servers.s3_server import S3

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4")


def test_changes_on_s3_are_read_by_one_process_as_another_planned(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    from merge.reading.change_source import DeltatideSource

    store = opened(s3, monkeypatch)
    landed = Landed(put=store.put)
    landed.table(ORDERS)
    for n in range(1, 20):
        landed.commit(10 * n, [landed.log(ORDERS, [insert(10 * n - 5, n)])])
    place = {"landing": f"s3://{s3.bucket}/landing", "endpoint": s3.endpoint, "source": "shop"}
    source = DeltatideSource({**place, "table": T, "consumer": "loader"})
    source.schema()
    planning = source.streamReader(None)  # type: ignore[arg-type]
    end, start = planning.latestOffset(), planning.initialOffset()
    partitions = planning.partitions(start, end)
    reading, sent = pickle.loads(pickle.dumps((source, partitions)))
    rows = (row for each in sent for row in reading.streamReader(None).read(each))
    assert sorted(key for batch in rows for key in batch["id"].to_pylist()) == [*range(1, 20)]
    assert [consumer.title for consumer in read_consumers(store)] == ["stream loader"]
