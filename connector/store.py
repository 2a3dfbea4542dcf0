"""Object stores: where the landing zone lies, and the conditional create that makes a manifest a commit.

Invariants: what `put`, `put_file`, `create` and `replace` wrote is durable when they return; of all who
`create` one path, one succeeds. All paths are relative to ``<landing>/<source>/``.

Knows nothing of events and of databases. S3 is in `connector.store_s3`, which is imported only for ``s3://``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from connector import landing
from connector.config import LandingConfig
from connector.errors import FencedError, PreconditionError, TransientError
from connector.manifest import Manifest
from connector.store_local import LocalStore

__all__ = [
    "LocalStore",
    "Store",
    "commit_manifest",
    "newest_manifest",
    "open_store",
    "probe",
    "read_manifest",
]


class Store(Protocol):
    """One source's part of the landing zone. Errors: `TransientError` may pass, `PreconditionError` will not.

    After a `TransientError` from a writing call it is not known whether the write took place.
    """

    url: str
    """Where it lies, for messages."""

    @property
    def scratch(self) -> Path:
        """Give the local folder for files in the making; `put_file` takes them from there."""

    def put(self, path: str, data: bytes) -> None:
        """Write an object, over one that is there."""

    def put_file(self, path: str, local: Path) -> int:
        """Move a finished local file into the store and give its bytes; on an error it stays where it is."""

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that must not exist; False when it does (which may be our own lost write)."""

    def read(self, path: str) -> bytes | None:
        """Give an object's content; None when there is none."""

    def read_versioned(self, path: str) -> tuple[bytes, str] | None:
        """Give an object's content and its version, for `replace`."""

    def replace(self, path: str, data: bytes, version: str | None) -> str | None:
        """Write over exactly this version (None: no object) and give the new one; None when it is another."""

    def list(self, prefix: str) -> Iterator[str]:
        """Give the paths that begin with a prefix, at any depth, in the order of their characters."""

    def folders(self, prefix: str) -> Sequence[str]:
        """Give the names of the folders right under a folder (``prefix`` without its last slash), sorted."""

    def delete(self, path: str) -> None:
        """Remove an object; nothing happens when there is none."""


def open_store(config: LandingConfig, source: str) -> Store:
    """Open the part of the landing zone that belongs to a source (its name); reads and writes nothing yet."""
    if config.folder is not None:
        return LocalStore(config.folder / source)
    from connector.store_s3 import S3Store

    return S3Store.open(config, source)


def newest_manifest(store: Store) -> Manifest | None:
    """Read the manifest with the greatest number; None in a new landing zone.

    Lists the folders of 1,000 manifests, then the last of them: three requests on S3 for a million.
    """
    for folder in reversed(store.folders(landing.MANIFESTS)):
        paths = [p for p in store.list(f"{landing.MANIFESTS}/{folder}/") if _is_manifest(p)]
        if paths:
            return read_manifest(store, max(map(landing.manifest_number, paths)))
    return None


def read_manifest(store: Store, number: int) -> Manifest | None:
    """Read one manifest; None when it does not exist, `FormatError` when it is not readable."""
    path = landing.manifest_path(number)
    data = store.read(path)
    return None if data is None else Manifest.from_json(data, f"{store.url}/{path}")


def commit_manifest(store: Store, manifest: Manifest) -> None:
    """Commit: create the manifest of this number, once. Durable on return.

    A lost response is resolved by trying again and then comparing write ids. `FencedError` when somebody else
    committed this number; `TransientError` when the outcome is not known: then `newest_manifest` tells.
    """
    path, data = landing.manifest_path(manifest.number), manifest.to_json()
    try:
        created = store.create(path, data)
    except TransientError:
        created = store.create(path, data)
    if created:
        return
    winner = read_manifest(store, manifest.number)
    if winner is None:
        raise TransientError(f"{store.url}/{path}: exists and cannot be read")
    if winner.write_id != manifest.write_id:
        raise FencedError(
            f"{store.url}: manifest {manifest.number} was committed by another agent "
            f"(its term is {winner.term}, ours {manifest.term})",
            hint="run one agent for each source; a standby waits for the lease",
        )


def probe(store: Store) -> None:
    """Try out everything that a commit relies on, with objects of its own, and remove them.

    `PreconditionError` when the store can't be written to, or ignores conditions (some do, silently).
    """
    path = f"probe/{uuid.uuid4().hex}.json"
    try:
        if not store.create(path, b"first"):
            raise PreconditionError(f"{store.url}: refuses to create {path}, which does not exist")
        second = store.create(path, b"second")
        if second or store.read(path) != b"first":
            raise _unfit(store, "conditional creates")
        current = store.read_versioned(path)
        if current is None or store.replace(path, b"third", current[1]) is None:
            raise PreconditionError(f"{store.url}: does not read back what was written")
        if store.replace(path, b"fourth", current[1]) is not None or store.read(path) != b"third":
            raise _unfit(store, "conditional replaces")
        if path not in store.list("probe/"):
            raise PreconditionError(f"{store.url}: does not list what was written")
    finally:
        store.delete(path)


def _unfit(store: Store, what: str) -> PreconditionError:
    return PreconditionError(
        f"{store.url}: the store ignores {what}, so two agents could both commit",
        hint="use a store that honours If-None-Match and If-Match on PUT: AWS S3, MinIO, versitygw, Ceph 19+",
    )


def _is_manifest(path: str) -> bool:
    try:
        landing.manifest_number(path)
    except ValueError:
        return False
    return True
