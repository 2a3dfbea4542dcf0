"""Reports stores that can't be reached or refuse access, and a missing catalog, with the setting to check.

Java's S3 client retries for minutes and then prints a page of text. If the session is local, `check_endpoint`
checks from here first; `explained` turns the rest into our errors.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from connector.config import Config
from connector.errors import ConfigurationError, DeltatideError, PreconditionError, TransientError
from merge.lake.retry import (
    SPARK_ERRORS,
    UNDELIVERED_HINT,
    first_line,
    is_undelivered,
    without_values,
)
from merge.landing_zone import spark_url
from merge.spark.session import LOCAL, S3A, s3_of, s3_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_IS_GONE: tuple[type[Exception], ...] = (ConnectionRefusedError, ConnectionResetError)
try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    JAVA_IS_GONE += (Py4JError,)
except ImportError:
    pass

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""A store that does not answer a minimal request within this time won't serve a merge."""


class StoreError(DeltatideError):
    """the store of the landing zone or the lake cannot serve a merge."""

    def __init__(self, message: str, *, hint: str, affects_all: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.affects_all = affects_all
        """Whether this affects all tables."""


class StoreOutageError(StoreError, TransientError):
    """the store of the landing zone or the lake cannot be reached."""


class UnfitStoreError(StoreError, PreconditionError):
    """the lake's store, or Spark's client of it, cannot keep drivers from overwriting each other."""


def check_endpoint(spark: SparkSession, config: Config) -> None:
    """Raise `StoreOutageError` if the S3 endpoint does not answer from here.

    Checks only if Spark runs on this machine without a proxy, which could reach what we can't.
    """
    if s3_of(config) is None or spark.conf.get(LOCAL, None) is None or _has_proxy(spark):
        return
    region = spark.conf.get(f"{S3A}endpoint.region", None)
    endpoint = spark.conf.get(f"{S3A}endpoint", None) or _amazon_endpoint(region)
    if reason := _why_unanswered(endpoint):
        raise StoreOutageError(f"{endpoint}: {reason}", hint=_endpoint_hint(config))


def check_configured_endpoint(config: Config) -> None:
    """Raise `StoreOutageError` if the S3 endpoint that a local session would use does not answer."""
    s3 = s3_of(config)
    if s3 is None or _proxy_in_environment():
        return
    endpoint = s3_settings(s3).get(f"{S3A}endpoint") or _amazon_endpoint(
        s3_settings(s3).get(f"{S3A}endpoint.region")
    )
    if reason := _why_unanswered(endpoint):
        raise StoreOutageError(f"{endpoint}: {reason}", hint=_endpoint_hint(config))


def _amazon_endpoint(region: str | None) -> str:
    return f"https://s3.{region}.amazonaws.com" if region else "https://s3.amazonaws.com"


def _has_proxy(spark: SparkSession) -> bool:
    return _proxy_in_environment() or spark.conf.get(f"{S3A}proxy.host", None) is not None


def _proxy_in_environment() -> bool:
    return bool({"http_proxy", "https_proxy"} & {name.lower() for name in os.environ})


_CLOSED = "closes the connection without answering"


def _why_unanswered(endpoint: str) -> str | None:
    """Return why a server did not answer; None if it gave any answer."""
    url = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    host, secure = url.hostname or "", url.scheme == "https"
    try:
        with socket.create_connection((host, url.port or (443 if secure else 80)), CONNECT_SECONDS) as plain:
            plain.settimeout(ANSWER_SECONDS)
            server = _trusting_any_certificate().wrap_socket(plain, server_hostname=host) if secure else plain
            server.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return None if server.recv(1) else _CLOSED
    except (ConnectionResetError, BrokenPipeError):  # the same, depending on how much the server had read
        return _CLOSED
    except TimeoutError:
        return f"does not answer within {ANSWER_SECONDS:g} s"
    except (OSError, ValueError) as error:
        return str(error)


def _trusting_any_certificate() -> ssl.SSLContext:
    """Return a context that trusts any certificate: the S3 client decides itself whom to trust."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


CREDENTIALS = (
    "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or the machine's role; "
    "they must allow reads of landing.url, and writes to its requests/ and to lake.url"
)
BUCKET = "create the bucket, or correct landing.url and lake.url"
CONDITIONS = (
    "use a store that honors If-None-Match on PUT (AWS S3, MinIO, versitygw, Ceph 19+), "
    "or set lake.single_driver = true and keep all other writers out of the lake"
)
REGION = "set landing.region to the bucket's"
BUSY = "merge again; this is often temporary"
HADOOP = "use Spark 4.1, or set lake.single_driver = true and keep all other writers out of the lake"

UNFIT = (
    (
        "ignores If-None-Match",
        "the store ignores If-None-Match, so drivers would overwrite each other's commits",
        CONDITIONS,
    ),
    (r"create\.conditional\.overwrite", "the log store needs Hadoop 3.4.2 or newer", HADOOP),
)
"""Pattern in Java's text, message, hint: for what does not pass by itself."""

OUTAGES: tuple[tuple[str, str, str | None, bool], ...] = (
    ("UnknownHostException", "the store's host can't be resolved", None, True),
    ("UnknownStoreException|NoSuchBucket", "the bucket does not exist", BUCKET, True),
    ("NoAuthWithAWSException|Unable to load credentials", "no credentials were found", CREDENTIALS, True),
    (
        "InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken",
        "the store rejects the credentials",
        CREDENTIALS,
        True,
    ),
    (r"AccessDenied|Status Code: 40[13]\b", "the store refuses access", CREDENTIALS, False),
    (r"AWSRedirect|PermanentRedirect|Status Code: 301\b", "the bucket is in another region", REGION, True),
    (r"SSL\w*Exception|PKIX", "the TLS connection to the store failed", None, True),
    (r"ApiCall\w*Timeout|SocketTimeout|ConnectTimeout|timed out", "the store does not answer", None, True),
    (r"java\.net\.\w+Exception|NoHttpResponse", "connecting to the store failed", None, True),
    (r"Status Code: 5\d\d|Throttled|SlowDown", "the store reports an error or is too busy", BUSY, True),
)
"""Pattern in Java's text, message, hint (None: check the endpoint), whether all tables stop."""


def explain(error: BaseException, config: Config) -> StoreError | None:
    """Return the `StoreError` behind an error of Spark; None if it is not about an S3 store.

    An error within a query is not, even if its text names the store, or a value in it reads like an outage;
    unless it is that a file could not be read.
    """
    text = str(error)
    if is_undelivered(error):
        message = f"{_store_name(text, config)}: {_unread_file(text)} was not delivered whole"
        return StoreOutageError(message, hint=UNDELIVERED_HINT, affects_all=False)
    if not re.search(r"\bs3a://|software\.amazon\.|create\.conditional\.overwrite", text):
        return None
    reason = _reason(text)
    if re.match(r"\[[A-Z]", reason):
        return None
    because = f": {reason}" if reason else ""
    for pattern, message, hint in UNFIT:
        if re.search(pattern, text):
            return UnfitStoreError(f"{_store_name(text, config)}: {message}{because}", hint=hint)
    for pattern, message, outage_hint, affects_all in OUTAGES:
        if re.search(pattern, text):
            return StoreOutageError(
                f"{_store_name(text, config)}: {message}{because}",
                hint=outage_hint or _endpoint_hint(config),
                affects_all=affects_all,
            )
    return None


NO_CATALOG = re.compile("REQUIRES_SINGLE_PART_NAMESPACE|CATALOG_NOT_FOUND|NO_SUCH_CATALOG")
"""Spark takes the name of a catalog that it does not have for a namespace of its own catalog."""


def missing_catalog(error: BaseException, config: Config) -> ConfigurationError | None:
    """Return the error of a session that does not have ``lake.catalog``; None if that is not the cause."""
    catalog = config.lake.catalog if config.lake else None
    if catalog is None or not NO_CATALOG.search(str(error)) or catalog not in str(error):
        return None
    return ConfigurationError(
        f"lake.catalog: this Spark session has no catalog {catalog!r}",
        hint=f"start Spark with spark.sql.catalog.{catalog} set; Spark's own, or Hive's, is spark_catalog",
    )


@contextmanager
def explained(config: Config) -> Iterator[None]:
    """Raise our own errors for Spark's that come from an S3 store or a missing catalog; let others pass."""
    try:
        yield
    except SPARK_ERRORS as error:
        if found := explain(error, config) or missing_catalog(error, config):
            raise found from error
        raise


@contextmanager
def legible(config: Config) -> Iterator[None]:
    """Turn any error of Spark or its Java process into one of ours, so that commands show no traceback.

    If any table is masked or filtered, show no values, either.
    """
    try:
        with explained(config):
            yield
    except SPARK_ERRORS as error:
        narrowed = any(config.table(table).narrows for table in config.tables)
        reason = without_values(error) if narrowed else first_line(error)
        raise DeltatideError(f"Spark failed: {reason}") from error
    except JAVA_IS_GONE as error:
        raise DeltatideError(
            "Spark's Java process has ended", hint="it was killed or ran out of memory; run the command again"
        ) from error


def _store_name(text: str, config: Config) -> str:
    """Name the store by the setting that points to it."""
    found = re.search(r"s3a://[^/\s'`\"]+", text)
    bucket = found[0] if found else ""
    lake = config.lake
    named = {
        "landing.url": config.landing.url,
        "lake.url": (lake and lake.url) or "",
        "lake.location": (lake and lake.location) or "",
    }
    settings = [
        name for name, url in named.items() if bucket and f"{spark_url(url)}/".startswith(f"{bucket}/")
    ]
    return " and ".join(settings) + f" ({bucket})" if settings else bucket or "S3"


def _unread_file(text: str) -> str:
    """Name the file that could not be read, unless its folder holds a value (`region=EU`)."""
    found = re.search(r"Encountered error while reading file ([^\s=]+?)\.?\s", text)
    return found[1] if found else "a file"


def _reason(text: str) -> str:
    """Return the message of the innermost cause; empty if there is none."""
    causes = re.findall(r"^Caused by: [\w.$]+: (.*)$", text, re.MULTILINE)
    return causes[-1].strip()[:200] if causes else ""


def _endpoint_hint(config: Config) -> str:
    s3 = s3_of(config)
    endpoint = s3.endpoint if s3 else None
    return f"check that the store is up and landing.endpoint is right: {endpoint or 'not set, so Amazon S3'}"
