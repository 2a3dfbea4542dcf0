"""Which process this is, and whether one that is named by its identity still lives on this host.

Invariants:

- A process counts as gone only if that is known: same boot, host name and namespace of process ids, and no
  process has that id, or the one that has it started at another time.
- One of another machine, or one that can't be examined, may live; where /proc is another namespace's, any.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessIdentity:
    """What tells a process from all others: `pid` and `start` are unique on a `machine`; None: unknown.

    `machine`: an id of the namespace of process ids (a boot of a host, a container). `start`: in clock ticks
    since boot.
    """

    machine: str | None
    pid: int
    start: str | None

    @classmethod
    def own(cls) -> ProcessIdentity:
        """Return this process's identity."""
        return cls(_machine(), os.getpid(), _start_of(os.getpid()))

    @property
    def is_gone(self) -> bool:
        """Return whether it is known to be gone; a zombie is."""
        if not self._is_here():
            return False
        if _fields_of(self.pid) is None:
            return not _exists(self.pid)
        return _start_of(self.pid) != self.start

    @property
    def lives(self) -> bool:
        """Return whether it is known to live, perhaps paused."""
        start = _start_of(self.pid) if self._is_here() else None
        return start is not None and start == self.start

    def _is_here(self) -> bool:
        return self.machine is not None and self.machine == _machine()


def _machine() -> str | None:
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return None  # it shows another namespace's processes, under other ids
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _start_of(pid: int) -> str | None:
    """Return a process's start; None if it is gone, a zombie, or hidden."""
    fields = _fields_of(pid)
    return None if fields is None or fields[0] in "ZX" else fields[19]


def _fields_of(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _exists(pid: int) -> bool:
    """Return whether the process exists, even if hidden in /proc (hidepid)."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
