"""Replaces a file if it is still a given version, without a lock that a paused process could hold.

Whoever is to replace a version first makes a claim to it: a symbolic link that names its finished file, under
the version's first free number. If it meets another's claim on the way to that, it gives its owner
`CLAIM_SECONDS`, then disarms it: it removes the file that the claim names. So:

- Of all claims to a version only the highest has a file that can be renamed. Its owner looks at the version
  once more after making it: whoever could have changed that since then has a higher claim, and so has
  disarmed this one first.
- A process that was paused, or was too slow, finds its file gone, and has changed nothing.
- A process that was killed leaves its claim and its file: whoever replaces the file next removes them.

A claim to the version that is there is never removed: a free number below another's claim would be taken.

Requires that no version comes again, as by changing a file back, or by removing one that had not existed
before: a process that was paused before it made its claim could then undo what another one wrote.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from connector.errors import TransientError

CLAIM_SECONDS = 0.5
"""How long the owner of a claim has; it takes a few milliseconds, unless the disk is busy."""

_POLL_SECONDS = 0.005


def swap(
    written: Path, target: Path, version: str | None, current: Callable[[], str | None], root: Path
) -> bool:
    """Rename a finished file to `target` if `current` returns `version`; otherwise return False.

    `written` is beside `target`, under a name that begins with a dot. All who replace a file name the same
    `root`. Errors of the file system are raised as they are; `TransientError`, and nothing has changed, if
    this process was taken for a paused one.
    """
    claims = _Claims(root, target, version)
    if not claims.make(written, current):
        return False
    try:
        if current() == version:
            seen = claims.all_of_target()
            os.replace(written, target)
            claims.drop(seen)
            return True
    except FileNotFoundError:
        if current() == version:
            raise TransientError(f"{target}: another process took over while this one was paused") from None
    claims.drop(claims.made_or_met)
    return False


class _Claims:
    """The claims to one version of a file, as one process finds and makes them."""

    def __init__(self, root: Path, target: Path, version: str | None) -> None:
        self._folder, self._files = root / ".claims", target.parent
        self._target = f"{_hash(target.relative_to(root).as_posix())}-"
        self._version, self._name = version, f"{self._target}{_hash(str(version))}"
        self.made_or_met: list[Path] = []

    def make(self, written: Path, current: Callable[[], str | None]) -> bool:
        """Make the highest claim, and disarm those below; False if the version has changed meanwhile."""
        self._folder.mkdir(exist_ok=True)
        while True:
            claim = self._folder / f"{self._name}.{len(self.made_or_met)}"
            self.made_or_met.append(claim)
            try:
                os.symlink(written.name, claim)
                return True
            except FileExistsError:
                if not self._remains(current):
                    return False
                self._disarm(claim)

    def all_of_target(self) -> list[Path]:
        """Return all claims to the file. Those to other versions than the one that is there are past."""
        return [claim for claim in self._folder.iterdir() if claim.name.startswith(self._target)]

    def drop(self, claims: list[Path]) -> None:
        """Remove claims to versions that are past, with the files that they name."""
        for claim in claims:
            self._disarm(claim)
            claim.unlink(missing_ok=True)

    def _disarm(self, claim: Path) -> None:
        with suppress(FileNotFoundError):  # it was removed, as its version is past
            name = claim.readlink().name
            if name.startswith("."):  # an unfinished file; nothing else, whoever made the link
                (self._files / name).unlink(missing_ok=True)

    def _remains(self, current: Callable[[], str | None]) -> bool:
        deadline = time.monotonic() + CLAIM_SECONDS
        while current() == self._version:
            if time.monotonic() > deadline:
                return True
            time.sleep(_POLL_SECONDS)
        return False


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
