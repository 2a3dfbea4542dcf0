"""Plans what has landed of several tables at once, within one task of a query.

Queries of live views of small tables begin with it: the task finds the newest manifest, and plans for each
view that a query may have. So no view needs a task of its own before it can be planned further.

Invariant: a table that can't be planned fails only the queries that read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from connector.errors import DeltatideError
from connector.reading.landed_manifests import AsOf, LandedManifests, newest_in
from connector.store.protocol import Store
from merge.plan import NOTHING
from merge.reading.pending import (
    NEWEST,
    OLDEST,
    Batches,
    Cuts,
    PendingTable,
    Source,
    explained,
    formatted,
    of_failure,
)
from merge.sql_formatting import to_micros

PLANNED = f"{NEWEST}, tables array<struct<oldest:struct<{OLDEST}>,state:string>>"
"""The newest manifest, and for each of our tables, what to read: all of `STATE` in one text."""

_OLDEST = pa.struct([("epoch", pa.int32()), ("lsn", pa.int64()), ("seq", pa.int64())])
_PLANNED = pa.schema(
    [
        ("manifest", pa.int64()),
        ("kept", pa.int64()),
        ("micros", pa.int64()),
        ("tables", pa.list_(pa.struct([("oldest", _OLDEST), ("state", pa.string())]))),
    ]
)


@dataclass(frozen=True)
class PendingTables:
    """What has landed of some tables since their Delta tables."""

    source: Source
    tables: tuple[PendingTable, ...]

    def planned(self, batches: Batches) -> Batches:
        """Return one row, for `PLANNED`, from rows with `cut`: those recorded last (`RECORDED`), or null."""
        rows = [row["cut"] for batch in batches for row in batch.to_pylist()]
        cuts = [cut for cut in rows if cut is not None]
        with explained():
            store = self.source.open()
            now = AsOf.now(store)
            newest = newest_in(store).number
            manifests = LandedManifests(store, now)
            tables = [
                _planned(table, store, manifests, newest, Cuts.of(cuts, number))
                for number, table in enumerate(self.tables)
            ]
        row = {"manifest": newest, "kept": now.kept, "micros": to_micros(now.at), "tables": tables}
        yield pa.RecordBatch.from_pylist([row], schema=_PLANNED)


def _planned(
    table: PendingTable, store: Store, manifests: LandedManifests, upto: int, cuts: Cuts
) -> dict[str, Any]:
    try:
        oldest, parts = table.planned(store, manifests, upto, cuts)
    except DeltatideError as error:
        return {"oldest": NOTHING._asdict(), "state": of_failure(error)}
    return {"oldest": oldest._asdict(), "state": formatted(oldest, parts)}
