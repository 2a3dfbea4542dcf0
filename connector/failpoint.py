"""Named moments at which a test may kill the process, as `kill -9` would.

``DELTATIDE_KILL_AT=name`` kills when the moment is first passed, ``name:3`` at the third time. Set by tests
only.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

_passed: Counter[str] = Counter()


def reach(moment: str) -> None:
    """Pass a named moment; does not return if the environment asks for a kill here."""
    wanted, _, count = os.environ.get("DELTATIDE_KILL_AT", "").partition(":")
    if wanted != moment:
        return
    _passed[moment] += 1
    if _passed[moment] >= int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
