"""The images, built and run without an engine: each step of the Dockerfile is carried out in a clean root, and the
process in it has a read-only file system and no privileges."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fleet import Child, Fleet, create_database
from images import Builder, Image, read_steps
from servers import PostgresServer, RabbitServer, free_port, wait_until

ROOT = Path(__file__).parents[2]
EXIT_CONFIGURATION = 78
# A writer's packages take as long again: by hand. The GPU's are gigabytes.
TARGETS = os.environ.get("DATS_TEST_IMAGES", "query").split()
PROBED = {"query": ("PORT", "/api/v1/health/ready"), "writer": ("DATS_WRITER_METRICS_PORT", "/health/live")}

pytestmark = pytest.mark.timeout(600)


def require_namespaces() -> None:
    """Mount namespaces need root, and a machine that lets it."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0:
        return
    if os.environ.get("CI") == "true":
        pytest.fail("no mount namespaces here: images cannot be tried")
    pytest.skip("no mount namespaces here: run as root")


@pytest.fixture(scope="module", params=TARGETS)
def image(request: pytest.FixtureRequest) -> Iterator[tuple[str, Image]]:
    """A target and what came of it. Not in a folder of pytest, which strangers cannot enter; gone afterwards."""
    require_namespaces()
    with tempfile.TemporaryDirectory(prefix="dats-image-") as into:
        Path(into).chmod(0o755)
        yield request.param, Builder(ROOT, Path(into)).build(request.param)


@contextmanager
def running(image: Image, tmp_path: Path, **environment: str) -> Iterator[Child]:
    volume = tmp_path / "volume"
    volume.mkdir(exist_ok=True)
    os.chown(volume, 10001, 10001)
    command = image.arguments_to_run([*image.entrypoint, *image.command], volume=volume, environment=environment)
    child = Child(command, dict(os.environ), tmp_path / "container.log")
    try:
        yield child
    finally:
        child.end()


def ask(
    image: Image, tmp_path: Path, command: list[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    inside = image.arguments_to_run(command, volume=tmp_path / "volume", environment=environment)
    return subprocess.run(inside, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.rabbitmq
@pytest.mark.postgres
async def test_the_image_serves_as_a_stranger_on_a_file_system_that_it_cannot_change(
    image: tuple[str, Image], tmp_path: Path, postgres: PostgresServer, rabbitmq: RabbitServer
) -> None:
    target, built = image
    sql_url = (await create_database(postgres.url)).replace("+asyncpg", "")
    fleet = Fleet(tmp_path, sql_url=sql_url, amqp_url=rabbitmq.url)
    secret = tmp_path / "volume" / "sql_url"
    secret.parent.mkdir()
    secret.write_text(sql_url)
    port, path = PROBED[target]
    environment = {
        "DATS_SQL_URL_FILE": "/var/lib/dats-rag/sql_url",
        "DATS_RABBITMQ_URL": rabbitmq.url,
        "DATS_AUTH_MODE": "required",
        "QDRANT_HOST": "127.0.0.1",
        "QDRANT_GRPC_PORT": fleet.environment["QDRANT_GRPC_PORT"],
        port: str(free_port()),
    }
    try:
        fleet.start_engine()
        with running(built, tmp_path, **environment) as container:

            def well() -> bool:
                assert container.is_running, container.log.read_text()[-3000:]
                return ask(built, tmp_path, list(built.health_command), environment).returncode == 0

            wait_until(well, timeout_s=90, what=f"the health check of {target}")
            status = Path(f"/proc/{container.process.pid}/status").read_text()
            assert "Uid:\t10001\t10001\t10001\t10001" in status
            assert "NoNewPrivs:\t1" in status
            assert "CapEff:\t0000000000000000" in status
            written = ask(built, tmp_path, ["touch", "/opt/dats-rag/x", "/etc/x", "/var/lib/dats-rag/x"], environment)
            assert written.stderr.count("Read-only file system") == 2
            assert (tmp_path / "volume" / "x").exists()
            url = f"http://127.0.0.1:{environment[port]}{path}"
            assert httpx.get(url, timeout=10, trust_env=False).status_code == 200
            assert container.stop() == 0
            assert container.said("stopped") == 1
            assert ask(built, tmp_path, list(built.health_command), environment).returncode == 1
    finally:
        fleet.end()


def test_the_image_refuses_to_start_without_its_secrets(image: tuple[str, Image], tmp_path: Path) -> None:
    _, built = image
    with running(built, tmp_path, DATS_SQL_URL_FILE="/run/secrets/sql_url") as container:
        assert container.wait() == EXIT_CONFIGURATION
        assert "/run/secrets/sql_url, which cannot be read" in container.log.read_text()


def test_hadolint_finds_nothing() -> None:
    found = subprocess.run(
        [str(Path(sys.executable).parent / "hadolint"), "--no-color", str(ROOT / "Dockerfile")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("target", ["query", "writer", "gpu"])
def test_an_image_is_small_and_says_how_it_is(target: str) -> None:
    """A stage that others go on from is not shipped; what is, has no compiler, no root and no shell in between."""
    stages = read_steps(ROOT / "Dockerfile")
    steps = [*stages["service"], *stages[target]]
    assert stages[target][0].text == "service"
    assert [step.text for step in steps if step.name == "USER"] == ["10001:10001"]
    assert all("pip" not in step.text for step in steps if step.name == "RUN")
    assert [step.name for step in steps if step.name == "HEALTHCHECK"] == ["HEALTHCHECK"]
    for step in steps:
        if step.name in ("CMD", "ENTRYPOINT"):
            assert step.words, f"{step.name} {step.text}"
    assert stages["service"][0].text == "${PYTHON_IMAGE}"


def test_the_base_is_pinned_by_version() -> None:
    (argument,) = (step.text for step in read_steps(ROOT / "Dockerfile")[""])
    assert argument.startswith("PYTHON_IMAGE=python:3.11.")
    assert "latest" not in argument
