"""Finds the effects of logged statements on tables that no row event shows. Pure.

Invariant: a statement that may change rows, and is not understood, has an effect on every table whose name
occurs in it. The caller compares names. Most keywords may also name a table, without quotes. So a keyword is
skipped only where the grammar allows it, and never searched for where a name may be.

Understood: TRUNCATE, DROP, RENAME, ALTER, CREATE, and statements in the statement format. An ALTER that adds
or drops columns leaves rows alone: the log carries the layout with the next row, and
`connector.capture.tables` reads the values of a new column. One that rewrites values or moves partitions may
change rows. Any that copies the table may, too, if it has stored columns, which are computed anew in the
session that alters, or dates and times, which are converted. A dropped index matters only if nothing else
makes the table's key unique, a dropped default only if it was the key's. The caller decides whether these
matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

Kind = Literal[
    "truncate", "unlogged", "copy", "statement", "columns", "index", "foreign key", "default", "traits"
]


class Effect(NamedTuple):
    """One table (`name` None: all of the database), and what happened to it.

    ``truncate``: all rows are gone. ``unlogged``: rows or values may have changed without an event. ``copy``:
    the server may have copied it, and so changed values. ``statement``: rows were changed in the statement
    format. ``columns``: its layout changed; the given columns were dropped, or `renamed` to another name;
    others were `added`. ``index``: it lost an index; from then on several rows may have the same values in
    its columns. ``foreign key``: it lost one, or another constraint; what that did before may not be in the
    log. ``default``: the given columns have none any more. ``traits``: what MariaDB's log does not show of
    its columns may have changed, as it may have if the table is ``unlogged``.
    """

    kind: Kind
    database: str
    name: str | None
    reason: str
    columns: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    added: tuple[tuple[str, bool], ...] = ()


_TOKEN = re.compile(
    r"""(?P<space>\s+|/\*(?!M?!).*?\*/|\#[^\n]*|--(?=\s|$)[^\n]*)
      | (?P<hint>/\*M?!\d*|\*/)
      | `(?P<quoted>(?:[^`]|``)*)`
      | "(?P<double>(?:[^"\\]|""|\\.)*)"
      | (?P<text>'(?:[^'\\]|''|\\.)*')
      | (?P<word>[\w$\u0080-\U0010ffff]+)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
"""ASCII: beyond it, the servers take no character of Unicode for a space."""


def as_mysql_reads(statement: str) -> str:
    """Turn MariaDB's executable comments in a statement into plain ones, which they are to MySQL."""
    if "/*M!" not in statement:
        return statement
    return _TOKEN.sub(lambda found: "/* " if found[0].startswith("/*M!") else found[0], statement)


class _Token(NamedTuple):
    text: str
    word: str
    """Upper case, for keywords; '' if quoted."""
    is_name: bool


def tokens_of(statement: str) -> list[_Token]:
    """Split a statement into tokens, without comments but with the content of executable comments."""
    found = []
    for match in _TOKEN.finditer(statement):
        kind = match.lastgroup
        if kind in ("space", "hint"):
            continue
        if kind in ("quoted", "double"):
            mark = "`" if kind == "quoted" else '"'
            found.append(_Token(match[kind].replace(mark * 2, mark), "", True))
        else:
            is_word = kind == "word"
            found.append(_Token(match[0], match[0].upper() if is_word else "", is_word))
    return found


_HARMLESS = frozenset(
    "GRANT REVOKE FLUSH ANALYZE CHECK SET USE SAVEPOINT RELEASE BEGIN COMMIT ROLLBACK XA INSTALL"
    " UNINSTALL KILL RESET PURGE CHANGE SHUTDOWN".split()
)
_OBJECTS = frozenset(
    "VIEW TRIGGER PROCEDURE FUNCTION EVENT USER ROLE SERVER SEQUENCE PACKAGE LOGFILE TABLESPACE UNDO"
    " LIBRARY".split()
)
_CHANGES = frozenset("INSERT REPLACE UPDATE DELETE LOAD CALL DO WITH EXECUTE IMPORT".split())
_REWRITES = frozenset("MODIFY CHANGE CONVERT IGNORE DISCARD IMPORT EXCHANGE".split())
_INDEXES = frozenset("INDEX KEY PRIMARY CONSTRAINT".split())
_ANALYZED = frozenset("TABLE TABLES LOCAL NO_WRITE_TO_BINLOG".split())


def changes_rows(statement: str) -> bool:
    """Return whether a logged statement may have changed rows by itself, in any table.

    A view, a trigger or a function leads to tables that it does not name; a SELECT is logged only if a
    function in it changed rows.
    """
    words = [token.word for token in _without_prefix(tokens_of(statement))]
    first = words[0] if words else ""
    if first == "CREATE":  # a view or a routine contains a SELECT and runs none
        return "TABLE" in words[1:5] and ("SELECT" in words or _has_rows(words))
    return first in _CHANGES or first in ("SELECT", "VALUES")


def _has_rows(words: list[str]) -> bool:
    """Return whether VALUES is followed by rows, in which functions may be called, not by a partition's."""
    return any(word == "VALUES" and after not in ("LESS", "IN") for word, after in pairwise(words))


def _without_prefix(tokens: list[_Token]) -> list[_Token]:
    """Drop the prefixes that MariaDB allows and logs: SET STATEMENT ... FOR, and ANALYZE."""
    words = [token.word for token in tokens]
    if words[:2] == ["SET", "STATEMENT"] and "FOR" in words:
        return _without_prefix(tokens[words.index("FOR") + 1 :])
    if words[:1] == ["ANALYZE"] and not _ANALYZED.intersection(words[1:2]):
        is_format = words[1:2] == ["FORMAT"]
        return tokens[4 if is_format else 1 :]
    return tokens


def rebuilt_by(statement: str, database: str) -> list[Effect]:
    """Return an effect for each table that InnoDB may have given a new id in a statement, and few others.

    A missing one costs a dump; one too many may hide that a crash emptied the table.
    """
    tokens = _without_prefix(tokens_of(statement))
    words = [t.word for t in tokens]
    if words[:1] == ["OPTIMIZE"]:
        return _mentioned_tables(tokens[1:], database, "unlogged", "OPTIMIZE TABLE")
    if words[:1] in (["CREATE"], ["DROP"]) and _is_of_index(words):
        name = _indexed_table(tokens, words, database)
        return [Effect("unlogged", *name, f"{words[0]} INDEX")] if name else []
    return [effect for effect in statement_effects(statement, database) if effect.kind != "statement"]


def logged_late(statement: str) -> bool:
    """Return whether a statement may be logged only after it has unlocked the tables that it rebuilt.

    OPTIMIZE TABLE and ALTER TABLE ... OPTIMIZE PARTITION, and REPAIR likewise.
    """
    return not {"OPTIMIZE", "REPAIR"}.isdisjoint(token.word for token in tokens_of(statement))


def statement_effects(statement: str, database: str) -> list[Effect]:
    """Return a statement's effects on tables that no row event shows; see the module."""
    tokens = _without_prefix([t for t in tokens_of(statement) if t.is_name or t.text != ";"])
    effects = _effects_of(tokens, [t.word for t in tokens], database)
    may_copy = any(effect.kind == "copy" for effect in effects)
    if may_copy and _forbids_copy(tokens) and not _MAY_BE_SKIPPED.search(statement):
        return [effect for effect in effects if effect.kind != "copy"]
    return effects


_MAY_BE_SKIPPED = re.compile(r"/\*M?!")
"""An executable comment: only servers of some versions execute it."""

_NO_COPY = frozenset("INPLACE INSTANT NOCOPY".split())


def _forbids_copy(tokens: list[_Token]) -> bool:
    """Return whether a statement names an algorithm other than COPY; the server fails rather than copy then.

    In parentheses, the words may name columns that are compared.
    """
    depth, algorithm = 0, ""
    for index, token in enumerate(tokens):
        depth += _is_symbol(tokens, index, "(") - _is_symbol(tokens, index, ")")
        if token.word == "ALGORITHM" and depth == 0:
            at = index + 1 + _is_symbol(tokens, index + 1, "=")
            algorithm = tokens[at].word if at < len(tokens) else ""
    return algorithm in _NO_COPY


def _effects_of(tokens: list[_Token], words: list[str], database: str) -> list[Effect]:
    if not words or words[0] in _HARMLESS:
        return []
    first = words[0]
    if first == "TRUNCATE":
        name, _ = _table_at(tokens, _skip_keywords(words, 1, "TABLE"), database)
        return _effects_on(name, "truncate", "TRUNCATE TABLE", tokens, database)
    if first == "DROP":
        return _dropped(tokens, words, database)
    if first == "OPTIMIZE":  # MySQL copies a table with a FULLTEXT index
        return _mentioned_tables(tokens[1:], database, "copy", "OPTIMIZE TABLE")
    if first == "RENAME" and words[1:2] in (["TABLE"], ["TABLES"]):
        return _mentioned_tables(tokens, database, "unlogged", "RENAME TABLE")
    if first == "RENAME":
        return []
    if first == "ALTER":
        return _altered(tokens, words, database)
    if first == "CREATE":
        return _created(tokens, words, database)
    kind: Kind = "statement" if first in _CHANGES or not first else "unlogged"
    reason = f"{first or tokens[0].text} in the statement format"
    if first in ("INSERT", "REPLACE") and "INTO" in words:
        name, _ = _table_at(tokens, words.index("INTO") + 1, database)
        return _effects_on(name, kind, reason, tokens, database)
    return _mentioned_tables(tokens, database, kind, reason)


def _dropped(tokens: list[_Token], words: list[str], database: str) -> list[Effect]:
    what = words[1] if len(words) > 1 else ""
    if what == "INDEX":
        return _on_index("DROP INDEX", ("index", "copy", "traits"), tokens, words, database)
    if what == "TEMPORARY" or what in _OBJECTS:
        return []
    if what in ("DATABASE", "SCHEMA"):
        name, _ = _table_at(tokens, _skip_keywords(words, 2, "IF", "EXISTS"), database)
        return [Effect("unlogged", name[1], None, "DROP DATABASE")] if name else []
    return _mentioned_tables(tokens[1:], database, "unlogged", "DROP TABLE")


def _created(tokens: list[_Token], words: list[str], database: str) -> list[Effect]:
    if words[1:3] != ["OR", "REPLACE"]:
        kinds: tuple[Kind, ...] = ("copy", "traits") if "UNIQUE" in words[1:5] else ("copy",)
        return _on_index("CREATE INDEX", kinds, tokens, words, database) if _is_of_index(words) else []
    if words[3:4] in (["DATABASE"], ["SCHEMA"]):
        name, _ = _table_at(tokens, 4, database)
        return [Effect("unlogged", name[1], None, "CREATE OR REPLACE DATABASE")] if name else []
    if "INDEX" in words[3:5]:
        return _on_index("CREATE OR REPLACE INDEX", ("index", "copy", "traits"), tokens, words, database)
    what = next((word for word in words[3:5] if word in ("TABLE", "SEQUENCE")), None)
    if what is None:
        return []
    name, _ = _table_at(tokens, words.index(what) + 1, database)  # a sequence may replace a table, too
    return _effects_on(name, "unlogged", f"CREATE OR REPLACE {what}", tokens, database)


def _is_of_index(words: list[str]) -> bool:
    """Return whether a CREATE or DROP is of an index."""
    return "INDEX" in words[1:5] and "TABLE" not in words[1:5] and "ON" in words


def _on_index(
    reason: str, kinds: tuple[Kind, ...], tokens: list[_Token], words: list[str], database: str
) -> list[Effect]:
    """Return the effects of a CREATE or DROP INDEX on its table."""
    name = _indexed_table(tokens, words, database)
    return [effect for kind in kinds for effect in _effects_on(name, kind, reason, tokens, database)]


def _indexed_table(tokens: list[_Token], words: list[str], database: str) -> tuple[str, str] | None:
    """Return the table of a CREATE or DROP INDEX."""
    return _table_at(tokens, words.index("ON") + 1, database)[0] if "ON" in words else None


def _altered(tokens: list[_Token], words: list[str], database: str) -> list[Effect]:
    if "TABLE" not in words[1:4]:
        return []
    at = _skip_keywords(words, words.index("TABLE") + 1, "IF", "EXISTS")
    table, index = _table_at(tokens, at, database)
    left = words[index:]
    if table is None or "TABLE" in left:  # EXCHANGE PARTITION ... WITH TABLE, CONVERT TABLE
        unchecked = any(both == ("WITHOUT", "VALIDATION") for both in pairwise(left))
        return _mentioned_tables(tokens[1:], database, "unlogged", _UNCHECKED if unchecked else "ALTER TABLE")
    effects = []
    if reason := _rewrite_reason(words[1:3], tokens[index:], left):
        effects.append(Effect("unlogged", *table, reason))
    elif left not in _OF_KEYS:
        effects.append(Effect("copy", *table, "ALTER TABLE"))
    if any(word == "DROP" and after in _INDEXES for word, after in pairwise(left)):
        effects.append(Effect("index", *table, "ALTER TABLE ... DROP INDEX"))
    if any(word == "DROP" and after in ("FOREIGN", "CONSTRAINT") for word, after in pairwise(left)):
        effects.append(Effect("foreign key", *table, "ALTER TABLE ... DROP FOREIGN KEY"))
    drops = [at for at, both in enumerate(pairwise(words)) if at > index and both == ("DROP", "DEFAULT")]
    if plain := tuple(tokens[at - 1].text for at in drops):
        effects.append(Effect("default", *table, "ALTER TABLE ... DROP DEFAULT", plain))
    if not _TRAITS.isdisjoint(left):
        effects.append(Effect("traits", *table, "ALTER TABLE"))
    lost, added = [*_lost_columns(tokens, index)], tuple(_added_columns(tokens, index))
    names = tuple(name for name, _ in lost), tuple((name, new) for name, new in lost if new)
    effects.append(Effect("columns", *table, "ALTER TABLE", *names, added))
    return effects + _renamed_table(tokens, index, table, database)


_TRAITS = frozenset(("DEFAULT", "VERSIONING", "UNIQUE"))
"""Words in clauses that change traits of columns, but for those that have a column made another.

A unique index may become the key that the log names. A primary key is ``unlogged``.
"""

_UNCHECKED = (
    "ALTER TABLE ... WITHOUT VALIDATION, after which a dump may lack rows that are in a partition that is not"
    " theirs (CHECK TABLE finds them)"
)

_OF_KEYS = (["DISABLE", "KEYS"], ["ENABLE", "KEYS"])
"""Clauses of an ALTER that never copies, which mysqldump writes for each table."""


def _renamed_table(tokens: list[_Token], index: int, table: tuple[str, str], database: str) -> list[Effect]:
    """Return the effects of an ALTER that renames its table, on both names."""
    for at in range(index, len(tokens) - 1):
        after = tokens[at + 1]
        if tokens[at].word != "RENAME" or after.word in ("COLUMN", "INDEX", "KEY"):
            continue
        to = at + 1 + (after.word in ("TO", "AS") or _is_symbol(tokens, at + 1, "="))
        names = [_table_at(tokens, to, default)[0] for default in (table[0], database)]
        both = {table, *(name for name in names if name is not None)}
        return [Effect("unlogged", *name, "ALTER TABLE ... RENAME") for name in sorted(both)]
    return []


_OPTIONAL = frozenset("COLUMN IF NOT EXISTS".split())
_NO_COLUMN = _INDEXES | {*"UNIQUE FULLTEXT SPATIAL FOREIGN CHECK PARTITION DEFAULT TO AS".split()} | _OPTIONAL
_NO_COLUMN_BEFORE = {"PERIOD": ("FOR", "IF"), "SYSTEM": ("VERSIONING",), "VECTOR": ("INDEX", "KEY")}
"""Not reserved words, so a column may have such a name; the second word decides."""


def _lost_columns(tokens: list[_Token], index: int) -> Iterator[tuple[str, str]]:
    """Yield the columns that an ALTER drops or renames, with their new names; empty: none, or unknown."""
    while index < len(tokens):
        verb, index = tokens[index].word, index + 1
        if verb not in ("DROP", "RENAME", "CHANGE"):
            continue
        while index < len(tokens) and tokens[index].word in _OPTIONAL:
            index += 1
        if index == len(tokens) or not tokens[index].is_name or _is_no_column(tokens, index):
            continue
        name, after = _column_at(tokens, index)
        after += verb == "RENAME" and [t.word for t in tokens[after : after + 1]] == ["TO"]
        new = "" if verb == "DROP" else _column_at(tokens, after)[0]
        if verb != "CHANGE" or new.lower() not in ("", name.lower()):
            yield name, new


def _added_columns(tokens: list[_Token], index: int) -> Iterator[tuple[str, bool]]:
    """Yield the columns that an ALTER adds, and whether it certainly does: not IF NOT EXISTS."""
    depth, adds, is_certain = 0, False, True
    for at, (before, token) in enumerate(pairwise(tokens[index:]), index + 1):
        depth += (before.text == "(") - (before.text == ")")
        if depth == 0:
            adds = before.word == "ADD" or (adds and before.word in _OPTIONAL)
            is_certain = before.word == "ADD" or (is_certain and before.word != "EXISTS")
        begins = token.is_name and (depth == 0 or (depth == 1 and before.text in ("(", ",")))
        if adds and begins and not _is_no_column(tokens, at):
            yield token.text, is_certain


def _column_at(tokens: list[_Token], index: int) -> tuple[str, int]:
    """Parse a column's name, which MariaDB lets be qualified; return it, or '', and the index after it."""
    name = ""
    while index < len(tokens) and tokens[index].is_name:
        name, index = tokens[index].text, index + 1
        if not _is_symbol(tokens, index, "."):
            break
        index += 1
    return name, index


def _is_no_column(tokens: list[_Token], index: int) -> bool:
    word, after = (*(token.word for token in tokens[index : index + 2]), "")[:2]
    return word in _NO_COLUMN or after in _NO_COLUMN_BEFORE.get(word, ())


def _rewrite_reason(before: list[str], clauses: list[_Token], left: list[str]) -> str | None:
    """Return the part of an ALTER that may change values without a row event, or None."""
    if "IGNORE" in before:
        return "ALTER IGNORE TABLE"
    if found := [word for word in left if word in _REWRITES]:
        return f"ALTER TABLE ... {found[0]}"
    if "ENGINE" in left and "INNODB" not in left:
        return "ALTER TABLE ... ENGINE"  # another engine may store no rows
    pairs = [*pairwise(left)]
    for word, after in pairs:
        if word in _LOSES_ROWS and after == "PARTITION":
            return f"ALTER TABLE ... {word} PARTITION"
    if ("REORGANIZE", "PARTITION") in pairs and ("VALUES", "IN") in pairs:
        return "ALTER TABLE ... REORGANIZE PARTITION"  # rows of a value that no list has any more are gone
    if {("DROP", "SYSTEM"), ("SYSTEM", "VERSIONING")}.issubset(pairs):
        return "ALTER TABLE ... DROP SYSTEM VERSIONING"  # the catalog no longer tells which rows were current
    if "REFERENCES" in left and not {"CASCADE", "SET"}.isdisjoint(left):
        return "ALTER TABLE ... FOREIGN KEY"  # it may change rows and be dropped before a check sees it
    if "DROP" in left and "ADD" in left:
        return "ALTER TABLE ... DROP and ADD"
    for at, both in enumerate(pairwise(left)):
        if both in _MAKES_NOT_NULL and _begins_definition(clauses[:at]):
            return f"ALTER TABLE ... ADD {both[0]}"
    return None


_LOSES_ROWS = frozenset("DROP TRUNCATE REBUILD REPAIR".split())
"""The last two move rows that are in a partition that is not theirs, and delete those that belong to none."""

_MAKES_NOT_NULL = (("PRIMARY", "KEY"), ("PERIOD", "FOR"), ("PERIOD", "IF"))
"""Begins of definitions whose columns become NOT NULL: without strict sql_mode, their nulls become zeros."""


def _begins_definition(before: list[_Token]) -> bool:
    """Return whether a definition, also one in ADD (...), begins after these tokens; else it has begun."""
    words = [token.word or (token.text if not token.is_name else "") for token in before]
    return words[-1:] in (["ADD"], ["("], [","]) or "CONSTRAINT" in words[-2:]


def _table_at(tokens: list[_Token], index: int, database: str) -> tuple[tuple[str, str] | None, int]:
    """Parse one table's name; return it, or None if there is none, and the index after it."""
    if _is_symbol(tokens, index, "."):  # `.t` is a table in the default database
        index += 1
    if index >= len(tokens) or not tokens[index].is_name:
        return None, index
    if _is_symbol(tokens, index + 1, ".") and index + 2 < len(tokens):
        return (tokens[index].text, tokens[index + 2].text), index + 3
    return (database, tokens[index].text), index + 1


def _is_symbol(tokens: list[_Token], index: int, symbol: str) -> bool:
    return index < len(tokens) and not tokens[index].is_name and tokens[index].text == symbol


def _skip_keywords(words: list[str], index: int, *optional: str) -> int:
    """Return the index after optional keywords, each at most once and in this order."""
    for word in optional:
        index += words[index : index + 1] == [word]
    return index


def _effects_on(
    name: tuple[str, str] | None, kind: Kind, reason: str, tokens: list[_Token], database: str
) -> list[Effect]:
    """Return the effect on one table, or on all that are mentioned if its name could not be parsed."""
    if name is not None:
        return [Effect(kind, *name, reason)]
    return _mentioned_tables(tokens[1:], database, "unlogged" if kind == "truncate" else kind, reason)


def _mentioned_tables(tokens: list[_Token], database: str, kind: Kind, reason: str) -> list[Effect]:
    """Return an effect for everything that could be a table name."""
    found = []
    for index, token in enumerate(tokens):
        if not token.is_name:
            continue
        qualified = index >= 2 and _is_symbol(tokens, index - 1, ".") and tokens[index - 2].is_name
        found.append(Effect(kind, tokens[index - 2].text if qualified else database, token.text, reason))
        if qualified and tokens[index - 2].word:  # a keyword before `.t`, a table in the default database
            found.append(Effect(kind, database, token.text, reason))
    return found
