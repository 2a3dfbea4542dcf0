"""What the landing zone requires of a store: above all the conditional create, which is what a commit is.

Invariants: what `put`, `put_file`, `create` and `replace` wrote is durable when they return; of all callers
that `create` one path, one succeeds. All paths are relative to ``<landing>/<source>/``.

Knows nothing of events or databases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """One source's part of the landing zone. Errors: `TransientError` may pass, `PreconditionError` will not.

    After a `TransientError` from a writing call it is unknown whether the write took place.
    """

    url: str
    """Where it is, for messages."""

    @property
    def scratch(self) -> Path:
        """Return the local folder for unfinished files; `put_file` takes them from there."""

    def put(self, path: str, data: bytes) -> None:
        """Write an object, overwriting an existing one."""

    def put_file(self, path: str, local: Path) -> int:
        """Move a finished local file into the store and return its size in bytes; on an error it stays."""

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that must not exist; False if it does (which may be our own lost write)."""

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        """Return an object's content; None if there is none. More than `limit` bytes are an error."""

    def read_versioned(self, path: str) -> tuple[bytes, str] | None:
        """Return an object's content and its version, for `replace`."""

    def replace(self, path: str, data: bytes, version: str | None) -> str | None:
        """Overwrite exactly this version (None: no object), return the new one; None if it is another."""

    def list(self, prefix: str) -> Iterator[str]:
        """Return the paths that begin with a prefix, at any depth, in the order of their characters."""

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders in a folder (``prefix`` without its last slash), sorted."""

    def delete(self, path: str) -> None:
        """Remove an object; does nothing if there is none."""

    def delete_all(self, paths: Iterable[str]) -> None:
        """Remove many objects, and folders of landing files that are empty then."""
