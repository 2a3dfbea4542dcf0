"""SQL for `connector.checksums.definition` in PostgreSQL. Pure.

The session settings make each value's text the one that also lands (`connector.postgres.connection.SESSION`).
So a cell is the type's own output: of a string by its output function (``concat``), since a cast to text
would strip the padding of a ``character(n)``; of everything else by a cast, which writes booleans out.

Invariant: every function and operator is qualified with `pg_catalog`. Otherwise a function in another schema
of the search path whose argument types fit better would win, and code of whoever may create functions there
would run with the agent's rights.
"""

from __future__ import annotations

from collections.abc import Sequence

from connector.checksums.definition import HEX_DIGITS, NULL, SEPARATOR, uncovered
from connector.errors import RequestError
from connector.postgres.connection import quote
from connector.schema import Column, TableSchema

MOST_ARGUMENTS = 50
"""A function takes 100 arguments at most."""

_SHA256 = "pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to({text}, 'UTF8')), 'hex')"
_CHECKSUM = f"pg_catalog.concat('x', pg_catalog.left({_SHA256}, {{digits}}))::bit({{bits}})::bigint"


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
    checksum = _CHECKSUM.format(
        text=_joined([_cell(column) for column in schema.columns]), digits=HEX_DIGITS, bits=4 * HEX_DIGITS
    )
    bucket = f"{quote(schema.key[0])}::bigint OPERATOR(pg_catalog.>>) {bits}"
    return f"{bucket}, pg_catalog.count(*), pg_catalog.sum({checksum})"


def _joined(cells: Sequence[str]) -> str:
    if len(cells) > MOST_ARGUMENTS:
        groups = range(0, len(cells), MOST_ARGUMENTS)
        return _joined([_joined(cells[first : first + MOST_ARGUMENTS]) for first in groups])
    return f"pg_catalog.concat_ws('{SEPARATOR}', {', '.join(cells)})"


def _cell(column: Column) -> str:
    name = quote(column.name)
    if column.type != "string":
        return f"coalesce({name}::pg_catalog.text, '{NULL}')"
    text = f"pg_catalog.concat({name})"
    cell = f"pg_catalog.concat(pg_catalog.octet_length({text}), ':', {text})"
    # A composite value (,) IS NULL, too.
    return f"CASE WHEN pg_catalog.num_nulls({name}) OPERATOR(pg_catalog.=) 1 THEN '{NULL}' ELSE {cell} END"
