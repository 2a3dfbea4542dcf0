"""The demo's folder: the landing zone, the lake, the database, logs and the configuration.

Invariant: a folder is emptied only if it contains the demo's marker file. Afterwards everything but the
database stays, until the next demo in the same folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from connector.config import Config, load
from connector.errors import PreconditionError

MARKER = ".deltatide-demo"
DEFAULT_FOLDER = Path("demo-data")

_CONFIGURATION = """\
# Written by `deltatide demo`; the database ends with it. Complete examples are in conf/.
[source]
name = "shop"
kind = "{kind}"
url = {source}
tables = ["{namespace}.*"]

[landing]
url = {landing}
flush_seconds = 1
heartbeat_seconds = 1

[dump]
chunk_rows = 25000
workers = 2

[lake]
url = {lake}

[control]
listen = "127.0.0.1:0"  # a free port, which the agent's log names
"""


class DemoFolder:
    """A folder that belongs to the demo. Paths are absolute."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.configuration = path / "demo.toml"
        self.database = path / "database"
        self.landing = path / "landing"
        self.lake = path / "lake"
        self.compared = path / "compared"
        self.agent_log = path / "agent.log"
        self.merge_log = path / "merge.log"

    @classmethod
    def create(cls, path: Path | None) -> DemoFolder:
        """Create the folder, removing what an earlier demo left in it.

        `PreconditionError` if it contains anything else, which is left alone.
        """
        folder = cls((path or DEFAULT_FOLDER).absolute())
        marker = folder.path / MARKER
        if folder.path.exists():
            if not folder.path.is_dir():
                raise PreconditionError(
                    f"{folder.path}: is not a folder", hint="choose another with --folder"
                )
            if any(folder.path.iterdir()) and not marker.is_file():
                raise PreconditionError(
                    f"{folder.path}: is not empty, and not from an earlier demo",
                    hint="choose another folder with --folder",
                )
        _empty(folder.path)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            marker.write_text("deltatide demo empties this folder\n")
        except OSError as error:
            raise PreconditionError(
                f"{folder.path}: {(error.strerror or str(error)).lower()}",
                hint="choose another folder with --folder",
            ) from error
        return folder

    def configure(self, kind: str, namespace: str, url: str, password: str) -> Config:
        """Write the configuration for a source (`url` includes the password), and load it the usual way."""
        secret = self.path / "password"
        secret.touch(mode=0o600)
        secret.write_text(password)
        source = url.replace(f":{password}@", f":${{file:{secret}}}@")
        values = {"source": source, "landing": str(self.landing), "lake": str(self.lake)}
        quoted = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
        self.configuration.write_text(_CONFIGURATION.format(kind=kind, namespace=namespace, **quoted))
        return load(self.configuration)

    def status_page(self) -> str | None:
        """Return the address of the agent's status page; None if its log does not show it yet."""
        found = re.search(r"status page: (http\S+)", self.agent_log.read_text(errors="replace"))
        return found and found[1]

    def drop_database(self) -> None:
        """Remove the database's files; its server must have stopped."""
        shutil.rmtree(self.database, ignore_errors=True)

    def remove(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)

    def shown(self, path: Path) -> str:
        """Format a path as briefly as it can be typed in the current folder."""
        relative = os.path.relpath(path)
        return str(path) if relative.startswith("..") else relative


def _empty(folder: Path) -> None:
    """Remove the folder's contents except the marker, so that an interrupted removal can be repeated."""
    if not folder.exists():
        return
    for entry in folder.iterdir():
        if entry.name == MARKER:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
