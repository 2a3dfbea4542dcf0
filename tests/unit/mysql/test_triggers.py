"""Which triggers may change what a virtual column is made of."""

from __future__ import annotations

import pytest

from connector.mysql.definitions.triggers import _Column, changed_by, names, shows_triggers
from connector.schema import TableName

COLUMNS = [
    _Column("a", "int", None, False, None),
    _Column("odd ä`", "int", None, False, None),
    _Column("updated_at", "datetime", None, False, None),
    _Column("s", "int", None, False, "`a` * 2"),
    _Column("v", "int", None, True, "`s` + 1"),
    _Column("w", "int", None, True, "`V` + 1"),
    _Column("o", "int", None, True, "`odd ä``` + 1"),
]


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ("SET NEW.a = 1", {"v", "w"}),
        ("SET new.`A` = 1", {"v", "w"}),
        ('SET "NEW"."a" = 1', {"v", "w"}),
        ("BEGIN CALL p(NEW.a); END", {"v", "w"}),
        ("SELECT 1 INTO NEW./**/a", {"v", "w"}),
        ("SET NEW.s = DEFAULT", {"v", "w"}),
        ("SET NEW.`odd Ä``` = 1", {"o"}),
        ('SET NEW."odd ä`" = 1', {"o"}),
        ("SET NEW.updated_at = now()", set()),
        ("SET NEW.aa = NEW.a_ + NEW.$a + ab", set()),
        ("SET NEW.w = DEFAULT", set()),
        ("SET /*!50000NEW.updated_at*/ = 1", {"v", "w", "o"}),
        ("SET NEW./*M!updated_at*/ = 1", {"v", "w", "o"}),
        (None, {"v", "w", "o"}),
    ],
)
def test_a_trigger_changes_the_virtual_columns_made_of_what_it_names(
    body: str | None, changed: set[str]
) -> None:
    assert changed_by(body, COLUMNS) == changed


@pytest.mark.parametrize("text", ["`größe` + 1", "GRÖSSE + größe", "NEW.GRÖßE"])
def test_names_in_other_case_are_the_same(text: str) -> None:
    assert names(text, "Größe")


@pytest.mark.parametrize(
    ("grants", "shows"),
    [
        (["GRANT SELECT, TRIGGER ON *.* TO `u`@`%`"], True),
        (["GRANT ALL PRIVILEGES ON `a_b`.* TO `u`@`%`"], True),
        (["GRANT SELECT ON `a_b`.* TO `u`@`%`", "GRANT TRIGGER ON `a_b`.* TO `role`"], True),
        (["GRANT TRIGGER ON `a\\_b`.* TO `u`@`%`", "GRANT SELECT ON `c`.* TO `u`@`%`"], True),
        (["GRANT SELECT (id, v), TRIGGER ON `a_b`.`t` TO `u`@`%`"], True),
        (["GRANT TRIGGER ON `a\\_b`.* TO `u`@`%`", "GRANT SELECT ON `a_b`.* TO `u`@`%`"], False),
        (["GRANT TRIGGER ON `a%`.* TO `u`@`%`", "GRANT SELECT ON `a_b`.* TO `u`@`%`"], False),
        (["GRANT TRIGGER ON `b`.* TO `u`@`%`", "GRANT TRIGGER ON `a_b`.`u` TO `u`@`%`"], False),
        (["GRANT SELECT ON `a_b`.* TO `u`@`%`"], False),
        (["GRANT SELECT ON *.* TO `u`@`%`", "GRANT TRIGGER ON `A_B`.* TO `u`@`%`"], False),
    ],
)
def test_triggers_are_seen_by_a_grant_that_certainly_counts(grants: list[str], shows: bool) -> None:
    assert shows_triggers(grants, TableName("a_b", "t")) == shows
