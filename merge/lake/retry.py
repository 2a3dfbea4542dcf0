"""Retries commits that lost to another job's and reads that a store broke off; classifies Spark's errors."""

from __future__ import annotations

import logging
import re
import shlex
import traceback
from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import AnalysisException, PySparkException
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from connector.config import Config
from connector.errors import DeltatideError, FencedError, FormatError, GapError, TableError
from connector.schema import TableName

T = TypeVar("T")

log = logging.getLogger(__name__)

SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
try:  # a local session raises Java's own errors if it has no Python class for them
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    SPARK_ERRORS += (Py4JJavaError,)
except ImportError:
    pass

UNEXPECTED = (ArithmeticError, LookupError, TypeError, ValueError)
"""Python's errors about values that our code can't handle: a bug, but one that affects only that table."""

TABLE_ERRORS: tuple[type[Exception], ...] = (
    TableError,
    FencedError,
    GapError,
    FormatError,
    *SPARK_ERRORS,
    *UNEXPECTED,
)
"""Errors that stop the merge of one table and let the others go on.

`GapError`, `FormatError`: a manifest or a layout is gone or damaged that only this table needs again; new
manifests are checked before any table.
"""

ATTEMPTS = 6
"""Two jobs on one table need one or two attempts; more means that somebody else keeps writing there."""

WAIT = wait_exponential(multiplier=0.2, max=5) + wait_random(0, 0.2)
"""Six seconds in all: another job may need seconds from a table's folder to its first commit."""

CONFLICTS = re.compile(
    "DELTA_CONCURRENT|Concurrent[A-Za-z]*Exception|(METADATA|PROTOCOL)_CHANGED|(Metadata|Protocol)ChangedException"
)

BEING_CREATED = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
"""Another job may be creating the table, and has not committed yet. Or unrelated files are there for good."""

LOST = re.compile(
    "FILE_NOT_EXIST|FileNotFoundException|DELTA_(FILE|LOG_FILE|VERSION)[A-Z_]*NOT_FOUND"
    "|DELTA_NO_RECREATABLE_HISTORY_FOUND|TIME_TRAVEL_BEYOND"
    "|Cannot time travel Delta table to version"  # Delta 3.3 names no condition
)

NOT_LOST = re.compile(r"Too many open files|Permission denied|\bblockmgr-")
"""Java also raises FileNotFoundException for files that it can't open now, and for Spark's shuffle files."""


UNDELIVERED = re.compile(
    r"^\s*Caused by: (software\.amazon\.|java\.net\.|javax\.net\.ssl\.|"
    r"[\w.$]*(ConnectionClosed|AWS\w*|Timeout)Exception)",
    re.MULTILINE,
)
"""The connection broke, or the store failed, while a file was read: nothing is wrong with the file."""

REFUSED = re.compile(r"Status Code: 4(?!08|29)\d\d\b|NoAuthWithAWS|Unable to load credentials")
"""The store has answered that it will not give the file, or could not be asked: it would say that again."""

UNREAD = re.compile("FAILED_READ_FILE|Encountered error while reading file")
"""A file that could not be read; before Spark 4, that error has no name."""

UNDELIVERED_HINT = "its store did not deliver it whole: merge again, which reads it again"

CONSTRAINTS = re.compile("DELTA_VIOLATE_CONSTRAINT_WITH_VALUES|DELTA_NOT_NULL_CONSTRAINT_VIOLATED")
"""A row lacks what somebody has made a condition of the Delta table."""

_UNEVALUATED = re.compile(
    r"\[(CAST_(INVALID_INPUT|OVERFLOW)|CANNOT_PARSE_\w+|FAILED_FUNCTION_CALL|DIVIDE_BY_ZERO|REMAINDER_BY_ZERO"
    r"|ARITHMETIC_OVERFLOW|(BINARY_)?ARITHMETIC\w*|INVALID_(ARRAY_INDEX|FRACTION|PARAMETER_VALUE)\w*"
    r"|NUMERIC_VALUE_OUT_OF_RANGE|UNRECOGNIZED_\w+|MALFORMED_\w+|ILLEGAL_\w+|DATETIME_\w+)[.\]]"
)
"""An expression that has no result for some row, under ANSI rules."""

OUR_OWN = "USER_RAISED_EXCEPTION"
"""The error name of our own checks within queries (`merge.columns.projection`)."""

UNNAMED = "[UNNAMED_ERROR]"
"""Our name for Java's errors, which have none."""

MOST_CHARACTERS = 2_000
"""Of a reason, as the lake records it. Spark quotes values whole, of whatever size, and each merge reads the
last cuts with all their errors."""

WITHHELD = "(the rest is withheld, since it may contain a value)"

_ERROR_NAME = re.compile(r"\[([A-Z_][A-Z0-9_.]*)\]")
_CAUSE = re.compile(r"^Caused by: ((?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error))\b", re.MULTILINE)
_NAMED = re.compile(rf"(?:[\w.$]+: )*{_ERROR_NAME.pattern}")
"""A reason that begins with the error's name, or with that after the names of Java's classes."""


_UNREAD = re.compile(
    r"(?:[\w.$]+: )*\[FAILED_READ_FILE\.[A-Z_]+\] Encountered error while reading file [^=\s]+"
    r"( +SQLSTATE: \w+)?"
)
"""A reason that names a file alone; a partition's folder (`region=EU`) would hold a value."""


class OvertakenError(Exception):
    """another job committed a later manifest first, so Delta skipped our commit."""


LOST_RACES: tuple[type[Exception], ...] = (*SPARK_ERRORS, OvertakenError)


def is_conflict(error: BaseException) -> bool:
    """Return whether Delta refused or skipped a commit because another one came first."""
    if isinstance(error, OvertakenError):
        return True
    return isinstance(error, SPARK_ERRORS) and CONFLICTS.search(f"{type(error).__name__} {error}") is not None


def is_undelivered(error: BaseException) -> bool:
    """Return whether Spark could not read a file because its store did not deliver it whole.

    Not if the file is gone, or the store refuses it.
    """
    text = str(error) if isinstance(error, SPARK_ERRORS) else ""
    if UNREAD.search(text) is None or UNDELIVERED.search(text) is None:
        return False
    return REFUSED.search(text) is None and not is_lost_file(error)


def _is_passing(error: BaseException) -> bool:
    is_being_created = isinstance(error, SPARK_ERRORS) and BEING_CREATED in str(error)
    return is_conflict(error) or is_being_created or is_undelivered(error)


def is_lost_file(error: BaseException) -> bool:
    """Return whether Spark could not read a version or a file because it is gone."""
    found = str(error) if isinstance(error, SPARK_ERRORS) else ""
    return LOST.search(found) is not None and NOT_LOST.search(found) is None


def unread_hint(error: Exception, damaged: str) -> str:
    """Return what to do about a file that was not read: `damaged`, unless its store did not deliver it."""
    return UNDELIVERED_HINT if is_undelivered(error) else damaged


def row_hint(error: Exception, name: str, config: Config, table: TableName) -> str | None:
    """Return what to do if a single row of the source may have caused an error, else None.

    A constraint of the Delta table `name` refuses it, or the condition of `table` has no result for it.
    """
    if not isinstance(error, SPARK_ERRORS):
        return None
    if CONSTRAINTS.search(str(error)) is not None:
        return (
            "somebody has added a constraint that a row of the source does not meet; drop it, and merge"
            f" again: ALTER TABLE {name} DROP CONSTRAINT ..., or ALTER COLUMN ... DROP NOT NULL"
        )
    if config.table(table).where is not None and _UNEVALUATED.search(str(error)) is not None:
        return (
            f"the where in {table.section} may fail for a row: have it use try_cast, try_divide or the like,"
            f" and then: deltatide rebuild {shlex.quote(str(table))}"
        )
    return None


def first_line(error: Exception) -> str:
    """Return an error's first line, without Java's stack trace."""
    java = getattr(error, "java_exception", None)
    lines = [line for line in str(java or error).splitlines() if line.strip()]
    return lines[0] if lines else repr(error)


def without_values(error: Exception) -> str:
    """Return an error's first line; for an error within a query only its name, since it may quote a value.

    For tables with masked or excluded values: errors are recorded in the lake.
    """
    line = _shortened(first_line(error))
    name = _ERROR_NAME.search(line)
    if isinstance(error, (DeltatideError, AnalysisException)) or (name and name[1] == OUR_OWN):
        return line
    return f"{name[0] if name else type(error).__name__} {WITHHELD}"


def whole_reason(error: Exception, line: str | None = None) -> str:
    """Return an error's first line, to be recorded in the lake; unless it is ours, it begins with a name.

    `line`: what to take in place of the first one.
    """
    line = _shortened(first_line(error) if line is None else line)
    return line if isinstance(error, DeltatideError) or _NAMED.match(line) else f"{UNNAMED} {line}"


def _shortened(line: str) -> str:
    most = MOST_CHARACTERS
    return line if len(line) <= most else f"{line[:most]}... ({len(line):,} characters)"


def reason_without_values(reason: str) -> str:
    """Shorten a recorded reason for people who may not read the lake: an error of Spark's to its name."""
    name = _NAMED.match(reason)
    if name is None or name[1] == OUR_OWN or reason.endswith(WITHHELD) or _UNREAD.fullmatch(reason):
        return reason
    return f"[{name[1]}] (the lake's table of cuts has the rest)"


def printed(error: Exception, reason: str) -> str:
    """Return what is printed of an error whose `reason` the lake records: no value of a row.

    Errors of a query's analysis are whole: no row has been read by then.
    """
    return without_values(error) if isinstance(error, AnalysisException) else reason_without_values(reason)


def described(error: Exception, what: str, *, whole: bool) -> tuple[str, str]:
    """Return an error as the lake records it, and as it is printed. Log where a bug was.

    `whole`: the table is neither masked nor filtered, so the lake may record what quotes a row.
    """
    if bug := isinstance(error, UNEXPECTED):
        log.error("%s failed, a bug:\n%s", what, where_it_was(error))
    reason = whole_reason(error) if whole and not bug else without_values(error)
    return reason, printed(error, reason)


def where_it_was(error: BaseException) -> str:
    """Return the stacks of an error and its causes, each with the name of its class and no message."""
    cause = error.__cause__ or error.__context__
    before = where_it_was(cause) if cause is not None else ""
    return f"{before}{''.join(traceback.format_tb(error.__traceback__))}{type(error).__name__}\n"


def causes(error: Exception) -> list[str]:
    """Return the classes of an error's causes, the innermost last: they hold no value."""
    return _CAUSE.findall(str(error))


def innermost(error: Exception) -> str:
    """Return the first line of an error's innermost cause, if known: why a task failed, not just that."""
    causes = re.findall(r"^Caused by: [\w.$]+: (.+)$", str(error), re.MULTILINE)
    return str(causes[-1]).strip() if causes and isinstance(error, SPARK_ERRORS) else first_line(error)


def with_retries(do: Callable[[], T], what: str) -> T:
    """Retry after commit conflicts, while another job creates the same table, and if a file is not delivered.

    After the last attempt, a conflict is a `FencedError`.
    """

    def log_attempt(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        why = "a file was not delivered" if error and is_undelivered(error) else "another job committed first"
        log.debug("%s: %s, attempt %s", what, why, state.attempt_number)

    retrying = Retrying(
        retry=retry_if_exception(_is_passing),
        stop=stop_after_attempt(ATTEMPTS),
        wait=WAIT,
        before_sleep=log_attempt,
        reraise=True,
    )
    try:
        return retrying(do)
    except LOST_RACES as error:
        if not is_conflict(error):
            raise
        hint = "run one merge job at a time"
        raise FencedError(f"{what}: another job keeps writing there", hint=hint) from error
