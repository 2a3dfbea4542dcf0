"""The scripts and policies in conf/security/, with the names of a test in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

SECURITY = Path(__file__).resolve().parents[3] / "conf" / "security"


def script(name: str, names: Mapping[str, str]) -> list[str]:
    """Return a script's statements, without comments and with names replaced as its heading says.

    Semicolons within a dollar-quoted body end no statement.
    """
    text = re.sub(r"^\s*--.*$", "", (SECURITY / name).read_text(), flags=re.MULTILINE)
    for old, new in names.items():
        text, count = re.subn(rf"\b{old}\b", new.replace("\\", r"\\"), text)
        assert count, f"{name} does not name {old}"
    body = r"\$\$.*?\$\$"
    return [s for found in re.findall(rf"(?s)(?:{body}|[^;])+", text) if (s := found.strip())]


def policy(role: str, bucket: str) -> str:
    """Return the IAM policy of the agent, of merges or of maintenance (`maintain`) for a bucket.

    It is for a landing zone `landing` with source `shop`, and a lake `lake`.
    """
    return (SECURITY / f"iam-{role}.json").read_text().replace("example-bucket", bucket)
