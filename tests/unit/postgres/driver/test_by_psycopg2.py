"""What the thread that has psycopg2 read a COPY does while nobody takes its rows."""

from __future__ import annotations

from typing import Any

from connector.postgres.driver import by_psycopg2
from connector.postgres.driver.by_psycopg2 import ThreadedCopy
from connector.silence import Awaited
from tests.support.waiting import wait_until


class Copied:
    """A connection whose COPY has three batches; `ended`: the server waits for the next question."""

    def __init__(self) -> None:
        self.awaited, self.ended = Awaited(), False

    def cursor(self) -> Copied:
        return self

    def __enter__(self) -> Copied:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def copy_expert(self, _command: str, file: Any) -> None:
        file.write(bytes(by_psycopg2._BATCH_BYTES))
        file.write(b"the last row")
        self.ended = True


def test_nobody_waits_for_the_server_while_the_last_rows_wait_for_their_reader() -> None:
    connection = Copied()
    copy = ThreadedCopy(connection)  # type: ignore[arg-type]
    copy.start("COPY t TO STDOUT")
    wait_until(lambda: connection.ended and not copy._batch, "the last rows are handed over")
    assert connection.awaited.count % 2 == 0
    rows: list[bytes] = []
    while not copy.done:
        copy.wait(1)
        rows += copy.fetch()
    assert rows[-1] == b"the last row"
