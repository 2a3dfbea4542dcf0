"""Ends a child process with its parent, even if the parent is killed.

A shell waits for a pipe to close, which happens when the parent ends in any way. Then it signals the child.
"""

from __future__ import annotations

import signal
import subprocess

from connector.demo.servers.server_user import ServerUser, UserArguments

_SCRIPT = 'trap "" INT TERM HUP; read line; kill -s "$1" "$2"'


class Watchdog:
    """Sends the signal `sent` to a child process when we end, unless dismissed before."""

    def __init__(
        self, process: subprocess.Popen[bytes], sent: signal.Signals, user: ServerUser | None = None
    ) -> None:
        """Start it as `user`, who runs the process and so may signal it; None: ourselves."""
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "sh", sent.name.removeprefix("SIG"), str(process.pid)], cwd="/",
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, **(user.arguments() if user else UserArguments()),
        )  # fmt: skip

    def dismiss(self) -> None:
        """End the watchdog without signaling anybody."""
        self._shell.kill()  # before its pipe closes
        self._shell.wait()
        if self._shell.stdin:
            self._shell.stdin.close()
