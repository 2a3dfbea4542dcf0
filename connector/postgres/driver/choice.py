"""Chooses how connections copy and stream, once per process."""

from __future__ import annotations

import functools
import logging

from connector.postgres.driver.interface import Driver

log = logging.getLogger(__name__)


@functools.cache
def driver() -> Driver:
    """Return direct calls of libpq if it can be reached, otherwise psycopg2 alone, with a warning."""
    try:
        return reach_libpq()
    except (ImportError, AttributeError, OSError) as error:
        log.warning(
            "can't call psycopg2's libpq directly (%s): reading log and dumps is slower and takes a second "
            "replication slot; to avoid this, install psycopg2-binary",
            error,
        )
        from connector.postgres.driver import by_psycopg2

        return by_psycopg2


def reach_libpq() -> Driver:
    """Load the module that calls libpq; ImportError, AttributeError or OSError if it can't be reached."""
    from connector.postgres.driver import by_libpq

    return by_libpq
