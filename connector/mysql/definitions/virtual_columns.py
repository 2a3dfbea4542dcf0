"""Virtual columns that MySQL logs with wrong values if ``binlog_row_image`` is NOBLOB.

For an update that does not change it, the server then computes no virtual TEXT or BLOB column, and computes
what is made of one from nothing: other virtual columns are null in the log, and stored ones in the table,
too. Nothing in the log shows that. JSON and geometry columns are computed.
"""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection

from connector.errors import TableError
from connector.mysql.connection import quote, rows
from connector.mysql.server import Server
from connector.schema import TableName

FIX = "SET GLOBAL binlog_row_image = FULL, in all sessions"


def miscomputed_columns(connection: Connection[Any], server: Server) -> dict[TableName, list[str]]:
    """Return the tables with such columns, and their names, if the server now logs so by default."""
    image = [] if server.mariadb else rows(connection, "SHOW GLOBAL VARIABLES LIKE 'binlog_row_image'")
    if [value for _, value in image] != ["NOBLOB"]:
        return {}
    columns: dict[TableName, dict[str, tuple[bool, str]]] = {}
    for namespace, table, name, type_, expression in rows(
        connection,
        "SELECT table_schema, table_name, column_name, data_type, generation_expression"
        " FROM information_schema.columns WHERE extra LIKE '%VIRTUAL GENERATED%'",
    ):
        is_text = str(type_).endswith(("text", "blob"))
        columns.setdefault(TableName(namespace, table), {})[name] = is_text, str(expression)
    return {table: found for table, its in columns.items() if (found := _made_of_texts(its))}


def _made_of_texts(columns: dict[str, tuple[bool, str]]) -> list[str]:
    """Return those of a table's virtual columns that are not texts, and made of such.

    `columns`: by name, whether it is a text, and its expression.
    """
    texts = [quote(name) for name, (is_text, _) in columns.items() if is_text]
    return [
        name
        for name, (is_text, expression) in columns.items()
        if not is_text and any(text in expression for text in texts)
    ]


def miscomputed_table(table: TableName, names: list[str]) -> TableError:
    """Return why a table with such columns can't be captured, and what to do."""
    return TableError(table, miscomputed(names), hint=FIX)


def miscomputed(names: list[str]) -> str:
    """Describe such columns."""
    return (
        f"its virtual columns ({', '.join(names)}) are made of virtual texts, so the log has nulls for them"
        " while binlog_row_image is NOBLOB"
    )
