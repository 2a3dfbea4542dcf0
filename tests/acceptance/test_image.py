"""The image of conf/docker/Dockerfile: a real engine builds it, and its agent captures as in compose.yaml.

Debian's own Python, of the same release, stands in for the base image, which no package registry has.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from connector.config import load
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from connector.store.factory import open_store
from connector.store.protocol import Store
from tests.support.agent.installed import REPOSITORY
from tests.support.servers.postgres import Database
from tests.support.waiting import wait_until

pytestmark = pytest.mark.soak

DOCKERFILE = REPOSITORY / "conf" / "docker" / "Dockerfile"
DEPLOYMENT = REPOSITORY / "conf" / "kubernetes" / "deployment.yaml"
BASE = REPOSITORY / ".cache" / "image-base"
OF_THIS_MACHINE = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""What pip needs to reach its registry, in the build too."""
MOST_MIB = 450

START = """
mkdir -p "$ROOT/etc/deltatide"
mount --bind "$ROOT" "$ROOT"
cd /
mount --rbind /proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount --bind "$SETTINGS" "$ROOT/etc/deltatide"
mount --bind "$SCRATCH" "$ROOT/tmp"
mount -o remount,bind,ro "$ROOT"
exec chroot --userspec="$OWNER" "$ROOT" env -i --chdir="$FOLDER" "$@"
"""
"""Starts a program in the image as the compose file and Kubernetes do: only /tmp can be written."""


@dataclass(frozen=True)
class Image:
    """A built image: its root file system, and what it says of its process."""

    root: Path
    config: dict[str, Any]

    def start(self, settings: Path, scratch: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start what the image starts by itself, in file systems of its own."""
        places = {"ROOT": self.root, "SETTINGS": settings, "SCRATCH": scratch}
        more = {"OWNER": self.config["User"], "FOLDER": self.config["WorkingDir"]}
        command = [*self.config["Env"], *self.config["Entrypoint"], *self.config["Cmd"]]
        with log.open("wb") as output:
            return subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-ec", START, "sh", *command],
                env={**os.environ, **{name: str(place) for name, place in places.items()}, **more},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    if shutil.which("buildah") is None or not (BASE / "ready").exists():
        pytest.skip("no buildah, or no base image: .ci/fetch-servers image gets them, as root on Debian")
    folder = Path(tempfile.mkdtemp(prefix="deltatide-image-"))

    def engine(*arguments: str | Path) -> str:
        places = ("--root", folder / "images", "--runroot", folder / "run", "--storage-driver", "vfs")
        command = ["buildah", *map(str, (*places, *arguments))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return done.stdout.strip()

    try:
        (base,) = set(re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE))
        empty = engine("from", "scratch")
        engine("add", "--quiet", empty, BASE / "root", "/")
        engine("commit", "--quiet", "--rm", empty, f"docker.io/library/{base}")
        shared = [f"--volume={place}:{place}:ro" for place in OF_THIS_MACHINE if Path(place).exists()]
        engine(
            "build", "--pull-never", "--isolation=chroot", "--network=host", *shared,
            "--file", DOCKERFILE, "--ignorefile", f"{DOCKERFILE}.dockerignore", "--tag=deltatide", REPOSITORY,
        )  # fmt: skip
        config = json.loads(engine("inspect", "--type=image", "deltatide"))["OCIv1"]["config"]
        yield Image(Path(engine("mount", engine("from", "--pull-never", "localhost/deltatide"))), config)
        engine("umount", "--all")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_image_is_small_and_has_the_agent_alone(image: Image) -> None:
    environment = image.root / "opt" / "deltatide"
    (packages,) = environment.glob("lib/python3*/site-packages")
    assert (packages / "connector" / "control" / "page" / "index.html").exists()
    assert not (packages / "pyspark").exists()
    assert not (image.root / "src").exists(), "the build's folder"
    size = sum(file.lstat().st_size for file in environment.rglob("*") if not file.is_symlink())
    assert size < MOST_MIB << 20
    (agent,) = yaml.safe_load(DEPLOYMENT.read_text())["spec"]["template"]["spec"]["containers"]
    assert image.config["Cmd"] == agent["args"]
    assert image.config["User"] == "10001:10001"


def test_its_agent_captures_from_a_file_system_that_only_tmp_can_be_written_in(
    image: Image, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    settings, scratch = tmp_path / "settings", tmp_path / "scratch"
    settings.mkdir()
    scratch.mkdir()
    os.chown(scratch, *map(int, image.config["User"].split(":")))
    text = (
        f'[source]\nname = "shop"\nkind = "postgres"\nurl = "{database.url}"\ntables = ["public.*"]\n'
        '[landing]\nurl = "{folder}/landing"\n[control]\nlisten = false\n'
    )
    file = settings / "shop.toml"
    file.write_text(text.replace("{folder}", "/tmp"))
    outside = tmp_path / "outside.toml"
    outside.write_text(text.replace("{folder}", str(scratch)))
    landing, log = open_store(load(outside).landing, "shop"), tmp_path / "log"
    agent = image.start(settings, scratch, log)
    try:
        wait_until(lambda: agent.poll() is not None or dumped(landing), "all is dumped", seconds=120)
        assert agent.poll() is None, log.read_text()
        agent.terminate()
        assert agent.wait(60) == 0, log.read_text()
    finally:
        agent.kill()
        agent.wait()


def dumped(landing: Store) -> Manifest | None:
    newest = newest_manifest(landing)
    return newest if newest and newest.exact and not any(d.active for d in newest.dumps) else None
