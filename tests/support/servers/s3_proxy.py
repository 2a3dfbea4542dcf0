"""A proxy in front of an S3 server that delays chosen requests or drops their responses."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar
from urllib.parse import urlsplit

from tests.support.waiting import wait_until

P = TypeVar("P", bound="S3Proxy")


@dataclass(frozen=True)
class Answer:
    """A response of the server."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    content: bytes


class Exchange(BaseHTTPRequestHandler):
    """A client's request: what the proxy may do with it. `body` is the request's."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: S3Proxy
    body: bytes

    def forward(self) -> Answer:
        """Send the request to the server, and return its response."""
        connection = http.client.HTTPConnection(self.proxy.target, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders(self.body)
            answer = connection.getresponse()
            return Answer(answer.status, answer.reason, tuple(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def answer(self, answer: Answer, part: int | None = None) -> None:
        """Answer the client; with only this `part` of the content, in bytes, if given."""
        self.send_response_only(answer.status, answer.reason)
        length = str(len(answer.content))
        for name, value in answer.headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(answer.content[:part])

    def drop(self) -> None:
        """Close the connection: the client gets no (further) answer."""
        self.close_connection = True

    def wait_given_up(self, seconds: float) -> bool:
        """Wait until the client closes the connection; False if it does not."""
        try:
            wait_until(self._given_up, "the client gives up", seconds=seconds, pause=0.1)
        except AssertionError:
            return False
        return True

    def _given_up(self) -> bool:
        with suppress(BlockingIOError):
            try:
                return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except ConnectionError:
                return True
        return False

    def log_message(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _handle(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with suppress(ConnectionError):  # the client is gone
            self.proxy.handle(self)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that were killed."""


class S3Proxy:
    """Listens on 127.0.0.1 and forwards requests; a context manager.

    `before` is called with each request's method and path before it is forwarded, and may block. A response
    for which `loses` returns true is dropped: the connection is closed instead. `statuses` records every
    response, dropped ones included.
    """

    def __init__(self, endpoint: str) -> None:
        self.before: Callable[[str, str], None] = lambda _method, _path: None
        self.loses: Callable[[str, str], bool] = lambda _method, _path: False
        self.statuses: list[tuple[str, str, int]] = []
        self.target = urlsplit(endpoint).netloc
        self._server = _Server(("127.0.0.1", 0), type("Handler", (Exchange,), {"proxy": self}))
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self: P) -> P:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, exchange: Exchange) -> None:
        """Handle a request, in a thread of its connection."""
        self.before(exchange.command, exchange.path)
        answer = exchange.forward()
        self.statuses.append((exchange.command, exchange.path, answer.status))
        if self.loses(exchange.command, exchange.path):
            exchange.drop()
        else:
            exchange.answer(answer)

    def answered(self, method: str, pattern: str) -> list[int]:
        """Return the status codes of responses to matching requests, dropped ones included."""
        return [s for m, path, s in self.statuses if m == method and re.search(pattern, path)]
