"""Rows that span the protocol's packets of 16 MiB, in a process of their own that measures its memory."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import source_of

MIB = 1 << 20
LARGEST = 24 * MIB
OVERHEAD = 64 * MIB
"""What any row takes: buffers of the socket and of Parquet, modules loaded with the first row."""


def test_a_row_that_spans_packets_is_the_same_from_log_and_dump_in_bounded_memory(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute("SET GLOBAL max_allowed_packet = 1073741824")
    if mariadb.is_mysql:  # a transaction's blobs have to fit into a tenth of it
        mariadb.execute("SET GLOBAL innodb_redo_log_capacity = 1073741824")
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, b longblob, s longtext, n int)")
    source = source_of(mariadb)
    source.prepare()
    begin = source.begin_log(fresh=False).position
    source.close()
    text = f"repeat(X'C3BC61', {5 * MIB})"
    mariadb.execute(f"INSERT INTO t VALUES (1, repeat(X'00FF1234', {LARGEST // 4}), {text}, 7)")
    program = [sys.executable, "-m", "tests.support.source.large_rows", mariadb.url, f"{mariadb.name}.t"]
    done = subprocess.run([*program, str(begin)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    (digests,) = mariadb.execute("SELECT length(b), sha2(b, 256), length(s), sha2(s, 256) FROM t")
    for what in ("log", "dump"):
        values = reported[what]["values"]
        assert (what, *values["b"], *values["s"]) == (what, *digests)
        assert reported[what]["bytes"] < 3 * (LARGEST + 15 * MIB) + OVERHEAD, what
