"""The short form of `make chaos`: half a minute of faults of every kind, after which all is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import Options, Run, show
from tests.support.servers.postgres import Database
from tests.support.servers.s3_server import S3, versitygw_path

SECONDS = 30
"""Of faults. Two starts of Spark and the last merges come on top; on a busy machine they take longer."""


def test_amid_faults_of_every_kind_each_exact_cut_is_the_source_at_one_position(
    database: Database, s3: S3, tmp_path: Path
) -> None:
    if versitygw_path() is None:
        pytest.skip("versitygw is not installed: .ci/fetch-servers builds it")
    said: list[str] = []
    options = Options(SECONDS, seed=14, quick=True, lake_on_s3=False, shaped=())
    with Run(tmp_path, database, s3, options, said.append) as run:
        figures = run.carry_out()
    show(figures, said.append)
    assert figures.ok, "\n".join(said)
