"""The landing zone in a local folder: an object becomes durable and visible in one step.

Invariants: a name appears only when its content is complete and on disk. Names that begin with a dot are
unfinished files (or what a crash left of them), which no reader sees.

Requires a file system with hard and symbolic links, and a folder that is not shared between hosts.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from connector.errors import BugError, DeltatideError, PreconditionError, TransientError
from connector.store.compare_and_swap import swap

_STALE_SECONDS = 86_400  # an unfinished file not written to for a day belongs to a dead process

_HINTS = {
    errno.EACCES: "allow the user who runs deltatide to read and write in this folder",
    errno.EPERM: "the file system must let this user write and make hard and symbolic links",
    errno.EROFS: "the file system is mounted read-only",
    errno.ENOTDIR: "part of this path is a file",
    errno.EEXIST: "part of this path is a file",
    errno.EISDIR: "a folder has the name of a file",
    errno.ELOOP: "remove symbolic links from the landing folder",
    errno.ENXIO: "keep nothing but files and folders in the landing folder",
    errno.EXDEV: "keep the landing folder on one file system",
    errno.ENAMETOOLONG: "shorten the landing folder's path",
    errno.ENOTSUP: "the file system lacks hard or symbolic links; use a local one, or S3",
    errno.ENOSYS: "the file system lacks hard or symbolic links; use a local one, or S3",
}


class LocalStore:
    """A store in a folder, which need not exist yet. Implements `connector.store.protocol.Store`."""

    def __init__(self, root: Path | str) -> None:
        self._root = Path(root)
        self.url = str(self._root)
        self._scratch: Path | None = None

    @property
    def scratch(self) -> Path:
        """Return the folder for unfinished files, on the same file system; deletes stale ones."""
        if self._scratch is None:
            folder = self._root / ".scratch"
            with _errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            drop_stale(folder)
            self._scratch = folder
        return self._scratch

    def put(self, path: str, data: bytes) -> None:
        """Write an object, overwriting an existing one."""
        target = self._file(path)
        with _errors(target), _temporary(target, data) as written:
            os.replace(written, target)
            _sync_folder(target.parent)

    def put_file(self, path: str, local: Path) -> int:
        """Move a finished local file into the store."""
        target = self._file(path)
        with _errors(target):
            _make_folder(target.parent)
            source = local if _same_device(local, target.parent) else _copy_beside(local, target)
            size = _sync_file(source)
            os.replace(source, target)
            _sync_folder(target.parent)
            local.unlink(missing_ok=True)
        return size

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that must not exist; if it does, that one is durable on return."""
        target = self._file(path)
        with _errors(target), _temporary(target, data) as written:
            try:
                os.link(written, target)
                created = True
            except FileExistsError:
                created = False
            _sync_folder(target.parent)
        return created

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        """Return an object's content; None if there is none. Follows no links inside the folder."""
        target = self._file(path)
        with _errors(target):
            try:
                with self._parent(path) as parent:
                    return _content(target, parent, limit)
            except FileNotFoundError:
                return None

    def read_versioned(self, path: str) -> tuple[bytes, str] | None:
        """Return an object's content and its version, which is a hash of it."""
        data = self.read(path)
        return None if data is None else (data, _version(data))

    def replace(self, path: str, data: bytes, version: str | None) -> str | None:
        """Overwrite exactly this version, whatever state a process is in that is about to do so, too.

        For objects whose content is never the same again.
        """
        target = self._file(path)

        def current() -> str | None:
            found = self.read_versioned(path)
            return found and found[1]

        with _errors(target), _temporary(target, data) as written:
            if not swap(written, target, version, current, self._root):
                return None
            _sync_folder(target.parent)
        return _version(data)

    def list(self, prefix: str) -> Iterator[str]:
        """Return the paths that begin with a prefix, in order; walks only the prefix's folder."""
        folder = prefix.rpartition("/")[0]
        with _errors(self._root / folder):
            found = sorted(p for p in self._walk(self._root / folder) if p.startswith(prefix))
        yield from found

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders directly under a folder, sorted."""
        folder = self._root / prefix
        with _errors(folder):
            try:
                with os.scandir(folder) as entries:
                    return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
            except FileNotFoundError:
                return []

    def delete_all(self, paths: Iterable[str]) -> None:
        """Remove many objects, and folders of landing files that become empty."""
        folders = set()
        for path in paths:
            self.delete(path)
            folders.add(path.rpartition("/")[0])
        for folder in folders:
            if folder.startswith("data/"):
                with suppress(OSError):
                    self._file(folder).rmdir()

    def delete(self, path: str) -> None:
        """Remove an object; does nothing if there is none.

        For an object that a Spark job wrote, ``<name>.json/<part>``, also removes the checksum file beside it
        and, with the last part, the folder. Otherwise each request would leave a folder that is listed
        forever.
        """
        target = self._file(path)
        with _errors(target), suppress(FileNotFoundError), self._parent(path) as parent:
            os.unlink(target.name, dir_fd=parent)
            if path.count("/") == 2 or target.parent.suffix == ".json":
                with suppress(OSError):
                    os.unlink(f".{target.name}.crc", dir_fd=parent)
                with suppress(OSError):
                    os.rmdir(target.parent)

    def _file(self, path: str) -> Path:
        parts = path.split("/")
        if any(part in ("", "..") or part.startswith(".") for part in parts):
            raise BugError(f"{path!r} is not a path in a landing zone")
        return self._root.joinpath(*parts)

    @contextmanager
    def _parent(self, path: str) -> Iterator[int]:
        """Open the folder that holds an object, following no link below the store's own folder."""
        handle = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in path.split("/")[:-1]:
                below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)

    def _walk(self, folder: Path) -> Iterator[str]:
        """Yield the paths of the files below a folder.

        What can't be listed must not seem empty. A folder below that may not be read is yielded itself, so
        that only whoever needs its objects fails.
        """
        unread: list[OSError] = []
        for parent, folders, files in os.walk(folder, onerror=unread.append):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in files:
                if not name.startswith("."):
                    yield Path(parent, name).relative_to(self._root).as_posix()
        for error in unread:
            if isinstance(error, (FileNotFoundError, NotADirectoryError)):
                continue  # there is none, or it was removed meanwhile
            if not isinstance(error, PermissionError) or Path(error.filename) == folder:
                raise error
            yield Path(error.filename).relative_to(self._root).as_posix()


def _content(target: Path, parent: int, limit: int | None) -> bytes:
    """Read a regular file. Anything else of that name (a link, a pipe) is refused without waiting for it."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(target.name, flags, dir_fd=parent), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise PreconditionError(f"{target}: is not a file")
        data = file.read() if limit is None else file.read(limit + 1)
    if limit is not None and len(data) > limit:
        raise PreconditionError(f"{target}: holds more than {limit:,} bytes")
    return data


def drop_stale(folder: Path) -> None:
    """Remove files that a killed process left in a scratch folder.

    A running one's are less than a day old.
    """
    oldest = time.time() - _STALE_SECONDS
    for file in folder.iterdir():
        try:
            if file.is_file() and file.stat().st_mtime < oldest:
                file.unlink()
        except OSError:
            pass  # another agent removed it first, or it is not ours; either is harmless


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except DeltatideError:
        raise
    except OSError as error:
        message = f"{path}: {(error.strerror or str(error)).lower()}"
        if error.errno in _HINTS:
            raise PreconditionError(message, hint=_HINTS[error.errno]) from error
        raise TransientError(message) from error


@contextmanager
def _temporary(target: Path, data: bytes) -> Iterator[Path]:
    """Write content to a durable file beside its target; it is removed at the end if it still exists."""
    _make_folder(target.parent)
    written = target.parent / f".{target.name[:100]}.{uuid.uuid4().hex}"
    try:
        with written.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield written
    finally:
        written.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_file(file: Path) -> int:
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def _same_device(file: Path, folder: Path) -> bool:
    return file.stat().st_dev == folder.stat().st_dev


def _copy_beside(local: Path, target: Path) -> Path:
    copy = target.parent / f".{target.name[:100]}.{uuid.uuid4().hex}"
    try:
        shutil.copyfile(local, copy)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return copy


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
