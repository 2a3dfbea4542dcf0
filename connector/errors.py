"""The errors of Deltatide, in three families.

::

    DeltatideError
    ├── TransientError            retried with backoff: connection lost, server restarting, store busy
    │   ├── UnreachableError      nothing answers at its address, or the connection was lost
    │   └── NotYetError           nothing is lost or broken; the work waits for the source
    ├── OperatorError             stops; `hint` says what the operator must do
    │   ├── ConfigurationError    a wrong setting, file or argument (exit status 2)
    │   ├── PreconditionError     the database or the store is not fit for capture
    │   │   └── LogOffError       the server changes rows without logging them
    │   │       ├── LogFilteredError  or only some of them
    │   │       ├── LogMiscomputedError  or not as they are
    │   │       └── LogInEngineError  or into files that can't be read by position
    │   ├── SourceMismatchError   the landing zone belongs to another database
    │   ├── FormatError           written by a newer version, or not by Deltatide at all
    │   ├── FencedError           another agent or merge job is active, or has overtaken this one
    │   ├── GapError              log was lost, and source.on_gap is "stop"
    │   └── RequestError          a request that can't be served
    ├── TableError                one table cannot continue; it is quarantined, the others continue
    └── BugError                  stops: something impossible happened; a bug here or in the server

The docstring of a class is its default message. Messages are lower case, without a period, and name the
offending value; `hint` says what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.schema import TableName

LIMIT_HINT = "raise the limit of connections: `deltatide check` says how many an agent needs"
"""For a source that has no connection left for us."""


class DeltatideError(Exception):
    """deltatide failed."""

    exit_code = 1

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().rstrip("."))
        self.hint = hint


class TransientError(DeltatideError):
    """a service is temporarily unreachable; deltatide retries."""


class UnreachableError(TransientError):
    """the server can't be reached; deltatide retries."""


class NotYetError(TransientError):
    """the source is not ready for this yet; deltatide retries."""


class OperatorError(DeltatideError):
    """deltatide cannot continue until an operator intervenes."""


class ConfigurationError(OperatorError):
    """the configuration is invalid; fix the setting named."""

    exit_code = 2


class PreconditionError(OperatorError):
    """the database or the landing zone is not ready for capture; run deltatide check."""


class LogOffError(PreconditionError):
    """the server does not write its binary log; turn log_bin on."""

    gap = "the server ran for a while without writing its log"
    """Why rows may have changed unseen, for the manifest that records it."""


class LogFilteredError(LogOffError):
    """the server leaves changes out of its binary log."""

    gap = "the server left changes out of its log for a while"


class LogMiscomputedError(LogOffError):
    """the server logs rows as they were before triggers changed them."""

    gap = "the server logged rows for a while as they were before triggers of its own changed them"


class LogInEngineError(LogOffError):
    """the server writes its binary log into a storage engine; capture needs log files."""

    gap = "the server wrote its log into a storage engine for a while"


class SourceMismatchError(OperatorError):
    """the landing zone belongs to another database; choose another source.name or landing.url."""


class FormatError(OperatorError):
    """the object's format can't be read by this version of deltatide; upgrade deltatide."""


class FencedError(OperatorError):
    """another process is working on the same source; stop one of them."""


class GapError(OperatorError):
    """log was lost before it was read; dump the tables again."""


class RequestError(OperatorError):
    """the request is invalid; correct it and send it again."""


class TableError(DeltatideError):
    """a table can no longer be captured; fix the table, then dump it again."""

    def __init__(self, table: TableName, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{table}: {message}", hint=hint)
        self.table = table
        self.reason = message


class BugError(DeltatideError):
    """deltatide reached a state that should be impossible; please report it."""
