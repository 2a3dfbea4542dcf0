"""Who is let through: host names, tokens and roles, requests of other web sites, and what no answer holds."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from connector.config import ControlConfig
from connector.control import connections, guard
from connector.control.guard import HEADERS
from connector.control.server import serving
from connector.errors import ConfigurationError
from connector.testing.memory_store import MemoryStore
from tests.support.agent.status_page import client_of, live_agent
from tests.support.waiting import wait_until

READ, CONTROL = "read-token-0123456789", "control-token-0123456789"
TOKENS = {"read_token": READ, "control_token": CONTROL}
JSON = {"content-type": "application/json"}


def live(**control: Any) -> Any:
    return live_agent(MemoryStore(), **control)


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        ("localhost", True), ("localhost:8642", True), ("127.0.0.1:1", True), ("[::1]:8642", True),
        ("LOCALHOST.", True), ("agent.example:8642", True), ("other.example", True), ("evil.example", False),
        ("evil.example:1", False), ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False), ("", False), ("a:b", False),
    ],
)  # fmt: skip
def test_a_name_that_was_led_here_by_dns_is_refused(host: str, passes: bool) -> None:
    with client_of(live(hosts=["agent.example", "Other.Example:8642"])) as client:
        for path in ("/api/agent", "/", "/healthz"):
            answer = client.get(path, headers={"host": host})
            assert answer.status_code == (200 if passes else 403), answer.text
        assert set(HEADERS) <= set(answer.headers)


@pytest.mark.parametrize(
    ("headers", "status_code"),
    [
        ({}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "application/json", "origin": "http://evil.example"}, 403),
        ({"content-type": "application/json", "origin": "null"}, 403),
        ({"content-type": "application/json", "sec-fetch-site": "cross-site"}, 403),
        ({"content-type": "application/json", "sec-fetch-site": "same-site"}, 403),
        ({"content-type": "application/json", "content-length": "99999999"}, 413),
        ({"content-type": "application/json; charset=utf-8"}, 400),
        ({"content-type": "application/json", "sec-fetch-site": "same-origin", "origin": "http://%s"}, 400),
    ],
)
def test_a_request_that_another_site_may_have_sent_is_refused(
    headers: dict[str, str], status_code: int
) -> None:
    with serving(live()) as url:
        address = urlsplit(str(url)).netloc
        connection = http.client.HTTPConnection(address)
        given = {name: value.replace("%s", address) for name, value in headers.items()}
        connection.request("POST", "/api/dump", b"{}" if "content-length" not in given else b"", given)
        answer = connection.getresponse()
        assert (answer.status, b'"hint"' in answer.read()) == (status_code, True)
        connection.close()


def test_one_token_reads_and_the_other_controls() -> None:
    def got(client: httpx.Client, token: str | None, method: str, path: str) -> int:
        headers = JSON | ({} if token is None else {"authorization": f"Bearer {token}"})
        return client.request(method, path, headers=headers, content=b"{}").status_code

    with client_of(live(**TOKENS)) as client:
        for path in ("/", "/page.js", "/healthz", "/readyz", "/docs"):
            assert got(client, None, "GET", path) in (200, 503)
        for path in ("/api/agent", "/metrics"):
            assert got(client, None, "GET", path) == got(client, READ[:-1], "GET", path) == 401
            assert got(client, f"{CONTROL}x", "GET", path) == 401
            assert got(client, READ, "GET", path) == got(client, CONTROL, "GET", path) == 200
        posted = [got(client, token, "POST", "/api/dump") for token in (None, "x", READ, CONTROL)]
        assert posted == [401, 401, 403, 400]
        assert client.get("/api/agent").headers["www-authenticate"] == "Bearer"
        assert client.get("/api/agent", headers={"host": "any.example"}).status_code == 401
    with client_of(live(read_token=READ)) as client:
        assert got(client, READ, "POST", "/api/dump") == 403
        assert got(client, READ, "GET", "/api/agent") == 200


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    ours = guard.hmac.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        compared.append(len(a))
        return ours(a, b)

    monkeypatch.setattr(guard.hmac, "compare_digest", counted)
    with client_of(live(**TOKENS)) as client:
        for token in ("y", "x", READ, CONTROL):
            client.get("/api/agent", headers={"authorization": f"Bearer {token}"})
    assert compared == [32] * 8  # each with each, by digests of one length


def test_no_secret_is_in_an_answer_or_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "connector")
    caplog.set_level(logging.DEBUG, "uvicorn")
    with client_of(live(**TOKENS), authorization=f"Bearer {CONTROL}") as client:
        paths = ("/api/agent", "/api/status", "/metrics", "/openapi.json", "/nowhere")
        texts = [client.get(path).text for path in paths]
        texts += [client.post("/api/dump", json={"id": 1}).text, str(client.get("/api/agent").headers)]
    assert not any(secret in text for secret in (READ, CONTROL) for text in [*texts, caplog.text])
    assert READ not in repr(live(**TOKENS).config)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "agent.crt", folder / "agent.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
               "-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=agent",
               "-addext", "subjectAltName=IP:127.0.0.1"]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl")
    return certificate, key


def test_tls(pair: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = pair
    with serving(live(certificate=str(certificate), key=str(key))) as url:
        assert str(url).startswith("https://")
        trusted = ssl.create_default_context(cafile=str(certificate))
        assert httpx.get(f"{url}/healthz", verify=trusted, trust_env=False).status_code == 200
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{url}/healthz", trust_env=False)
    for wrong in (str(tmp_path / "none"), str(certificate)):
        with pytest.raises(ConfigurationError, match=r"control\.certificate .*, control\.key"):
            with serving(live(certificate=str(certificate), key=wrong)):
                pass


@pytest.mark.parametrize("tls", [True, False])
def test_idle_connections_are_ended_in_favor_of_new_ones_even_before_their_handshake(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 5)
    certificate, key = map(str, pair)
    given = {"certificate": certificate, "key": key} if tls else {}
    trusted = ssl.create_default_context(cafile=certificate)
    with serving(live(**given)) as url, ExitStack() as opened:
        host, _, port = urlsplit(str(url)).netloc.partition(":")
        first = opened.enter_context(httpx.Client(base_url=str(url), verify=trusted, trust_env=False))
        assert first.get("/healthz").status_code == 200
        (kept,) = first._transport._pool.connections  # type: ignore[attr-defined]
        idle = [
            opened.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(30)
        ]
        assert [connection.recv(1) for connection in idle[:-5]] == [b""] * 25
        wait_until(kept.has_expired, "the first one, served before, is ended too")
        assert first.get("/healthz").status_code == 200
        idle[-1].settimeout(0.05)
        with pytest.raises(TimeoutError):
            idle[-1].recv(1)


def test_a_connection_is_accepted_while_another_is_being_closed_over_tls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 1)
    closing = SimpleNamespace(transport=SimpleNamespace(get_extra_info=lambda _: None))
    with (
        connections.Listener(socket.create_server(("127.0.0.1", 0)), [closing]) as listener,
        ExitStack() as opened,
    ):
        for _ in range(2):
            opened.enter_context(socket.create_connection(listener.getsockname(), timeout=60))
            opened.enter_context(listener.accept()[0])


def test_whether_other_machines_reach_an_address() -> None:
    def on_loopback(listen: str) -> bool:
        return ControlConfig.model_construct(listen=listen).on_loopback

    assert all(map(on_loopback, ("127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1")))
    assert not any(map(on_loopback, ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", "agent:1", "localhost.example:1")))
