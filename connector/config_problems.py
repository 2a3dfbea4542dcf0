"""Problems of a configuration file: collected, worded for its author, and without secrets.

Also substitutes ``${...}``, because the substituted values are what must not show in a message.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from pydantic import BaseModel

from connector.errors import ConfigurationError

_REFERENCE = re.compile(r"\$?\$\{([^}]*)\}")
_PASSWORD = re.compile(r"(://[^\s:/@]*):[^\s'\"]*@")

_WORDS = {
    "missing": "is missing",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "dict_type": "must be a section",
    "model_type": "must be a section",
    "model_attributes_type": "must be a section",
}


class Problems:
    """What is wrong with one file, in the order found."""

    def __init__(self, file: str, environ: Mapping[str, str]) -> None:
        self._file = file
        self._environ = environ
        self._lines: list[str] = []
        self._secrets: dict[str, str] = {}

    def add(self, setting: str, problem: str) -> None:
        """Add a problem of one setting; an empty setting means the file itself."""
        line = f"{setting}: {problem}" if setting else problem
        for value, name in sorted(self._secrets.items(), key=lambda item: -len(item[0])):
            line = line.replace(value, name)
        line = _PASSWORD.sub(r"\1:***@", line)
        if line not in self._lines:
            self._lines.append(line)

    def raise_any(self) -> None:
        """Raise one `ConfigurationError` with a line per problem, if there are any."""
        if self._lines:
            raise ConfigurationError(
                "\n".join(f"{self._file}: {line}" for line in self._lines),
                hint="complete, commented examples are in conf/",
            )

    def substitute(self, values: dict[str, Any]) -> dict[str, Any]:
        """Replace ``${...}`` in every string by its value, recording those that can't be resolved."""
        return {name: self._filled(value, name) for name, value in values.items()}

    def _filled(self, value: Any, setting: str) -> Any:
        if isinstance(value, dict):
            return {name: self._filled(v, f"{setting}.{name}") for name, v in value.items()}
        if isinstance(value, list):
            return [self._filled(v, setting) for v in value]
        if isinstance(value, str):
            return self._fill(value, setting)
        return value

    def _fill(self, text: str, setting: str) -> str:
        userinfo = text.find("://"), text.rfind("@")

        def value_of(match: re.Match[str]) -> str:
            if match[0].startswith("$$"):
                return match[0][1:]
            value = self._look_up(match[1], setting)
            if setting == "source.url" and -1 < userinfo[0] < match.start() < userinfo[1]:
                return self._hide(quote(value, safe=""), match[0])
            return value

        return _REFERENCE.sub(value_of, text)

    def _look_up(self, name: str, setting: str) -> str:
        if name.startswith("file:"):
            try:
                value = Path(name[5:]).read_text().rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "not text"
                self.add(setting, f"${{{name}}}: {reason.lower()}")
                return "missing"
        elif name in self._environ:
            value = self._environ[name]
        else:
            self.add(setting, f"the environment has no variable {name}")
            return "missing"
        return self._hide(value, f"${{{name}}}")

    def _hide(self, value: str, name: str) -> str:
        if len(value) > 2:  # a shorter one is no secret, and would match in every other word
            self._secrets[value] = name
        return value


def describe(model: type[BaseModel], error: Any) -> tuple[str, str]:
    """Return the setting and the problem that a pydantic error is about."""
    location = [part for part in error["loc"] if not (isinstance(part, str) and part.startswith("function-"))]
    if error["type"] == "extra_forbidden":
        return _setting(location), _unknown(model, location)
    return _setting(location), _problem(error)


def _setting(location: list[Any]) -> str:
    parts: list[str] = []
    for i, part in enumerate(location):
        if isinstance(part, int):
            parts[-1] += f"[{part}]"
        else:
            parts.append(f'"{part}"' if location[0] == "tables" and i == 1 else part)
    return ".".join(parts)


def _problem(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "literal_error":
        return f"{error['input']!r} is not supported, use {context['expected']}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_pattern_mismatch":
        return f"{error['input']!r} does not match {context['pattern']}"
    if kind == "too_short":
        return "must not be empty"
    message: str = error["msg"].replace("Input should be", "must be")
    return _WORDS.get(kind, message[0].lower() + message[1:])


def _unknown(model: type[BaseModel], location: list[Any]) -> str:
    name = str(location[-1])
    what = "unknown section" if len(location) == 1 else "unknown setting"
    known = _names(_model_at(model, location[:-1]))
    if near := difflib.get_close_matches(name, known, 1, 0.6):
        return f"{what}, did you mean {near[0]}?"
    for section, field in model.model_fields.items():
        if any(name in m.model_fields for m in _models(field.annotation)):
            return f"{what}, it belongs to [{section}]"
    return f"{what}, known are {', '.join(known)}"


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(model: type[BaseModel], location: list[Any]) -> type[BaseModel]:
    for part in location:
        if part in model.model_fields:
            model = next(_models(model.model_fields[part].annotation), model)
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    arguments = get_args(annotation)
    if not arguments and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in arguments:
        yield from _models(argument)
