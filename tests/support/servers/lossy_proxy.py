"""A TCP proxy in front of a server that cuts connections or falls silent on demand, even in mid-transfer."""

from __future__ import annotations

import contextlib
import random
import socket
import threading


class LossyProxy:
    """Forwards 127.0.0.1:`port` to the server; a context manager. `cuts` counts the connections cut."""

    def __init__(self, target_port: int, seed: int = 1) -> None:
        self.cuts = 0
        self._target = target_port
        self._random = random.Random(seed)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> LossyProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flowing.set()
        self.cut(1.0)

    def fall_silent(self) -> None:
        """Pass nothing on from now on, on all connections; each stays open."""
        self._flowing.clear()

    def pass_on(self) -> None:
        """End the silence."""
        self._flowing.set()

    def cut(self, share: float = 0.5) -> None:
        """Reset this share of the connections now."""
        with self._lock:
            chosen = [pair for pair in self._pairs if self._random.random() < share]
            self._pairs = [pair for pair in self._pairs if pair not in chosen]
            self.cuts += len(chosen)
        for pair in chosen:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def lead_to(self, port: int) -> None:
        """Forward new connections to another server, and cut all existing ones."""
        self._target = port
        self.cut(1.0)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
