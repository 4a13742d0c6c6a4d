"""The commands of docs/deployment.md name what exists. What can be carried out without an engine or a cluster is."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from images import read_steps
from kustomize import unpack_kubectl
from test_compose import make_secrets, program, read

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands() -> Iterator[list[str]]:
    for block in BLOCK.findall((ROOT / "docs" / "deployment.md").read_text()):
        for line in block.splitlines():
            words = shlex.split(line)
            yield [word for word in words if not re.match(r"[A-Z]+=", word)]


def options(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("-")}


def lacks(help_text: str, asked: set[str]) -> set[str]:
    return {each for each in asked if not re.search(rf"(?<![\w-]){re.escape(each)}\b", help_text)}


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_kubectl(tmp_path_factory.mktemp("kubectl"))


def said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout + done.stderr


def test_every_command_is_of_a_kind_that_is_checked() -> None:
    kinds = {" ".join(words[:2]) if words[0] == "docker" else words[0] for words in commands()}
    assert kinds == {
        "docker build",
        "docker compose",
        "kubectl",
        "deploy/compose/make-secrets.sh",
        "deploy/postgres/roles.sh",
    }


def test_scripts_can_be_run() -> None:
    for words in commands():
        if words[0].startswith("deploy/"):
            assert os.access(ROOT / words[0], os.X_OK), words[0]


def test_images_are_built_from_targets_that_exist_under_the_names_that_compose_uses() -> None:
    stages = read_steps(ROOT / "Dockerfile")
    files = ("docker-compose.yml", "docker-compose.gpu.yml")
    used = {
        (service["build"]["target"], service["image"])
        for some in (files[:1], files)
        for service in read(some)["services"].values()
        if "build" in service
    }
    built = {(words[3], words[5]) for words in commands() if words[:2] == ["docker", "build"]}
    assert built == used
    assert {target for target, _ in built} <= set(stages)


def test_compose_knows_commands_options_and_services() -> None:
    services = set(read(("docker-compose.yml",))["services"])
    for words in commands():
        if words[:2] != ["docker", "compose"]:
            continue
        general, rest = [], words[2:]
        while rest[0].startswith("-"):
            general += [rest.pop(0), rest.pop(0)]
        name, *arguments = rest
        assert not lacks(said(str(program()), "--help"), options(general))
        if name in ("exec", "run"):
            at = next(index for index, word in enumerate(arguments) if not word.startswith("-"))
            arguments = arguments[: at + 1]
        assert not lacks(said(str(program()), name, "--help"), options(arguments)), words
        named = {word.partition("=")[0] for word in arguments if not word.startswith("-")}
        assert named <= services, words
        for file in general[1::2]:
            assert (ROOT / file).exists() or file == "verify", words


def test_kubectl_knows_commands_and_options_and_folders_render(kubectl: Path, tmp_path: Path) -> None:
    make_secrets(tmp_path)
    (tmp_path / "secrets" / "verify_key").write_text("drk_x_y")
    for words in commands():
        if words[0] != "kubectl":
            continue
        rest = words[1:]
        if rest[0] == "create":
            dry = [str(kubectl), *words[1:], "--dry-run=client", "-o", "name"]
            done = subprocess.run(
                dry, cwd=tmp_path / "secrets", capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stderr
        elif rest[0] == "apply":
            assert said(str(kubectl), "kustomize", str(ROOT / rest[2]))
        else:
            name = rest[:2] if rest[0] == "rollout" else rest[:1]
            help_text = said(str(kubectl), *name, "--help") + said(str(kubectl), "options")
            assert not lacks(help_text, options(rest)), words
