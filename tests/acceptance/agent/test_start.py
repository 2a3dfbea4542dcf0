"""A stop before there is anything to stop."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.support.agent.installed import Running


def test_a_signal_before_capture_begins_ends_it_well(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        configuration = tmp_path / "shop.toml"
        configuration.write_text(
            f'[source]\nname = "shop"\nkind = "postgres"\nurl = "postgresql://u:p@127.0.0.1:{port}/shop"\n'
            f'tables = ["public.*"]\n[landing]\nurl = "{tmp_path / "landing"}"\n'
        )
        with Running(tmp_path / "log", ("run", "-c", str(configuration)), {}) as agent:
            silent.settimeout(30)
            connection, _ = silent.accept()
            agent.process.terminate()
            connection.close()
            assert agent.wait() == 0, agent.output
    assert "Traceback" not in agent.output
    assert not list((tmp_path / "landing").rglob("*.json"))
