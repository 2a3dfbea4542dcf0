"""Landing zones for measurements of merges: many rows, built from Arrow columns, without a database."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from connector.landing.event_batch import CdcColumns, assemble
from connector.landing.format import data_path
from connector.landing.key_span import key_span
from connector.landing.manifest import LandedFile
from connector.position import CHUNK_SEQ, Position
from connector.schema import TableSchema
from tests.support.landing.landed import AT, Landed, schema_of

CHUNK_ROWS = 50_000
COLUMNS = {
    "id": "bigint",
    "customer": "int",
    "status": "string",
    "amount": "decimal(12,2)",
    "note": "string",
    "created": "timestamp",
}
Keys = npt.NDArray[np.int64]


@dataclass
class MeasuredZone:
    """Tables with rows of about 100 bytes, numbered from 0; each call of `dump` or `change` is a manifest.

    `more_columns`: how many integer columns to add.
    """

    landed: Landed
    lsn: int = 10
    more_columns: int = 0
    schemas: dict[str, TableSchema] = field(default_factory=dict)
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    @classmethod
    def create(cls, at: Path | Landed, tables: Sequence[str], more_columns: int = 0) -> MeasuredZone:
        """Create a landing zone in which these tables are captured."""
        landed = at if isinstance(at, Landed) else Landed.local(at)
        zone = cls(landed, more_columns=more_columns)
        columns = COLUMNS | {f"c{number:03}": "int" for number in range(more_columns)}
        for table in tables:
            zone.schemas[table] = schema_of(table, **columns)
            zone.landed.table(zone.schemas[table])
        return zone

    def dump(self, rows: int) -> list[str]:
        """Land a finished dump of this many rows in each table; return the paths of all files."""
        files = []
        for number, table in enumerate(self.schemas, 1):
            for chunk, first in enumerate(range(0, rows, CHUNK_ROWS)):
                keys = np.arange(first, min(first + CHUNK_ROWS, rows), dtype=np.int64)
                known = {"dump": f"dump-{number}", "chunk": chunk, "low": self.lsn, "high": self.lsn}
                files.append(self._file(table, keys, "dump", self.lsn, CHUNK_SEQ + number, known))
            self.landed.full_dump(table, number, self.lsn, started_in=self.landed.number + 1)
        return self._commit(files)

    def change(
        self,
        keys: Keys,
        at: int | None = None,
        unchanged: Sequence[str] = (),
        tables: Sequence[str] | None = None,
    ) -> list[str]:
        """Land an update of these keys at an LSN, in all or given tables; return the files' paths.

        `unchanged`: columns that the update does not carry.
        """
        lsn = self.lsn if at is None else at
        return self._commit(
            [self._file(table, keys, "update", lsn, None, {}, unchanged) for table in tables or self.schemas]
        )

    def _commit(self, files: Sequence[LandedFile]) -> list[str]:
        self.landed.commit(self.lsn + 1, files)
        self.lsn += 10
        return [f"{self.landed.url}/shop/{file.path}" for file in files]

    def _file(
        self,
        table: str,
        keys: Keys,
        op: str,
        lsn: int,
        seq: int | None,
        known: dict[str, object],
        unchanged: Sequence[str] = (),
    ) -> LandedFile:
        schema, count = self.schemas[table], len(keys)
        columns = [
            pa.nulls(count, column.type) if name in unchanged else column
            for name, column in zip((c.name for c in schema.columns), self._columns(keys), strict=True)
        ]
        seqs = np.full(count, seq) if seq is not None else 2 * np.arange(count)
        cdc = CdcColumns(
            op=pa.array([op] * count),
            epoch=1,
            lsn=pa.array(np.full(count, lsn), pa.int64()),
            seq=pa.array(seqs, pa.int64()),
            committed_at=pa.array([AT] * count),
            chunk=known.get("chunk"),
            unchanged=pa.array([list(unchanged) or None] * count, pa.list_(pa.string())),
            raw=pa.nulls(count, pa.map_(pa.string(), pa.string())),
        )
        data = io.BytesIO()
        pq.write_table(assemble(schema, columns, cdc), data, compression="zstd")
        kind = "chunk" if known else "log"
        path = data_path(
            schema.table, "2026-01-02", f"{schema.table.name}-{kind}-{lsn}-{known.get('chunk', 0)}"
        )
        self.landed._put(path, data.getvalue())
        return LandedFile(
            path=path, table=schema.table, schema_id=schema.id, kind=kind, rows=count,
            bytes=len(data.getvalue()), partial=bool(unchanged), first=Position(1, lsn, int(seqs[0])),
            last=Position(1, lsn, int(seqs[-1])), key_span=key_span(pa.chunked_array([pa.array(keys)])),
            **known,
        )  # fmt: skip

    def _columns(self, keys: Keys) -> list[pa.Array]:
        random, count = self._random, len(keys)
        words = np.array([f"{word:015x}" for word in random.integers(0, 1 << 60, 5000)])
        notes = words[random.integers(0, 5000, (3, count))]
        return [
            pa.array(keys),
            pa.array(random.integers(0, 100_000, count), pa.int32()),
            pa.array(np.array(["open", "paid", "sent"])[random.integers(0, 3, count)]),
            pa.array(np.round(random.random(count) * 1e6, 2)).cast(pa.decimal128(12, 2), safe=False),
            pa.array([" ".join(three) for three in notes.T.tolist()]),
            pa.array(1_700_000_000_000_000 + keys * 1_000_000, pa.timestamp("us", tz="UTC")),
            *(pa.array(random.integers(0, 1000, count), pa.int32()) for _ in range(self.more_columns)),
        ]
