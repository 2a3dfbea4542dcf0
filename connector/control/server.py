"""The HTTP server in a thread of the agent, from its beginning to its end.

The address is bound first. If a configured one is unavailable, that is an error; for the default it is a
warning, since several agents may run on a machine. The server never ends the agent: if it fails while
running, it logs an error.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from connector.config import ControlConfig
from connector.control.live_agent import LiveAgent
from connector.errors import ConfigurationError

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0
"""How long requests may take to finish when the agent ends."""

BACKLOG = 100


@contextmanager
def serving(live: LiveAgent) -> Iterator[str | None]:
    """Serve status page, API and metrics during the block; yields the address, or None.

    `ConfigurationError` if the configured address or certificate can't be used.
    """
    config = live.config.control
    if config.listen:
        _check_certificate(config)
    listener = _listen(config) if config.listen else None
    if listener is None:
        yield None
        return
    server = _Server(live, listener)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


def _listen(config: ControlConfig) -> socket.socket | None:
    host, port = config.address
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        problem = f"control.listen: {config.listen}: {_reason(error)}"
        hint = 'choose another port, as in listen = "127.0.0.1:8643", or turn it off with listen = false'
        if "listen" in config.model_fields_set:
            raise ConfigurationError(problem, hint=hint) from error
        log.warning("no status page: %s; %s", problem, hint)
        return None


def _check_certificate(config: ControlConfig) -> None:
    if config.certificate is None:
        if not config.on_loopback:
            log.warning("tokens reach %s unencrypted; set [control] certificate and key", config.listen)
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.certificate, config.key)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"control.certificate {config.certificate}, control.key {config.key}: {_reason(error)}",
            hint="set a certificate and its key, as PEM files; the key without a passphrase",
        ) from error


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno).lower()
    return (getattr(error, "strerror", None) or str(error)).lower()


class _Server:
    def __init__(self, live: LiveAgent, listener: socket.socket) -> None:
        # FastAPI takes memory and half a second; an agent without a page saves both.
        import uvicorn

        from connector.control.api import build_app
        from connector.control.connections import MOST_CONNECTIONS, Listener
        from connector.control.guard import Guard
        from connector.control.last_hour import History
        from connector.control.quiet_server import QuietServer

        config = live.config.control
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if config.certificate else 'http'}://{shown}:{port}"
        self._history = History(live)
        self._server = QuietServer(
            uvicorn.Config(
                Guard(build_app(live, self._history), config),
                http="h11",
                backlog=BACKLOG,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=MOST_CONNECTIONS + 1,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=int(STOP_SECONDS),
                ssl_certfile=config.certificate,
                ssl_keyfile=config.key,
            )
        )
        self._listener = Listener(listener, self._server.server_state.connections)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it starts and stops with the agent
        self._history.start()
        self._thread.start()
        log.info("status page: %s", self.url)

    def stop(self) -> None:
        self._server.stop()
        self._thread.join(STOP_SECONDS + 1)
        self._history.stop()
        self._listener.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._listener])
        except BaseException as error:  # must not end the agent
            log.error("the status page failed: %s", error or type(error).__name__)
        else:
            if not self._server.should_exit:
                log.error("the status page has stopped unexpectedly")
