"""What the catalog shows of columns and the log does not, bound to the log: which check counts, and when."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from connector.capture.catalog_changes import settle_traits
from connector.capture.column_traits import known_tables
from connector.capture.dumps.queue import DumpQueue
from connector.capture.dumps.schedule import DumpSchedule
from connector.capture.tables import Tables
from connector.landing.event_batch import QuarantineNotice, TableRedefined
from connector.landing.manifest import Manifest
from connector.schema import Column, TableName, TableSchema, Traits
from connector.source import CatalogSnapshot
from tests.support.agent.agents import config_of

T, U = TableName("d", "t"), TableName("d", "u")
CONFIG = config_of()


class Agent:
    """The tables of an agent, and its dumps, without any log."""

    def __init__(self, **traits: Traits | None) -> None:
        self.tables = Tables({}, {})
        self.dumps = DumpQueue([], epoch=1, schedule=DumpSchedule(CONFIG.dump))
        for table in (T, U):
            self.tables.add(TableSchema(table, (Column("id", "int", "int"),), ("id",)))
            self.tables.update(table, traits=traits.get(table.name))

    def check(self, begun: int, position: int, found: Mapping[TableName, Traits] | None = None) -> None:
        """A check of the catalog between two positions; it finds that v is virtual in t."""
        snapshot = CatalogSnapshot(
            {}, position, frozenset(), begun=begun, traits=found or {T: {"v": "virtual"}}
        )
        self.tables.traits.note_check(snapshot, self.tables.states)

    def commit(self, position: int, *redefined: int) -> set[TableName]:
        """Commit the log up to a position, with statements that redefine t; return what to open anew."""
        self.tables.note_redefined([TableRedefined(T, lsn) for lsn in redefined], CONFIG)
        return settle_traits(self.tables, self.dumps, 1, position)

    @property
    def known(self) -> Traits | None:
        return self.tables.states[T].traits


def test_a_check_counts_once_the_log_has_been_read_past_it() -> None:
    agent = Agent()
    agent.check(50, 60)
    assert not agent.tables.has_news(59)
    agent.commit(59)
    assert agent.known is None
    assert agent.tables.has_news(60)  # so that a manifest records it, though no row may come
    assert agent.commit(60) == set()
    assert agent.known == {"v": "virtual"}
    assert not agent.tables.has_news(60)


@pytest.mark.parametrize(("redefined", "counts"), [(49, True), (50, False), (59, False)])
def test_a_check_does_not_count_if_the_table_was_redefined_since_it_began(
    redefined: int, *, counts: bool
) -> None:
    agent = Agent(u={})
    agent.check(50, 60, {T: {"v": "virtual"}, U: {"w": "default"}})
    agent.commit(60, redefined)
    assert agent.known == ({"v": "virtual"} if counts else None)
    assert agent.tables.states[U].traits == {"w": "default"}


def test_a_redefined_table_has_unknown_traits_until_a_later_check() -> None:
    agent = Agent(t={"v": ""})
    assert agent.commit(40, 39) == set()
    assert agent.known is None
    agent.check(50, 60)
    assert agent.commit(60) == set()  # which is no change behind the log
    assert agent.known == {"v": "virtual"}
    assert not agent.dumps.states


def test_an_earlier_check_that_waits_for_the_log_is_not_replaced() -> None:
    """Else, while the log is far behind, none would ever count."""
    agent = Agent()
    agent.check(50, 60)
    agent.check(70, 80, {T: {}})
    agent.commit(60)
    assert agent.known == {"v": "virtual"}


@pytest.mark.parametrize("quarantined", [False, True])
def test_a_change_behind_the_log_has_the_table_dumped_and_the_log_opened_anew(*, quarantined: bool) -> None:
    agent = Agent(t={})
    if quarantined:
        agent.tables.quarantine(QuarantineNotice(T, 1, "for a reason", "hint"))
    agent.check(50, 60)
    assert agent.commit(60) == (set() if quarantined else {T})
    assert [(d.table, d.reason, d.floor) for d in agent.dumps.states] == (
        [] if quarantined else [(T, "repair", 60)]
    )
    assert agent.known == {"v": "virtual"}
    agent.check(70, 80)
    assert not agent.tables.has_news(80)


@pytest.mark.parametrize("lost", [False, True])
def test_a_check_of_another_epoch_does_not_count_but_what_has_landed_does_unless_log_is_lost(
    *, lost: bool
) -> None:
    """After a failover the log goes on where the newest manifest ends, with the tables as they were there."""
    agent = Agent(t={"v": "virtual"})
    agent.check(50, 60, {T: {}})
    agent.tables.begin_epoch(log_is_lost=lost)
    assert agent.known == (None if lost else {"v": "virtual"})
    assert not agent.tables.has_news(60)


def test_the_log_is_opened_with_what_the_newest_manifest_knows() -> None:
    agent = Agent(t={"v": "virtual"})
    newest = Manifest.model_construct(tables=dict(agent.tables.states))
    agent.commit(40, 39)
    assert known_tables(agent.tables.schemas, newest).traits == {T: {"v": "virtual"}}
