"""The landing zone in memory: a store that keeps the contract, and can be made to fail at a named moment.

For tests, and for any process that needs a landing zone of its own.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from connector.errors import PreconditionError, TransientError


@dataclass
class _Fault:
    operation: str
    prefix: str
    when: Literal["before", "after"]
    times: int
    error: BaseException


class MemoryStore:
    """A store in a dictionary; safe for threads. Implements `connector.store.protocol.Store`.

    `objects` is the content by path. `calls` lists the operations and paths in call order.
    """

    def __init__(self, url: str = "memory") -> None:
        self.url = url
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []
        self._versions: dict[str, int] = {}
        self._writes = 0
        self._faults: list[_Fault] = []
        self._lock = threading.RLock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def scratch(self) -> Path:
        """Return a temporary folder that goes away with the store."""
        with self._lock:  # of two folders, the one forgotten would be deleted with the files in it
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="deltatide-")
            return Path(self._folder.name)

    def fail(
        self,
        operation: str,
        prefix: str = "",
        *,
        when: Literal["before", "after"] = "before",
        times: int = 1,
        error: BaseException | None = None,
    ) -> None:
        """Make the next calls of an operation under a path prefix fail, before or after they take effect.

        ``after`` is a lost response: the object is written, but the caller sees an error.
        """
        error = error or TransientError(f"{self.url}: {operation} failed on purpose")
        self._faults.append(_Fault(operation, prefix, when, times, error))

    def put(self, path: str, data: bytes) -> None:
        """Write an object, overwriting an existing one."""
        with self._call("put", path):
            self._write(path, data)

    def put_file(self, path: str, local: Path) -> int:
        """Move a finished local file into the store."""
        with self._call("put_file", path):
            self._write(path, local.read_bytes())
            local.unlink()
            return len(self.objects[path])

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that must not exist; False if it does."""
        with self._call("create", path):
            if path in self.objects:
                return False
            self._write(path, data)
            return True

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        """Return an object's content; None if there is none."""
        with self._call("read", path):
            data = self.objects.get(path)
            if data is not None and limit is not None and len(data) > limit:
                raise PreconditionError(f"{path}: holds more than {limit:,} bytes")
            return data

    def read_versioned(self, path: str) -> tuple[bytes, str] | None:
        """Return an object's content and its version."""
        with self._call("read", path):
            return (self.objects[path], str(self._versions[path])) if path in self.objects else None

    def replace(self, path: str, data: bytes, version: str | None) -> str | None:
        """Overwrite exactly this version (None: no object), return the new one; None if it is another."""
        with self._call("replace", path):
            current = str(self._versions[path]) if path in self.objects else None
            if current != version:
                return None
            self._write(path, data)
            return str(self._versions[path])

    def list(self, prefix: str) -> Iterator[str]:
        """Return the paths that begin with a prefix, in order."""
        with self._call("list", prefix):
            return iter(sorted(path for path in self.objects if path.startswith(prefix)))

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders directly under a folder, sorted."""
        with self._call("folders", prefix):
            below = [p.removeprefix(prefix + "/") for p in self.objects if p.startswith(prefix + "/")]
            return sorted({p.partition("/")[0] for p in below if "/" in p})

    def delete_all(self, paths: Iterable[str]) -> None:
        """Remove many objects."""
        for path in paths:
            self.delete(path)

    def delete(self, path: str) -> None:
        """Remove an object; does nothing if there is none."""
        with self._call("delete", path):
            self.objects.pop(path, None)

    def _write(self, path: str, data: bytes) -> None:
        self._writes += 1
        self.objects[path] = data
        self._versions[path] = self._writes

    @contextmanager
    def _call(self, operation: str, path: str) -> Iterator[None]:
        with self._lock:
            self.calls.append((operation, path))
            self._raise(operation, path, "before")
            yield
            self._raise(operation, path, "after")

    def _raise(self, operation: str, path: str, when: str) -> None:
        for fault in self._faults:
            if fault.operation == operation and fault.when == when and path.startswith(fault.prefix):
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                raise fault.error
