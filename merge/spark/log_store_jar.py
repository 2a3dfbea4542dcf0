"""Finds or builds the jar by which drivers commit: the package's, or one compiled with Spark's compiler.

``python -m merge.spark.log_store_jar`` prints its path; with a path as argument, it builds the jar there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from hashlib import sha256
from pathlib import Path

from connector.errors import PreconditionError
from merge.spark.user_cache import user_cache

JAVA = Path(__file__).parent.with_name("java")
PACKAGE = "deltatide"
JAR = JAVA / "deltatide-log-store.jar"
"""Built by `make` and part of the wheel."""


def find_jar() -> Path:
    """Return the jar with `PACKAGE`: the one that was installed, else one built once in the user's cache."""
    if JAR.exists():
        return JAR
    digest = sha256(b"".join(source.read_bytes() for source in sorted(JAVA.rglob("*.java")))).hexdigest()
    cached = user_cache() / f"log-store-{digest[:16]}.jar"
    return cached if cached.exists() else build_jar(cached)


def has_class(jar: Path, name: str) -> bool:
    """Return whether a jar has a class: one that was built before may lack it.

    `PreconditionError` if it is no jar: an installation may have been cut short.
    """
    try:
        with zipfile.ZipFile(jar) as archive:
            return f"{name.replace('.', '/')}.class" in archive.namelist()
    except zipfile.BadZipFile as error:
        raise PreconditionError(f"{jar} is damaged: {error}", hint="install deltatide again") from error


def build_jar(jar: Path) -> Path:
    """Compile `PACKAGE` into a jar with the compiler that ships with Spark; the output is reproducible.

    Needs pyspark and a Java runtime, no JDK. `PreconditionError` if it does not compile.
    """
    import pyspark

    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jar.parent) as work:
        compiled = Path(work, "classes")
        compiled.mkdir()
        for source in sorted((JAVA / PACKAGE).glob("*.java")):
            _compile(source, compiled, Path(pyspark.__file__).parent / "jars")
        built = Path(work, "built.jar")
        with zipfile.ZipFile(built, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(compiled.glob(f"{PACKAGE}/*.class")):
                entry = zipfile.ZipInfo(file.relative_to(compiled).as_posix())  # dated 1980
                archive.writestr(entry, file.read_bytes())
        built.replace(jar)
    return jar


def _compile(source: Path, target: Path, jars: Path) -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    arguments = ["-d", str(target), "-classpath", os.pathsep.join(map(str, sorted(jars.glob("*.jar"))))]
    arguments += ["-sourcepath", str(JAVA / "stubs"), str(source)]
    compiler = "org.codehaus.commons.compiler.samples.CompilerDemo"
    try:
        done = subprocess.run(
            [java or "java", "-cp", str(jars / "*"), compiler, *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        raise PreconditionError(f"Java does not start: {error}", hint="install Java 17 or 21") from error
    if done.returncode or not (target / PACKAGE / f"{source.stem}.class").exists():
        raise PreconditionError(
            f"{source.name} does not compile: {(done.stderr or done.stdout).strip()[-500:]}",
            hint="install Java 17 or 21, on JAVA_HOME or PATH, and pyspark with its jars",
        )


if __name__ == "__main__":
    print(build_jar(Path(sys.argv[1])) if sys.argv[1:] else find_jar())
