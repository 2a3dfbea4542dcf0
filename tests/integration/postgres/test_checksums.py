"""PostgreSQL's checksums are those of the landed values, for every type that has any."""

from __future__ import annotations

from contextlib import closing

import pytest

from connector.checksums.definition import checksum, row_text
from connector.errors import RequestError
from connector.schema import TableName
from connector.source import KeyRange
from tests.fidelity.literals import Literals
from tests.fidelity.postgres import LITERALS
from tests.support.servers.postgres import Database
from tests.support.source.checksum_scenarios import (
    BUCKET_ENDS,
    assert_buckets,
    compare_checksums,
    landed_rows,
    sums,
)
from tests.support.source.postgres_source import source_of
from tests.support.source.reading import following

BY_ROWS = ("float", "double", "array")
"""Landed types that have no checksum."""


def table_of(number: int) -> TableName:
    return TableName("public", f"t{number}")


def test_the_database_and_the_landed_values_have_one_checksum(database: Database) -> None:
    cases: list[Literals] = []
    for case in LITERALS:
        version = int(database.execute("SHOW server_version_num")[0][0]) // 10000
        if case.since <= version and not case.optional:
            for statement in case.before:
                database.execute(statement)
            name = table_of(len(cases)).name
            database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v {case.type})")
            for id_, literal in enumerate((*case.exact, *case.raw, None)):
                database.execute(f"INSERT INTO {name} VALUES (%s, %s)", (id_, literal))
            cases.append(case)
    source = source_of(database)
    with following(source):
        tables = [(case.type, table_of(number)) for number, case in enumerate(cases)]
        uncovered, differing = compare_checksums(source, tables)
    assert not differing
    assert uncovered == {case.type for case in cases if case.landing.startswith(BY_ROWS)}


def test_buckets_are_cut_at_powers_of_two_and_a_range_may_be_of_the_keys_first_column(
    database: Database,
) -> None:
    many = ", ".join(f"c{number} int" for number in range(120))
    database.execute(f"CREATE TABLE wide (id bigint, part text, {many}, PRIMARY KEY (id, part))")
    for id_ in BUCKET_ENDS:
        database.execute("INSERT INTO wide (id, part, c7) VALUES (%s, 'a;b', 1), (%s, 'c', NULL)", (id_, id_))
    whole = ", ".join(["7"] * 120)
    database.execute("CREATE TABLE whole (LIKE wide, PRIMARY KEY (id)); INSERT INTO whole VALUES (1, '')")
    database.execute(f"INSERT INTO whole VALUES (2, 'a;b', {whole})")
    database.execute("CREATE TABLE keyed (id uuid PRIMARY KEY)")
    source, wide = source_of(database), TableName("public", "wide")
    with following(source), closing(source.open_tables()) as reader:
        assert_buckets(reader, wide)
        assert compare_checksums(source, [("whole", TableName("public", "whole"))]) == (set(), [])
        with pytest.raises(RequestError, match="not an integer"):
            sums(reader, TableName("public", "keyed"))
        with pytest.raises(RequestError, match="not an integer"):
            reader.key_span(TableName("public", "keyed"), ("id",))


def test_no_function_of_others_runs_and_names_of_types_that_begin_with_text_mean_nothing(
    database: Database,
) -> None:
    body = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted code runs'; END $$"
    for function in (
        "convert_to(text, text) RETURNS bytea",
        "octet_length(varchar) RETURNS int",
        "planted(varchar, varchar) RETURNS varchar",
        "joined(int, varchar) RETURNS text",
    ):
        database.execute(f"CREATE FUNCTION public.{function} {body}")
    database.execute("CREATE AGGREGATE public.max(varchar) (sfunc = public.planted, stype = varchar)")
    database.execute(
        "CREATE OPERATOR public.|| (leftarg = int, rightarg = varchar, function = public.joined)"
    )
    database.execute("CREATE TYPE text_kind AS ENUM ('a'); CREATE DOMAIN text_code AS char(5)")
    database.execute("CREATE SCHEMA texts; CREATE TYPE texts.mood AS ENUM ('a')")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(9)); INSERT INTO t VALUES (1, 'b')")
    database.execute("CREATE TABLE k (id varchar PRIMARY KEY); INSERT INTO k VALUES ('a'), ('b')")
    database.execute("CREATE TABLE n (id int PRIMARY KEY, k text_kind, m texts.mood, c text_code)")
    database.execute("INSERT INTO n VALUES (1, 'a', 'a', 'a'), (2, NULL, NULL, NULL)")
    source = source_of(database)
    with following(source), closing(source.open_tables()) as reader:
        for table in (TableName("public", "t"), TableName("public", "n")):
            with reader.open_chunk(table, KeyRange()) as chunk:
                texts = {row["id"]: row_text(chunk.schema, row) for row in landed_rows(chunk)}
            assert sums(reader, table) == {id_: (1, checksum(text)) for id_, text in texts.items()}
        with pytest.raises(RequestError, match="not an integer"):
            reader.key_span(TableName("public", "k"), ("id",))
