"""The boundaries between the parts, read from the source; each rule is also shown a file that breaks it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
MERGE_MAY_IMPORT = {
    f"connector.{name}"
    for name in (
        "checksums.definition",
        "landing.column_names",
        "landing.consumers",
        "landing.format",
        "landing.manifest",
        "landing.manifest_object",
        "landing.verified",
        "reading",
        "store.factory",
        "store.protocol",
        "position",
        "schema",
        "config",
        "errors",
        "failpoint",
    )
}
WITHIN_TASKS = tuple(
    f"merge/reading/{name}.py"
    for name in (
        "change_source",
        "pending",
        "pending_events",
        "pending_tables",
        "python_process",
        "view_status",
    )
)
"""What runs in Python processes that Spark starts, where there is no Spark session."""
DRIVERS = {"psycopg", "psycopg2", "pymysql", "pymysqlreplication", "MySQLdb", "mysql", "mariadb"}
STORE_CLIENTS = {"boto3", "botocore", "s3fs", "fsspec"}
NOT_IN_SPARK_CONNECT = {"_jvm", "_jsc", "_jdf", "_jsparkSession", "sparkContext", "_sc", "rdd"}


@dataclass(frozen=True)
class Import:
    """One imported name, such as `connector.landing.format` in `from connector import landing`."""

    name: str
    line: int
    in_function: bool

    @property
    def package(self) -> str:
        return self.name.split(".")[0]


def imports_of(path: str, tree: ast.AST) -> list[Import]:
    """Every import of a file; of `from a import b` both `a` and `a.b`."""
    package = path.split("/")[:-1]
    found: list[Import] = []

    def visit(node: ast.AST, in_function: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, in_function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            found.append(Import(module, node.lineno, in_function))
            found.extend(Import(f"{module}.{alias.name}", node.lineno, in_function) for alias in node.names)
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(tree, False)
    return found


Rule = Callable[[str, ast.AST], Iterator[str]]


def connector_has_no_spark(path: str, tree: ast.AST) -> Iterator[str]:
    if path.startswith("connector/"):
        for found in imports_of(path, tree):
            if found.package in {"pyspark", "delta"}:
                yield f"{path}:{found.line}: imports {found.name}"


def connector_reaches_merge_only_in_functions_of_cli_and_demo(path: str, tree: ast.AST) -> Iterator[str]:
    if path.startswith("connector/"):
        allowed = path.startswith(("connector/cli/", "connector/demo/"))
        for found in imports_of(path, tree):
            if found.package == "merge" and not (allowed and found.in_function):
                yield f"{path}:{found.line}: imports {found.name}"


def merge_knows_only_the_landing_contract(path: str, tree: ast.AST) -> Iterator[str]:
    if path.startswith("merge/"):
        for found in imports_of(path, tree):
            known = any(found.name == name or found.name.startswith(name + ".") for name in MERGE_MAY_IMPORT)
            if found.package == "connector" and found.name != "connector" and not known:
                yield f"{path}:{found.line}: imports {found.name}"


def merge_reads_the_landing_zone_itself_only_within_tasks(path: str, tree: ast.AST) -> Iterator[str]:
    if path.startswith("merge/") and path not in WITHIN_TASKS:
        for found in imports_of(path, tree):
            if found.name.startswith(("connector.reading", "connector.store")):
                yield f"{path}:{found.line}: imports {found.name}"


def merge_has_no_driver_and_no_store_client(path: str, tree: ast.AST) -> Iterator[str]:
    if path.startswith("merge/"):
        for found in imports_of(path, tree):
            if found.package in DRIVERS | STORE_CLIENTS or found.name.startswith("pyarrow.fs"):
                yield f"{path}:{found.line}: imports {found.name}"


def merge_uses_what_spark_connect_offers(path: str, tree: ast.AST) -> Iterator[str]:
    if path.startswith("merge/"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in NOT_IN_SPARK_CONNECT:
                yield f"{path}:{node.lineno}: uses {node.attr}"


def merge_leaves_the_active_session_alone(path: str, tree: ast.AST) -> Iterator[str]:
    """`createDataFrame` makes its session the active one of the whole process (see `local_rows`)."""
    if path.startswith("merge/"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "createDataFrame":
                yield f"{path}:{node.lineno}: uses {node.attr}"


def each_driver_has_one_home(path: str, tree: ast.AST) -> Iterator[str]:
    homes = {"postgres": ("psycopg", "psycopg2"), "mysql": ("pymysql", "pymysqlreplication", "MySQLdb")}
    for found in imports_of(path, tree):
        home = next((name for name, drivers in homes.items() if found.package in drivers), None)
        if home and not path.startswith((f"connector/{home}/", "connector/demo/")):
            yield f"{path}:{found.line}: imports {found.name}"


RULES: list[Rule] = [
    connector_has_no_spark,
    connector_reaches_merge_only_in_functions_of_cli_and_demo,
    merge_knows_only_the_landing_contract,
    merge_reads_the_landing_zone_itself_only_within_tasks,
    merge_has_no_driver_and_no_store_client,
    merge_uses_what_spark_connect_offers,
    merge_leaves_the_active_session_alone,
    each_driver_has_one_home,
]


@pytest.fixture(scope="module")
def sources() -> dict[str, ast.Module]:
    """The product's modules by path."""
    files = [path for part in ("connector", "merge") for path in sorted((REPOSITORY / part).rglob("*.py"))]
    assert len(files) > 5
    return {file.relative_to(REPOSITORY).as_posix(): ast.parse(file.read_text(), str(file)) for file in files}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_to_its_boundaries(rule: Rule, sources: dict[str, ast.Module]) -> None:
    broken = [line for path, tree in sources.items() for line in rule(path, tree)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (connector_has_no_spark, "connector/cli/agent.py", "def f():\n    import pyspark.sql"),
        (connector_has_no_spark, "connector/demo/shop.py", "from delta import tables"),
        (RULES[1], "connector/cli/agent.py", "import merge.job"),
        (RULES[1], "connector/cli/merge.py", "if True:\n    from merge import job"),
        (RULES[1], "connector/capture/loop.py", "def f():\n    from merge.job import run"),
        (RULES[1], "connector/capture/loop.py", "def f():\n    from .. import merge\n    import merge"),
        (merge_knows_only_the_landing_contract, "merge/landing_zone.py", "from connector import store"),
        (
            merge_knows_only_the_landing_contract,
            "merge/landing_zone.py",
            "def f():\n    import connector.capture.loop",
        ),
        (
            merge_knows_only_the_landing_contract,
            "merge/landing_zone.py",
            "from connector.configuration import x",
        ),
        (
            merge_reads_the_landing_zone_itself_only_within_tasks,
            "merge/queries.py",
            "def f():\n    from connector.reading.change_log import ChangeLog",
        ),
        (merge_has_no_driver_and_no_store_client, "merge/a.py", "import boto3"),
        (merge_has_no_driver_and_no_store_client, "merge/a.py", "from botocore.client import Config"),
        (merge_has_no_driver_and_no_store_client, "merge/a.py", "def f():\n    import psycopg2"),
        (merge_has_no_driver_and_no_store_client, "merge/a.py", "from pyarrow import fs"),
        (merge_uses_what_spark_connect_offers, "merge/a.py", "x = spark._jvm.org"),
        (merge_uses_what_spark_connect_offers, "merge/a.py", "spark.sparkContext.setLogLevel('WARN')"),
        (merge_uses_what_spark_connect_offers, "merge/a.py", "n = frame.rdd.getNumPartitions()"),
        (merge_leaves_the_active_session_alone, "merge/a.py", "rows = spark.createDataFrame([], 'a int')"),
        (each_driver_has_one_home, "connector/capture/loop.py", "import psycopg2"),
        (each_driver_has_one_home, "connector/mysql/dump.py", "import psycopg2.extras"),
        (each_driver_has_one_home, "connector/postgres/dump.py", "import pymysqlreplication"),
    ],
)
def test_a_file_that_breaks_a_rule_is_named(rule: Rule, path: str, source: str) -> None:
    broken = list(rule(path, ast.parse(source)))
    assert broken
    assert all(line.startswith(path + ":") for line in broken)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("connector/cli/agent.py", "def merge_command():\n    from merge.job import run"),
        ("connector/demo/shop.py", "def f():\n    import merge.job\nimport psycopg2"),
        ("connector/postgres/dump.py", "import psycopg2\nfrom ..errors import BugError"),
        (
            "merge/landing_zone.py",
            "from connector import errors\nfrom connector.schema import Schema\nimport pyspark",
        ),
        ("merge/landing_zone.py", "from . import reconcile\nmerge.reconcile()"),
    ],
)
def test_a_file_that_keeps_the_rules_is_not_named(path: str, source: str) -> None:
    assert not [line for rule in RULES for line in rule(path, ast.parse(source))]


IMPORT_WITHOUT = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None  # importing it now raises ImportError
import {module}
loaded = [name for name in sys.modules if name.split(".")[0] in {blocked!r} and sys.modules[name]]
assert not loaded, loaded
"""


def import_without(module: str, *blocked: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT.format(module=module, blocked=blocked)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_loads_without_spark() -> None:
    done = import_without("connector.cli", "pyspark", "delta", "py4j")
    assert done.returncode == 0, done.stderr


def test_the_landing_contract_loads_without_driver_and_store_client() -> None:
    for module in sorted(MERGE_MAY_IMPORT):
        done = import_without(module, "psycopg2", "boto3", "botocore", "pyspark")
        assert done.returncode == 0, f"{module}: {done.stderr}"


def test_a_blocked_package_is_missed_when_it_is_needed() -> None:
    assert import_without("connector.demo.servers.postgres", "psycopg2").returncode != 0


# Written so that this file does not find itself.
MACHINE_WORDS = re.compile(
    "|".join(
        [
            r"(?<![\w.$}/-])/(?:wor[k]|hom[e]/[a-z]+|Use[r]s/[a-z]+|opt/wheel[s])\b",
            r"(?<![\w.$}/-])/roo[t]/",
            r"(?<![\w.$}/-])/tmp/[w]/",
            r"files\.pythonhoste[d]\.org",
            r"pypi\.or[g]/simple",
            r"registry\.npmj[s]\.org",
            r"registry\.yarnpk[g]\.com",
            r"repo1?\.mave[n]\.(?:apache\.)?org",
            r"proxy\.golan[g]\.org",
            r"deb\.debia[n]\.org",
            r"(?:index-url|extra-index-url|find-links|goproxy|registry)\s*[=:\s]\s*[\"']?https?://",
        ]
    ),
    re.IGNORECASE,
)


def machine_words(path: str, text: str) -> list[str]:
    return [
        f"{path}:{number}: {match.group(0)}"
        for number, line in enumerate(text.splitlines(), 1)
        for match in MACHINE_WORDS.finditer(line)
    ]


def test_no_file_names_a_machine_or_a_registrys_host() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [path for path in listed.stdout.split("\0") if path and (REPOSITORY / path).is_file()]
    assert "pyproject.toml" in paths
    found = [
        line for path in paths for line in machine_words(path, (REPOSITORY / path).read_text(errors="ignore"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "cd /wor" + "k/main",
        "x = '/roo" + "t/.ivy2'",
        "see /hom" + "e/someone/checkout",
        "/tmp/" + "w/venv/bin/python",
        "url = https://files.pythonhos" + "ted.org/packages/a.whl",
        "pip install --index-url " + "http://mirror.example/simple",
        "registry=" + "http://mirror.example/npm",
    ],
)
def test_a_line_that_names_one_is_found(line: str) -> None:
    assert machine_words("a.txt", line)


@pytest.mark.parametrize(
    "line",
    [
        "file:///data/lake",
        "https://example.org/work/main",
        "merge/work/a",
        "/tmp/deltatide",
        "a root/ folder",
    ],
)
def test_a_line_that_names_none_is_not(line: str) -> None:
    assert not machine_words("a.txt", line)


def import_circles(modules: dict[str, ast.AST]) -> list[list[str]]:
    """Modules that import each other, in functions too; what is imported for its types alone is none."""
    imports = {
        name: {found.name for found in imports_of(name.replace(".", "/") + ".py", _without_types(tree))}
        & modules.keys()
        for name, tree in modules.items()
    }
    leading: dict[str, set[str]] = {}
    for name in imports:
        seen: set[str] = set()
        waiting = [*imports[name]]
        while waiting:
            if (one := waiting.pop()) not in seen:
                seen.add(one)
                waiting += imports[one]
        leading[name] = seen
    return sorted([a, b] for a in imports for b in imports if a < b and b in leading[a] and a in leading[b])


def _without_types(tree: ast.AST) -> ast.AST:
    class Types(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)

    return Types().visit(tree)


def test_no_modules_import_each_other(sources: dict[str, ast.Module]) -> None:
    modules = {
        path.removesuffix(".py").replace("/", "."): ast.parse((REPOSITORY / path).read_text())
        for path in sources
        if not path.endswith("__init__.py")
    }
    assert import_circles(modules) == []


def test_modules_that_import_each_other_are_found() -> None:
    modules = {
        "a.x": ast.parse("from a import y"),
        "a.y": ast.parse("def f():\n    import a.z"),
        "a.z": ast.parse("from a.x import n"),
        "a.w": ast.parse("import a.x"),
    }
    assert import_circles(modules) == [["a.x", "a.y"], ["a.x", "a.z"], ["a.y", "a.z"]]
