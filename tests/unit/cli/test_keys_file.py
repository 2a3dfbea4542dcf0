"""The keys of `deltatide dump --keys-file`."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.cli.dumps import read_keys
from connector.cli.printing import duration
from connector.errors import ConfigurationError, RequestError
from connector.landing.requests import MOST_BYTES, DumpRequest, submit
from connector.testing.memory_store import MemoryStore


def test_each_line_is_a_key_as_it_is_or_the_file_is_json(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes("1\r\n a,b \n\n\u2028x\n".encode())
    assert read_keys(file) == [["1"], [" a,b "], ["\u2028x"]]
    file.write_text('[["z1", 2], ["z2", 3]]')
    assert read_keys(file) == [["z1", "2"], ["z2", "3"]]


def test_a_file_that_holds_no_keys_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    for content, problem in ((b"\n \n", "holds no keys"), (b"\xff", "not UTF-8"), (b"[1", "is not JSON")):
        file.write_bytes(content)
        with pytest.raises((ConfigurationError, RequestError), match=problem) as found:
            read_keys(file)
        assert str(file) in str(found.value)
    with pytest.raises(ConfigurationError, match="no such file"):
        read_keys(tmp_path / "none")


def test_a_request_too_large_to_be_read_is_not_sent() -> None:
    store = MemoryStore()
    with pytest.raises(RequestError, match="a request has at most"):
        submit(store, DumpRequest(tables=["public.t"], keys=[["x" * MOST_BYTES]]))
    assert not list(store.list("requests/"))


def test_a_duration_is_in_its_two_largest_units() -> None:
    seconds = (0.2, 59.6, 61, 3600, 90_061, 700_000)
    assert [duration(s) for s in seconds] == ["0 s", "1 min", "1 min 1 s", "1 h", "1 d 1 h", "8 d 2 h"]
