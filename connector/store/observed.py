"""A store that counts failing calls by operation, for the metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from connector.errors import DeltatideError
from connector.store.protocol import Store


class ObservedStore:
    """Forwards every call to a store; safe for threads.

    `errors`: number of failed calls by operation. `failed_at`: time of the last failure, by the monotonic
    clock. `failing_since`: time of the first failure since the last success; None if the last call succeeded.
    `counted_by`: another one, whose figures include this one's.
    """

    def __init__(self, store: Store, counted_by: ObservedStore | None = None) -> None:
        self.url = store.url
        self.errors: Counter[str] = Counter()
        self.failed_at = float("-inf")
        self.failing_since: float | None = None
        self._store, self._figures = store, counted_by or self

    @contextmanager
    def _counting(self, operation: str) -> Iterator[None]:
        figures = self._figures
        try:
            yield
        except DeltatideError:
            figures.errors[operation] += 1
            figures.failed_at = time.monotonic()
            figures.failing_since = figures.failing_since or figures.failed_at
            raise
        figures.failing_since = None

    @property
    def scratch(self) -> Path:
        """Return the local folder for unfinished files."""
        return self._store.scratch

    def put(self, path: str, data: bytes) -> None:
        """Write an object, overwriting an existing one."""
        with self._counting("put"):
            self._store.put(path, data)

    def put_file(self, path: str, local: Path) -> int:
        """Move a finished local file into the store."""
        with self._counting("put_file"):
            return self._store.put_file(path, local)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that must not exist; False if it does."""
        with self._counting("create"):
            return self._store.create(path, data)

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        """Return an object's content; None if there is none."""
        with self._counting("read"):
            return self._store.read(path, limit)

    def read_versioned(self, path: str) -> tuple[bytes, str] | None:
        """Return an object's content and its version."""
        with self._counting("read"):
            return self._store.read_versioned(path)

    def replace(self, path: str, data: bytes, version: str | None) -> str | None:
        """Overwrite exactly this version; None if it is another."""
        with self._counting("replace"):
            return self._store.replace(path, data, version)

    def list(self, prefix: str) -> Iterator[str]:
        """Return the paths that begin with a prefix, in order."""
        with self._counting("list"):
            yield from self._store.list(prefix)

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders in a folder, sorted."""
        with self._counting("list"):
            return self._store.folders(prefix)

    def delete(self, path: str) -> None:
        """Remove an object; does nothing if there is none."""
        with self._counting("delete"):
            self._store.delete(path)

    def delete_all(self, paths: Iterable[str]) -> None:
        """Remove many objects."""
        with self._counting("delete"):
            self._store.delete_all(paths)
