"""The landing zone's names: paths, the `_cdc` struct, operations. Pure; no I/O and no Arrow.

::

    <landing>/<source>/
      manifest/<number // 1000>/<number>.json     and <number>.compacted.json, for a block of 100
      state/<number>-<hash>.json
      data/<namespace>.<table>/<date>/<file>.parquet
      schema/<namespace>.<table>/<id>.json
      comments/<namespace>.<table>/<number>-<hash>.json
      requests/<id>.json
      consumers/<id>/
      retention.json
      compaction.json
      lease.json

All paths here are relative to ``<landing>/<source>/``. Characters with a special meaning in a file system, a
URL, a glob or a partition path are percent-encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from connector.schema import TableName, fold

FORMAT = 1
"""Version of manifests and landing files; a reader refuses a newer one."""

CDC = "_cdc"
"""The struct column for everything that is not one of the table's own columns."""

CDC_FIELDS: tuple[tuple[str, str], ...] = (
    ("op", "string"),
    ("epoch", "int"),
    ("lsn", "bigint"),
    ("seq", "bigint"),
    ("txid", "string"),
    ("committed_at", "timestamp"),
    ("low_lsn", "bigint"),
    ("high_lsn", "bigint"),
    ("dump", "string"),
    ("chunk", "int"),
    ("unchanged", "array<string>"),
    ("raw", "map<string,string>"),
)
"""Fields of `_cdc` in order, with their Spark SQL types."""

BEFORE = "_before"
"""The optional struct column with a row's values before an event.

Null in events that replace no row: inserts, truncates, dumps. In the others, a value that was not captured is
never mistaken for NULL: the struct's own field `_cdc` names such columns (`BEFORE_FIELDS`).
"""

BEFORE_FIELDS: tuple[tuple[str, str], ...] = (("missing", "array<string>"), ("raw", "map<string,string>"))
"""Fields of `_before._cdc`: columns missing from the log (null: none is); texts as in `_cdc.raw`."""

INSERT, UPDATE, DELETE, TRUNCATE, DUMP = "insert", "update", "delete", "truncate", "dump"

LEASE = "lease.json"
REQUESTS = "requests"
REQUEST_BYTES = 8 << 20
"""Limit of one request, whoever writes it."""
CONSUMERS = "consumers"
MANIFESTS = "manifest"
MANIFESTS_PER_FOLDER = 1000
MANIFESTS_PER_BLOCK = 100
"""A block is compacted and removed as a unit; a folder holds whole blocks."""
RETENTION = "retention.json"
COMPACTION = "compaction.json"
STATES = "state"
SCHEMAS = "schema"
COMMENTS = "comments"
DATA = "data"

_MANIFEST = re.compile(r"(?:.*/)?(\d{15})\.json")
_COMPACTED = re.compile(r"(?:.*/)?(\d{15})\.compacted\.json")
_SAFE = re.compile(r"[A-Za-z0-9_.-]")


def encode(part: str) -> str:
    """Percent-encode one part of a path: everything but ASCII letters, digits, ``_``, ``-`` and inner dots.

    A leading ``_`` or ``.`` is encoded too, because Spark ignores such names.
    """
    out = "".join(c if _SAFE.match(c) else "".join(f"%{b:02X}" for b in c.encode()) for c in part)
    return f"%{ord(out[0]):02X}{out[1:]}" if out[:1] in ("_", ".") else out


def table_folder(table: TableName) -> str:
    """Return a table's folder; a dot within a name is encoded, so two tables never share one."""
    namespace, name = (encode(part).replace(".", "%2E") for part in table)
    return f"{namespace}.{name}"


def manifest_folder(number: int) -> str:
    """Return the folder of 1,000 manifests that holds this number."""
    return f"{MANIFESTS}/{number // MANIFESTS_PER_FOLDER:012d}"


def manifest_path(number: int) -> str:
    """Return the path of the manifest of this number."""
    return f"{manifest_folder(number)}/{number:015d}.json"


def is_manifest(path: str) -> bool:
    """Return whether a path is a manifest's; other objects in the folder are ignored."""
    return _MANIFEST.fullmatch(path) is not None


def manifest_number(path: str) -> int:
    """Parse a manifest's number from its path or file name; ``ValueError`` if it is not one."""
    match = _MANIFEST.fullmatch(path)
    if match is None:
        raise ValueError(f"{path!r} is not a manifest's name")
    return int(match[1])


def block_of(number: int) -> tuple[int, int]:
    """Return the first and the last number of the block of manifests that a number is in."""
    first = number // MANIFESTS_PER_BLOCK * MANIFESTS_PER_BLOCK
    return max(1, first), first + MANIFESTS_PER_BLOCK - 1


def compacted_path(last: int) -> str:
    """Return the path of a compacted block's record; `last`: the block's last manifest."""
    return f"{manifest_folder(last)}/{last:015d}.compacted.json"


def compacted_block(path: str) -> int | None:
    """Parse the number of a compacted block's last manifest from its record's path; None for other paths."""
    match = _COMPACTED.fullmatch(path)
    return int(match[1]) if match else None


def state_path(number: int, digest: str) -> str:
    """Return the path of a state object: the first manifest that names it, and a hash of its content."""
    return f"{STATES}/{number:015d}-{digest}.json"


def data_path(table: TableName, date: str, file: str) -> str:
    """Return the path of a landing file; ``date`` is its UTC day, ``file`` a unique name without suffix."""
    return f"{DATA}/{table_folder(table)}/{date}/{file}.parquet"


def schema_path(table: TableName, schema_id: str) -> str:
    """Return the path of one schema of a table."""
    return f"{SCHEMAS}/{table_folder(table)}/{schema_id}.json"


def comments_id(number: int, digest: str) -> str:
    """Return the id of a table's comments: the first manifest that names them, and a hash of the content."""
    return f"{number:015d}-{digest}"


def comments_since(comments_id: str) -> int:
    """Return the number of the first manifest that names a table's comments."""
    return int(comments_id.partition("-")[0])


def comments_path(table: TableName, comments_id: str) -> str:
    """Return the path of a table's comments."""
    return f"{COMMENTS}/{table_folder(table)}/{comments_id}.json"


def request_path(request_id: str) -> str:
    """Return the path of one request."""
    return f"{REQUESTS}/{encode(request_id)}.json"


def is_reserved(name: str) -> bool:
    """Return whether a column's name is `_cdc`, or begins with ``_cdc.``: merges add columns named so."""
    return fold(name).partition(".")[0] == CDC


def misnamed(columns: Iterable[str], *, before_images: bool = False) -> str | None:
    """Return why columns with these names can't land in one table, or None.

    Delta and Spark ignore case (`fold`), and `is_reserved` names are; with before-images, so is `_before`.
    """
    seen: dict[str, str] = {}
    for name in columns:
        if is_reserved(name) or (before_images and fold(name) == BEFORE):
            return f"its column {name} has the name of our own column {fold(name)}"
        other = seen.setdefault(fold(name), name)
        if other != name:
            return f"its columns {other} and {name} differ only by case"
    return None
