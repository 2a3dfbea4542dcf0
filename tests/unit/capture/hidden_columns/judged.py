"""A table that hides columns, and what is landed of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connector.capture.hidden_columns import WAIT_SECONDS, HiddenColumns
from connector.capture.lander import LandedSegment
from connector.config import TableConfig
from connector.landing.column_names import IDS_PER_TABLE
from connector.landing.manifest import LandedFile
from connector.logged_table import LoggedTable
from connector.schema import TableName
from connector.source import ResumePoint
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import config_of
from tests.support.agent.starts import Start

ITEMS = TableName.parse("public.items")
RELATION = 7

LISTED = {"columns": ["id", "x", "a"], "mask_before_landing": True}


class Judged:
    """The shop, whose items mask `a`, and what is landed of them."""

    def __init__(
        self, database: MemoryDatabase, store: MemoryStore, ids: Mapping[str, int], **settings: Any
    ) -> None:
        self.database, self.position = database, database.end
        self.show(ids)
        tables = {ITEMS: TableConfig.model_validate({"mask": {"a": "sha256"}} | settings)}
        self.start = Start(database, store, config_of().model_copy(update={"tables": tables}))
        self.tables, self.dumps = self.start.open()
        self.seconds = 0.0
        self.hidden = HiddenColumns(self.start.source, self.tables, self.dumps, lambda: self.seconds)

    def show(self, ids: Mapping[str, int] | None, altered: str = "") -> None:
        """Have the next look show these columns, by their numbers, some of them altered; None: no table."""
        for name in altered.split():
            self.database.column_versions[ITEMS, name] = self.database.end
        self.database.column_ids.pop(ITEMS, None)
        if ids is not None:
            relation = self.relation = ids.get("", RELATION)
            numbered = {name: relation * IDS_PER_TABLE + n for name, n in ids.items() if name}
            self.database.column_ids[ITEMS] = numbered

    def lands(self, columns: str | None, *, keeps_name: bool = False) -> bool:
        """Return whether rows land, right after a description of these columns; None: after none.

        They wait first for as long as they do.
        """
        with self.database.transaction() as transaction:
            transaction.update("public.items", (2,), a=str(self.database.end))
        self.position = self.database.end
        file = LandedFile.model_construct(table=ITEMS)
        landed = LandedSegment(ResumePoint(self.position), files=[file])
        if columns is not None:
            names = tuple(columns.split())
            lsn = self.position - 1
            landed.logged.append(LoggedTable(RELATION, ITEMS, lsn=lsn, columns=names, keeps_name=keeps_name))
        if not self.withhold(landed):
            self.seconds += WAIT_SECONDS
            assert self.withhold(landed)
        assert [each.withheld for each in landed.logged if each.withheld] == [True] * (not landed.files)
        return bool(landed.files)

    def withhold(self, landed: LandedSegment) -> bool:
        return self.hidden.withhold(landed, [], self.start.newest, self.start.config)
