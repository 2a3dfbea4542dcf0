"""Finds or builds the jar with the log store for S3: the package's, or one compiled with Spark's compiler.

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
from merge.spark.log_store import CLASS

JAVA = Path(__file__).parent.with_name("java")
JAR = JAVA / "deltatide-log-store.jar"
"""Built by `make` and part of the wheel."""


def find_jar() -> Path:
    """Return the jar with `CLASS`: the package's, else one built once in the user's cache."""
    if JAR.exists():
        return JAR
    digest = sha256(b"".join(source.read_bytes() for source in sorted(JAVA.rglob("*.java")))).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cached = cache / "deltatide" / f"log-store-{digest[:16]}.jar"
    return cached if cached.exists() else build_jar(cached)


def build_jar(jar: Path) -> Path:
    """Compile `CLASS` into a jar with the compiler that ships with Spark; the output is reproducible.

    Needs pyspark and a Java runtime, no JDK. `PreconditionError` if it does not compile.
    """
    import pyspark

    jar.parent.mkdir(parents=True, exist_ok=True)
    path = CLASS.replace(".", "/")
    with tempfile.TemporaryDirectory(dir=jar.parent) as work:
        _compile(JAVA / f"{path}.java", Path(work), Path(pyspark.__file__).parent / "jars")
        built = Path(work, "built.jar")
        with zipfile.ZipFile(built, "w", zipfile.ZIP_DEFLATED) as archive:
            entry = zipfile.ZipInfo(f"{path}.class")  # dated 1980
            archive.writestr(entry, Path(work, f"{path}.class").read_bytes())
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
    if done.returncode or not list(target.rglob("*.class")):
        raise PreconditionError(
            f"{source.name} does not compile: {(done.stderr or done.stdout).strip()[-500:]}",
            hint="install Java 17 or 21, on JAVA_HOME or PATH, and pyspark with its jars",
        )


if __name__ == "__main__":
    print(build_jar(Path(sys.argv[1])) if sys.argv[1:] else find_jar())
