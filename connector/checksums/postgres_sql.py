"""SQL for `connector.checksums.definition` in PostgreSQL. Pure.

The session settings make each value's text the one that also lands (`connector.postgres.connection.SESSION`).
So a cell is the type's own output, as ``concat_ws`` formats it: a cast to text would strip the padding of a
``character(n)``. Only booleans are cast, which writes them out.

Rows without NULL are joined by one call, without a branch for each column. ``concat_ws`` skips NULL, so other
rows take a longer way to the same text.

Invariant: every function and operator is qualified with `pg_catalog`. Otherwise a function in another schema
of the search path whose argument types fit better would win, and code of whoever may create functions there
would run with the agent's rights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from connector.checksums.definition import HEX_DIGITS, NULL, SEPARATOR, uncovered
from connector.errors import RequestError
from connector.postgres.connection import quote
from connector.schema import Column, TableSchema

MOST_ARGUMENTS = 50
"""A function takes 100 arguments at most."""

_TEXTS = re.compile(r"text|character varying(\(\d+\))?")
"""Types whose output is as long as they are; types of others never have these names."""

_BYTES = (
    f"pg_catalog.substr(pg_catalog.sha256(pg_catalog.convert_to({{text}}, 'UTF8')), 1, {HEX_DIGITS // 2})"
)
_CHECKSUM = f"pg_catalog.concat('x', pg_catalog.encode({_BYTES}, 'hex'))::bit({4 * HEX_DIGITS})::bigint"


def bucket_columns(schema: TableSchema, encoding: str, bits: int) -> str:
    """Build the select list, to be grouped by its first column: bucket, row count, sum of checksums.

    `encoding`: the database's. `RequestError` if the rows have no checksums.
    """
    if why := uncovered(schema):
        raise RequestError(f"{schema.table}: {why}")
    if encoding != "UTF8":
        raise RequestError(
            f"{schema.table}: checksums need a database in UTF8, and this one is in {encoding}"
        )
    checksum = _CHECKSUM.format(text=_row_text(schema.columns))
    bucket = f"{quote(schema.key[0])}::bigint OPERATOR(pg_catalog.>>) {bits}"
    return f"{bucket}, pg_catalog.count(*), pg_catalog.sum({checksum})"


def _row_text(columns: Sequence[Column]) -> str:
    names = [quote(column.name) for column in columns]
    nulls = " OPERATOR(pg_catalog.+) ".join(
        f"pg_catalog.num_nulls({', '.join(some)})" for some in _parts(names)
    )
    whole = _joined([value for column in columns for value in _values(column)])
    return (
        f"CASE WHEN {nulls} OPERATOR(pg_catalog.=) 0"
        f" THEN {whole} ELSE {_joined([_nullable(column) for column in columns])} END"
    )


def _joined(values: Sequence[str]) -> str:
    if len(values) > MOST_ARGUMENTS:
        return _joined([_joined(some) for some in _parts(values)])
    return f"pg_catalog.concat_ws('{SEPARATOR}', {', '.join(values)})"


def _parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    return (values[first : first + MOST_ARGUMENTS] for first in range(0, len(values), MOST_ARGUMENTS))


def _values(column: Column) -> tuple[str, ...]:
    """Return what is joined for a column that is not NULL."""
    name = quote(column.name)
    if column.type == "boolean":
        return (f"{name}::pg_catalog.text",)
    if column.type != "string":
        return (name,)
    text = name if _TEXTS.fullmatch(column.source_type) else f"pg_catalog.concat({name})"
    return f"pg_catalog.octet_length({text})", text


def _nullable(column: Column) -> str:
    # A composite value (,) IS NULL, too.
    is_null = f"pg_catalog.num_nulls({quote(column.name)}) OPERATOR(pg_catalog.=) 1"
    return f"CASE WHEN {is_null} THEN '{NULL}' ELSE {_joined(_values(column))} END"
