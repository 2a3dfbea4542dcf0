"""Looks for what makes a query's rows depend on more than its tables: chance, time, order. Pure.

By a list of what is known to be deterministic, not of what is known not to be. Words that a literal contains
count, too: a text ``rand(`` in a query only keeps it from being proven.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

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
_PARSING = ("to_timestamp", "to_timestamp_ltz", "try_to_timestamp")
_MOMENTS = ("cast", "try_cast", "date", "timestamp", "to_date", "to_timestamp_ntz", *_PARSING)
_MOMENT_TYPES = re.compile(r" as (?:date|timestamp\w*)$")
_TIME_OF_DAY = re.compile(r"\b(?:(?:try_)?to_time|make_time|time_trunc)\(| as time\(\d\)")
"""What is of the type TIME (Spark 4.1), of which Spark makes a timestamp of today (SPARK-52617)."""

_NAMED_MOMENT = re.compile(
    r"['\"]\s*(?:now|today|tomorrow|yesterday)\b"
    r"|(?<![\w'\"])(?:date|timestamp\w*)\s*r?['\"](?!\s*[+-]?\d(?!\d?:))",
    re.IGNORECASE,
)
_DAY = re.compile(r"\s*(?:[+-]?\d(?!\d?:)|null\b)")
"""How a constant begins that names a day or a number, unlike a time alone, which is taken to be today's."""

_INSTANT = re.compile(r"[+-]?\d{4,}-\d\d-\d\d \d\d:\d\d:\d\d")
_REPLACED = ("between", "nvl", "nvl2", "ifnull", "nullif", "equal_null", "decode", "try_subtract")
"""Functions that an analyzed plan shows as called: without the casts of their arguments to one type."""

_AS_TIMESTAMP = " as timestamp"
_AS_TIMESTAMPS = re.compile(r"(.*) as (?:array|map|struct)<.*\btimestamp\b.*", re.DOTALL)
_ENDS_OF_CASTS = re.compile(r" as (?:timestamp|(?:array|map|struct)<[^)]*\btimestamp\b[^)]*)\)")
_AS_TEXT = " as string"
_COLUMN = re.compile(r"\w+#(\d+)L?")
_ID = re.compile(r"#(\d+)")
_INSTANT_OF_CDC = re.compile(r"_cdc#\d+L?\.(?:committed|deleted)_at\b")
_OF_TIME = re.compile(r"\b(?:date|timestamp)\b")
_OF_DAY = re.compile(r"\b(?:date|timestamp\w*)\b")
_NO_TEXT = re.compile(r" as (?:date|timestamp\w*|\w*int|float|double|decimal\(\d+,\d+\))$")
_OF_DAYS = frozenset(
    "to_date date date_add date_sub add_months last_day next_day make_date trunc date_from_unix_date".split()
)
_OF_NUMBERS = frozenset(
    "abs avg bround ceil ceiling count floor length mod pmod round sum unix_date unix_micros unix_millis"
    " unix_seconds unix_timestamp to_unix_timestamp".split()
)
_OF_INSTANTS = tuple(
    "to_timestamp( try_to_timestamp( make_timestamp( from_utc_timestamp( to_utc_timestamp( timestampadd("
    " date_trunc( timestamp_ gettimestamp(".split()
)
_OF_ONE_TYPE = ("coalesce", "greatest", "least", "nvl", "ifnull", "nullif", "min", "max")
_OF_ANY_TYPE = frozenset((*_OF_ONE_TYPE, *"nvl2 if element_at array struct named_struct".split()))
"""Functions whose result is, or has, one of their arguments."""

_OF_OTHER_TYPES = frozenset(
    name for name in KNOWN_FUNCTIONS - _OF_ANY_TYPE - {"timestamp"} if not f"{name}(".startswith(_OF_INSTANTS)
)
_MAYBE_TEXT = re.compile("string|char|variant")
_INSTANTS_INSIDE = re.compile(r"\bTimestampType\b(?!\)|(?:, (?:try_)?to_\w+)?, Some\()")
"""The type in the schema of a parser (from_json, variant_get); to_timestamp has a zone after it, and
make_timestamp has it last."""


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
    for name, inner, after in _calls(text):
        if "#" in inner and after == "#":  # Python's functions are printed with an id
            return f"it calls {name}, which is a function of the session"
    return DEPENDS_ON_TIME if names_moment(text) else None


def names_moment(text: str) -> bool:
    """Return whether the expressions of a plan's node make a date or a timestamp of a text like '12:30'."""
    for name, inner, _ in _calls(text):
        is_moment = name in _MOMENTS and ("cast" not in name or _MOMENT_TYPES.search(inner))
        if is_moment and _TIME_OF_DAY.search(inner):
            return True
        if "#" in inner or not is_moment or ("to_" in name and _has_pattern(inner)):
            continue
        made_of = _MOMENT_TYPES.sub("", inner) if "cast" in name else items_of(inner)[:1]
        if not all(_names_day(each) for each in ([made_of] if isinstance(made_of, str) else made_of)):
            return True
    return False


def may_be_of_today(text: str, type_of: Callable[[int], str | None]) -> bool:
    """Return whether the expressions of a plan's node may make timestamps of texts without a pattern.

    `type_of`: returns the type of a column by its id; None: unknown. `names_moment` finds constants, but for
    those that get the type of a column beside them. Of texts, see `TIMES_OF_TODAY`.
    """
    if any(_may_be_text(made, type_of) for made in _made_timestamps(text)):
        return True
    return any(_makes_one_type(items, type_of) for items in _replaced(text)) or may_be_special(text, type_of)


def may_be_special(text: str, type_of: Callable[[int], str | None]) -> bool:
    """Return whether expressions of an analyzed plan may make a moment of a text like 'to' || 'day'.

    Where a function has both a time and such a constant: the optimized plan has the day itself in its place.
    """
    return any(
        any(_may_be_time(item, type_of) for item in items)
        and any("(" in item and "#" not in item and not _names_day(item) for item in items)
        for items in _replaced(text)
    )


def _replaced(text: str) -> Iterator[list[str]]:
    """Return the arguments of functions that are made to be of one type."""
    for name, inner, _ in _calls(text):
        if name in _REPLACED:
            yield items_of(inner)[name == "nvl2" :]  # its first argument has a type of its own


def _calls(text: str) -> Iterator[tuple[str, str, str]]:
    """Return the name of each call, its arguments, and the character that follows it."""
    for call in _CALL.finditer(text):
        end = closing(text, call.end() - 1)
        yield call[1], text[call.end() : end], text[end + 1 : end + 2]


def _made_timestamps(text: str) -> list[str]:
    """Return what timestamps are made of without a pattern; "" if unreadable."""
    calls = [(name, inner) for name, inner, _ in _calls(text)]
    casts = [inner for name, inner in calls if name in ("cast", "try_cast")]
    cast = [inner.removesuffix(_AS_TIMESTAMP) for inner in casts if inner.endswith(_AS_TIMESTAMP)]
    nested = [found[1] for found in map(_AS_TIMESTAMPS.fullmatch, casts) if found]
    less = [items_of(inner, " - ") for inner in casts if inner.endswith(_AS_TEXT)]
    parsed = [inner for name, inner in calls if name in _PARSING and not _has_pattern(inner)]
    read = len(cast) + len(nested) == len(_ENDS_OF_CASTS.findall(text))
    unread = [] if read and not _INSTANTS_INSIDE.search(text) else [""]
    of_less = [left[0] for left in less if len(left) > 1]  # how a text less an interval is printed
    return [*cast, *nested, *((items_of(inner) or [""])[0] for inner in parsed), *of_less, *unread]


def _has_pattern(inner: str) -> bool:
    """Return whether the arguments of a function that parses texts include a pattern."""
    return any(item.startswith("Some(") for item in items_of(inner)[1:2])


def _makes_one_type(items: list[str], type_of: Callable[[int], str | None]) -> bool:
    """Return whether arguments that are made to be of one type may be texts that become timestamps."""
    times = [n for n, item in enumerate(items) if _may_be_timestamp(item, type_of)]
    texts = [n for n, item in enumerate(items) if _may_be_text(item, type_of)]
    return any(one != other for one in times for other in texts)


def _names_day(constant: str) -> bool:
    """Return whether a constant names a day, or is made by a function that `names_moment` looks at."""
    call = _outermost(constant)
    if call is None:
        return _DAY.match(constant.lstrip("(")) is not None
    return _makes_no_text(call)


def _outermost(expression: str) -> tuple[str, str] | None:
    """Return the name and arguments of the function whose call is all of an expression."""
    call = _CALL.match(expression)
    if call is None or closing(expression, call.end() - 1) != len(expression) - 1:
        return None
    return call[1], expression[call.end() : -1]


def _may_be_timestamp(expression: str, type_of: Callable[[int], str | None]) -> bool:
    call = _outermost(expression)
    if call is not None and call[0] in _OF_OTHER_TYPES:
        return "cast" in call[0] and (
            call[1].endswith(_AS_TIMESTAMP) or bool(_AS_TIMESTAMPS.fullmatch(call[1]))
        )
    if found := _COLUMN.fullmatch(expression):
        type_ = type_of(int(found[1]))
        return type_ is None or "timestamp" in type_.replace("timestamp_ntz", "")
    types = [type_of(int(id_)) for id_ in _ID.findall(expression)]
    of_time = any(type_ is None or _OF_TIME.search(type_) for type_ in types)
    made = f"{_AS_TIMESTAMP})" in expression or any(each in expression for each in _OF_INSTANTS)
    return of_time or made or _INSTANT.search(expression) is not None


def _may_be_time(expression: str, type_of: Callable[[int], str | None]) -> bool:
    """Return whether an expression may be a timestamp or a date."""
    types = (type_of(int(id_)) or "date" for id_ in _ID.findall(expression))
    return _may_be_timestamp(expression, type_of) or any(_OF_DAY.search(type_) for type_ in types)


def _may_be_text(expression: str, type_of: Callable[[int], str | None]) -> bool:
    """Return whether an expression may be a text, or is a constant that names no day; "" is unreadable."""
    if "#" not in expression:
        return not _names_day(expression)
    if found := _COLUMN.fullmatch(expression):
        type_ = type_of(int(found[1]))
        return type_ is None or _MAYBE_TEXT.search(type_) is not None
    if _INSTANT_OF_CDC.fullmatch(expression):
        return False
    if (call := _outermost(expression)) is not None:
        if call[0] in _OF_ONE_TYPE:
            return any(_may_be_text(item, type_of) for item in items_of(call[1]))
        return not _makes_no_text(call)
    if expression.startswith("(") and closing(expression, 0) == len(expression) - 1:
        return False  # a sum or the like: what is made of a text and an interval is cast to a text
    moved = re.match(r".*? [+-] (?=-?INTERVAL )", expression)  # a date or timestamp
    return moved is None or _may_be_text(expression[: moved.end() - 3], type_of)


def _makes_no_text(call: tuple[str, str]) -> bool:
    name, inner = call
    if name in ("cast", "try_cast"):
        return _NO_TEXT.search(inner) is not None
    known = name in _OF_DAYS or name.lower() in _OF_NUMBERS
    return known or f"{name}(".startswith(_OF_INSTANTS)
