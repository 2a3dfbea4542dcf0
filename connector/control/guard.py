"""Access to the agent's HTTP side: tokens, host names, and no requests from other web sites.

Without tokens the server is on loopback and trusts whoever can reach it. But browsers on this machine also
run other sites' pages. So

- the ``Host`` must be an IP address, localhost or one of ``control.hosts``: a name that an attacker's DNS
  leads here (DNS rebinding) is refused;
- a POST must be of type ``application/json``, which pages of other origins can't send without asking, and the
  browser must not report another origin (``Origin``, ``Sec-Fetch-Site``).

With tokens, each request except for the page itself and for health carries one (``Authorization: Bearer``):
`read_token` for GET, `control_token` for everything. There are no cookies, so no other site can borrow one.

Every answer, including errors, has headers that let a browser run only the page's own files.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connector.config import ControlConfig
from connector.landing.requests import MOST_BYTES

GUARDED = ("/api/", "/metrics")
"""Paths that show data. The page and the API's description hold none, health only a word."""

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class RefusedError(Exception):
    """a request that is not let through."""

    def __init__(self, status: int, error: str, hint: str) -> None:
        super().__init__(error)
        self.status, self.error, self.hint = status, error, hint


class Guard:
    """ASGI middleware: refuses requests that may not pass, and adds the headers."""

    def __init__(self, app: ASGIApp, config: ControlConfig) -> None:
        self._app = app
        self._reading = [t for t in (config.read_token, config.control_token) if t is not None]
        self._controlling = [t for t in (config.control_token,) if t is not None]
        self._hosts = {"localhost", *map(host_name, config.hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with an error."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *given]}
            await send(message)

        try:
            self._check(scope["method"], scope["path"], Headers(scope=scope))
        except RefusedError as refused:
            await _answer(refused, with_headers)
            return
        await self._app(scope, receive, with_headers)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        if self._reading:
            self._check_token(method, path, headers)
        else:
            self._check_host(headers)
        if method not in ("GET", "HEAD"):
            _check_same_site(headers)
            _check_body(headers)

    def _check_host(self, headers: Headers) -> None:
        host = host_name(headers.get("host", ""))
        if host not in self._hosts and not _is_address(host):
            raise RefusedError(
                403,
                f"the host name {host[:100]!r} is not one of this agent",
                "use localhost or the IP address, or add it to [control] hosts",
            )

    def _check_token(self, method: str, path: str, headers: Headers) -> None:
        if method in ("GET", "HEAD") and not path.startswith(GUARDED):
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if kind.lower() == "bearer" else ""
        may_read = _is_one_of(given, self._reading)
        if not may_read:
            raise RefusedError(401, "a token is needed", "send the header: Authorization: Bearer <token>")
        if method not in ("GET", "HEAD") and not _is_one_of(given, self._controlling):
            raise RefusedError(403, "this token may read only", "use the token in [control] control_token")


def host_name(host: str) -> str:
    """Return the name in a Host header, without port and brackets, in lower case."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.strip().removeprefix("[").removesuffix("]").lower().rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_one_of(given: str, tokens: Iterable[SecretStr]) -> bool:
    """Compare with each token in constant time."""
    ours = hashlib.sha256(given.encode(errors="replace")).digest()
    matches = [
        hmac.compare_digest(ours, hashlib.sha256(t.get_secret_value().encode()).digest()) for t in tokens
    ]
    return any(matches)


def _check_same_site(headers: Headers) -> None:
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    foreign = site not in (None, "same-origin", "none")
    if origin is not None:
        foreign |= urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    if foreign:
        raise RefusedError(
            403, "the request comes from another web site", "use this agent's own page, or no browser"
        )


def _check_body(headers: Headers) -> None:
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, "the content type is not application/json", "send JSON, at least {}")
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
        raise RefusedError(411, "the request has no length", "send the header Content-Length")
    if int(length) > MOST_BYTES:
        raise RefusedError(413, f"{int(length):,} bytes; a request has at most {MOST_BYTES:,}", "split it")


async def _answer(refused: RefusedError, send: Send) -> None:
    body = json.dumps({"error": refused.error, "hint": refused.hint}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
