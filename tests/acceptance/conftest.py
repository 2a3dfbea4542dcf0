"""What acceptance tests share: an installation of the test's own, with or without a shop in its database."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.databases import Database
from tests.installed import Installation
from tests.shop_writer import create_shop


@pytest.fixture
def place(tmp_path: Path, database: Database) -> Installation:
    """A configuration, landing zone and lake for a fresh and empty database."""
    return Installation(tmp_path, database)


@pytest.fixture
def shop(place: Installation) -> Installation:
    """The same, with tables and rows that no log tells of."""
    create_shop(place.database)
    return place
