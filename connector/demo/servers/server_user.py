"""The user who runs a database server, which must not be root."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from connector.errors import PreconditionError


class UserArguments(TypedDict, total=False):
    """The arguments of subprocess.Popen that run a program as another user."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class ServerUser:
    """The user who runs a server: ourselves, or another one if we are root."""

    uid: int
    gid: int
    name: str

    @classmethod
    def choose(cls, preferred: str) -> ServerUser:
        """Return ourselves or, if we are root, the preferred user or `nobody`. Never creates a user."""
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid(), "")
        for name in (preferred, "nobody"):
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(entry.pw_uid, entry.pw_gid, name)
        raise PreconditionError(
            f"a server must not run as root, and there is no user {preferred} or nobody",
            hint="run as an ordinary user, or create one of the two",
        )

    @property
    def differs(self) -> bool:
        """Whether programs must be started as another user."""
        return self.uid != os.geteuid()

    def arguments(self) -> UserArguments:
        """Return subprocess's arguments to run a program as this user; none if that is us."""
        return (
            UserArguments(user=self.uid, group=self.gid, extra_groups=[]) if self.differs else UserArguments()
        )

    def own(self, path: Path) -> None:
        """Make this user the owner of the path, unless that is us."""
        if self.differs:
            os.chown(path, self.uid, self.gid)

    def reaches(self, folder: Path) -> bool:
        """Return whether this user may enter the folder."""
        command = ["/bin/sh", "-c", 'test -x "$1"', "sh", str(folder)]
        return subprocess.run(command, cwd="/", check=False, **self.arguments()).returncode == 0
