"""docker-compose.yml as Docker Compose itself reads it, without an engine: nothing is started."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "compose" / "make-secrets.sh"
FILES = ("docker-compose.yml",)
WITH_GPU = (*FILES, "docker-compose.gpu.yml")
# Their images have no program that could ask; what they do for us is seen elsewhere.
NOT_PROBED = {"otel-collector", "jaeger"}
ENDS = {"migrate", "ollama-volume"}
OURS = {"migrate", "writer", "writer-standby", "query", "verify"}


def program() -> Path:
    """Docker Compose, as a package carries it."""
    found = importlib.util.find_spec("compose")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "docker-compose"


def compose(*arguments: str, files: tuple[str, ...] = FILES, **environment: str) -> subprocess.CompletedProcess[str]:
    named = [part for name in files for part in ("-f", str(ROOT / name))]
    command = [str(program()), "--env-file", "/dev/null", *named, "--profile", "verify", *arguments]
    bare = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(command, env=bare | environment, capture_output=True, text=True, timeout=60, check=False)


def read(files: tuple[str, ...]) -> dict[str, Any]:
    done = compose("config", "--format", "json", files=files, DATS_SECRETS="/secrets")
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module", params=[FILES, WITH_GPU], ids=["cpu", "gpu"])
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Read strictly: an unknown key is an error."""
    return read(request.param)


@pytest.fixture(scope="module")
def services(document: dict[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = document["services"]
    return found


def test_all_that_a_fleet_needs_is_there(services: Mapping[str, Any]) -> None:
    wanted = "rabbitmq qdrant postgres ollama otel-collector jaeger prometheus grafana writer writer-standby query"
    assert set(services) == {*wanted.split(), "proxy", "migrate", "verify", "ollama-volume"}
    assert services["query"]["deploy"]["replicas"] == 2


def test_every_service_says_how_it_is(services: Mapping[str, Any]) -> None:
    ours_by_image = OURS - {"migrate", "verify"}  # by the image's own HEALTHCHECK
    for name, service in services.items():
        probed = bool(service.get("healthcheck", {}).get("test"))
        assert probed == (name not in NOT_PROBED | ENDS | ours_by_image), name


def test_every_service_is_bounded_and_has_no_more_rights_than_it_needs(services: Mapping[str, Any]) -> None:
    for name, service in services.items():
        limits = service["deploy"]["resources"]["limits"]
        assert {"cpus", "memory", "pids"} <= set(limits), name
        assert service["cap_drop"] == ["ALL"], name
        assert service.get("cap_add", []) == (["CHOWN"] if name == "ollama-volume" else []), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name
        assert service["user"].startswith("0:") == (name == "ollama-volume"), name
        assert service.get("read_only", False) or name not in OURS | {"proxy"}, name


def test_every_image_is_pinned_by_version(services: Mapping[str, Any]) -> None:
    for name, service in services.items():
        assert re.search(r":v?\d+\.\d+[.\w-]*$", service["image"]), f"{name}: {service['image']}"


def test_no_secret_is_written_down_and_each_is_made_by_the_script(document: dict[str, Any], tmp_path: Path) -> None:
    for name, service in document["services"].items():
        for variable, value in service.get("environment", {}).items():
            if re.search(r"PASS|SECRET|KEY|SQL_URL|RABBITMQ_URL|MIGRATION", variable):
                assert str(value).startswith("/run/secrets/"), f"{name}: {variable}"
                assert Path(value).name in {each["source"] for each in service["secrets"]}, f"{name}: {variable}"
    made = make_secrets(tmp_path)
    wanted = {Path(each["file"]).name for each in document["secrets"].values()}
    by_hand = {"verify_key"}  # the service makes it, once it runs
    assert wanted - by_hand <= set(made)
    assert {name for name in made if name not in wanted} == {"amqp_url_qa", "amqp_url_cascade"}  # for those teams


def make_secrets(into: Path) -> dict[str, str]:
    environment = {**os.environ, "DATS_SECRETS": str(into / "secrets"), "DATS_ENV_FILE": str(into / ".env")}
    subprocess.run([str(SCRIPT)], env=environment, check=True, capture_output=True, timeout=60)
    return {file.name: file.read_text() for file in (into / "secrets").iterdir()}


def test_secrets_are_random_and_never_made_twice(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    one, other = make_secrets(tmp_path / "one"), make_secrets(tmp_path / "other")
    assert [name for name in one if one[name] == other[name]] == []
    with pytest.raises(subprocess.CalledProcessError) as refused:
        make_secrets(tmp_path / "one")
    assert b"is there already" in refused.value.stderr
    assert {file.name: file.read_text() for file in (tmp_path / "one" / "secrets").iterdir()} == one
    assert (tmp_path / "one" / "secrets").stat().st_mode & 0o077 == 0
    assert (tmp_path / "one" / ".env").read_text() == f"DATS_SECRETS={tmp_path}/one/secrets\n"


def test_nothing_starts_without_secrets() -> None:
    refused = compose("config", "--quiet")
    assert refused.returncode != 0
    assert "run deploy/compose/make-secrets.sh first" in refused.stderr


def test_a_key_that_compose_does_not_know_is_found(tmp_path: Path) -> None:
    lie = tmp_path / "lie.yml"
    lie.write_text("services:\n  query:\n    heathcheck: {disable: true}\n")
    refused = compose("config", "--quiet", files=(*FILES, str(lie)), DATS_SECRETS="/secrets")
    assert refused.returncode != 0
    assert "heathcheck" in refused.stderr


def test_only_the_proxy_and_peoples_pages_are_published_and_only_on_this_machine(services: Mapping[str, Any]) -> None:
    published = {name: service["ports"] for name, service in services.items() if service.get("ports")}
    assert set(published) == {"proxy", "prometheus", "grafana", "jaeger"}
    assert {port["host_ip"] for ports in published.values() for port in ports} == {"127.0.0.1"}
    assert set(services["proxy"]["networks"]) == {"edge", "backend"}
    assert [name for name, service in services.items() if "edge" in (service.get("networks") or {})] == ["proxy"]


def test_the_stores_have_no_way_out(document: dict[str, Any]) -> None:
    assert document["networks"]["backend"]["internal"] is True
    for name in OURS | {"postgres", "qdrant", "rabbitmq"}:
        assert set(document["services"][name]["networks"]) == {"backend"}, name


def test_what_is_mounted_is_there(document: dict[str, Any]) -> None:
    files = [Path(each["file"]) for each in document["configs"].values()]
    mounts = [volume for service in document["services"].values() for volume in service.get("volumes", [])]
    bound = [Path(volume["source"]) for volume in mounts if volume["type"] == "bind"]
    assert [str(each) for each in (*files, *bound) if not each.exists()] == []
    named = {volume["source"] for volume in mounts if volume["type"] == "volume"}
    assert named == set(document["volumes"])


def test_what_is_in_hand_is_finished_before_a_container_is_killed(services: Mapping[str, Any]) -> None:
    from dats_common.settings import Settings

    settings = Settings()
    in_hand_s = {"writer": settings.events.drain_s, "query": settings.query.deadline_s + settings.query.embed_wait_s}
    for name, seconds in in_hand_s.items():
        assert float(services[name]["stop_grace_period"].removesuffix("s")) > seconds, name


def test_the_gpu_is_the_writers_alone() -> None:
    services = read(WITH_GPU)["services"]
    held = {
        name: service["deploy"]["resources"]["reservations"]["devices"]
        for name, service in services.items()
        if service["deploy"]["resources"].get("reservations")
    }
    assert set(held) == {"writer", "writer-standby"}
    assert all(device[0]["capabilities"] == ["gpu"] and device[0]["device_ids"] == ["0"] for device in held.values())
    assert {service["build"]["target"] for name, service in services.items() if name in held} == {"gpu"}
