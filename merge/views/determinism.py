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
_NAMED_MOMENT = re.compile(
    r"['\"]\s*(?:now|today|tomorrow|yesterday)\b"
    r"|(?<![\w'\"])(?:date|timestamp\w*)\s*r?['\"](?!\s*[+-]?\d(?!\d?:))",
    re.IGNORECASE,
)
_DAY = re.compile(r"\s*(?:[+-]?\d(?!\d?:)|null\b)")
"""How a constant begins that names a day or a number, unlike a time alone, which is taken to be today's."""

_INSTANT = re.compile(r"[+-]?\d{4,}-\d\d-\d\d \d\d:\d\d:\d\d")
_REPLACED = ("between", "nvl", "nvl2", "ifnull", "nullif")
"""Functions that EXPLAIN prints as they were called: without the casts of their arguments to one type."""

_AS_TIMESTAMP = " as timestamp"
_AS_TIMESTAMPS = re.compile(r"(.*) as (?:array|map|struct)<.*\btimestamp\b.*", re.DOTALL)
_COLUMN = re.compile(r"\w+#(\d+)L?")
_ID = re.compile(r"#(\d+)")
_COMMITTED = re.compile(r"_cdc#\d+L?\.committed_at\b")
_NO_TEXT = re.compile(r" as (?:date|timestamp\w*|\w*int|float|double|decimal\(\d+,\d+\))$")
_OF_DAYS = frozenset(
    "to_date date date_add date_sub add_months last_day next_day make_date trunc date_from_unix_date".split()
)
_OF_NUMBERS = frozenset("abs bround ceil ceiling floor round".split())
_OF_INSTANTS = tuple(
    "to_timestamp( try_to_timestamp( make_timestamp( from_utc_timestamp( to_utc_timestamp( timestampadd("
    " date_trunc( timestamp_".split()
)
_OF_ONE_TYPE = ("coalesce", "greatest", "least", "nvl", "ifnull", "nullif")

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
        parsed = "to_" in name and _has_pattern(inner)
        if is_moment and not parsed and "#" not in inner and not _DAY.match(inner):
            return True
    return False


def may_be_of_today(text: str, type_of: Callable[[int], str | None], *, typed: bool = True) -> bool:
    """Return whether the expressions of a plan's node may make timestamps of texts without a pattern.

    `type_of`: returns the type of a column by its id; None: unknown. `names_moment` finds constants, but for
    those that get the type of a column beside them. Of texts, see `TIMES_OF_TODAY`. `typed`: whether a
    constant may be a timestamp, and not only a text that looks like one.
    """
    if any(_may_be_text(made, type_of) for made in _made_timestamps(text)):
        return True
    replaced = (
        items_of(inner)[name == "nvl2" :]  # its first argument has a type of its own
        for name, inner, _ in _calls(text)
        if name in _REPLACED
    )
    return any(_makes_one_type(items, type_of, typed) for items in replaced)


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
    parsed = [inner for name, inner in calls if name in _PARSING and not _has_pattern(inner)]
    unread = [""] if len(cast) < text.count(f"{_AS_TIMESTAMP})") else []
    return [*cast, *nested, *((items_of(inner) or [""])[0] for inner in parsed), *unread]


def _has_pattern(inner: str) -> bool:
    """Return whether the arguments of a function that parses texts include a pattern."""
    return any(item.startswith("Some(") for item in items_of(inner)[1:2])


def _makes_one_type(items: list[str], type_of: Callable[[int], str | None], typed: bool) -> bool:
    """Return whether arguments that are made to be of one type may be texts that become timestamps."""
    types = [_type(item, type_of) for item in items]
    times = any(type_ == "timestamp" for type_ in types)
    texts = any("#" in item and _may_be_text(item, type_of) for item in items)
    typed = typed and any(map(_INSTANT.match, items))  # or it is a text: EXPLAIN prints both alike
    alone = any("#" not in item and not _names_day(item) for item in items)
    return (texts and (times or typed)) or (times and alone)


def _names_day(constant: str) -> bool:
    """Return whether a constant names a day, or is made by a function that `names_moment` looks at."""
    call = _CALL.match(constant)
    if call is None or closing(constant, call.end() - 1) != len(constant) - 1:
        return _DAY.match(constant.lstrip("(")) is not None
    return call[1] not in _OF_ONE_TYPE and _makes_no_text((call[1], constant[call.end() : -1]))


def _type(expression: str, type_of: Callable[[int], str | None]) -> str | None:
    """Return the type of a column, or "timestamp" for what is surely one; None: unknown."""
    if found := _COLUMN.fullmatch(expression):
        return type_of(int(found[1]))
    made = expression.startswith(_OF_INSTANTS) or expression.endswith(f"{_AS_TIMESTAMP})")
    return "timestamp" if made or _COMMITTED.fullmatch(expression) else None


def _may_be_text(expression: str, type_of: Callable[[int], str | None]) -> bool:
    """Return whether an expression of columns may be a text; "" is one that could not be read."""
    types = [type_of(int(id_)) for id_ in _ID.findall(_COMMITTED.sub("0", expression))]
    if any(type_ is None or "string" in type_ for type_ in types):
        return not _is_no_text(expression, type_of)
    made = [(name, inner) for name, inner, _ in _calls(expression) if name != "decimal"]  # a type's name
    return not expression or (bool(types) and ("CASE " in expression or not all(map(_makes_no_text, made))))


def _is_no_text(expression: str, type_of: Callable[[int], str | None]) -> bool:
    """Return whether an expression is surely a date, a timestamp or a number, by its outermost function."""
    call = _CALL.match(expression)
    if call is None or closing(expression, call.end() - 1) != len(expression) - 1:
        return False
    inner = expression[call.end() : -1]
    if call[1] in _OF_ONE_TYPE:
        return not any(_may_be_text(item, type_of) for item in items_of(inner))
    return _makes_no_text((call[1], inner))


def _makes_no_text(call: tuple[str, str]) -> bool:
    name, inner = call
    if name in ("cast", "try_cast"):
        return _NO_TEXT.search(inner) is not None
    known = name in _OF_DAYS or name in _OF_ONE_TYPE or name.lower() in _OF_NUMBERS
    return known or f"{name}(".startswith(_OF_INSTANTS)
