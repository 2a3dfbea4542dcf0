"""What a Python process of Spark keeps of landing files: the same events, read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.errors import TableError
from connector.landing.manifest import LandedFile
from connector.schema import Column, TableName, TableSchema
from connector.store.local import LocalStore
from merge.reading import pending_events
from merge.reading.pending_events import KeptEvents, read_events
from tests.support.landing.landed import Landed
from tests.support.landing.zone import ORDERS, T, insert

WIDER = TableSchema(ORDERS.table, (*ORDERS.columns, Column("c", "text", "string")), ORDERS.key)


@pytest.fixture
def landed(tmp_path: Path) -> Landed:
    found = Landed.local(tmp_path)
    found.table(ORDERS)
    return found


class Store(LocalStore):
    """A store that counts the landing files that are read."""

    read_files = 0

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        self.read_files += path.endswith(".parquet")
        return super().read(path, limit)


def keys_of(
    store: Store, files: list[LandedFile], kept: KeptEvents, wanted: TableSchema = ORDERS
) -> list[tuple[int, int]]:
    """Return the keys and the columns of what is read."""
    batches = read_events(store, TableName.parse(T), files, wanted, kept)
    return sorted((key, batch.num_columns) for batch in batches for key in batch.column("id").to_pylist())


def test_a_file_is_read_once_for_each_layout_that_is_wanted(landed: Landed, tmp_path: Path) -> None:
    files = [landed.log(ORDERS, [insert(lsn, lsn)]) for lsn in (5, 15)]
    store, kept = Store(tmp_path / "shop"), KeptEvents()
    assert keys_of(store, files[:1], kept) == [(5, 4)]
    assert keys_of(store, files, kept) == keys_of(store, files, kept) == [(5, 4), (15, 4)]
    assert store.read_files == 2
    assert keys_of(store, files, kept, WIDER) == [(5, 5), (15, 5)]
    assert store.read_files == 4
    other = files[0].model_copy(update={"rows": 2})
    with pytest.raises(TableError, match="not as it was written"):
        keys_of(store, [other], kept)


def test_no_more_is_kept_than_fits_nor_any_large_file(
    landed: Landed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [landed.log(ORDERS, [insert(lsn, lsn)]) for lsn in (5, 15, 25)]
    store, kept = Store(tmp_path / "shop"), KeptEvents()
    keys_of(store, files[:1], kept)
    kept.most_bytes = 2 * kept.bytes
    keys_of(store, files[1:2], kept)
    keys_of(store, files[:1], kept)
    keys_of(store, files[2:], kept)  # the second is forgotten, which was used longest ago
    store.read_files = 0
    assert keys_of(store, [files[0], files[2]], kept) == [(5, 4), (25, 4)]
    assert store.read_files == 0
    assert keys_of(store, files[1:2], kept) == [(15, 4)]
    assert store.read_files == 1
    assert kept.bytes <= kept.most_bytes
    monkeypatch.setattr(pending_events, "SMALL_BYTES", files[0].bytes - 1)
    kept = KeptEvents()
    assert keys_of(store, files, kept) == [(5, 4), (15, 4), (25, 4)]
    assert kept.bytes == 0
