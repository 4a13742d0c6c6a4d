"""A Dockerfile carried out without an engine: its steps as processes in a root of their own, in mount namespaces.

What it takes from this machine is the base image: `/usr` and a Python, both read-only, at the places where the official
image has them. Only what our Dockerfile uses is understood; anything else is an error.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

STEP_TIMEOUT_S = 300.0
_OF_REGISTRY = re.compile(r"(PIP|UV|SSL_CERT)_(?!FIND_LINKS)\w+|\w+_PROXY")
_CONTINUED = re.compile(r"\\\n")


@dataclass(frozen=True)
class Step:
    """An instruction; `words` is the JSON form's list, or None in the shell form."""

    name: str
    text: str

    @property
    def words(self) -> list[str] | None:
        return json.loads(self.text) if self.text.startswith("[") else None


@dataclass(frozen=True)
class Image:
    """A stage that was carried out: its files, and how its process starts."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    directory: str = "/"
    user: str = "0:0"
    volumes: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health_command: tuple[str, ...] = ()

    def arguments_to_run(self, command: Sequence[str], *, volume: Path, environment: Mapping[str, str]) -> list[str]:
        """A process as in a container with a read-only root: `volume` is what it may write, besides /tmp."""
        where = " && ".join(
            [
                f"mount --bind {self.root} {self.root}",
                *_base_mounts(self.root),
                f"mount --bind {volume} {self.root}{self.volumes[0]}",
                f"mount -o remount,bind,ro {self.root}",
            ]
        )
        return _inside(self, where, command, environment={**self.environment, **environment})


def read_steps(dockerfile: Path) -> dict[str, list[Step]]:
    """Instructions by stage; those before the first FROM are under the empty name. A stage begins with its FROM."""
    stages: dict[str, list[Step]] = {"": []}
    stage = ""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    for line in _CONTINUED.sub(" ", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        name, _, text = line.strip().partition(" ")
        if name == "FROM":
            text, _, stage = text.partition(" AS ")
            stages[stage] = []
        stages[stage].append(Step(name, " ".join(text.split())))
    return stages


class Builder:
    """Carries out the stages that a target needs, each once."""

    def __init__(self, context: Path, into: Path) -> None:
        self._stages = read_steps(context / "Dockerfile")
        self._context = context
        self._ignored = (context / ".dockerignore").read_text().splitlines()
        self._into = into
        self._built: dict[str, Image] = {}

    def build(self, target: str) -> Image:
        """Raises: subprocess.CalledProcessError: a step failed; KeyError: no such stage or instruction."""
        if target not in self._built:
            first, *rest = self._stages[target]
            # A stage takes over its parent's files: nobody else goes on from them in one build of one target.
            image = self.build(first.text) if first.text in self._stages else self._base(target)
            for step in rest:
                image = getattr(self, f"_{step.name.lower()}")(image, step)
            self._built[target] = image
        return self._built[target]

    def _base(self, name: str) -> Image:
        root = self._into / name
        for folder in ("usr", "proc", "dev", "tmp", "var", "opt"):
            (root / folder).mkdir(parents=True)
        for link in ("bin", "sbin", "lib", "lib64"):
            (root / link).symlink_to(f"usr/{link}")
        shutil.copytree("/etc", root / "etc", symlinks=True, ignore_dangling_symlinks=True)
        # As the official image does: else a Python of this machine's distribution lends its libraries to that one.
        subprocess.run(
            ["unshare", "--mount", "sh", "-ec", f"{' && '.join(_base_mounts(root))}; chroot {root} /sbin/ldconfig"],
            check=True,
            timeout=60,
        )
        return Image(root, environment={"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"})

    def _run(self, image: Image, step: Step) -> Image:
        command = step.words or ["/bin/sh", "-c", step.text]
        environment = {**_registry(), **image.arguments, **image.environment}
        inside = _inside(image, " && ".join(_base_mounts(image.root)), command, environment=environment)
        subprocess.run(inside, check=True, timeout=STEP_TIMEOUT_S, stdin=subprocess.DEVNULL)
        return image

    def _copy(self, image: Image, step: Step) -> Image:
        words = step.text.split()
        source = self._context
        if words[0].startswith("--from="):
            source = self.build(words.pop(0).removeprefix("--from=")).root
        *names, target = words
        into = image.root / image.directory.lstrip("/") / target if not target.startswith("/") else None
        destination = into or image.root / target.lstrip("/")
        for name in names:
            found = source / name.lstrip("/")
            if source == self._context:
                self._copy_context(found, destination)
            else:
                shutil.copytree(found, destination, symlinks=True, copy_function=os.link)
        return image

    def _copy_context(self, found: Path, destination: Path) -> None:
        if found.is_file():
            assert self._is_sent(found), f"{found} is not sent to the engine"
            target = destination / found.name if destination.is_dir() else destination
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, target)
            return
        for folder, folders, files in os.walk(found):
            here = Path(folder)
            folders[:] = [each for each in folders if self._may_hold_some(here / each)]
            for file in (here / each for each in files):
                if self._is_sent(file):
                    target = destination / file.relative_to(found)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, target)

    def _may_hold_some(self, folder: Path) -> bool:
        name = folder.relative_to(self._context).as_posix()
        taken = [line[1:] for line in self._ignored if line.startswith("!")]
        return self._is_sent(folder) or any(each.startswith(f"{name}/") for each in taken)

    def _is_sent(self, file: Path) -> bool:
        """By .dockerignore, whose last matching line decides. Source: docs.docker.com/build/concepts/context."""
        sent, name = True, file.relative_to(self._context).as_posix()
        for line in self._ignored:
            pattern = line.lstrip("!").removeprefix("**/")
            if line.startswith("#") or not line:
                continue
            parents = [name, *(each.as_posix() for each in Path(name).parents)]
            if any(
                fnmatch(each, pattern) or (line.startswith("**/") and fnmatch(Path(each).name, pattern))
                for each in parents
            ):
                sent = line.startswith("!")
        return sent

    def _arg(self, image: Image, step: Step) -> Image:
        name, _, value = step.text.partition("=")
        return replace(image, arguments={**image.arguments, name: value.strip('"')})

    def _env(self, image: Image, step: Step) -> Image:
        given = dict(word.split("=", 1) for word in shlex.split(step.text))
        path = given.get("PATH", "").replace("$PATH", image.environment["PATH"])
        return replace(image, environment={**image.environment, **given, **({"PATH": path} if path else {})})

    def _workdir(self, image: Image, step: Step) -> Image:
        (image.root / step.text.lstrip("/")).mkdir(parents=True, exist_ok=True)
        return replace(image, directory=step.text)

    def _user(self, image: Image, step: Step) -> Image:
        return replace(image, user=step.text)

    def _volume(self, image: Image, step: Step) -> Image:
        return replace(image, volumes=(*image.volumes, step.text))

    def _entrypoint(self, image: Image, step: Step) -> Image:
        return replace(image, entrypoint=tuple(_exec_form(step)))

    def _cmd(self, image: Image, step: Step) -> Image:
        return replace(image, command=tuple(_exec_form(step)))

    def _healthcheck(self, image: Image, step: Step) -> Image:
        return replace(image, health_command=tuple(_exec_form(Step("CMD", step.text.partition("CMD ")[2]))))

    def _expose(self, image: Image, step: Step) -> Image:
        return image


def _exec_form(step: Step) -> list[str]:
    """A shell would take SIGTERM for itself."""
    assert step.words is not None, f"{step.name} {step.text}: write it as a JSON list"
    return step.words


def _base_mounts(root: Path) -> list[str]:
    return [
        f"mount --bind /usr {root}/usr",
        f"mount --bind {sys.base_prefix} {root}/usr/local",
        f"mount -o remount,bind,ro {root}/usr",
        f"mount -o remount,bind,ro {root}/usr/local",
        f"mount --rbind /dev {root}/dev",
        f"mount -t proc proc {root}/proc",
        f"mount -t tmpfs tmpfs {root}/tmp",
    ]


def _inside(image: Image, mounts: str, command: Sequence[str], *, environment: Mapping[str, str]) -> list[str]:
    """The process replaces each of the programs that prepare its place, so that signals reach it."""
    uid, gid = image.user.split(":")
    variables = [f"{name}={value}" for name, value in environment.items()]
    become = ["setpriv", "--reuid", uid, "--regid", gid, "--clear-groups", "--no-new-privs"]
    chroot = ["chroot", str(image.root), "env", "--ignore-environment", f"--chdir={image.directory}", *variables]
    return ["unshare", "--mount", "sh", "-ec", f'{mounts}; exec "$@"', "sh", *chroot, *become, *command]


def _registry() -> dict[str, str]:
    """How this machine reaches its package registry, beside /etc: an engine would have it from its own network."""
    return {name: value for name, value in os.environ.items() if _OF_REGISTRY.fullmatch(name)}
