"""Which expressions have values that depend on settings or on the moment, which no row event shows. Pure.

A virtual column is computed where it is read: log and dump have what the settings of their sessions make of
it, and a changed global setting changes it in all rows. The functions below are, by the setting:

- ``time_zone``: those that turn a TIMESTAMP or a number of seconds into a time, or back;
- ``lc_time_names``: those that name days and months;
- ``default_week_format``: ``week`` without a mode, and ``extract(week from ...)``;
- ``div_precision_increment``: ``/``;
- ``sql_mode``: ``str_to_date`` and casts of texts and numbers to dates, which make zero dates or none; on
  MySQL also what takes a part of such a date, and ``<`` and the like between a text and a date; ``greatest``
  and ``least`` of dates and anything else;
- ``block_encryption_mode``: ``aes_encrypt`` and ``aes_decrypt``;
- ``default_regex_flags`` (MariaDB): regular expressions.

Which of them a column may use at all differs between servers. Expressions are as information_schema shows
them: MySQL writes quotes with a backslash.

Not noticed: settings that change what an expression does with a column's value before any function, as
PAD_CHAR_TO_FULL_LENGTH does, comparisons (but for ``greatest`` and ``least``) in which a text or a date is
not a column or a literal, but computed, whether digits after the second are rounded or cut off, and those
that limit the length of a result.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from connector.mysql.connection import quote

_FUNCTIONS = re.compile(
    r"\b(?:from_unixtime|unix_timestamp|convert_tz|dayname|monthname|str_to_date|aes_encrypt|aes_decrypt"
    r"|now|sysdate|curdate|curtime|current_\w+|localtime\w*|utc_\w+|user|session_user|system_user|database"
    r"|schema|connection_id|last_insert_id|found_rows|row_count|version|rand|uuid\w*|random_bytes)\(|@@"
    r"|\bextract\(week from\b",
    re.IGNORECASE,
)

_MARIADBS = re.compile(
    r"\b(?:to_char|regexp_\w+|sys_guid|encrypt|password|des_\w+)\(|\b(?:regexp|rlike)\b", re.IGNORECASE
)

_DATE_FORMAT = re.compile(r"\bdate_format\(", re.IGNORECASE)
_NAMES_IN_FORMAT = re.compile(r"%[abMW]")

_WEEK = re.compile(r"\bweek\(", re.IGNORECASE)

_TO_DATE = re.compile(r"\bas date|\b(?:date|timestamp|last_day|from_days)\(", re.IGNORECASE)
"""What takes texts and numbers for dates, and adds the current date to a TIME."""

_MYSQLS_TO_DATE = re.compile(
    r"\b(?:year|month|dayofmonth|quarter|to_days|datediff|date_format|extract)\(", re.IGNORECASE
)

_QUOTED = re.compile(r"\\'(?:\\\\\\'|\\\\|[^\\])*\\'|'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`", re.DOTALL)


def depends_on_settings(expression: str, *, mariadb: bool, all_dates: bool) -> bool:
    """Return whether the value of an expression may depend on settings or on the moment.

    `all_dates`: all columns that it uses are DATE or DATETIME.
    """
    return bool(
        _FUNCTIONS.search(expression)
        or (mariadb and _MARIADBS.search(expression))
        or _names_days(expression)
        or any(_lacks_mode(expression, found.end()) for found in _WEEK.finditer(expression))
        or (not all_dates and _TO_DATE.search(expression))
        or (not all_dates and not mariadb and _MYSQLS_TO_DATE.search(expression))
        or "/" in _QUOTED.sub("", expression)
    )


def compares_texts_with_dates(
    expression: str, dates: Collection[str], others: Collection[str], texts: Collection[str], *, mariadb: bool
) -> bool:
    """Return whether an expression takes texts for dates, or dates for texts, since it compares them.

    These are columns: `dates` are DATE or DATETIME, `others` all others, and `texts` those of text.
    """
    if _EXTREME.search(expression):
        has_date = _DATE_LITERAL.search(expression) or any(quote(name) in expression for name in dates)
        if has_date and any(quote(name) in expression for name in others):
            return True
    return not mariadb and any(
        _is_date(one, dates) and other in map(quote, texts)
        for pair in _COMPARED.findall(expression)
        for one, other in (pair, pair[::-1])
    )


_EXTREME = re.compile(r"\b(?:greatest|least)\(", re.IGNORECASE)
_DATE_LITERAL = re.compile(r"\b(?:date|timestamp)\\?'", re.IGNORECASE)
_SIDE = r"(`(?:[^`]|``)+`|\b(?:date|timestamp)\\?'[^']+')"
_COMPARED = re.compile(rf"(?={_SIDE} (?:<=?|>=?|=|<=>|<>) {_SIDE})", re.IGNORECASE)
"""The sides of each comparison of columns and dates, as MySQL writes it; two may share one."""


def _is_date(side: str, dates: Collection[str]) -> bool:
    return bool(_DATE_LITERAL.match(side)) or side in map(quote, dates)


def _names_days(expression: str) -> bool:
    """Return whether a date is formatted with names, or by a format that is not in the expression."""
    if not _DATE_FORMAT.search(expression):
        return False
    return "%" not in expression or bool(_NAMES_IN_FORMAT.search(expression))


def _lacks_mode(expression: str, begin: int) -> bool:
    """Return whether the call whose arguments begin there has only one."""
    depth = 0
    for sign in _QUOTED.sub("", expression[begin:]):
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if depth < 0 or (sign == "," and depth == 0):
            return sign == ")"
    return True
