"""Looks for what makes a query's rows depend on more than its tables: chance, time, order. Pure.

By a list of what is known to be deterministic, not of what is known not to be. Words that a literal contains
count, too: a text ``rand(`` in a query only keeps it from being proven.
"""

from __future__ import annotations

import re

from merge.reading.plan_text import closing, items_of

KNOWN_FUNCTIONS = frozenset(
    """
    count sum min max avg mean count_if bool_and bool_or every some any

    abs ceil ceiling floor round bround sign signum sqrt mod pmod div greatest least negative positive
    coalesce nvl nvl2 ifnull nullif between nullifzero zeroifnull isnull isnotnull isnan nanvl if

    concat concat_ws upper lower ucase lcase initcap trim ltrim rtrim btrim both leading trailing substring
    substr left right length char_length character_length len octet_length bit_length replace translate lpad
    rpad repeat reverse instr locate position startswith endswith contains split split_part regexp_extract
    regexp_replace regexp_like regexp_substr regexp_count like ilike rlike overlay ascii chr char base64
    unbase64 hex unhex md5 sha sha1 sha2 crc32 hash xxhash64 get_json_object

    year month quarter day dayofmonth dayofweek dayofyear weekday weekofyear hour minute second date to_date
    to_timestamp to_timestamp_ntz timestamp date_trunc trunc date_add date_sub dateadd datediff date_diff
    add_months months_between last_day next_day make_date date_format unix_date unix_micros unix_millis
    unix_seconds timestamp_seconds timestamp_millis timestamp_micros date_from_unix_date extract date_part
    from_utc_timestamp to_utc_timestamp timestampadd timestampdiff

    array struct named_struct element_at size cardinality array_contains

    cast try_cast decimal varchar Some
    """.split()
)
"""Functions whose result depends on their arguments alone, and words that EXPLAIN prints like them.

Not here: what Java computes in its own way on each processor (exp, log, power, sin), and aggregates that
depend on the order of rows.
"""

_CALL = re.compile(r"([A-Za-z_][\w.]*)\(")
_SUBQUERY = re.compile(r"\b(?:subquery|exists|list)#\d")
_MOMENTS = ("cast", "try_cast", "date", "timestamp", "to_date", "to_timestamp", "to_timestamp_ntz")
_MOMENT_TYPES = re.compile(r" as (?:date|timestamp\w*)$")
_NAMED_MOMENT = re.compile(
    r"['\"]\s*(?:now|today|tomorrow|yesterday)\b"
    r"|(?<![\w'\"])(?:date|timestamp\w*)\s*r?['\"](?!\s*[+-]?\d(?!\d?:))",
    re.IGNORECASE,
)
_DAY = re.compile(r"\s*[+-]?\d(?!\d?:)")
"""How a constant begins that names a day or a number, unlike a time alone, which is taken to be today's."""

_AS_TIMESTAMP = " as timestamp"
_WITH_PATTERN = re.compile(r"\w+#\d+L?, Some\(")
_NO_TEXT = re.compile(r" as (?:date|timestamp\w*|\w*int|float|double|decimal\(\d+,\d+\))$")
_OF_DAYS = frozenset(
    "to_date date date_add date_sub add_months last_day next_day make_date trunc date_from_unix_date".split()
)

DEPENDS_ON_TIME = "it may depend on the time ('now', 'today', '12:30')"
TIMES_OF_TODAY = "it makes timestamps of texts without a pattern: of a time alone ('12:30'), one of today"
SUBQUERY = "it has a subquery in an expression"


def depends_in_text(sql: str) -> str | None:
    """Return why a query's text is not surely deterministic, or None.

    Of literals such as TIMESTAMP 'now', which Spark replaces before it prints any plan.
    """
    return DEPENDS_ON_TIME if _NAMED_MOMENT.search(sql) else None


def depends_in_plan(text: str) -> str | None:
    """Return why the expressions of a plan's node are not surely deterministic, or None."""
    unknown = next((name for name in _CALL.findall(text) if name not in KNOWN_FUNCTIONS), None)
    if unknown is not None:
        return f"it calls {unknown}, which is not known to be deterministic"
    if _SUBQUERY.search(text):
        return SUBQUERY
    for call in _CALL.finditer(text):
        end = closing(text, call.end() - 1)
        inner = text[call.end() : end]
        if "#" in inner and text[end + 1 : end + 2] == "#":  # Python's functions are printed with an id
            return f"it calls {call[1]}, which is a function of the session"
        is_moment = call[1] in _MOMENTS and ("cast" not in call[1] or _MOMENT_TYPES.search(inner))
        if is_moment and "#" not in inner and not _DAY.match(inner):
            return DEPENDS_ON_TIME
    return None


def made_timestamps(text: str) -> list[str]:
    """Return what the expressions of a plan's node make timestamps of, without a pattern; "" if unreadable.

    Constants are `depends_in_plan`'s. Of texts, see `TIMES_OF_TODAY`.
    """
    calls = [(call[1], text[call.end() : closing(text, call.end() - 1)]) for call in _CALL.finditer(text)]
    cast = [
        inner.removesuffix(_AS_TIMESTAMP)
        for name, inner in calls
        if name in ("cast", "try_cast") and inner.endswith(_AS_TIMESTAMP)
    ]
    parsed = [inner for name, inner in calls if name == "to_timestamp" and not _WITH_PATTERN.match(inner)]
    unread = [""] if len(cast) < text.count(f"{_AS_TIMESTAMP})") else []
    return [*cast, *((items_of(inner) or [""])[0] for inner in parsed), *unread]


def is_no_text(expression: str) -> bool:
    """Return whether an expression is surely a date, a timestamp or a number, by its function."""
    call = _CALL.match(expression)
    if call is None or closing(expression, call.end() - 1) != len(expression) - 1:
        return False
    if call[1] in ("cast", "try_cast"):
        return _NO_TEXT.search(expression[:-1]) is not None
    return call[1] in _OF_DAYS
