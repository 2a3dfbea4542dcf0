"""Read one large row from the log and from a dump, in its own process, for `test_large_rows`.

Arguments: server URL, table, log position before the row. Prints JSON: for log and dump, a digest of each
value, the growth of peak memory in bytes, and the seconds taken.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from connector.config import SourceConfig
from connector.landing.event_batch import EventBatch, arrow_schema
from connector.landing.parquet import FileWriter
from connector.mysql.source import MysqlSource
from connector.position import Position
from connector.schema import TableName
from connector.source import KeyRange, ResumePoint
from connector.store.local import LocalStore


def peak_bytes() -> int:
    """Return this process's peak memory since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10


def forget_peak() -> int:
    gc.collect()
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def digests(table: pa.Table) -> dict[str, Any]:
    """Return the length and digest of each value of the only row, from its bytes in memory."""
    found = {}
    for name in table.column_names:
        if name != "_cdc":
            value = table.column(name)[0]
            data = (
                value.as_buffer() if pa.types.is_binary(value.type) or pa.types.is_string(value.type) else b""
            )
            found[name] = [len(data), hashlib.sha256(data).hexdigest()]
    return found


def write(folder: Path, batch: EventBatch) -> None:
    with FileWriter(LocalStore(folder), batch.schema, Position(1, 1, 0)) as writer:
        writer.append_batch(batch)
        writer.close()


def main(url: str, table: str, position: int) -> None:
    config = {"name": "large", "kind": "mysql", "url": url, "tables": [table]}
    source = MysqlSource(SourceConfig.model_validate(config), {})
    folder = Path(tempfile.mkdtemp())
    reported: dict[str, Any] = {}
    log = source.open_log(1, ResumePoint(position, ()))
    for what in ("log", "dump"):
        before, began = forget_peak(), time.monotonic()
        if what == "log":
            reported[what] = read_log(log, folder)
        else:
            reported[what] = read_dump(source, TableName.parse(table))
        reported[what] |= {"bytes": peak_bytes() - before, "seconds": round(time.monotonic() - began, 1)}
    log.close()
    source.close()
    print(json.dumps(reported))


def read_log(log: Any, folder: Path) -> dict[str, Any]:
    while not log.buffered_rows:
        log.read(1.0, 1 << 30)
    (batch,) = log.take().decode()
    found = digests(batch.table)
    write(folder, batch)
    return {"values": found}


def read_dump(source: MysqlSource, table: TableName) -> dict[str, Any]:
    tables = source.open_tables()
    with tables.open_chunk(table, KeyRange()) as chunk:
        layout = arrow_schema(chunk.schema)
        for some in chunk.rows():
            names = [c.name for c in chunk.schema.columns]
            found = digests(pa.table(some.columns, names))
    tables.close()
    assert layout
    return {"values": found}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
