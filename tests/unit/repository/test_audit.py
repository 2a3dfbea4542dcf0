"""What `make audit` makes of pip-audit's findings: what was not looked up is not sound; and `make sbom`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPT, CACHE = REPOSITORY / ".ci" / "audit", REPOSITORY / ".cache"
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


def test_the_bill_of_materials_has_each_package_of_an_environment(tmp_path: Path) -> None:
    """A small one: that of the project takes a minute."""
    environment, tools = CACHE / "linters", CACHE / "audit" / "installed"
    if not tools.exists() or not (environment / "ready").exists():
        pytest.skip("CycloneDX or another environment is not here, nor could .ci/fetch-servers get it")
    file = tmp_path / "sbom.json"
    command = [sys.executable, str(SCRIPT), "sbom", str(environment), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    bill = json.loads(file.read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "deltatide")
    pip = [str(environment / "bin" / "python"), "-m", "pip"]
    command = [*pip, "list", "--disable-pip-version-check", "--format", "json"]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    found = {each["name"]: each for each in bill["components"]}
    assert {(each["name"], each["version"]) for each in listed} == {
        (n, c["version"]) for n, c in found.items()
    }
    assert found["jsonschema"]["purl"] == f"pkg:pypi/jsonschema@{found['jsonschema']['version']}"
    assert found["jsonschema"]["licenses"][0]["license"]["id"] == "MIT"
    assert done.stdout == f"sbom: {len(listed)} packages in {file}\n"
