"""Problems of a configuration file: collected, worded for its author, and without secrets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from connector.errors import ConfigurationError

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

    def __init__(self, file: str) -> None:
        self._file = file
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

    def hide(self, secret: str, name: str) -> None:
        """Show `name` instead of a secret in all problems added from now on."""
        if len(secret) > 2:  # a shorter one is no secret, and would match in many words
            self._secrets[secret] = name


def describe(model: type[BaseModel], error: Any) -> tuple[str, str]:
    """Return the setting and the problem that a pydantic error is about."""
    location = [part for part in error["loc"] if not _is_internal(part)]
    if error["type"] == "extra_forbidden":
        return _setting(location), _unknown(model, location)
    return _setting(location), _problem(error)


def _is_internal(part: Any) -> bool:
    return isinstance(part, str) and (part.startswith("function-") or part == "[key]")


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
        return f"{error['input']!r} is not supported; use {context['expected']}"
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
        return f"{what}; did you mean {near[0]}?"
    for section, field in model.model_fields.items():
        if any(name in m.model_fields for m in _models(field.annotation)):
            return f"{what}; it belongs in [{section}]"
    return f"{what}; known: {', '.join(known)}"


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
