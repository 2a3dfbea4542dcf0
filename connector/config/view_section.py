"""The sections of the materialized views: ``[views.NAME]``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo, model_validator

from connector.config.section import Section
from connector.errors import ConfigurationError
from connector.schema import fold


def _beside_the_configuration(file: Path, info: ValidationInfo) -> Path:
    folder = (info.context or {}).get("folder", Path())
    return Path(folder, file.expanduser()).absolute()


class ViewConfig(Section):
    """``[views.NAME]``: a query over the lake's tables and other views, kept as a Delta table.

    `sql`: the query, one SELECT. `file`: a file that holds it instead; relative to the configuration's
    folder. `incremental`: recompute only rows that may have changed, where that provably gives the same rows.
    """

    sql: str | None = None
    file: Annotated[Path, AfterValidator(_beside_the_configuration)] | None = None
    incremental: bool = False

    @model_validator(mode="after")
    def _one_query(self) -> ViewConfig:
        if (self.sql is None) == (self.file is None):
            raise ValueError("set either sql or file")
        if self.sql is not None and not self.sql.strip():
            raise ValueError("sql must not be empty")
        return self

    def query(self) -> str:
        """Return the query's text. The file is read only now, since only a merge needs it."""
        if self.file is None:
            return self.sql or ""
        try:
            text = self.file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = (getattr(error, "strerror", None) or "not UTF-8").lower()
            raise ConfigurationError(
                f"{self.file}: {reason}", hint="a view's file holds one SELECT"
            ) from None
        if not text.strip():
            raise ConfigurationError(f"{self.file} is empty", hint="a view's file holds one SELECT")
        return text


def _name(name: str) -> str:
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,99}", name) is None:
        raise ValueError("a view's name has up to 100 ASCII letters, digits and _, a letter first")
    return name


def _apart(views: dict[str, ViewConfig]) -> dict[str, ViewConfig]:
    seen: dict[str, str] = {}
    for name in views:
        if (other := seen.setdefault(fold(name), name)) != name:
            raise ValueError(f"{name} and {other} differ only by case")
    return views


Views = Annotated[dict[Annotated[str, AfterValidator(_name)], ViewConfig], AfterValidator(_apart)]
