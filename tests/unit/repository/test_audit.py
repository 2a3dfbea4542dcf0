"""What `make audit` makes of pip-audit's findings: what was not looked up is not sound."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / ".ci" / "audit"
SOUND = {"name": "sound", "version": "1.0", "vulns": []}
SKIPPED = {"name": "skipped", "skip_reason": "Dependency not found"}
KNOWN = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["1.2"], "description": "long"}
BROKEN = {
    "name": "broken",
    "version": "1.1",
    "vulns": [KNOWN, {**KNOWN, "id": "PYSEC-2", "fix_versions": []}],
}


def judge(*packages: dict[str, Any]) -> tuple[list[str], int]:
    loader = SourceFileLoader("audit", str(SCRIPT))
    spec = spec_from_loader("audit", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    judged: tuple[list[str], int] = module.judge({"dependencies": list(packages)})
    return judged


@pytest.mark.parametrize(
    ("packages", "status", "summary"),
    [
        ([SOUND], 0, "1 of 1 packages looked up, 0 vulnerabilities"),
        ([SOUND, SKIPPED], 2, "1 of 2 packages looked up, 0 vulnerabilities; not looked up"),
        ([SKIPPED] * 7, 2, "skipped, skipped, skipped, skipped, skipped, ..."),
        ([BROKEN, SKIPPED], 1, "1 of 2 packages looked up, 2 vulnerabilities; not looked up"),
        ([], 2, "0 of 0"),
    ],
)
def test_the_status_tells_sound_from_unknown(
    packages: list[dict[str, Any]], status: int, summary: str
) -> None:
    lines, found = judge(*packages)
    assert found == status
    assert summary in lines[-1]


def test_each_vulnerability_is_named_with_the_release_that_fixes_it() -> None:
    lines, _ = judge(BROKEN, SOUND)
    assert lines[:2] == [
        "broken 1.1: PYSEC-1, CVE-1; fixed in 1.2",
        "broken 1.1: PYSEC-2, CVE-1; fixed in no release yet",
    ]
