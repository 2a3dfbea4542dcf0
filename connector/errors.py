"""The errors of Deltatide, in three families.

::

    DeltatideError
    ├── TransientError            retried with backoff: connection lost, server restarting, store busy
    │   └── NotYetError           nothing is lost or broken; the request has to wait for the source
    ├── OperatorError             stops; `hint` tells the operator what to do
    │   ├── ConfigurationError    wrong usage: a setting, a file, an argument (exit status 2)
    │   ├── PreconditionError     the database or the store is not fit for capture
    │   │   └── LogOffError       the server changes rows and logs none of it
    │   ├── SourceMismatchError   the landing zone belongs to another database
    │   ├── FormatError           written by a newer version, or not by Deltatide at all
    │   ├── FencedError           another agent or merge job is at work, or has overtaken this one
    │   ├── GapError              log was lost and the configuration says to stop
    │   └── RequestError          a request that cannot be carried out
    ├── TableError                one table cannot continue; it is quarantined, the others continue
    └── BugError                  stops: an assumption of ours does not hold

The docstring of a class is its default message. Messages are lower case, without a period, and name the
offending value; `hint` says what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.schema import TableName


class DeltatideError(Exception):
    """something went wrong."""

    exit_code = 1

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().rstrip("."))
        self.hint = hint


class TransientError(DeltatideError):
    """a service could not be reached, it may come back."""


class NotYetError(TransientError):
    """the source is not ready for this yet."""


class OperatorError(DeltatideError):
    """a person has to act."""


class ConfigurationError(OperatorError):
    """the configuration is not usable."""

    exit_code = 2


class PreconditionError(OperatorError):
    """the database or the landing zone is not ready for capture."""


class LogOffError(PreconditionError):
    """the server writes no log."""

    def __init__(self, server: str, *, hint: str | None = None) -> None:
        super().__init__(hint=hint)
        self.server = server


class SourceMismatchError(OperatorError):
    """the landing zone belongs to another database."""


class FormatError(OperatorError):
    """the object was not written by this version of deltatide."""


class FencedError(OperatorError):
    """another process is at work on the same source."""


class GapError(OperatorError):
    """log was lost before it could be read."""


class RequestError(OperatorError):
    """the request cannot be carried out."""


class TableError(DeltatideError):
    """a table cannot be carried on."""

    def __init__(self, table: TableName, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{table}: {message}", hint=hint)
        self.table = table
        self.reason = message


class BugError(DeltatideError):
    """an assumption of deltatide does not hold, please report it."""
