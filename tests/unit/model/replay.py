"""Runs real code one store call at a time: any other process may do anything between two calls.

A program is a function over a store. It is run again from its beginning for each call, with the answers that
it has had so far, until it asks for more. So a process that is in the middle of a function is a tuple of
answers, which a search can keep, compare and go on from in several ways. Programs must be deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from connector.errors import DeltatideError, TransientError

Call = tuple[Any, ...]
Objects = tuple[tuple[str, int, bytes], ...]
"""The content of a store: path, number of the write, content."""

LOST = "lost"
"""An answer that never came: the call raises `TransientError`."""


class _NextCall(BaseException):
    """Ends a run at the first call that has no answer yet."""

    def __init__(self, call: Call) -> None:
        self.call = call


@dataclass(frozen=True)
class Asks:
    call: Call


@dataclass(frozen=True)
class Ended:
    result: Any = None
    error: DeltatideError | None = None


Program = Callable[["AnsweringStore"], Any]


def run(program: Program, answers: Sequence[Any]) -> Asks | Ended:
    """Run a program up to the first call that `answers` does not answer, or to its end."""
    try:
        return Ended(program(AnsweringStore(answers)))
    except _NextCall as next_call:
        return Asks(next_call.call)
    except DeltatideError as error:
        return Ended(error=error)


class AnsweringStore:
    """A `connector.store.protocol.Store` that gives the answers of earlier runs.

    `ask` is also for what is no store call. `sleep` and `clock`: a wait ends with a change or by time.
    """

    url = "zone"

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = iter(answers)
        self._seconds = 0.0

    def ask(self, *call: Any) -> Any:
        for answer in self._answers:
            if answer == LOST:
                raise TransientError("no answer")
            return answer
        raise _NextCall(call)

    def sleep(self, _seconds: float) -> None:
        if self.ask("wait") == "expired":
            self._seconds += 1e9

    def clock(self) -> float:
        return self._seconds

    def read(self, path: str, limit: int | None = None) -> Any:
        return self.ask("read", path)

    def read_versioned(self, path: str) -> Any:
        return self.ask("read_versioned", path)

    def create(self, path: str, data: bytes) -> Any:
        return self.ask("create", path, data)

    def replace(self, path: str, data: bytes, version: str | None) -> Any:
        return self.ask("replace", path, data, version)

    def put(self, path: str, data: bytes) -> None:
        self.ask("put", path, data)

    def list(self, prefix: str) -> Iterator[str]:
        return iter(self.ask("list", prefix))

    def folders(self, prefix: str) -> Any:
        return self.ask("folders", prefix)

    def delete(self, path: str) -> None:
        self.ask("delete", path)

    def delete_all(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.delete(path)


def perform(objects: Objects, call: Call) -> tuple[Objects, Any]:
    """Perform a call on a store; return its new content, and the answer."""
    operation, path = call[0], call[1]
    found = next((entry for entry in objects if entry[0] == path), None)
    version = str(found[1]) if found else None
    if operation == "read":
        return objects, found and found[2]
    if operation == "read_versioned":
        return objects, found and (found[2], version)
    if operation == "list":
        return objects, tuple(entry[0] for entry in objects if entry[0].startswith(path))
    if operation == "folders":
        below = [entry[0].removeprefix(f"{path}/") for entry in objects if entry[0].startswith(f"{path}/")]
        return objects, tuple(sorted({rest.partition("/")[0] for rest in below if "/" in rest}))
    others = tuple(entry for entry in objects if entry is not found)
    if operation == "delete":
        return others, True
    if operation == "create" and found:
        return objects, False
    if operation == "replace" and version != call[3]:
        return objects, None
    number = (found[1] if found else 0) + 1
    written = tuple(sorted([*others, (path, number, call[2])]))
    return written, str(number) if operation == "replace" else True
