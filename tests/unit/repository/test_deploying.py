"""The files in conf/ by which the agent is deployed: real tools take them, and they are true to the code.

A command line is parsed by the command's own parser, a port or path compared with the agent's, and a variable
that a configuration needs must be given to the process that reads it.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from connector.config import ControlConfig, load
from connector.errors import ConfigurationError
from connector.testing.memory_store import MemoryStore
from tests.support.agent.status_page import client_of, live_agent
from tests.support.command_lines import assert_parsed
from tests.support.linters import lint, linter

REPOSITORY = Path(__file__).resolve().parents[3]
CONF = REPOSITORY / "conf"
DOCKERFILE = (CONF / "docker" / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((CONF / "compose.yaml").read_text())
UNITS = sorted((CONF / "systemd").iterdir())
PORT = ControlConfig().address[1]
PROGRAM = "/opt/deltatide/bin/deltatide"


def manifest(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CONF / "kubernetes" / f"{name}.yaml").read_text())
    return loaded


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifest("deployment")["spec"]["template"]["spec"]
    return spec


def dockerfile(instruction: str) -> list[str]:
    """The arguments of each such instruction, in order; a backslash continues a line."""
    return re.findall(rf"^{instruction} (.+)$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every command line of `deltatide` in the files, without its own name."""
    (cmd,) = dockerfile("CMD")
    yield "Dockerfile", json.loads(cmd)
    yield "compose.yaml", COMPOSE["services"]["agent"]["command"]
    yield "deployment.yaml", pod()["containers"][0]["args"]
    for unit in UNITS:
        for line in re.findall(rf"^ExecStart={PROGRAM} (.+)$", unit.read_text(), re.MULTILINE):
            yield unit.name, line.split()


@pytest.mark.parametrize(("file", "arguments"), list(command_lines()), ids=lambda value: str(value))
def test_the_command_takes_every_command_line(file: str, arguments: list[str]) -> None:
    assert_parsed(arguments, "/etc/deltatide/shop.toml")


def test_every_service_of_systemd_runs_the_command() -> None:
    services = {unit.name for unit in UNITS if unit.suffix == ".service"}
    assert services == {file for file, _ in command_lines() if file.endswith(".service")}
    for timer in (unit for unit in UNITS if unit.suffix == ".timer"):
        assert timer.with_suffix(".service").name in services


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in UNITS:  # whose programs must exist
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    command = [linter("systemd-analyze"), "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "deltatide" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def test_an_agent_that_must_not_be_restarted_is_not() -> None:
    unit = (CONF / "systemd" / "deltatide.service").read_text()
    assert f"RestartPreventExitStatus={ConfigurationError('').exit_code}" in unit


def test_the_image_is_pinned_built_in_two_stages_and_not_run_by_root() -> None:
    build, final = dockerfile("FROM")
    assert (build, final) == (f"{final} AS build", final)
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", final)
    uid = pod()["securityContext"]["runAsUser"]
    assert dockerfile("USER") == [f"{uid}:{uid}"]
    assert f"--uid {uid} " in " ".join(dockerfile("RUN"))
    assert dockerfile("EXPOSE") == [str(PORT)]
    assert dockerfile("ENTRYPOINT") == ['["deltatide"]']


def test_hadolint_takes_the_dockerfile(tmp_path: Path) -> None:
    lint("hadolint", CONF / "docker" / "Dockerfile")
    worse = tmp_path / "Dockerfile"
    worse.write_text(re.sub(r"python:[\w.-]+", "python", DOCKERFILE))
    with pytest.raises(AssertionError, match="DL3006"):
        lint("hadolint", worse)


def test_the_image_is_built_from_files_that_are_there_and_not_left_out() -> None:
    ignored = (CONF / "docker" / "Dockerfile.dockerignore").read_text().split()
    assert ignored[0] == "*"
    sources = {s for line in dockerfile("COPY") if "--from" not in line for s in line.split()[:-1]}
    assert sources == {line.removeprefix("!") for line in ignored if line.startswith("!")}
    for source in sources:
        assert (REPOSITORY / source).exists(), source
    settings = (REPOSITORY / "pyproject.toml").read_text()
    packages = re.findall(r'"(\w+)\.\*"', settings.partition("packages.find")[2].partition("]")[0])
    named = re.findall(r'^readme = "(.+)"|^license-files = \["(.+)"\]', settings, re.MULTILINE)
    assert {*packages, *("".join(found) for found in named)} <= sources


def images() -> Iterator[str]:
    yield from (service["image"] for service in COMPOSE["services"].values() if "image" in service)
    for image in manifest("kustomization")["images"]:
        yield f"{image['newName']}:{image['newTag']}"


def test_images_have_a_release() -> None:
    assert not [image for image in images() if not re.search(r":v?\d+\.\d+", image)]
    settings = (REPOSITORY / "pyproject.toml").read_text()
    (version,) = re.findall(r'^version = "(.+)"$', settings, re.MULTILINE)
    assert manifest("kustomization")["images"][0]["newTag"] == version
    assert f"deltatide:{version}" in DOCKERFILE


@pytest.mark.parametrize(
    ("file", "environment"),
    [
        ("docker/shop.toml", COMPOSE["services"]["agent"]["environment"]),
        ("kubernetes/shop.toml", manifest("secret")["stringData"]),
    ],
)
def test_a_configuration_is_valid_with_what_its_process_is_given(
    file: str, environment: Mapping[str, str]
) -> None:
    config = load(CONF / file, environment)
    assert config.control.address == ("0.0.0.0", PORT)


def test_compose_mounts_files_that_are_there_and_refers_to_its_own_services() -> None:
    services: dict[str, Any] = COMPOSE["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (CONF / source).exists(), volume
        if "build" in service:
            context = CONF / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).exists()
    assert services["agent"]["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    assert "$" not in (CONF / "compose.yaml").read_text(), "Compose would replace it"


def test_the_reference_reader_of_compose_files_takes_ours(tmp_path: Path) -> None:
    read = json.loads(lint("compose-spec", "--format", "json", CONF / "compose.yaml"))
    assert read["services"].keys() == COMPOSE["services"].keys()
    assert read["services"]["agent"]["environment"].keys() >= read["services"]["bucket"]["environment"].keys()
    worse = tmp_path / "compose.yaml"
    worse.write_text((CONF / "compose.yaml").read_text().replace("cap_drop:", "caps_drop:"))
    with pytest.raises(AssertionError, match="caps_drop"):
        lint("compose-spec", worse)


@pytest.mark.parametrize("release", ["1.28", "1.37"])
def test_kubernetes_schemas_take_the_manifests(release: str, tmp_path: Path) -> None:
    arguments = ("--strict", "-k", release)
    names = ("deployment", "service", "secret")
    found = lint("kubernetes-validate", *arguments, *(CONF / "kubernetes" / f"{n}.yaml" for n in names))
    assert found.count(f"against version {release}") == len(names)
    worse = tmp_path / "deployment.yaml"
    worse.write_text((CONF / "kubernetes" / "deployment.yaml").read_text().replace("runAsUser", "runAsUsr"))
    with pytest.raises(AssertionError, match="runAsUsr"):
        lint("kubernetes-validate", *arguments, worse)


def test_kubernetes_probes_and_ports_are_those_of_the_agent() -> None:
    (agent,) = pod()["containers"]
    assert agent["ports"] == [{"name": "http", "containerPort": PORT}]
    probes = [agent[f"{kind}Probe"]["httpGet"] for kind in ("liveness", "readiness")]
    assert {probe["port"] for probe in probes} == {"http"}
    annotations = manifest("deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(PORT)
    with client_of(live_agent(MemoryStore())) as client:
        served = client.get("/openapi.json").json()["paths"].keys()
    assert {annotations["prometheus.io/path"], *(probe["path"] for probe in probes)} <= served
    service = manifest("service")["spec"]
    assert service["ports"][0]["targetPort"] == "http"
    labels = manifest("deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"] == manifest("deployment")["spec"]["selector"]["matchLabels"] == labels


def test_kubectl_assembles_the_manifests() -> None:
    command = [linter("kubectl"), "kustomize", str(CONF / "kubernetes")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}
    assert found.keys() == {"ConfigMap", "Secret", "Deployment", "Service"}
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] in images()
    assert spec["volumes"][0]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    assert spec["containers"][0]["envFrom"][0]["secretRef"]["name"] == found["Secret"]["metadata"]["name"]
    mounted = (
        f"{spec['containers'][0]['volumeMounts'][0]['mountPath']}/{next(iter(found['ConfigMap']['data']))}"
    )
    assert mounted == pod()["containers"][0]["args"][-1]


@pytest.mark.parametrize(
    ("name", "change"),
    [("deployment", ("image", "agent=other")), ("service", ("selector", "other=selector"))],
)
def test_kubectl_knows_every_field(name: str, change: tuple[str, str]) -> None:
    """Changed without a server, an object goes through kubectl's own types, which drop unknown fields."""
    file = CONF / "kubernetes" / f"{name}.yaml"
    verb, value = change
    command = [linter("kubectl"), "set", verb, "--local", "-f", str(file), value, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert paths(manifest(name)) - paths(json.loads(done.stdout)) <= {".spec.selector.app.kubernetes.io/name"}


def paths(value: Any, at: str = "") -> set[str]:
    """The path of every field in an object."""
    if isinstance(value, dict):
        below = (paths(item, f"{at}.{name}") for name, item in value.items())
    elif isinstance(value, list):
        below = (paths(item, f"{at}[{number}]") for number, item in enumerate(value))
    else:
        return {at}
    return {at}.union(*below)


def test_the_password_of_the_compose_files_database_is_the_agents() -> None:
    script = (CONF / "docker" / "database.sql").read_text()
    (password,) = re.findall(r"ALTER ROLE deltatide PASSWORD '(.+)'", script)
    assert COMPOSE["services"]["agent"]["environment"]["PGPASSWORD"] == password
    (included,) = re.findall(r"^\\i (.+)$", script, re.MULTILINE)
    mounts = {v.split(":")[1]: v.split(":")[0] for v in COMPOSE["services"]["database"]["volumes"]}
    folder = next(folder for folder in mounts if fnmatch(included, f"{folder}/*"))
    assert (CONF / mounts[folder] / included.removeprefix(f"{folder}/")).exists()
