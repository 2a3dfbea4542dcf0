"""Configuration: one TOML file for agent and merge, read once, with every problem in it reported together.

Invariants: an unknown setting is an error, never ignored; values from a variable or a secret file, and the
password of a url, never show in a message, a ``repr`` or a ``str``.

Imports nothing of the agent (no driver, no Arrow, no boto3), because the merge reads the same file.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from connector.config_problems import Problems, describe
from connector.config_references import substitute
from connector.errors import ConfigurationError
from connector.schema import TableName

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


MOST_ROWS_PER_SECOND = 10**12
"""Limit of the setting: more than any source can send, and small enough to reckon with in floats."""

MOST = 10.0**12
"""Limit of a limit: beyond any load there is."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _pattern(text: str) -> str:
    TableName.parse(text)
    return text


def _source_url(url: SecretStr, info: ValidationInfo) -> SecretStr:
    parts = urlsplit(url.get_secret_value())
    kind = info.data.get("kind", "postgres")
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
    return _folder_url(url, "s3")


def _lake_url(url: str) -> str:
    return _folder_url(url, "s3a", "s3")


def _folder_url(url: str, *schemes: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator and url.strip():
        return str(Path(url).expanduser().absolute())
    if scheme == "file" and rest.startswith("/"):
        return url.rstrip("/")
    if scheme in schemes and rest.partition("/")[0]:
        return url.rstrip("/")
    kinds = " or ".join(f"{s}://bucket/folder" for s in schemes)
    raise ValueError(f"{url!r} is not a landing zone; use {kinds}, file:///folder or a path")


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


Pattern = Annotated[str, AfterValidator(_pattern)]
Patterns = Annotated[list[Pattern], BeforeValidator(_one_or_more)]


class SourceConfig(_Section):
    """``[source]``: which database, and which of its tables. ``name`` is the folder in the landing zone.

    ``slot`` and ``publication`` apply to PostgreSQL. MySQL or MariaDB is detected automatically.
    ``predicate_seconds``: time limit of one statement that runs a dump's condition.
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

    @model_validator(mode="before")
    @classmethod
    def _name_slot_and_publication(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("name"), str):
            name = "deltatide_" + values["name"].lower().replace("-", "_")
            return {"slot": name, "publication": name, **values}
        return values

    def captures(self, table: TableName) -> bool:
        """Return whether `tables` names a table and `exclude` does not; ``*`` matches any characters."""
        return _matches(self.tables, table) and not _matches(self.exclude, table)


def _matches(patterns: list[str], table: TableName) -> bool:
    return any(
        all(_like(wanted, actual) for wanted, actual in zip(TableName.parse(pattern), table, strict=True))
        for pattern in patterns
    )


def _like(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


class LandingConfig(_Section):
    """``[landing]``: where the agent writes, how often, and how long a lease lasts unrenewed.

    `flush_seconds`: a change is in a manifest at most this long after it was read. `flush_mib`: flush sooner
    once this many MiB of log are held. `heartbeat_seconds`: heartbeat interval while idle. `retention_days`:
    how long `deltatide maintain` keeps what every lake has merged.
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
        """Return bucket and key prefix (without slashes around it); None when the landing zone is local."""
        if not self.url.startswith("s3://"):
            return None
        bucket, _, prefix = self.url.removeprefix("s3://").partition("/")
        return bucket, prefix.strip("/")


class DumpConfig(_Section):
    """``[dump]``: how existing rows are read; ``deltatide set`` overrides it while the agent runs.

    `delay_seconds` is a worker's pause after each chunk. `rows_per_second`: of all dumps together; 0: no
    limit.
    """

    chunk_rows: int = Field(default=50_000, ge=1, le=10_000_000)
    workers: int = Field(default=2, ge=1, le=64)
    delay_seconds: float = Field(default=0.0, ge=0, le=3600)
    rows_per_second: int = Field(default=0, ge=0, le=MOST_ROWS_PER_SECOND)


class LimitsConfig(_Section):
    """``[limits]``: no further chunk of a dump is read while the source's load is above one; 0: no limit.

    PostgreSQL: `active_sessions` (but the agent's own), `standby_lag_mib` (log that the furthest standby has
    not replayed), `slot_lag_mib` (log that the agent has not confirmed). MySQL and MariaDB:
    `threads_running`, `replica_lag_seconds` (of the server at hand, if it is a replica). `store_seconds`:
    what a small read takes.
    """

    active_sessions: float = Field(default=100.0, ge=0, le=MOST, allow_inf_nan=False)
    standby_lag_mib: float = Field(default=1024.0, ge=0, le=MOST, allow_inf_nan=False)
    slot_lag_mib: float = Field(default=4096.0, ge=0, le=MOST, allow_inf_nan=False)
    threads_running: float = Field(default=100.0, ge=0, le=MOST, allow_inf_nan=False)
    replica_lag_seconds: float = Field(default=60.0, ge=0, le=MOST, allow_inf_nan=False)
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


class ControlConfig(_Section):
    """``[control]``: the agent's status page, HTTP API and metrics. `listen` empty or false: none.

    `read_token` lets one see, `control_token` also control. One of them is demanded on an address that other
    machines reach. `certificate` and `key`: PEM files, for TLS. `hosts`: names, beside localhost, under which
    browsers may reach it without a token. `stuck_seconds`: the agent counts as stuck if its loop has not
    gone around for so long.
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
                f"listen = {self.listen!r} is reached by other machines: set read_token, control_token or"
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
        """Return whether only this machine reaches it; a name other than localhost may be any address."""
        host = self.address[0]
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


class LakeConfig(_Section):
    """``[lake]``: where the Delta tables live: under a url, or in a schema of a catalog.

    `single_driver`: nobody else ever writes to them, so any log store will do for a lake on S3.
    `retention_days`: how long ``deltatide maintain`` keeps cuts readable.
    """

    url: Annotated[str, AfterValidator(_lake_url)] | None = None
    catalog: str | None = Field(default=None, min_length=1)
    schema_name: str | None = Field(default=None, min_length=1, alias="schema")
    single_driver: bool = False
    retention_days: float = Field(default=7.0, ge=0, le=3650)

    @model_validator(mode="after")
    def _one_place(self) -> LakeConfig:
        named = (self.catalog is not None, self.schema_name is not None)
        if (self.url is not None) == all(named) or (self.url is not None and any(named)):
            raise ValueError("set either url, or both catalog and schema")
        return self


class MergeConfig(_Section):
    """``[merge]``: how a merge runs. `parallel`: tables at a time; None: twice the cores, at most 8."""

    parallel: int | None = Field(default=None, ge=1, le=64)


class MaintainConfig(_Section):
    """``[maintain]``: how often ``merge --every`` does upkeep between merges; `every_hours` None: never."""

    every_hours: float | None = Field(default=None, ge=0.01, le=8760)


class TableConfig(_Section):
    """``[tables."namespace.name"]``: settings of one table.

    `key`: columns that identify a row if the table has no primary key (a unique key).
    `deletes`: ``hard`` removes a row from the Delta table, ``soft`` keeps and marks it.
    """

    key: list[str] | None = Field(default=None, min_length=1)
    deletes: Literal["hard", "soft"] = "hard"


class Config(_Section):
    """The whole file."""

    source: SourceConfig
    landing: LandingConfig
    dump: DumpConfig = DumpConfig()
    limits: LimitsConfig = LimitsConfig()
    control: ControlConfig = ControlConfig()
    lake: LakeConfig | None = None
    merge: MergeConfig = MergeConfig()
    maintain: MaintainConfig = MaintainConfig()
    tables: dict[TableName, TableConfig] = Field(default_factory=dict)

    def reloaded(self, new: Config) -> tuple[Config, list[str]]:
        """Return this configuration with what a running agent takes over of a new one.

        That is names and settings of tables, ``[dump]`` and ``[limits]``. Also return the names of the other
        settings of the agent that differ: they need a restart.
        """
        named = {"tables": new.source.tables, "exclude": new.source.exclude}
        source = self.source.model_copy(update=named)
        taken = {"source": source, "dump": new.dump, "limits": new.limits, "tables": new.tables}
        old_and_new: dict[str, tuple[_Section, _Section]] = {
            "source": (source, new.source),
            "landing": (self.landing, new.landing),
            "control": (self.control, new.control),
        }
        differ = [
            f"{section}.{name}"
            for section, (old, now) in old_and_new.items()
            for name in type(old).model_fields
            if getattr(old, name) != getattr(now, name)
        ]
        return self.model_copy(update=taken), differ

    def table(self, name: TableName) -> TableConfig:
        """Return a table's own settings, or the defaults."""
        return self.tables.get(name, TableConfig())


def load(path: str | Path, environ: Mapping[str, str] | None = None) -> Config:
    """Read a configuration file; `ConfigurationError` lists every problem in it, one per line.

    ``${NAME}`` in a string is replaced by an environment variable and ``${file:/path}`` by a file's content
    without the trailing newline; ``$${`` is a plain ``${``. In the user and password of ``source.url`` the
    values are percent-encoded, so a password can be written as it is.
    """
    problems = Problems(str(path))
    values = substitute(_parse(Path(path)), os.environ if environ is None else environ, problems)
    config = None
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        for found in error.errors(include_url=False):
            if found["loc"][-1] != "[key]":  # a name in [tables], which `_check_tables` checks
                problems.add(*describe(Config, found))
    _check_tables(values, problems)
    problems.raise_any()
    assert config is not None
    return config


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode()
        values: dict[str, Any] = tomllib.loads(text)
        return values
    except OSError as error:
        hint = "name a configuration with -c; complete examples are in conf/"
        raise ConfigurationError(f"{path}: {(error.strerror or str(error)).lower()}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        lines = text.splitlines() or [""]
        end = f"(at line {len(lines)}, column {len(lines[-1]) + 1})"
        message = str(error).replace("(at end of document)", end)
        raise ConfigurationError(f"{path}: malformed TOML: {message[0].lower()}{message[1:]}") from error


def _check_tables(values: dict[str, Any], problems: Problems) -> None:
    """Check the names in ``[tables]``, even when another setting makes the rest invalid."""
    tables, source = values.get("tables"), values.get("source")
    if not isinstance(tables, dict):
        return
    for text in tables:
        setting = f'tables."{text}"'
        try:
            table = TableName.parse(text)
            captured = _captured(source, table)
        except ValueError as error:
            problems.add(setting, str(error))
        else:
            if not captured:
                problems.add(setting, "is not in source.tables, or is in source.exclude")


def _captured(source: Any, table: TableName) -> bool:
    """Return whether a source section captures a table; True if the section is too broken to say."""
    wanted, excluded = (_patterns(source, name) for name in ("tables", "exclude"))
    if not wanted or excluded is None:
        return True
    return _matches(wanted, table) and not _matches(excluded, table)


def _patterns(source: Any, name: str) -> list[str] | None:
    patterns = _one_or_more(source.get(name, [])) if isinstance(source, dict) else None
    if isinstance(patterns, list) and all(_is_pattern(pattern) for pattern in patterns):
        return patterns
    return None


def _is_pattern(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(TableName.parse(text))
    except ValueError:
        return False
