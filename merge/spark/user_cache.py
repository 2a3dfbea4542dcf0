"""Where this user keeps what was fetched or built once."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """Return Deltatide's folder in the user's cache, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deltatide"
