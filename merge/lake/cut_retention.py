"""Decides which table properties keep the versions named by young cuts readable. Pure.

A cut younger than ``lake.retention_days`` needs the files and the log of the versions that it names.

- *Files.* VACUUM removes what was replaced longer than `delta.deletedFileRetentionDuration` ago; Delta 4
  ignores its RETAIN clause. The property is a day longer than the cuts stay: a cut is recorded up to hours
  after the commits that it names, and VACUUM must not take the files that a merge is about to commit.
- *Log.* When Delta writes a checkpoint, it removes entries older than `delta.logRetentionDuration`, even if a
  version to be kept needs them: its own entry and those since the checkpoint before it. If a table has not
  changed for long, these are old, and later commits would remove them. So the property must exceed their age.

A property that is too short is lengthened, whoever set it: the configuration promises the cuts. One that is
longer than needed is shortened only if upkeep set it, or nobody did.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from connector.errors import ConfigurationError

FILES = "delta.deletedFileRetentionDuration"
LOG = "delta.logRetentionDuration"
DEFAULT_HOURS = {FILES: 7 * 24.0, LOG: 30 * 24.0}

SET_BY_US = "deltatide.retention"
"""The property in which upkeep records, as JSON, the properties that it has set."""

MARGIN_HOURS = 24.0
VACUUM_MARGIN_HOURS = 6.0
"""Delta dates a removal by the time within the statement, which may be hours before its commit."""

LOG_MARGIN_HOURS = 7 * 24.0
"""The log that is needed gets older until the next upkeep."""

_HOURS = {"week": 168.0, "day": 24.0, "hour": 1.0, "minute": 1 / 60, "second": 1 / 3600}


def file_hours(retention_days: float) -> float:
    """Return how many hours files are kept after they were replaced."""
    return 24 * retention_days + MARGIN_HOURS


def replaced_file_hours(properties: Mapping[str, str]) -> float:
    """Return how many hours VACUUM keeps replaced files of a table: someone may have set more."""
    return _hours(properties, FILES)


def needed_properties(
    properties: Mapping[str, str], retention_days: float, log_age_hours: float
) -> dict[str, str]:
    """Return the properties to set, if any.

    `log_age_hours`: the age of the oldest log entry that a young cut needs.
    """
    ours = json.loads(properties.get(SET_BY_US, "{}"))
    files, now = file_hours(retention_days), _hours(properties, FILES)
    changes = {}
    if now < files or (now > files and _is_free(properties, ours, FILES)):
        changes[FILES] = _interval(files)
    files = _hours({**properties, **changes}, FILES)
    least, now = max(files, log_age_hours + LOG_MARGIN_HOURS), _hours(properties, LOG)
    # Twice the age, so that an unchanged table needs ever fewer commits.
    wanted = max(DEFAULT_HOURS[LOG], files, 2 * (log_age_hours + LOG_MARGIN_HOURS))
    if now < least or (now > 2 * wanted and LOG in properties and _is_free(properties, ours, LOG)):
        changes[LOG] = _interval(wanted)
    if changes:
        changes[SET_BY_US] = json.dumps(
            {name: v for name, v in (ours | changes).items() if name != SET_BY_US}
        )
    return changes


def _is_free(properties: Mapping[str, str], ours: Mapping[str, str], name: str) -> bool:
    return name not in properties or properties[name] == ours.get(name)


def _interval(hours: float) -> str:
    return f"interval {math.ceil(hours)} hours"


def _hours(properties: Mapping[str, str], name: str) -> float:
    """Return a property in hours."""
    value = properties.get(name)
    if value is None:
        return DEFAULT_HOURS[name]
    text = value.strip().lower().removeprefix("interval")
    parts = re.findall(r"(\d+)\s*(week|day|hour|minute|second)s?\b", text)
    if not parts or re.sub(r"\d+\s*(week|day|hour|minute|second)s?\b|\s", "", text):
        raise ConfigurationError(
            f"{name} is {value!r}, which upkeep can't read", hint="set it as in: interval 30 days"
        )
    return sum(int(number) * _HOURS[unit] for number, unit in parts)
