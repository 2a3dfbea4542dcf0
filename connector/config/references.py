"""Replaces ``${NAME}`` and ``${file:/path}`` in a configuration by the values that they refer to.

The values are secrets: `Problems` shows the reference instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from connector.config.problems import Problems

_REFERENCE = re.compile(r"\$?\$\{([^}]*)\}")

_URLS = ("source.url", "limits.replicas")
"""Settings with a user and a password in them."""

UNRESOLVED = "missing"
"""Placeholder for a value that can't be read, so that the rest of the file can be checked."""


def substitute(values: dict[str, Any], environ: Mapping[str, str], problems: Problems) -> dict[str, Any]:
    """Replace the references in every string, at any depth; add those that can't be resolved to `problems`.

    ``$${`` becomes a plain ``${``. In the user and password of a database's url, values are percent-encoded.
    """
    references = _References(environ, problems)
    return {name: references.replace(value, name) for name, value in values.items()}


class _References:
    def __init__(self, environ: Mapping[str, str], problems: Problems) -> None:
        self._environ, self._problems = environ, problems

    def replace(self, value: Any, setting: str) -> Any:
        if isinstance(value, dict):
            return {name: self.replace(v, f"{setting}.{name}") for name, v in value.items()}
        if isinstance(value, list):
            return [self.replace(v, setting) for v in value]
        if isinstance(value, str):
            return self._replace_in(value, setting)
        return value

    def _replace_in(self, text: str, setting: str) -> str:
        userinfo = text.find("://"), text.rfind("@")

        def value_of(match: re.Match[str]) -> str:
            if match[0].startswith("$$"):
                return match[0][1:]
            value = self._look_up(match[1], setting)
            if setting in _URLS and -1 < userinfo[0] < match.start() < userinfo[1]:
                value = quote(value, safe="")
                self._problems.hide(value, match[0])
            return value

        return _REFERENCE.sub(value_of, text)

    def _look_up(self, name: str, setting: str) -> str:
        if name.startswith("file:"):
            try:
                value = Path(name[5:]).read_text().rstrip("\r\n")
            except (OSError, ValueError) as error:  # it is not text, or its name holds a zero byte
                reason = getattr(error, "strerror", None) or "not text"
                self._problems.add(setting, f"${{{name}}}: {reason.lower()}")
                return UNRESOLVED
        elif name in self._environ:
            value = self._environ[name]
        else:
            self._problems.add(setting, f"environment variable {name} is not set")
            return UNRESOLVED
        self._problems.hide(value, f"${{{name}}}")
        return value
