"""A store whose every call is given up after a time, whatever it waits for, for a caller who repeats it.

A store's own limits are for its answers. This one holds also while a host's name is looked up, credentials
are fetched, or an answer trickles in, none of which can be ended from outside: the call goes on in a thread.

Invariant: a call that was given up may take effect later, like one whose answer was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from connector.background import TimedCalls
from connector.errors import TransientError
from connector.store.protocol import Store

CONTENT_SECONDS = 30.0
"""How long a call may take at least that moves content: some is large, and a store may be slow."""

CALLS = 16
"""How many calls may be under way, as many as there are connections."""

_Result = TypeVar("_Result")


class HurriedStore:
    """Forwards every call to a store, and gives it up after `seconds`: `TransientError`. Safe for threads.

    `seconds` are for objects as small as the lease; other content may take `CONTENT_SECONDS`.
    """

    def __init__(self, store: Store, seconds: float) -> None:
        self.url = store.url
        self._store, self._seconds = store, seconds
        self._calls = TimedCalls(CALLS)

    def _in_time(self, path: str, call: Callable[[], _Result], at_least: float = 0.0) -> _Result:
        doing = f"{self.url}/{path}: a request"
        try:
            return self._calls.run(call, max(self._seconds, at_least), doing)
        except TimeoutError as error:
            raise TransientError(str(error)) from error

    @property
    def scratch(self) -> Path:
        """Return the local folder for unfinished files."""
        return self._store.scratch

    def put(self, path: str, data: bytes) -> None:
        """Write an object, overwriting an existing one."""
        self._in_time(path, lambda: self._store.put(path, data), CONTENT_SECONDS)

    def put_file(self, path: str, local: Path) -> int:
        """Move a finished local file into the store."""
        return self._in_time(path, lambda: self._store.put_file(path, local), CONTENT_SECONDS)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that must not exist; False if it does."""
        return self._in_time(path, lambda: self._store.create(path, data), CONTENT_SECONDS)

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        """Return an object's content; None if there is none."""
        return self._in_time(path, lambda: self._store.read(path, limit), CONTENT_SECONDS)

    def read_versioned(self, path: str) -> tuple[bytes, str] | None:
        """Return an object's content and its version."""
        return self._in_time(path, lambda: self._store.read_versioned(path))

    def replace(self, path: str, data: bytes, version: str | None) -> str | None:
        """Overwrite exactly this version; None if it is another."""
        return self._in_time(path, lambda: self._store.replace(path, data, version))

    def list(self, prefix: str) -> Iterator[str]:
        """Return the paths that begin with a prefix, in order."""
        return iter(self._in_time(prefix, lambda: [*self._store.list(prefix)]))

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders in a folder, sorted."""
        return self._in_time(prefix, lambda: self._store.folders(prefix))

    def delete(self, path: str) -> None:
        """Remove an object; does nothing if there is none."""
        self._in_time(path, lambda: self._store.delete(path))

    def delete_all(self, paths: Iterable[str]) -> None:
        """Remove many objects."""
        self._in_time("", lambda: self._store.delete_all(paths))
