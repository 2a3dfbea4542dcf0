"""Airflow: a merge every five minutes, and upkeep every night, of the source `shop`.

Copy this file into the folder of DAGs. Workers need ``deltatide[spark]`` and Java 17 or 21, or replace the
commands by spark-submit's (conf/spark-submit/). A merge takes what has landed since the last one, so a run
that was missed is not caught up, and one that failed is simply run again.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

CONFIG = "/etc/deltatide/shop.toml"
SCHEDULES = {"merge": "*/5 * * * *", "maintain": "30 3 * * *"}

for command, schedule in SCHEDULES.items():
    with DAG(
        dag_id=f"deltatide_shop_{command}",
        schedule=schedule,
        start_date=datetime(2026, 1, 1),
        catchup=False,
        max_active_runs=1,
        tags=["deltatide"],
        default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    ):
        BashOperator(task_id=command, bash_command=f"deltatide {command} -c {CONFIG}")
