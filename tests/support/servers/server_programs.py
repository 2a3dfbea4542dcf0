"""Find the server programs that ``.ci/fetch-servers`` puts in `.cache`, for the user who runs a server."""

from __future__ import annotations

import shutil
from pathlib import Path

from connector.demo.servers.server_user import ServerUser

CACHE = Path(__file__).resolve().parents[3] / ".cache"


def find_programs(name: str, scratch: Path) -> Path | None:
    """Return the folder that contains the programs' `bin`; None if they were not fetched.

    Servers do not run as root: where their user can't reach the folder, it is copied to `scratch`, which
    everyone can read.
    """
    folder = CACHE / name
    if not (folder / "bin").is_dir():
        return None
    if ServerUser.choose("mysql").reaches(folder / "bin"):
        return folder
    return Path(shutil.copytree(folder, scratch / name, symlinks=True, dirs_exist_ok=True))
