"""Processes that are kept running: a killed one is started again, one that ends by itself is a problem.

A process is signaled with its whole group, as a merge has a Java process beside it. In a local lake only one
process may write at a time, so the next one starts when all of the last one's group are gone.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable

from tests.chaos.tally import Tally
from tests.support.agent.installed import Running
from tests.support.waiting import wait_until

KILLED_AT = "{} killed at a named moment"


class Member:
    """One process and its successors. `start` starts it, with the name of a moment to die at, or "".

    Only one thread at a time meddles with it: whoever holds `lock`.
    """

    def __init__(self, title: str, start: Callable[[str], Running], tally: Tally) -> None:
        self.title = title
        self.lock = threading.Lock()
        self.starts = 0
        self._start, self._tally = start, tally
        self._moment = ""
        self._running: Running | None = None
        self._expected = True

    @property
    def pid(self) -> int | None:
        """Return the process's id; None while there is none."""
        return None if self._running is None or self._running.ended else self._running.process.pid

    @property
    def output(self) -> str:
        """Return what the current process has printed."""
        return self._running.output if self._running else ""

    def begin(self, moment: str = "") -> None:
        """Start a process. Caller holds the lock."""
        self._running, self._moment, self._expected = self._start(moment), moment, False
        self.starts += 1

    def kill(self) -> bool:
        """Kill the process with its group; False if it had ended. Caller holds the lock."""
        if self.pid is None:
            return False
        self._expected = True
        self._signal_group(signal.SIGKILL)
        self._reap()
        return True

    def pause(self) -> bool:
        """Pause the process with its group; False if it had ended. Caller holds the lock."""
        return self.pid is not None and self._signal_group(signal.SIGSTOP)

    def wake(self) -> None:
        """Let a paused process go on."""
        self._signal_group(signal.SIGCONT)

    def stop(self, seconds: float) -> bool:
        """Stop the process gracefully; False if it had ended. A problem unless it ends well and in time."""
        if self.pid is None or self._running is None:
            return False
        self._expected = True
        self._running.process.send_signal(signal.SIGTERM)
        try:
            status = self._running.wait(seconds)
        except AssertionError as error:
            self._tally.problem(f"{self.title} does not stop: {error}")
            self._signal_group(signal.SIGKILL)
        else:
            if status != 0:
                self._tally.problem(f"{self.title} stopped with status {status}: {self._end_of_output()}")
        self._reap()
        return True

    def finish(self, seconds: float) -> bool:
        """Wait until it ends by itself; False if it failed, which is a problem only with a traceback."""
        assert self._running is not None
        self._expected = True
        try:
            status = self._running.wait(seconds)
        except AssertionError as error:
            self._tally.problem(f"{self.title} does not end: {error}")
            status = -1
        self._signal_group(signal.SIGKILL)
        self._reap()
        return status == 0

    def look_after(self, moment: str) -> None:
        """Start it again if it has ended; say so if it was not killed. Caller holds the lock."""
        running = self._running
        if running is None or not running.ended:
            return
        status = running.process.returncode
        if not self._expected:
            if status == -signal.SIGKILL and self._moment:
                self._tally.count(KILLED_AT.format(self.title))
            else:
                self._tally.problem(f"{self.title} ended by itself, status {status}: {self._end_of_output()}")
        self._signal_group(signal.SIGKILL)
        self._reap()
        self.begin(moment)

    def _signal_group(self, number: signal.Signals) -> bool:
        if self._running is None:
            return False
        try:
            os.killpg(self._running.process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _reap(self) -> None:
        """Wait until all of its group are gone."""
        assert self._running is not None
        self._running.process.wait()
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self._signal_group(signal.SIGKILL), "its group is gone", seconds=20)

    def _end_of_output(self) -> str:
        return self.output.strip()[-600:]


class Crew:
    """Members that are looked after in a thread. A `share` of them is to die at one of the `moments`."""

    def __init__(self, members: list[Member], moments: tuple[str, ...], seed: int, tally: Tally) -> None:
        self.members = members
        self.share = 0.0
        self._moments, self._tally = moments, tally
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{members[0].title} crew", daemon=True)

    def start(self) -> None:
        """Start all members, and look after them."""
        for member in self.members:
            with member.lock:
                member.begin()
        self._thread.start()

    def moment(self, share: float | None = None) -> str:
        """Return where the next process dies: "" (most) or a named moment."""
        if not self._moments or self._random.random() >= (self.share if share is None else share):
            return ""
        return f"{self._random.choice(self._moments)}:{self._random.choice([1, 2, 3, 5, 8])}"

    def stop(self, seconds: float) -> None:
        """Stop all members gracefully."""
        self._end()
        for member in self.members:
            with member.lock:
                member.wake()
                member.stop(seconds)

    def kill(self) -> None:
        """Kill all members, whatever they are at."""
        self._end()
        for member in self.members:
            with member.lock:
                member.kill()

    def _end(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(0.3):
            for member in self.members:
                if member.lock.acquire(blocking=False):
                    try:
                        member.look_after(self.moment())
                    except Exception as error:
                        self._tally.problem(f"{member.title} can't be started: {error}")
                    finally:
                        member.lock.release()
