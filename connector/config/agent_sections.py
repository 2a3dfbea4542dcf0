"""The sections that configure the agent."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, model_validator

from connector.config.section import Patterns, Section, folder_url, matches, one_or_more
from connector.schema import TableName

MOST_ROWS_PER_SECOND = 10**12
"""Limit of the setting: more than any source can send, yet exact in a float."""

MOST = 10.0**12
"""Limit of a limit: beyond any possible load."""


def _source_url(url: SecretStr, info: ValidationInfo) -> SecretStr:
    return _database_url(url, info.data.get("kind", "postgres"))


def _replica_url(url: SecretStr) -> SecretStr:
    return _database_url(url, "mysql")


def _database_url(url: SecretStr, kind: str) -> SecretStr:
    parts = urlsplit(url.get_secret_value())
    schemes = ("postgresql", "postgres") if kind == "postgres" else ("mysql", "mariadb")
    example = "postgresql://user@host:5432/database" if kind == "postgres" else "mysql://user@host:3306"
    if parts.scheme not in schemes:
        raise ValueError(f"must begin with {schemes[0]}://, as in {example}")
    if "@" not in parts.netloc and "@" in parts.path + parts.fragment:
        raise ValueError("user and password must be percent-encoded, or written through ${...}")
    if kind == "postgres" and not parts.path.strip("/") and "dbname=" not in parts.query:
        raise ValueError(f"names no database; write {example}")
    return url


def _landing_url(url: str) -> str:
    return folder_url(url, "s3")


class SourceConfig(Section):
    """``[source]``: which database, and which of its tables. ``name`` is the folder in the landing zone.

    ``slot`` and ``publication`` apply to PostgreSQL. MySQL or MariaDB is detected automatically.
    ``predicate_seconds``: time limit of a statement that evaluates a dump's condition.
    ``allow_partial_row_images``: decode rows of which MySQL's or MariaDB's log has only some columns.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,49}$")
    kind: Literal["postgres", "mysql", "mariadb"]
    url: Annotated[SecretStr, AfterValidator(_source_url)]
    tables: Patterns = Field(min_length=1)
    exclude: Patterns = Field(default_factory=list)
    slot: str = Field(default="", pattern=r"^[a-z0-9_]{1,63}$")
    publication: str = Field(default="", pattern=r'^[^"\x00]{1,63}$')
    on_gap: Literal["repair", "stop"] = "repair"
    predicate_seconds: float = Field(default=600, ge=0.1, le=86_400)
    allow_partial_row_images: bool = False

    @model_validator(mode="before")
    @classmethod
    def _name_slot_and_publication(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("name"), str):
            name = "deltatide_" + values["name"].lower().replace("-", "_")
            return {"slot": name, "publication": name, **values}
        return values

    def captures(self, table: TableName) -> bool:
        """Return whether `tables` names a table and `exclude` does not; ``*`` matches any characters."""
        return matches(self.tables, table) and not matches(self.exclude, table)


class LandingConfig(Section):
    """``[landing]``: where the agent writes, how often, and how long a lease lasts without renewal.

    `flush_seconds`: longest time from reading a change to the manifest that has it. `flush_mib`: flush sooner
    once this many MiB of log are in memory. `heartbeat_seconds`: heartbeat interval while idle.
    `retention_days`: how long `deltatide maintain` keeps what every lake has merged.
    """

    url: Annotated[str, AfterValidator(_landing_url)]
    flush_seconds: float = Field(default=5.0, ge=0.05, le=3600)
    flush_mib: int = Field(default=32, ge=1, le=4096)
    endpoint: str | None = Field(default=None, pattern=r"^https?://")
    region: str | None = None
    path_style: bool | None = None
    lease_seconds: float = Field(default=15, ge=1, le=3600)
    heartbeat_seconds: float = Field(default=10, ge=0.1, le=3600)
    retention_days: float = Field(default=7, ge=0, le=36_500)

    @property
    def flush_bytes(self) -> int:
        """Return `flush_mib` in bytes."""
        return self.flush_mib << 20

    @property
    def folder(self) -> Path | None:
        """Return the local folder; None when the landing zone is on S3."""
        if self.url.startswith("s3://"):
            return None
        return Path(self.url.removeprefix("file://"))

    @property
    def bucket(self) -> tuple[str, str] | None:
        """Return bucket and key prefix (without slashes at its ends); None if the landing zone is local."""
        if not self.url.startswith("s3://"):
            return None
        bucket, _, prefix = self.url.removeprefix("s3://").partition("/")
        return bucket, prefix.strip("/")


class DumpConfig(Section):
    """``[dump]``: how existing rows are read; ``deltatide set`` overrides it while the agent runs.

    `delay_seconds` is a worker's pause after each chunk. `rows_per_second`: limit for all dumps together; 0:
    none.
    """

    chunk_rows: int = Field(default=50_000, ge=1, le=10_000_000)
    workers: int = Field(default=2, ge=1, le=64)
    delay_seconds: float = Field(default=0.0, ge=0, le=3600)
    rows_per_second: int = Field(default=0, ge=0, le=MOST_ROWS_PER_SECOND)


ReplicaUrl = Annotated[SecretStr, AfterValidator(_replica_url)]


class LimitsConfig(Section):
    """``[limits]``: no dump chunk is read while the source's load exceeds one of these; 0: no limit.

    PostgreSQL: `active_sessions` (excluding the agent's own), `standby_lag_mib` (log that the standby
    furthest behind has not replayed), `slot_lag_mib` (log that the agent has not confirmed). MySQL and
    MariaDB: `threads_running`, `replica_lag_seconds` (of the `replicas` that are named by their urls, and of
    this server, if it is a replica). `store_seconds`: duration of a small read from the landing zone.
    """

    active_sessions: float = Field(default=100.0, ge=0, le=MOST, allow_inf_nan=False)
    standby_lag_mib: float = Field(default=1024.0, ge=0, le=MOST, allow_inf_nan=False)
    slot_lag_mib: float = Field(default=4096.0, ge=0, le=MOST, allow_inf_nan=False)
    threads_running: float = Field(default=100.0, ge=0, le=MOST, allow_inf_nan=False)
    replica_lag_seconds: float = Field(default=60.0, ge=0, le=MOST, allow_inf_nan=False)
    replicas: Annotated[list[ReplicaUrl], BeforeValidator(one_or_more)] = Field(default_factory=list)
    store_seconds: float = Field(default=10.0, ge=0, le=MOST, allow_inf_nan=False)


def _listen(value: object) -> object:
    return "" if value is False else value


def _address(text: str) -> str:
    host, separator, port = text.rpartition(":")
    if text and not (separator and host and port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ValueError(f"{text!r} is not host:port, as in 127.0.0.1:8642; false turns it off")
    return text


def _token(token: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]{16,200}", token.get_secret_value()):
        raise ValueError("must be 16 to 200 ASCII characters without spaces, as from: openssl rand -hex 32")
    return token


Token = Annotated[SecretStr, AfterValidator(_token)]


class ControlConfig(Section):
    """``[control]``: the agent's status page, HTTP API and metrics. `listen` empty or false: none.

    `read_token` permits viewing, `control_token` also control. At least one is required if other machines can
    reach the address. `certificate` and `key`: PEM files, for TLS. `hosts`: host names, besides localhost,
    under which browsers may connect without a token. `stuck_seconds`: the agent counts as stuck if its loop
    has completed no round for this long.
    """

    listen: Annotated[str, AfterValidator(_address), BeforeValidator(_listen)] = "127.0.0.1:8642"
    read_token: Token | None = None
    control_token: Token | None = None
    certificate: str | None = Field(default=None, min_length=1)
    key: str | None = Field(default=None, min_length=1)
    hosts: list[str] = Field(default_factory=list)
    stuck_seconds: float = Field(default=300.0, ge=1, le=86_400)

    @model_validator(mode="after")
    def _safe(self) -> ControlConfig:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("set both certificate and key, or neither")
        if self.listen and not self.on_loopback and not (self.read_token or self.control_token):
            raise ValueError(
                f"listen = {self.listen!r} can be reached by other machines: set read_token, control_token or"
                ' both, as in control_token = "${DELTATIDE_TOKEN}"; or listen on 127.0.0.1'
            )
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port."""
        host, _, port = self.listen.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    @property
    def on_loopback(self) -> bool:
        """Return whether only this machine can connect; a name other than localhost may be any address."""
        host = self.address[0]
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"
