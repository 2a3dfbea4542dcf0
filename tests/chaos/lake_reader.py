"""Reads the lake's Delta tables with delta-rs, which shares no code with Spark, past the proxy that fails."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from pyarrow import fs

from tests.support.servers.s3_server import S3


class LakeReader:
    """The lake under a url: a folder, or a prefix of `s3`'s bucket."""

    def __init__(self, url: str, s3: S3 | None = None) -> None:
        self._url = url
        self.options = {} if s3 is None else s3.delta_options
        self._files = fs.LocalFileSystem() if s3 is None else s3.file_system()

    def table(self, name: str, version: int | None = None) -> DeltaTable:
        """Open a table by its path in the lake."""
        return DeltaTable(f"{self._url}/{name}", version=version, storage_options=self.options)

    def file(self, uri: str) -> list[dict[str, Any]]:
        """Read one file of a table."""
        path = uri.partition("://")[2] if "://" in uri else uri
        return pq.read_table(path, filesystem=self._files).to_pylist()


def rows_of(table: DeltaTable, *columns: str) -> list[tuple[Any, ...]]:
    """Return a Delta table's rows: the values of these columns, or SQL expressions."""
    builder = QueryBuilder().register("target", table)
    batches = builder.execute(f"SELECT {', '.join(columns)} FROM target").read_all()
    values = [column.to_pylist() for column in pa.table(batches).columns]
    return list(zip(*values, strict=True))
