"""Sets of GTIDs against plain sets and lists, and both servers' formats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysqlreplication.gtid import Gtid as TheirGtid
from pymysqlreplication.gtid import GtidSet

from connector.errors import BugError
from connector.mysql.gtid import Gtid, MariadbGtids, MysqlGtids

U1, U2 = "00010203-0405-0607-0809-0a0b0c0d0e0f", "f0010203-0405-0607-0809-0a0b0c0d0e0f"
ORIGINS = (U1, U2, f"{U1}:tag", f"{U2}:a_b")

mysql_ids = st.builds(Gtid, st.sampled_from(ORIGINS), st.integers(1, 40), st.none())


def set_of(ids: list[Gtid]) -> MysqlGtids:
    gtids = MysqlGtids()
    for gtid in ids:
        gtids.add(gtid)
    return gtids


@given(st.lists(mysql_ids), mysql_ids)
def test_a_mysql_set_is_a_set(ids: list[Gtid], one: Gtid) -> None:
    gtids = set_of(ids)
    assert gtids.includes(one) == gtids.holds(one) == (one in set(ids))
    assert str(gtids) == str(set_of(sorted(set(ids)))) == str(MysqlGtids.parse(str(gtids)))
    assert all(MysqlGtids.parse(str(gtids)).holds(gtid) for gtid in ids)


@given(st.lists(mysql_ids), st.lists(mysql_ids))
def test_a_mysql_set_contains_its_subsets(some: list[Gtid], others: list[Gtid]) -> None:
    assert set_of(some).contains(set_of(others)) == (set(others) <= set(some))
    assert set_of([*some, *others]).contains(set_of(some))


untagged = st.lists(st.builds(Gtid, st.sampled_from((U1, U2)), st.integers(1, 40), st.none()), min_size=1)


@given(untagged, untagged)
def test_an_untagged_mysql_set_is_the_one_of_pymysqlreplication(some: list[Gtid], others: list[Gtid]) -> None:
    """It knows neither tags nor MariaDB, and refuses to add what a set has (see docs/decisions.md)."""
    ours, theirs = set_of(some), GtidSet(str(set_of(some)))
    assert str(theirs) == str(ours)
    assert all((TheirGtid(str(gtid)) in theirs) == ours.holds(gtid) for gtid in others)
    subset = GtidSet(str(set_of(others)))
    assert all(any(part in each for each in theirs.gtids) for part in subset.gtids) == ours.contains(
        set_of(others)
    )


@pytest.mark.parametrize("text", [f"{U1}:tag:1-3", "0-1-100,7-3-20"])
def test_what_pymysqlreplication_can_not_read_is_why_ours_exists(text: str) -> None:
    with pytest.raises(ValueError, match="incorrect"):
        GtidSet(text)


def test_mysql_formats_tags_behind_their_uuid_and_lists_in_lines() -> None:
    text = f"{U1}:1-5:7:tag:1:3-4,{U2}:9"
    assert str(MysqlGtids.parse(text.replace(",", ",\n").upper())) == text
    assert MysqlGtids.parse(text).holds(Gtid(f"{U1}:tag", 4))
    assert not MysqlGtids.parse(text).holds(Gtid(f"{U1}:tag", 5))
    assert str(MysqlGtids.parse("")) == ""


@pytest.mark.parametrize("text", ["5", f"{U1}:1-", f"{U1}:1-5:?", "0-1-5", "zz"])
def test_what_is_no_mysql_set_is_refused(text: str) -> None:
    with pytest.raises(BugError, match="not a GTID set"):
        MysqlGtids.parse(text)


@pytest.mark.parametrize("text", ["5", "0-1", "0-1-2-3", f"{U1}:1"])
def test_what_is_no_mariadb_gtid_list_is_refused(text: str) -> None:
    with pytest.raises(BugError, match="not a GTID list"):
        MariadbGtids.parse(text)


domains = st.dictionaries(st.sampled_from(["0", "7", "11"]), st.integers(1, 6), min_size=1)


def state_of(ids: list[Gtid]) -> MariadbGtids:
    gtids = MariadbGtids({})
    for gtid in ids:
        gtids.add(gtid)
    return gtids


@given(st.data(), domains)
def test_what_a_mariadb_position_has_is_passed_over_once_in_each_domain(
    data: st.DataObject, lengths: dict[str, int]
) -> None:
    """The order within a domain is the same everywhere; domains may be shuffled.

    Only the numbers that one server gives grow.
    """
    sequences: dict[str, list[Gtid]] = {}
    for domain, n in lengths.items():
        numbers = {server: data.draw(st.integers(0, 20)) for server in (1, 2, 3)}
        sequences[domain] = []
        for server in data.draw(st.lists(st.sampled_from((1, 2, 3)), min_size=n, max_size=n)):
            numbers[server] += 1
            sequences[domain].append(Gtid(domain, numbers[server], server))
    landed = {domain: data.draw(st.integers(0, n)) for domain, n in lengths.items()}
    begun = {domain: data.draw(st.integers(0, n)) for domain, n in landed.items()}

    def executed(upto: dict[str, int]) -> str:
        return str(state_of([gtid for d, n in upto.items() for gtid in sequences[d][:n]]))

    left = {domain: sequences[domain][n:] for domain, n in begun.items()}
    gtids = MariadbGtids.parse(executed(landed), executed(begun))
    for domain, sequence in sequences.items():
        assert [gtids.includes(gtid) for gtid in sequence] == [
            i < landed[domain] for i in range(len(sequence))
        ]
    taken: dict[str, list[Gtid]] = {domain: [] for domain in lengths}
    while any(left.values()):
        domain = data.draw(st.sampled_from(sorted(d for d, ids in left.items() if ids)))
        gtid = left[domain].pop(0)
        if not gtids.holds(gtid):
            taken[domain].append(gtid)
        gtids.add(gtid)
    assert taken == {domain: sequences[domain][n:] for domain, n in landed.items()}
    whole = MariadbGtids.parse(executed(lengths))
    assert gtids.contains(whole)
    assert whole.contains(gtids)
    assert whole.ends == {domain: sequences[domain][n - 1] for domain, n in lengths.items()}


@given(st.lists(st.tuples(mysql_ids, st.booleans())), st.data())
def test_a_mysql_set_needs_all_but_our_writes_at_the_end_of_each_origin(
    added: list[tuple[Gtid, bool]], data: st.DataObject
) -> None:
    """Kept over a restart at any point, too."""
    ids = [gtid for gtid, _ in added]
    added = [(gtid, ours) for i, (gtid, ours) in enumerate(added) if gtid not in ids[:i]]
    restart = data.draw(st.integers(0, len(added)))
    gtids = MysqlGtids()
    for gtid, ours in added[:restart]:
        gtids.add(gtid, ours=ours)
    gtids = MysqlGtids.parse(str(gtids), gtids.needed)
    for gtid, ours in [*added[restart:], *((gtid, False) for gtid, _ in added[restart:])]:
        gtids.add(gtid, ours=ours)
    others = {gtid.origin: i for i, (gtid, ours) in enumerate(added) if not ours}
    needed = [gtid for i, (gtid, _) in enumerate(added) if i <= others.get(gtid.origin, -1)]
    assert str(gtids) == str(set_of([gtid for gtid, _ in added]))
    assert gtids.needed == (None if len(needed) == len(added) else str(set_of(needed)))


@given(st.data(), domains)
def test_a_mariadb_position_needs_what_was_before_our_writes_at_the_end_of_each_writer(
    data: st.DataObject, lengths: dict[str, int]
) -> None:
    order = data.draw(st.permutations([d for d, n in lengths.items() for _ in range(n)]))
    restart = data.draw(st.integers(0, len(order)))
    gtids, needed = MariadbGtids({}), {}
    last: dict[tuple[str, int], int] = {}
    for i, domain in enumerate(order):
        if i == restart:
            gtids = MariadbGtids.parse(str(gtids), needed=gtids.needed)
        gtid, ours = Gtid(domain, i + 1, data.draw(st.integers(1, 2))), data.draw(st.booleans())
        gtids.add(gtid, ours=ours)
        last[domain, gtid.server or 0] = gtid.number
        if not ours:
            needed[domain, gtid.server or 0] = gtid.number
    assert set(str(gtids).split(",")) == set(str(MariadbGtids(last)).split(","))
    if needed == last:
        assert gtids.needed is None
    else:
        assert set((gtids.needed or "").split(",")) == set(str(MariadbGtids(needed)).split(","))


def test_our_writes_that_are_passed_over_change_nothing_of_what_is_needed() -> None:
    gtids = MariadbGtids.parse("0-1-7", "0-1-4", "0-1-5")
    for number, ours in ((5, False), (6, True), (7, True)):
        assert gtids.holds(Gtid("0", number, 1))
        gtids.add(Gtid("0", number, 1), ours=ours)
        assert (str(gtids), gtids.needed) == ("0-1-7", "0-1-5")
    gtids.add(Gtid("0", 7, 2), ours=True)
    assert (str(gtids), gtids.needed) == ("0-1-7,0-2-7", "0-1-5")
    gtids.add(Gtid("0", 8, 1))
    assert (str(gtids), gtids.needed) == ("0-2-7,0-1-8", "0-1-8")
    gtids.add(Gtid("0", 9, 2))
    assert (str(gtids), gtids.needed) == ("0-1-8,0-2-9", None)


@pytest.mark.parametrize(
    ("landed", "state", "lacking", "common"),
    [
        ("0-1-716", "0-1-716", "", "0-1-716"),
        ("0-1-716", "0-1-730,0-2-800", "", "0-1-716"),
        ("0-1-716", "0-1-713,0-2-716", "0-1-716", "0-1-713"),
        ("0-1-716", "0-2-720", "0-1-716", ""),
        ("0-1-5,0-2-9", "0-1-4,0-2-9", "0-1-5", "0-1-4,0-2-9"),  # the last one is there, one before it is not
        ("0-1-5,7-1-9", "0-1-5", "7-1-9", "0-1-5"),
    ],
)
def test_what_a_mariadb_server_lacks_is_compared_for_each_writer(
    landed: str, state: str, lacking: str, common: str
) -> None:
    ours, theirs = MariadbGtids.parse(landed), MariadbGtids.parse(state)
    assert ",".join(map(str, ours.without(theirs))) == lacking
    assert theirs.contains(ours) == (not lacking)
    assert str(ours.common(theirs)) == common


def test_a_domain_that_a_new_file_no_longer_lists_counts_anew() -> None:
    """MariaDB deletes it by request, and numbers its next transactions from 1."""
    gtids = MariadbGtids({})
    for gtid in (Gtid("0", 5, 1), Gtid("7", 6, 1)):
        gtids.add(gtid, ours=True)
    gtids.begin_file(MariadbGtids.parse("0-1-5"))
    assert (str(gtids), gtids.needed) == ("0-1-5;7-1-6", "")
    gtids.add(Gtid("7", 1, 1))
    assert (str(gtids), gtids.needed) == ("0-1-5,7-1-1;7-1-6", "7-1-1")
    assert not gtids.holds(Gtid("7", 2, 1))


def test_what_landed_of_a_deleted_domain_is_kept_for_failovers() -> None:
    """Until a server lists that very number, which another transaction may have got since on this one."""
    gtids = MariadbGtids.parse("0-1-5;7-1-6,9-1-3")
    assert (str(gtids), gtids.needed) == ("0-1-5;7-1-6,9-1-3", None)
    assert str(gtids.common(MariadbGtids.parse("0-1-4,9-1-3"))) == "0-1-4;7-1-6,9-1-3"
    assert gtids.without(MariadbGtids.parse("0-1-5")) == []
    gtids.begin_file(MariadbGtids.parse("0-1-5,7-1-6,9-1-2"))
    assert str(gtids) == "0-1-5,7-1-6,9-1-2;9-1-3"
    gtids.add(Gtid("9", 3, 1))
    gtids.begin_file(MariadbGtids.parse("0-1-5,7-1-6,9-1-3"))
    assert str(gtids) == "0-1-5,7-1-6,9-1-3;9-1-3"


def test_numbers_that_begin_anew_within_a_replicas_file_are_those_of_a_deleted_domain() -> None:
    gtids = MariadbGtids.parse("0-1-5,7-1-6", needed="0-1-5,7-1-4")
    gtids.add(Gtid("7", 1, 1), ours=True)
    assert (str(gtids), gtids.needed) == ("0-1-5,7-1-1;7-1-6", "0-1-5")


@pytest.mark.parametrize(
    ("landed", "listed", "needed", "reason"),
    [
        ("0-1-5;7-1-6", "0-1-4", "0-1-5", None),
        ("0-1-5;7-1-6", "0-1-4,7-1-6", "0-1-5", None),
        ("0-1-5;7-1-6", "0-1-5,7-1-6", "0-1-5", "a later one"),  # the domain may have been used again since
        ("0-1-5;7-1-6", "0-1-4,7-1-5", "0-1-5", "purged"),
        ("0-1-5;7-1-6", "0-1-4,7-1-7", "0-1-5", "purged"),
        ("0-1-5,7-1-2;7-1-6", "0-1-4,7-1-6", "0-1-5,7-1-2", "a later one"),
        ("0-1-5,7-1-2;7-1-6", "0-1-4,7-1-2", "0-1-5,7-1-2", "a later one"),
        ("0-1-5", "0-1-5", "0-1-5", None),
        ("0-1-5", "0-1-4,7-1-6", "0-1-5", "7-1-6, which was never read"),
    ],
)
def test_a_file_of_another_mariadb_server_follows_only_what_has_landed(
    landed: str, listed: str, needed: str, reason: str | None
) -> None:
    parse = MariadbGtids.parse
    found = parse(landed).why_not_after(parse(listed), parse(needed))
    assert found is None if reason is None else reason in str(found)


def test_our_write_that_a_replica_ignored_is_passed_with_the_next_of_its_writer() -> None:
    """Not one of others, nor before one of ours that it has."""
    gtids = MariadbGtids.parse("0-1-12,7-1-1", "0-1-10", "0-1-10,7-1-1")
    gtids.add(Gtid("0", 11, 1), ours=True)
    assert gtids.holds(Gtid("0", 12, 1))
    gtids.add(Gtid("7", 1, 1))
    assert not gtids.holds(Gtid("0", 13, 1))
    gtids.add(Gtid("0", 13, 1))
    assert (str(gtids), gtids.needed) == ("0-1-13,7-1-1", None)


def test_what_the_log_is_still_to_reach_stays_when_a_file_begins() -> None:
    gtids = MariadbGtids.parse("0-1-5,7-1-6", "0-1-5,7-1-2")
    gtids.begin_file(MariadbGtids.parse("0-2-3,0-1-5,7-1-4"))
    assert str(gtids) == "0-2-3,0-1-5,7-1-6"
    assert gtids.holds(Gtid("7", 6, 1))
    assert not gtids.holds(Gtid("0", 3, 2))


@pytest.mark.parametrize(
    ("one", "other", "reordered"),
    [
        (Gtid(U1, 1), Gtid(f"{U1}:tag", 2), True),
        (Gtid(U1, 1), Gtid(U2, 1), False),
        (Gtid("0", 1, 1), Gtid("7", 1, 1), True),
        (Gtid("0", 2, 1), Gtid("0", 1, 1), False),
        (Gtid("0", 1, 1), Gtid("7", 1, 2), False),
    ],
)
def test_replicas_reorder_only_what_one_server_executed(one: Gtid, other: Gtid, reordered: bool) -> None:
    assert one.may_be_reordered_with(other) == other.may_be_reordered_with(one) == reordered


def test_a_mariadb_log_that_lacks_what_has_landed_is_refused() -> None:
    """Else all of it would be passed over, in wait for what never comes."""
    gtids = MariadbGtids.parse("0-1-7", "0-1-4")
    gtids.add(Gtid("0", 900, 2))
    gtids.add(Gtid("0", 5, 1))
    with pytest.raises(BugError, match="lacks 0-1-7"):
        gtids.add(Gtid("0", 8, 1))


def test_a_mariadb_log_after_what_has_landed_is_refused() -> None:
    with pytest.raises(BugError, match="after 0-1-5"):
        MariadbGtids.parse("0-1-5", "0-1-6")


def test_mariadb_formats_domains_by_number() -> None:
    assert str(MariadbGtids.parse("10-1-5, 2-1-7")) == "2-1-7,10-1-5"
    assert str(Gtid("0", 8, 1)) == "0-1-8"
    assert str(Gtid(U1, 8)) == f"{U1}:8"
