"""A password and tokens are in nothing that an agent writes or shows, whatever goes wrong meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import httpx
import pytest

from connector.demo.servers.starting import free_port
from connector.landing.requests import DumpRequest, submit
from connector.schema import TableName
from tests.support.agent.installed import Installation

MARK = "s3cret"
PASSWORD = f"pass {MARK}:1/@'%{{x}}"
READ, CONTROL = f"read-token-{MARK}-0001", f"control-token-{MARK}-0002"
USER = "marked"
CREATE = {
    "postgres": "CREATE ROLE {user} SUPERUSER LOGIN PASSWORD '{password}'",
    "mariadb": "CREATE USER {user} IDENTIFIED BY '{password}'; GRANT ALL PRIVILEGES ON *.* TO {user}",
}
CHANGE = {
    "postgres": "ALTER ROLE {user} PASSWORD 'other'",
    "mariadb": "ALTER USER {user} IDENTIFIED BY 'other'",
}
DROP = {"postgres": "DROP OWNED BY {user}; DROP ROLE {user}", "mariadb": "DROP USER {user}"}
REFUSED = re.compile("password authentication failed|access denied")


@pytest.fixture
def marked(place: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    """An installation that refers to its secrets by variables, as `conf/` does; one table has a row."""
    database = place.database
    escaped = PASSWORD.replace("'", "''")
    database.script(CREATE[database.kind].format(user=USER, password=escaped))
    database.script(f"CREATE TABLE {place.table('t')} (id int PRIMARY KEY, v text)")
    database.script(f"INSERT INTO {place.table('t')} VALUES (1, 'a')")
    for name, value in {"DB_PASSWORD": PASSWORD, "READ_TOKEN": READ, "CONTROL_TOKEN": CONTROL}.items():
        monkeypatch.setenv(name, value)
    scheme = "postgresql" if database.kind == "postgres" else "mysql"
    url = f"{scheme}://{USER}:${{DB_PASSWORD}}@127.0.0.1:{database.port}/{database.name}"
    control = {"read_token": "${READ_TOKEN}", "control_token": "${CONTROL_TOKEN}"}
    place.configure(source={"url": url}, control={"listen": f"127.0.0.1:{free_port()}", **control})
    yield place
    database.script(DROP[database.kind].format(user=USER))


def shown(marked: Installation) -> Iterator[str]:
    """What the HTTP side answers, right and wrong requests."""
    with httpx.Client(base_url=f"http://{marked.config.control.listen}", trust_env=False) as client:
        for token in (READ, CONTROL, f"{CONTROL}x"):
            headers = {"authorization": f"Bearer {token}"}
            for path in ("/", "/page.js", "/api/agent", "/api/status", "/metrics", "/openapi.json", "/docs"):
                answer = client.get(path, headers=headers)
                yield f"{answer.headers} {answer.text}"
            for body in ({"id": 1}, {"tables": ["no.table"]}):
                answer = client.post("/api/dump", headers=headers, json=body)
                yield f"{answer.headers} {answer.text}"


def processes() -> Iterator[str]:
    """The command lines of all processes, as everybody sees them."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield file.read_bytes().decode(errors="replace")
        except OSError:
            continue


def assert_without_secrets(where: str, text: str) -> None:
    for secret in (PASSWORD, READ, CONTROL):
        for form in (secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]):
            assert form not in text, where
    assert MARK not in text, where


@pytest.mark.only_postgres
@pytest.mark.only_mariadb
def test_no_secret_is_in_what_an_agent_writes_or_shows(marked: Installation) -> None:
    texts, table = [], marked.table("t")
    with marked.start("run", "-v") as agent:
        marked.wait_dumped(agent)
        submit(marked.store, DumpRequest(tables=[TableName.parse(table)], where="nonsense ("))
        agent.wait_says(f"of {table} failed")
        marked.database.script(f"INSERT INTO {table} VALUES (2, 'b')")
        marked.wait_caught_up(agent)
        texts += [*shown(marked), *processes()]
        marked.database.script(CHANGE[marked.database.kind].format(user=USER))
        marked.database.end_sessions()
        agent.wait_until(lambda: REFUSED.search(agent.output), "it is refused")
    for command in ("check", "run", "status", "dumps"):
        done = marked.run(command)
        texts += [done.stdout, done.stderr]
    assert len(REFUSED.findall("".join(texts))) >= 2, "check and run are refused"
    for text in texts:
        assert_without_secrets(text[:200], text)
    files = [file for file in marked.folder.rglob("*") if file.is_file()]
    assert {".log", ".json", ".parquet"} <= {file.suffix for file in files}
    for file in files:
        assert_without_secrets(str(file), file.read_bytes().decode(errors="replace"))
