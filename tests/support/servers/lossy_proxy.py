"""A TCP proxy in front of a server: cuts connections, loses one, or falls silent, even in mid-transfer."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time


class LossyProxy:
    """Forwards 127.0.0.1:`port` to the server; a context manager. `cuts` counts the connections cut."""

    def __init__(self, target_port: int, seed: int = 1) -> None:
        self.cuts = 0
        self._target = target_port
        self._random = random.Random(seed)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._lost: set[int] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._refuses = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> LossyProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._lost.clear()
        self._flowing.set()
        self.cut(1.0)

    def fall_silent(self, *, refuses: bool = False) -> None:
        """Pass nothing on from now on; all connections stay open. `refuses`: new ones are closed."""
        self._refuses = refuses
        self._flowing.clear()

    def pass_on(self) -> None:
        """End the silence."""
        self._refuses = False
        self._flowing.set()

    def lose(self, *ports: int) -> None:
        """Pass nothing on any more for the clients at these ports, not even that either side has ended."""
        self._lost |= {*ports}

    def client_of(self, port: int) -> int:
        """Return the client's port of the connection that the server sees from this one."""
        with self._lock:
            pairs = [pair for pair in self._pairs if pair[1].getsockname()[1] == port]
        return int(pairs[0][0].getpeername()[1])

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
                client, (_, client_port) = self._listener.accept()
            except OSError:
                return
            if self._refuses:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            for ends in ((client, server), (server, client)):
                args = (*ends, client_port)  # not asked of the socket: `cut` may have closed it by now
                threading.Thread(target=self._pass_on, args=args, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._await(port)
                target.sendall(data)
        self._await(port)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _await(self, port: int) -> None:
        """Wait until something may pass."""
        self._flowing.wait()
        while port in self._lost:
            time.sleep(0.05)
