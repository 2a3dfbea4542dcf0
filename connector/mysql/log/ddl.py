"""Find the effects of logged statements on tables that no row event shows. Pure.

Invariant: a statement that may change rows, and is not understood, has an effect on every table whose name
occurs in it. The caller compares names.

Understood: TRUNCATE, DROP, RENAME, ALTER, CREATE, and statements in the statement format. An ALTER that adds
or drops columns or indexes has no effect: the log carries the layout with the next row, and
`connector.capture.tables` reads what a new column holds. One that rewrites values or moves partitions has.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Literal, NamedTuple

Kind = Literal["truncate", "unlogged", "statement", "columns"]


class Effect(NamedTuple):
    """One table (`name` None: all of the database), and what happened to it.

    ``truncate``: all rows are gone. ``unlogged``: rows or values may have changed without an event.
    ``statement``: rows were changed in the statement format. ``columns``: its layout changed; the given
    columns were dropped or renamed.
    """

    kind: Kind
    database: str
    name: str | None
    reason: str
    columns: tuple[str, ...] = ()


_TOKEN = re.compile(
    r"""(?P<space>\s+|/\*(?!M?!).*?\*/|\#[^\n]*|--(?=\s|$)[^\n]*)
      | (?P<hint>/\*M?!\d*|\*/)
      | `(?P<quoted>(?:[^`]|``)*)`
      | "(?P<double>(?:[^"\\]|""|\\.)*)"
      | (?P<text>'(?:[^'\\]|''|\\.)*')
      | (?P<word>[\w$\u0080-\U0010ffff]+)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)


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
    "GRANT REVOKE FLUSH ANALYZE OPTIMIZE CHECK SET USE SAVEPOINT RELEASE BEGIN COMMIT ROLLBACK XA INSTALL"
    " UNINSTALL KILL RESET PURGE CHANGE SHUTDOWN".split()
)
_OBJECTS = frozenset(
    "VIEW TRIGGER PROCEDURE FUNCTION EVENT USER ROLE INDEX SERVER SEQUENCE PACKAGE LOGFILE TABLESPACE UNDO"
    " LIBRARY".split()
)
_CHANGES = frozenset("INSERT REPLACE UPDATE DELETE LOAD CALL DO WITH EXECUTE IMPORT".split())
_REWRITES = frozenset("MODIFY CHANGE CONVERT IGNORE DISCARD IMPORT EXCHANGE".split())
_ANALYZED = frozenset("TABLE TABLES LOCAL NO_WRITE_TO_BINLOG".split())
_BEFORE_TABLE = frozenset("ONLINE IGNORE TABLE TABLES IF EXISTS NOT WAIT NOWAIT".split())


def changes_rows(statement: str) -> bool:
    """Return whether a logged statement may have changed rows by itself, in any table.

    A view, a trigger or a function leads to tables that it does not name; a SELECT is logged only if a
    function in it did so.
    """
    words = [token.word for token in _without_prefix(tokens_of(statement))]
    first = words[0] if words else ""
    if first == "CREATE":  # a view or a routine contains a SELECT and runs none
        return "TABLE" in words[1:5] and "SELECT" in words
    return first in _CHANGES or first in ("SELECT", "VALUES")


def _without_prefix(tokens: list[_Token]) -> list[_Token]:
    """Drop the prefixes that MariaDB allows and logs: SET STATEMENT ... FOR, and ANALYZE."""
    words = [token.word for token in tokens]
    if words[:2] == ["SET", "STATEMENT"] and "FOR" in words:
        return _without_prefix(tokens[words.index("FOR") + 1 :])
    if words[:1] == ["ANALYZE"] and not _ANALYZED.intersection(words[1:2]):
        is_format = words[1:2] == ["FORMAT"]
        return tokens[4 if is_format else 1 :]
    return tokens


def names_in(statement: str, database: str) -> set[tuple[str, str]]:
    """Return everything in a statement that could be a table name, each with its database."""
    found = _mentioned(tokens_of(statement), database, "unlogged", "")
    return {(effect.database, effect.name) for effect in found if effect.name is not None}


def effects_of(statement: str, database: str) -> list[Effect]:
    """Return a statement's effects on tables that no row event shows; see the module."""
    tokens = _without_prefix([t for t in tokens_of(statement) if t.text != ";"])
    words = [t.word for t in tokens]
    if not words or words[0] in _HARMLESS:
        return []
    first = words[0]
    if first == "TRUNCATE":
        names, _ = _names(tokens, 1, database)
        return [Effect("truncate", *name, "TRUNCATE TABLE") for name in names[:1]]
    if first == "DROP":
        return _dropped(tokens, words, database)
    if first == "RENAME" and words[1:2] in (["TABLE"], ["TABLES"]):
        return _mentioned(tokens, database, "unlogged", "RENAME TABLE")
    if first == "RENAME":
        return []
    if first == "ALTER":
        return _altered(tokens, words, database)
    if first == "CREATE":
        return _created(tokens, words, database)
    kind: Kind = "statement" if first in _CHANGES or not first else "unlogged"
    if first in ("INSERT", "REPLACE") and "INTO" in words:
        names, _ = _names(tokens, words.index("INTO") + 1, database)
        return [Effect(kind, *name, f"{first} in the statement format") for name in names[:1]]
    return _mentioned(tokens, database, kind, f"{first or tokens[0].text} in the statement format")


def _dropped(tokens: list[_Token], words: list[str], database: str) -> list[Effect]:
    if "TEMPORARY" in words[1:3] or _OBJECTS.intersection(words[1:3]):
        return []
    if words[1] in ("DATABASE", "SCHEMA"):
        names, _ = _names(tokens, 2, database)
        return [Effect("unlogged", names[0][1], None, "DROP DATABASE")] if names else []
    return _mentioned(tokens[1:], database, "unlogged", "DROP TABLE")


def _created(tokens: list[_Token], words: list[str], database: str) -> list[Effect]:
    if "REPLACE" not in words[1:3] or "TABLE" not in words[1:5]:
        return []
    names, _ = _names(tokens, words.index("TABLE") + 1, database)
    return [Effect("unlogged", *name, "CREATE OR REPLACE TABLE") for name in names[:1]]


def _altered(tokens: list[_Token], words: list[str], database: str) -> list[Effect]:
    if "TABLE" not in words[1:4]:
        return []
    names, place = _names(tokens, 1, database)
    if not names:
        return []
    table, left = names[0], words[place:]
    reason = _rewriting(words[1:3], left)
    effects = [Effect("unlogged", *table, reason)] if reason else []
    effects.append(Effect("columns", *table, "ALTER TABLE", _columns_that_went(tokens, place)))
    if "EXCHANGE" in left:
        return _mentioned(tokens[1:], database, "unlogged", "ALTER TABLE ... EXCHANGE PARTITION")
    for at, word in enumerate(left[:-1]):
        if word == "RENAME" and left[at + 1] not in ("COLUMN", "INDEX", "KEY"):
            after = place + at + 1 + (left[at + 1] in ("TO", "AS"))
            effects += [
                Effect("unlogged", *name, "ALTER TABLE ... RENAME")
                for name in (table, *_names(tokens, after, table[0])[0])
            ]
    return effects


_NO_COLUMN = frozenset(
    "INDEX KEY PRIMARY FOREIGN CONSTRAINT CHECK PARTITION DEFAULT PERIOD SYSTEM TO AS".split()
)


def _columns_that_went(tokens: list[_Token], place: int) -> tuple[str, ...]:
    """Return the columns that an ALTER drops or renames."""
    found: list[str] = []
    while place < len(tokens):
        verb, place = tokens[place].word, place + 1
        if verb not in ("DROP", "RENAME"):
            continue
        while place < len(tokens) and tokens[place].word in ("COLUMN", "IF", "EXISTS"):
            place += 1
        if place < len(tokens) and tokens[place].is_name and tokens[place].word not in _NO_COLUMN:
            found.append(tokens[place].text)
    return tuple(found)


def _rewriting(before: list[str], left: list[str]) -> str | None:
    """Return the part of an ALTER that may change values without a row event, or None."""
    if "IGNORE" in before:
        return "ALTER IGNORE TABLE"
    if found := [word for word in left if word in _REWRITES]:
        return f"ALTER TABLE ... {found[0]}"
    if "ENGINE" in left and "INNODB" not in left:
        return "ALTER TABLE ... ENGINE"  # another engine may store no rows
    for word, after in pairwise(left):
        if word in ("DROP", "TRUNCATE") and after == "PARTITION":
            return f"ALTER TABLE ... {word} PARTITION"
    if "DROP" in left and "ADD" in left:
        return "ALTER TABLE ... DROP and ADD"
    return None


def _names(tokens: list[_Token], place: int, database: str) -> tuple[list[tuple[str, str]], int]:
    """Parse comma-separated table names from a token on; return them and the index after them."""
    names = []
    while place < len(tokens) and (tokens[place].word in _BEFORE_TABLE or tokens[place].text == "."):
        place += 1  # `.t` is a table in the default database
    while place < len(tokens) and tokens[place].is_name:
        if place + 2 < len(tokens) and tokens[place + 1].text == "." and not tokens[place + 1].is_name:
            names.append((tokens[place].text, tokens[place + 2].text))
            place += 3
        else:
            names.append((database, tokens[place].text))
            place += 1
        if place >= len(tokens) or tokens[place].text != ",":
            break
        place += 1
    return names, place


def _mentioned(tokens: list[_Token], database: str, kind: Kind, reason: str) -> list[Effect]:
    """Return an effect for everything that could be a table name."""
    found = []
    for place, token in enumerate(tokens):
        if not token.is_name:
            continue
        qualified = place >= 2 and tokens[place - 1].text == "." and tokens[place - 2].is_name
        found.append(Effect(kind, tokens[place - 2].text if qualified else database, token.text, reason))
        if qualified and tokens[place - 2].word:  # a keyword before `.t`, a table in the default database
            found.append(Effect(kind, database, token.text, reason))
    return found
