"""Starts of an agent in this process, on a database in memory, that end before the log is opened."""

from __future__ import annotations

from connector.capture.catalog_changes import start_capturing
from connector.capture.dumps.queue import DumpQueue
from connector.capture.lander import Lander
from connector.capture.manifest_history import ManifestHistory
from connector.capture.startup import begin_or_resume
from connector.capture.tables import Tables
from connector.config import Config
from connector.landing.manifest import Manifest
from connector.schema import TableName
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_source import MemorySource
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import config_of


class Start:
    """One start of an agent, up to the moment at which it would open the log."""

    def __init__(
        self,
        database: MemoryDatabase,
        store: MemoryStore,
        config: Config | None = None,
        *,
        history: ManifestHistory | None = None,
    ) -> None:
        self.config = config or config_of()
        self.source = MemorySource(database, self.config.source)
        self.manifest_history = history or ManifestHistory(store, 1)
        self.lander = Lander(store)

    def open(self) -> tuple[Tables, DumpQueue]:
        return begin_or_resume(self.source, self.manifest_history, self.lander, self.config)

    def start_capturing(self, tables: Tables, dumps: DumpQueue, *names: TableName) -> int:
        """Start capturing new tables, as the agent does each time before it opens the log."""
        return start_capturing(
            self.source, self.manifest_history, self.lander, tables, dumps, self.config, names
        )

    @property
    def newest(self) -> Manifest:
        return self.manifest_history.newest


def hide(database: MemoryDatabase) -> int:
    """Commit what no snapshot shows yet; return its xid."""
    with database.transaction(visible=False) as transaction:
        transaction.update("public.items", (2,), a="changed")
    return database.log[-1].xid
