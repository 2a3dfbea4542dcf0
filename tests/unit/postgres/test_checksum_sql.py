"""The SQL of checksums in PostgreSQL."""

from __future__ import annotations

import re

from connector.checksums.postgres_sql import bucket_columns
from connector.schema import Column, TableName, TableSchema


def test_no_function_operator_or_type_is_looked_up_in_the_search_path() -> None:
    columns = (
        Column("id", "bigint", "bigint"),
        Column("a", "character varying(9)", "string"),
        Column("b", "text_kind", "string"),
        Column("c", "numeric(9,2)", "decimal(9,2)"),
    )
    sql = bucket_columns(TableSchema(TableName("public", "t"), columns, ("id",)), "UTF8", 8)
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", sql)
    bare = re.sub(r"OPERATOR\(pg_catalog\.\S+\)|pg_catalog\.\w+", "", bare)
    keywords = {"CASE", "WHEN", "THEN", "ELSE", "END", "bit", "bigint"}
    assert set(re.findall(r"[a-zA-Z]\w*", bare)) == keywords
    assert not re.findall(r"[|<>=+/%&~!^-]", bare)
