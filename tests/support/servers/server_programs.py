"""Finds the server programs that ``.ci/fetch-servers`` puts in `.cache`, for the user who runs a server."""

from __future__ import annotations

import shutil
from pathlib import Path

from connector.demo.servers.postgres_binaries import ServerUser

CACHE = Path(__file__).resolve().parents[3] / ".cache"


def find_programs(name: str, scratch: Path) -> Path | None:
    """The folder with `bin` of these programs; None where they were not fetched.

    A server does not run as root. A copy in `scratch`, which everybody can read, where its user can't go.
    """
    folder = CACHE / name
    if not (folder / "bin").is_dir():
        return None
    if ServerUser.choose().reaches(folder / "bin"):
        return folder
    return Path(shutil.copytree(folder, scratch / name, symlinks=True, dirs_exist_ok=True))
