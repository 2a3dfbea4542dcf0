"""A proxy in front of an S3 server that delays chosen requests or drops their responses."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


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
        self._target = urlsplit(endpoint).netloc
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> S3Proxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answered(self, method: str, pattern: str) -> list[int]:
        """Return the status codes of responses to matching requests, dropped ones included."""
        return [s for m, path, s in self.statuses if m == method and re.search(pattern, path)]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def __getattr__(self, name: str) -> Callable[[], None]:
                if name.startswith("do_"):
                    return self._pass_on
                raise AttributeError(name)

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.before(self.command, self.path)
                connection = http.client.HTTPConnection(proxy._target, timeout=60)
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in ("expect", "connection"):
                        connection.putheader(name, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                content = answer.read()
                connection.close()
                proxy.statuses.append((self.command, self.path, answer.status))
                if proxy.loses(self.command, self.path):
                    self.close_connection = True
                    return
                self._answer(answer, content)

            def _answer(self, answer: http.client.HTTPResponse, content: bytes) -> None:
                self.send_response_only(answer.status, answer.reason)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", length or str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        return Handler
