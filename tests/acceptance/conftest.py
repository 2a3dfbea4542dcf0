"""What acceptance tests share: an installation per test, with or without a shop in its database.

They run on PostgreSQL, MariaDB and MySQL; those marked `only_postgres` test what only PostgreSQL has.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.agent.installed import Installation
from tests.support.source.shop_writer import create_shop
from tests.support.source.tested_database import KINDS, TestedDatabase


@pytest.fixture(params=KINDS)
def tested(request: pytest.FixtureRequest) -> TestedDatabase:
    """Return a database named after the test."""
    if request.param == "postgres":
        return request.getfixturevalue("database")
    database = request.getfixturevalue(f"{request.param}_database")
    database.execute("DROP DATABASE IF EXISTS deltatide")  # as on a server that no agent has used
    return database


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, tested: TestedDatabase) -> Installation:
    """Return a configuration, landing zone and lake for a fresh, empty database."""
    return Installation(tmp_path, tested, spark_url=lambda: request.getfixturevalue("spark_url"))


@pytest.fixture
def shop(place: Installation) -> Installation:
    """Return the same, with tables whose rows predate the captured log."""
    create_shop(place.database)
    return place
