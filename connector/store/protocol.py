"""What the landing zone requires of a store: above all the conditional create that a commit is made of.

Invariants: what `put`, `put_file`, `create` and `replace` wrote is durable when they return; of all callers
that `create` one path, exactly one succeeds. All paths are relative to ``<landing>/<source>/``.

Knows nothing of events or databases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """One source's part of the landing zone.

    Raises `TransientError` for what may pass, `PreconditionError` for what will not. After a `TransientError`
    from a call that writes, it is unknown whether the write took effect.
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
        """Write an object that must not exist; False if it does (possibly by our own write)."""

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        """Return an object's content; None if there is none. More than `limit` bytes are an error."""

    def read_versioned(self, path: str) -> tuple[bytes, str] | None:
        """Return an object's content and its version, for `replace`."""

    def replace(self, path: str, data: bytes, version: str | None) -> str | None:
        """Overwrite exactly this version (None: no object); return the new one, or None if it is another."""

    def list(self, prefix: str) -> Iterator[str]:
        """Return the paths that begin with a prefix, at any depth, in code point order."""

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders directly under a folder, sorted. `prefix` has no trailing slash."""

    def delete(self, path: str) -> None:
        """Remove an object; does nothing if there is none."""

    def delete_all(self, paths: Iterable[str]) -> None:
        """Remove many objects, and folders of landing files that become empty."""
