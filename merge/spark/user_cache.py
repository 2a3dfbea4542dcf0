"""Where this user keeps what was fetched or built once."""

from __future__ import annotations

import os
from pathlib import Path

from connector.errors import PreconditionError


def user_cache() -> Path:
    """Return Deltatide's folder in the user's cache, which may not exist yet.

    `PreconditionError` if the user has none, as in a container that runs under a number alone.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deltatide"
    except RuntimeError as error:
        raise PreconditionError(
            "this user has no home folder", hint="set HOME, or XDG_CACHE_HOME to a folder for what is kept"
        ) from error
