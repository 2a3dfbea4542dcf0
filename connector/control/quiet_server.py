"""uvicorn's server, with a loop that costs little while nobody sends requests.

uvicorn's own loop wakes up ten times a second: a third of what an idle agent costs. This one runs once a
second, since responses carry the date, and at once when it is asked to stop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import uvicorn

TICK_SECONDS = 1.0


class QuietServer(uvicorn.Server):
    """A server that `stop` ends from any thread; run once."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = asyncio.Event()

    def stop(self) -> None:
        """Ask the server to end; returns at once."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._asked.set)

    async def main_loop(self) -> None:
        """Serve until asked to stop."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._asked.wait(), TICK_SECONDS)
