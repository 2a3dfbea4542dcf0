"""Keeps an archive of Java's classes, by which a local session starts at three quarters of the CPU time.

Starting Spark and Delta loads some 20,000 classes; Java reads and verifies each, unless it finds it in an
archive of its own (class data sharing). ``python -m merge.spark.session --resolve --class-archive`` makes
one. Sessions only use it: making it at their end would keep a command waiting.

Invariants:

- Java itself checks that an archive is of the same Java, and of the same jars by size and time, and starts
  without one that does not fit. The file's name tells apart what one user may well have side by side.
- Only a whole archive is used: Java crashes with one that ends early. Java writes another file, which is
  renamed once Java has ended well and the file is on disk, and whose size is in its name.
- A session starts without an archive that can't be looked for or read.
- Of several that are made at once, the last one stays.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from connector.errors import PreconditionError
from merge.spark.gateway import Ended
from merge.spark.user_cache import user_cache

OLDEST_JAVA = 17
"""Older ones, which older releases of Spark run on, may not know the options or refuse them."""

_MAKING = "-XX:ArchiveClassesAtExit="


def find_archive() -> Path | None:
    """Return the archive for the Java and the jars that a local session would use; None if there is none."""
    home = _java_home()
    with suppress(PreconditionError):
        for path in _made_for(home) if home else []:
            with suppress(OSError):  # another one has taken its place, or it is not ours to read
                if path.stem.endswith(f"-{path.stat().st_size}") and os.access(path, os.R_OK):
                    return path
    return None


def with_archive(java_options: str) -> str:
    """Return Java's options with the one to use `find_archive`'s, if there is one and they make none."""
    found = None if _MAKING in java_options else find_archive()
    return f"{shlex.quote(f'-XX:SharedArchiveFile={found}')} {java_options}" if found else java_options


@contextmanager
def archiving(end_java: Callable[[], Ended]) -> Iterator[str]:
    """Yield the option by which Java makes the archive when it ends; keep it after `end_java`.

    `PreconditionError` if Java is too old for it, or has not made a whole one.
    """
    home = _java_home()
    if home is None or _release(home) < OLDEST_JAVA:
        raise PreconditionError(
            f"no class archive is made: that needs Java {OLDEST_JAVA} or later",
            hint=f"install Java {OLDEST_JAVA} or 21, on JAVA_HOME or PATH, or leave out --class-archive",
        )
    cache = user_cache()
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="class-archive-", dir=cache) as folder:
        made = Path(folder, "made.jsa")
        yield shlex.quote(f"{_MAKING}{made}")
        ended = end_java()
        if not (ended.well and made.is_file()):
            how = "" if ended.well else ": it failed, or was killed as it took too long"
            raise PreconditionError(
                f"Java has made no class archive{how}; its last output: {ended.output or 'none'}",
                hint="empty SPARK_CONF_DIR if it has files, make room, try again on an idle machine, or leave"
                " out --class-archive: it only makes later starts quicker",
            )
        with made.open("rb") as file:
            os.fsync(file.fileno())
        own = made.stat()
        path = cache / f"{_name_for(home)}-{own.st_size}.jsa"
        made.replace(path)
        for other in _made_for(home):
            with suppress(FileNotFoundError):
                if other != path and other.stat().st_mtime_ns <= own.st_mtime_ns:
                    other.unlink()


def _java_home() -> Path | None:
    """Return the home of the Java that Spark's scripts start."""
    if home := os.environ.get("JAVA_HOME"):
        return Path(home).resolve()
    program = shutil.which("java")
    return Path(program).resolve().parents[1] if program else None


def _release(home: Path) -> int:
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', _described(home), re.MULTILINE)
    return int(found[1]) if found else 0


def _described(home: Path) -> str:
    """Return how Java describes itself; empty if it does not."""
    try:
        return (home / "release").read_text(errors="replace")
    except OSError:
        return ""


def _made_for(home: Path) -> list[Path]:
    return sorted(user_cache().glob(f"{_name_for(home)}-*.jsa"))


def _name_for(home: Path) -> str:
    import pyspark

    spark = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    more = os.environ.get("SPARK_DIST_CLASSPATH", "")
    told_apart = "\0".join([str(home), _described(home), spark, pyspark.__version__, more])
    return f"classes-{sha256(told_apart.encode()).hexdigest()[:16]}"
