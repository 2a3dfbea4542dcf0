"""The whole configuration file, read once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from connector.config.agent_sections import (
    ControlConfig,
    DumpConfig,
    LandingConfig,
    LimitsConfig,
    SourceConfig,
)
from connector.config.lake_sections import (
    LakeConfig,
    MaintainConfig,
    MergeConfig,
    TableConfig,
    VerifyConfig,
)
from connector.config.problems import Problems, describe
from connector.config.references import UNRESOLVED, substitute
from connector.config.section import Section, matches, one_or_more
from connector.config.target_columns import SHA256
from connector.config.view_section import Views
from connector.errors import ConfigurationError
from connector.schema import TableName

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


SHORTEST_SALT = 16
"""In characters; random text of this length can't be guessed."""


class Config(Section):
    """The whole file."""

    source: SourceConfig
    landing: LandingConfig
    dump: DumpConfig = DumpConfig()
    limits: LimitsConfig = LimitsConfig()
    control: ControlConfig = ControlConfig()
    lake: LakeConfig | None = None
    merge: MergeConfig = MergeConfig()
    maintain: MaintainConfig = MaintainConfig()
    verify: VerifyConfig = VerifyConfig()
    tables: dict[TableName, TableConfig] = Field(default_factory=dict)
    views: Views = Field(default_factory=dict)

    def reloaded(self, new: Config) -> tuple[Config, list[str]]:
        """Return this configuration with the changes that a running agent can apply.

        These are names and settings of tables, ``[dump]`` and ``[limits]`` except its `replicas`. Also return
        the names of the agent's other settings that differ: they need a restart. `ConfigurationError` if
        values would land hashed and this configuration has no salt: unsalted hashes hide little.
        """
        if self.salt is None and any(
            its.mask_before_landing and SHA256 in its.mask.values() for its in new.tables.values()
        ):
            raise ConfigurationError(
                f"mask_before_landing with {SHA256} needs lake.salt, which a reload does not apply",
                hint="restart the agent",
            )
        named = {"tables": new.source.tables, "exclude": new.source.exclude}
        source = self.source.model_copy(update=named)
        limits = new.limits.model_copy(update={"replicas": self.limits.replicas})
        taken = {"source": source, "dump": new.dump, "limits": limits, "tables": new.tables}
        old_and_new: dict[str, tuple[Section, Section]] = {
            "source": (source, new.source),
            "landing": (self.landing, new.landing),
            "limits": (limits, new.limits),
            "control": (self.control, new.control),
        }
        differ = [
            f"{section}.{name}"
            for section, (old, now) in old_and_new.items()
            for name in type(old).model_fields
            if getattr(old, name) != getattr(now, name)
        ]
        if any(its.mask_before_landing for its in new.tables.values()) and self.salt != new.salt:
            differ.append("lake.salt")
        return self.model_copy(update=taken), differ

    @property
    def salt(self) -> bytes | None:
        """Return the secret key of masks; None if not set."""
        return self.lake.salt.encode() if self.lake is not None and self.lake.salt is not None else None

    def table(self, name: TableName) -> TableConfig:
        """Return a table's own settings, or the defaults."""
        return self.tables.get(name, TableConfig())


def load(path: str | Path, environ: Mapping[str, str] | None = None) -> Config:
    """Read a configuration file; `ConfigurationError` lists every problem in it, one per line.

    ``${NAME}`` in a string is replaced by an environment variable, and ``${file:/path}`` by a file's content
    without the trailing newline; ``$${`` is a literal ``${``. In the user and password of a database's url,
    such values are percent-encoded, so the variable or file holds the password as it is.
    """
    problems = Problems(str(path))
    values = substitute(_parse(Path(path)), os.environ if environ is None else environ, problems)
    config = None
    try:
        config = Config.model_validate(values, context={"folder": Path(path).parent})
    except ValidationError as error:
        for found in error.errors(include_url=False):
            if found["loc"][0] != "tables" or found["loc"][-1] != "[key]":  # `_check_tables` checks those
                problems.add(*describe(Config, found))
    _check_tables(values, problems)
    if config is not None:
        _check_salt(config, problems)
        if config.limits.replicas and config.source.kind == "postgres":
            problems.add("limits.replicas", "is for MySQL and MariaDB: PostgreSQL knows its standbys' lag")
        if config.source.allow_partial_row_images and config.source.kind == "postgres":
            problems.add("source.allow_partial_row_images", "is for MySQL and MariaDB")
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
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise ConfigurationError(f"{path}: can't be read: {error}") from error


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


def _check_salt(config: Config, problems: Problems) -> None:
    """Check the secret of ``sha256``: without a good one, a known value can be found by its hash."""
    salt = None if config.lake is None else config.lake.salt
    hashed = [
        table
        for table, its in config.tables.items()
        if SHA256 in its.mask.values() and (config.lake is not None or its.mask_before_landing)
    ]
    if salt is None and hashed:
        problems.add("lake.salt", f'is missing: tables."{hashed[0]}".mask has {SHA256}')
    if salt is not None and len(salt) < SHORTEST_SALT and salt != UNRESOLVED:
        problems.add("lake.salt", f"must have {SHORTEST_SALT} characters or more")


def _captured(source: Any, table: TableName) -> bool:
    """Return whether a source section captures a table; True if the section is too broken to tell."""
    wanted, excluded = (_patterns(source, name) for name in ("tables", "exclude"))
    if not wanted or excluded is None:
        return True
    return matches(wanted, table) and not matches(excluded, table)


def _patterns(source: Any, name: str) -> list[str] | None:
    patterns = one_or_more(source.get(name, [])) if isinstance(source, dict) else None
    if isinstance(patterns, list) and all(_is_pattern(pattern) for pattern in patterns):
        return patterns
    return None


def _is_pattern(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(TableName.parse(text))
    except ValueError:
        return False
