"""What people do meanwhile: request dumps, pause, resume and cancel them, hand over, reload, by command.

A command may fail amid faults, but with a message, and within a time: a traceback or a command that hangs is
a problem.
"""

from __future__ import annotations

import itertools
import random
import subprocess
from collections import Counter

from tests.chaos.tally import Tally
from tests.chaos.writers import COLUMNS
from tests.support.agent.installed import Installation

COMMAND_SECONDS = 180
DUMP, PAUSE, RESUME, CANCEL = "dump requested", "dump paused", "dump resumed", "dump cancelled"
SET, HANDOVER, RELOAD, STATUS = "dump settings changed", "handover", "reload", "status asked for"
VERBS = {
    PAUSE: "pause",
    RESUME: "resume",
    CANCEL: "cancel",
    SET: "set",
    HANDOVER: "handover",
    RELOAD: "reload",
}
VERBS[STATUS] = "status"
KINDS = (DUMP, PAUSE, RESUME, CANCEL, SET, HANDOVER, RELOAD, STATUS)


class Operators:
    """Runs one command at a time; each that succeeds is counted in the tally."""

    def __init__(self, place: Installation, seed: int, tally: Tally) -> None:
        self._place, self._tally = place, tally
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)
        self._last = ""
        self.unsuccessful: Counter[str] = Counter()

    def do(self, kind: str) -> None:
        """Do one thing of a kind. To be paused or cancelled, a dump begins paused: else it may be over."""
        if kind in (PAUSE, RESUME, CANCEL):
            self._run(PAUSE, VERBS[PAUSE], "--all")
            self._request(["--all"])
            if kind == CANCEL:
                self._run(CANCEL, VERBS[CANCEL], self._last)
            self.resume()
        elif kind == DUMP:
            self._request(self._wanted())
        elif kind == SET:
            self._run(kind, VERBS[kind], "--chunk-rows", str(self._random.choice([50, 120, 400, 1000])))
        else:
            self._run(kind, VERBS[kind])

    def resume(self) -> None:
        """Let all dumps go on."""
        self._run(RESUME, VERBS[RESUME], "--all")

    def _wanted(self) -> list[str]:
        table = f"{self._place.database.namespace}.{self._random.choice(list(COLUMNS))}"
        keys = ",".join(str(self._random.randint(1, 700)) for _ in range(20))
        accounts = f"{self._place.database.namespace}.accounts"
        return self._random.choice(
            [["--all"], [table], [accounts, "--where", "balance > 0"], [accounts, "--keys", keys]]
        )

    def _request(self, wanted: list[str]) -> None:
        self._last = f"chaos-{next(self._numbers)}"
        self._run(DUMP, "dump", *wanted, "--id", self._last)

    def _run(self, kind: str, *arguments: str) -> None:
        try:
            done = self._place.run(*arguments, seconds=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            self._tally.problem(f"deltatide {' '.join(arguments)} takes longer than {COMMAND_SECONDS} s")
            return
        if "Traceback" in done.stderr or done.returncode not in (0, 1):
            self._tally.problem(f"deltatide {' '.join(arguments)}: {done.returncode}: {done.stderr[-800:]}")
        elif done.returncode == 0 or (kind == STATUS and done.stdout):
            self._tally.count(kind)
        else:
            self.unsuccessful[kind] += 1
