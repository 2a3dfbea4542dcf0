"""Gathers the rows of a COPY, which arrive one by one, into bufferfuls."""

from __future__ import annotations

from connector.postgres.codec.copytext import CopiedRows
from connector.postgres.driver.interface import Copy
from connector.silence import awaited_of

BUFFER_BYTES = 2 << 20
"""Bytes read at a time: enough for Arrow to be fast, few enough for memory."""

WAIT_SECONDS = 60.0
"""A wait for rows wakes this often; the server may be silent for a long time while a predicate matches
nothing.
"""


class RowCopy:
    """Implements `Rows` on any `Copy`."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy

    @property
    def done(self) -> bool:
        """Return whether all rows have been read."""
        return self._copy.done

    def start(self, command: str) -> None:
        """Send the command."""
        self._copy.start(command)

    def read(self) -> CopiedRows:
        """Wait for a bufferful of rows, or for the last ones."""
        copy, rows, size = self._copy, list[bytes](), 0
        while not copy.done and size < BUFFER_BYTES:
            if not (some := copy.fetch()) and not copy.done:
                with awaited_of(copy):
                    copy.wait(WAIT_SECONDS)
            rows += some
            size += sum(map(len, some))
            if not copy.done:
                copy.pull()
        return CopiedRows.of(rows)

    def close(self) -> None:
        """Close the connection; never raises."""
        self._copy.close()
