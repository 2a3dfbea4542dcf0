"""Opens a Spark session: the active one, a remote one, or a local one with Delta.

The local one is quiet (Java's output goes to a file), listens on 127.0.0.1 only, and is tuned for many small
merges. ``python -m merge.spark.session --resolve`` fetches its jars once; with ``--class-archive``,
later starts are quicker (`merge.spark.class_archive`).
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from connector.config import Config
from connector.errors import PreconditionError
from merge.spark import log_store
from merge.spark.class_archive import archiving, with_archive
from merge.spark.gateway import end_java, last_lines, started
from merge.spark.session_settings import ANY_VERSION, EVERY_DAY, PLAIN, set_setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class S3Access(Protocol):
    """How to reach an S3 store; an empty key means the usual chain (environment, profile, instance)."""

    @property
    def endpoint(self) -> str | None:
        """Return the endpoint's url; None for Amazon's."""

    @property
    def region(self) -> str | None:
        """Return the region."""

    @property
    def access_key(self) -> str | None:
        """Return the access key."""

    @property
    def secret_key(self) -> str | None:
        """Return the secret key."""


@dataclass(frozen=True)
class S3Settings:
    """`S3Access` from plain values. `path_style` None: true if an endpoint is set, else false."""

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    path_style: bool | None = None


LOCAL = "spark.deltatide.local"
"""Marks sessions started here: they connect to stores from this machine."""

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.ui.explainMode": "simple",  # no page shows the plans
    # Else each call that builds an expression asks Java for its session and notes the line of code.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    LOCAL: "true",
    # Delta's 50 partitions for the state of a table make each small merge seconds slower.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "4",
    # Each merge into a large table needs up to a hundred generated classes. Spark keeps a hundred in all by
    # default, so each merge generated all of its own again, and Java compiled them again.
    "spark.sql.codegen.cache.maxEntries": "500",
    # Manifests and most landing files are small: Spark's 4 MiB make a task of every 32 of them, which costs
    # as much again as reading them. There still is a task for each core.
    "spark.sql.files.openCostInBytes": str(64 << 10),
    # Several tables are merged at a time: a large one must not keep the small ones waiting.
    "spark.scheduler.mode": "FAIR",
}

S3A = "spark.hadoop.fs.s3a."

S3A_PATIENCE = {
    f"{S3A}connection.establish.timeout": "5000",
    f"{S3A}connection.timeout": "20000",
    f"{S3A}connection.request.timeout": "30000",
    f"{S3A}attempts.maximum": "3",
    f"{S3A}retry.limit": "1",
    f"{S3A}retry.interval": "500ms",
}
"""Times are in milliseconds without a unit, which Hadoop before 3.4 requires. A store that is gone or hangs
becomes an error after a minute or two, not ten: merges are repeated anyway. Long requests (uploads of parts)
have their own timeout."""

LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
"""In how many tasks named files are looked up; by default one for each, which costs more than looking."""

JAVA = "-XX:+UseParallelGC"
"""Both of Java's compilers, for merges of many rows or over days; throughput matters, pauses don't."""

ARCHIVING_SECONDS = 300.0
"""Java takes ten to write its archive of classes on an idle machine."""

USAGE = "--resolve [--without-s3] [--class-archive]"

HEAP_MIB = 2048
"""Upper bound; a quarter of the machine's memory if that is less, but at least Spark's default of 1 GiB."""

BUNDLED = {
    "com.fasterxml.jackson.core": ("jackson-annotations", "jackson-core", "jackson-databind"),
    "com.fasterxml.jackson.datatype": ("jackson-datatype-jdk8",),
    "com.github.luben": ("zstd-jni",),
    "commons-logging": ("commons-logging",),
    "io.airlift": ("aircompressor",),
    "org.apache.hadoop": ("hadoop-client-api", "hadoop-client-runtime"),
    "org.apache.logging.log4j": ("log4j-api", "log4j-core", "log4j-slf4j2-impl"),
    "org.apache.parquet": (
        "parquet-column",
        "parquet-common",
        "parquet-encoding",
        "parquet-format-structures",
        "parquet-hadoop",
        "parquet-jackson",
    ),
    "org.roaringbitmap": ("RoaringBitmap",),
    "org.slf4j": ("slf4j-api",),
    "org.xerial.snappy": ("snappy-java",),
}
"""Dependencies of Delta and hadoop-aws that ship with Spark, so they are not fetched again."""


OF_A_PLATFORM = ("PYSPARK_GATEWAY_PORT", "DATABRICKS_RUNTIME_VERSION")
"""Variables that spark-submit and Databricks set for a driver in Python."""


def runs_on_platform() -> bool:
    """Return whether the session is a platform's, which sets its master and stops it."""
    return any(environ.get(name) for name in OF_A_PLATFORM)


def open_session(config: Config) -> SparkSession:
    """Return the active session (a notebook's), a remote one, the platform's, or a local one.

    A remote one is named by ``SPARK_REMOTE``; a platform's belongs to the process that ``spark-submit`` or
    Databricks started.

    Spark Connect analyzes a frame when it is used, not when it is built. So a remote session opened here
    keeps the settings that frames of `live` and `as_of` need.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if environ.get("SPARK_REMOTE"):
        remote = SparkSession.builder.getOrCreate()
        for setting, value in {**PLAIN, **ANY_VERSION}.items():
            set_setting(remote, setting, value)
        return remote
    if runs_on_platform():
        return SparkSession.builder.getOrCreate()
    return local_session(s3=s3_of(config))


def s3_of(config: Config) -> S3Settings | None:
    """Return the configured S3 store; None if neither landing zone nor lake is on S3."""
    lake = config.lake
    urls = [config.landing.url, (lake and (lake.url or lake.location)) or ""]
    if not any(url.startswith(("s3://", "s3a://")) for url in urls):
        return None
    landing = config.landing
    endpoint = landing.endpoint or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    return S3Settings(endpoint, landing.region, path_style=landing.path_style)


def local_session(
    app_name: str = "deltatide", *, s3: S3Access | None = None, java_options: str = JAVA
) -> SparkSession:
    """Start a local session with `local_settings`.

    Its jars come from Ivy's cache or are fetched. `PreconditionError` if Java does not start. Java's output
    goes to a temporary file, which is kept only if the start fails.
    """
    from pyspark.sql import SparkSession

    settings = local_settings(app_name, s3=s3, java_options=java_options)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    handle, name = tempfile.mkstemp(prefix="deltatide-spark-", suffix=".log")
    os.close(handle)
    log = Path(name)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Python data sources need this environment
    try:
        with started(settings, log):
            return builder.getOrCreate()
    except Exception as error:
        raise PreconditionError(
            f"Spark did not start: {last_lines(log) or error}",
            hint=f"install Java 17 or 21, on JAVA_HOME or PATH; its output is in {log}",
        ) from error


def local_settings(app_name: str, *, s3: S3Access | None, java_options: str = JAVA) -> dict[str, str]:
    """Return Spark's settings for a driver on this machine with Delta, and with S3A if `s3` is given."""
    return {
        **SETTINGS,
        **EVERY_DAY,
        **jar_settings(with_s3=s3 is not None),
        **s3_settings(s3),
        "spark.app.name": app_name,
        "spark.master": "local[*]",
        LISTING: str(2 * (os.cpu_count() or 1)),
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "deltatide-warehouse"),
        "spark.driver.extraJavaOptions": with_archive(java_options),
        "spark.driver.memory": f"{_heap_mib()}m",
    }


def _heap_mib() -> int:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return max(1024, min(HEAP_MIB, machine // 4))


def s3_settings(s3: S3Access | None) -> dict[str, str]:
    """Return S3A's settings."""
    if s3 is None:
        return {}
    prefix = S3A
    path_style = getattr(s3, "path_style", None)
    settings = {
        f"{prefix}endpoint": s3.endpoint,
        f"{prefix}endpoint.region": s3.region
        or environ.get("AWS_REGION")
        or environ.get("AWS_DEFAULT_REGION"),
        f"{prefix}path.style.access": str(bool(s3.endpoint) if path_style is None else path_style).lower(),
        f"{prefix}access.key": s3.access_key,
        f"{prefix}secret.key": s3.secret_key,
        f"{prefix}aws.credentials.provider": None
        if s3.access_key
        else "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
    }
    return {**S3A_PATIENCE, **{name: value for name, value in settings.items() if value}}


def jar_settings(*, with_s3: bool) -> dict[str, str]:
    """Return the settings for the jars that match the installed pyspark and delta-spark."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    spark = ".".join(pyspark.__version__.split(".")[:2])
    scala = _jar_version(jars, r"spark-core_([\d.]+)-.*")
    try:
        delta = version("delta-spark")
    except PackageNotFoundError as error:
        raise PreconditionError(
            "a Spark session can't be started: the package delta-spark is not installed",
            hint="pip install 'deltatide[spark]', or run this through the platform's spark-submit",
        ) from error
    # Delta has had a jar for each Spark release since 4.1.
    release = f"{spark}_" if tuple(map(int, delta.split(".")[:2])) >= (4, 1) else ""
    packages = [f"io.delta:delta-spark_{release}{scala}:{delta}"]
    if with_s3:
        packages.append(f"org.apache.hadoop:hadoop-aws:{_jar_version(jars, r'hadoop-client-api-(.*)')}")
    excludes = [
        f"{group}:{name}"
        for group, names in BUNDLED.items()
        for name in names
        if any(jars.glob(f"{name}-[0-9]*.jar"))
    ]
    settings = {"spark.jars.packages": ",".join(packages), "spark.jars.excludes": ",".join(excludes)}
    return {**settings, **_own_jar(needed=with_s3), **(log_store.SETTINGS if with_s3 else {})}


def _own_jar(*, needed: bool) -> dict[str, str]:
    """Return the settings for our jar and the commits to local folders.

    If it is not `needed` for S3, Hadoop's own class serves where the jar can't be had or read, or would take
    the place of jars that the user names.
    """
    from merge.spark.log_store_jar import find_jar, has_class

    if _names_jars() and not needed:
        return {}
    try:
        jar = find_jar()
        has_local = has_class(jar, log_store.LOCAL_CLASS)
    except (PreconditionError, OSError):
        if needed:
            raise
        return {}
    local = log_store.LOCAL_SETTINGS if has_local and not _names_jars() else {}
    return {"spark.jars": str(jar), **local}


def _names_jars() -> bool:
    """Return whether the user starts Spark with jars of their own."""
    import pyspark

    home = environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    file = Path(environ.get("SPARK_CONF_DIR") or Path(home, "conf"), "spark-defaults.conf")
    given = [environ.get("PYSPARK_SUBMIT_ARGS", ""), file.read_text() if file.is_file() else ""]
    return any(re.search(r"--jars\b|\bspark\.jars[\s=]", text) for text in given)


def _jar_version(jars: Path, pattern: str) -> str:
    for jar in jars.glob("*.jar"):
        if match := re.fullmatch(pattern, jar.stem):
            return match[1]
    raise PreconditionError(
        f"no jar matches {pattern} in {jars}",
        hint="install pyspark with pip, as in: pip install 'deltatide[spark]'",
    )


def resolve(*, with_s3: bool, class_archive: bool = False) -> None:
    """Fetch the jars of local sessions, and make the archive of Java's classes if asked; ends Java.

    `PreconditionError` if Java does not start or makes no archive.
    """
    s3 = S3Settings() if with_s3 else None
    if not class_archive:
        local_session("deltatide-resolve", s3=s3).stop()
        return
    with archiving(lambda: end_java(ARCHIVING_SECONDS)) as option:
        session = local_session("deltatide-resolve", s3=s3, java_options=f"{JAVA} {option}")
        _load_classes(session)
        session.stop()


def _load_classes(session: SparkSession) -> None:
    """Do what most commands do, so that Java loads what they need."""
    with tempfile.TemporaryDirectory() as folder:
        table = f"delta.`{folder}/table`"
        changes = session.range(9).selectExpr("id", "cast(id AS string) AS text")
        changes.write.format("delta").save(f"{folder}/table")
        changes.write.parquet(f"{folder}/landed")
        session.sql(
            f"MERGE INTO {table} t USING parquet.`{folder}/landed` s ON t.id = s.id"
            " WHEN MATCHED AND s.id > 4 THEN DELETE WHEN MATCHED THEN UPDATE SET *"
            " WHEN NOT MATCHED THEN INSERT *"
        )
        session.sql(f"SELECT text, count(*), max(id) FROM {table} GROUP BY text ORDER BY text").collect()


def main(arguments: list[str]) -> int:
    """Fetch the jars of local sessions: ``python -m merge.spark.session --resolve``, with options."""
    options = {"--resolve", "--without-s3", "--class-archive"}
    if "--resolve" not in arguments or set(arguments) - options:
        print(f"usage: python -m merge.spark.session {USAGE}", file=sys.stderr)
        return 2
    try:
        resolve(with_s3="--without-s3" not in arguments, class_archive="--class-archive" in arguments)
    except PreconditionError as error:
        print(f"{error}\n{error.hint}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error}\nmake room there, or set XDG_CACHE_HOME to a folder of yours", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
