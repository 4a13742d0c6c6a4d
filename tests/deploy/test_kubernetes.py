"""The manifests as kubectl renders them, without a cluster: each resource against its schema, and what they promise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from cloudcoil.models.keda import v1alpha1 as keda
from cloudcoil.models.prometheus_operator import v1 as monitoring
from kustomize import MANIFESTS, Resource, of_kind, pods, render, unpack_kubectl
from pydantic import BaseModel, ValidationError

from dats_common.settings import Settings, load_settings
from services.cli.commands import app
from services.query import routes
from services.writer import probes

ROOT = Path(__file__).parents[2]
RELEASES = ("1.31", "1.33", "1.37")
FOLDERS = ("base", "overlays/example")
CUSTOM: dict[str, type[BaseModel]] = {
    "ScaledObject": keda.ScaledObject,
    "TriggerAuthentication": keda.TriggerAuthentication,
    "ServiceMonitor": monitoring.ServiceMonitor,
    "PrometheusRule": monitoring.PrometheusRule,
}
SECRETS = "/run/secrets/dats-rag"


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_kubectl(tmp_path_factory.mktemp("kubectl"))


@pytest.fixture(scope="module", params=FOLDERS)
def resources(request: pytest.FixtureRequest, kubectl: Path) -> list[Resource]:
    return render(kubectl, request.param)


@pytest.fixture(scope="module")
def base(kubectl: Path) -> list[Resource]:
    return render(kubectl, "base")


@pytest.fixture(scope="module")
def example(kubectl: Path) -> list[Resource]:
    return render(kubectl, "overlays/example")


# ----------------------------------------------------------------------------------------------------------- schemas


@pytest.mark.parametrize("release", RELEASES)
def test_every_resource_fits_its_schema(resources: list[Resource], release: str) -> None:
    for resource in resources:
        if resource["kind"] in CUSTOM:
            validate_custom(resource)
        else:
            kubernetes_validate.validate(dict(resource), release, strict=True)


def validate_custom(resource: Resource) -> None:
    """Raises: ValidationError; AssertionError: a field that the schema does not have."""
    read = CUSTOM[resource["kind"]].model_validate(resource)
    kept = read.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert not lost(resource, kept), lost(resource, kept)


def lost(given: Any, kept: Any, at: str = "") -> list[str]:
    """What a model did not take over: names that it does not know."""
    if isinstance(given, Mapping):
        missing = [f"{at}.{name}" for name in given if not isinstance(kept, Mapping) or name not in kept]
        return missing + [
            each
            for name in given
            if f"{at}.{name}" not in missing
            for each in lost(given[name], kept[name], f"{at}.{name}")
        ]
    if isinstance(given, list):
        return [each for index, one in enumerate(given) for each in lost(one, kept[index], f"{at}[{index}]")]
    return []


def test_a_resource_that_does_not_fit_is_found(base: list[Resource], example: list[Resource]) -> None:
    writer = dict(of_kind(base, "Deployment")["writer"])
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**writer, "spec": {**writer["spec"], "replica": 2}}, RELEASES[0], strict=True)
    scaled = dict(of_kind(example, "ScaledObject")["query"])
    with pytest.raises((ValidationError, AssertionError)):
        validate_custom({**scaled, "spec": {**scaled["spec"], "maxReplicas": 3}})


# --------------------------------------------------------------------------------------------------------- what runs


def test_one_writer_is_active_and_one_waits_and_a_node_may_go(base: list[Resource]) -> None:
    deployments = of_kind(base, "Deployment")
    assert set(deployments) == {"writer", "query", "verify"}
    assert deployments["writer"]["spec"]["replicas"] == 2
    assert "replicas" not in deployments["query"]["spec"]  # the autoscaler's
    assert set(of_kind(base, "PodDisruptionBudget")) == {"writer", "query"}
    (scaler,) = of_kind(base, "HorizontalPodAutoscaler").values()
    assert scaler["spec"]["minReplicas"] == 2
    for name in ("writer", "query"):
        strategy = deployments[name]["spec"]["strategy"]["rollingUpdate"]
        assert (strategy["maxSurge"], strategy["maxUnavailable"]) == (1, 0), name
        spread = deployments[name]["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert {each["topologyKey"] for each in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}


def test_every_pod_is_a_stranger_with_bounds(resources: list[Resource]) -> None:
    for name, pod in pods(resources):
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert "memory" in container["resources"]["limits"], name
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert re.search(r":\d+\.\d+\.\d+$", container["image"]), container["image"]


def test_probes_ask_what_is_served(base: list[Resource]) -> None:
    of_replicas = {f"/api/v1{route.path}" for route in routes.router.routes}  # type: ignore[attr-defined]
    of_replicas |= {route.path for route in routes.router.routes}  # type: ignore[attr-defined]
    served = {"query": of_replicas, "writer": {probes.LIVE, probes.READY, probes.METRICS}, "verify": {"/metrics"}}
    kinds = {"query": 3, "writer": 3, "verify": 2}
    for name, pod in pods(base):
        (container,) = pod["containers"]
        asked = [container[each] for each in ("startupProbe", "livenessProbe", "readinessProbe") if each in container]
        assert len(asked) == kinds.get(name, 0), name
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in asked:
            assert probe["httpGet"]["path"] in served[name], name
            assert probe["httpGet"]["port"] in ports, name


def test_commands_and_settings_are_ones_that_the_service_knows(resources: list[Resource], tmp_path: Path) -> None:
    """Each container's environment is read as it would be, with its secrets as files."""
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    maps = of_kind(resources, "ConfigMap")
    for name, pod in pods(resources):
        (container,) = pod["containers"]
        assert container["args"][0] in known, name
        environment: dict[str, str] = {}
        for source in container.get("envFrom", []):
            environment |= maps[source["configMapRef"]["name"]]["data"]
        environment |= {each["name"]: each["value"] for each in container["env"]}
        for variable, value in environment.items():
            if value.startswith(SECRETS):
                file = tmp_path / name / Path(value).name
                file.parent.mkdir(exist_ok=True)
                file.write_text("amqp://user:pass@host:5672/" if "amqp" in value else "postgresql://user:pass@host/rag")
                environment[variable] = str(file)
        files = next(volume for volume in pod["volumes"] if volume["name"] == "files")["configMap"]["name"]
        configuration = tmp_path / f"{name}.yaml"
        configuration.write_text(maps[files]["data"]["rag-service.yaml"])
        settings = load_settings(configuration, environment)
        assert settings.auth.mode == "required" or name == "migrate", name
        assert settings.server.host == "0.0.0.0", name


def test_secrets_are_named_and_never_given(resources: list[Resource]) -> None:
    assert of_kind(resources, "Secret") == {}
    for name, pod in pods(resources):
        (mounted,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        items = {item["key"] for item in mounted["items"]}
        wanted = {Path(each["value"]).name for each in pod["containers"][0]["env"] if each["value"].startswith(SECRETS)}
        assert items == wanted, name
    owners = [name for name, pod in pods(resources) if "owner" in str(pod["volumes"])]
    assert owners == ["migrate"]


def test_what_is_in_hand_is_finished_before_a_pod_is_killed(base: list[Resource]) -> None:
    settings = Settings()
    of = dict(pods(base))
    pause_s = float(of["query"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    in_hand_s = settings.query.deadline_s + settings.query.embed_wait_s
    assert of["query"]["terminationGracePeriodSeconds"] > pause_s + in_hand_s
    assert of["writer"]["terminationGracePeriodSeconds"] > settings.events.drain_s


def test_nothing_is_reached_but_what_is_named(base: list[Resource]) -> None:
    policies = of_kind(base, "NetworkPolicy")
    denied = policies["default-deny"]["spec"]
    assert (denied["podSelector"], denied["policyTypes"]) == ({}, ["Ingress", "Egress"])
    assert "ingress" not in denied
    assert "egress" not in denied
    ports = {
        (kind, port["port"])
        for policy in policies.values()
        for kind in ("ingress", "egress")
        for rule in policy["spec"].get(kind, [])
        for port in rule["ports"]
    }
    assert {port for kind, port in ports if kind == "ingress"} == {8000, 9464, 9465}
    assert {port for kind, port in ports if kind == "egress"} == {53, 5432, 5671, 5672, 6333, 6334, 8000, 4317, 11434}


# ---------------------------------------------------------------------------------------------------------- overlays


def test_the_gpu_is_the_writers_alone(example: list[Resource]) -> None:
    held = {
        name: pod
        for name, pod in pods(example)
        if any("nvidia.com/gpu" in container["resources"]["limits"] for container in pod["containers"])
    }
    assert set(held) == {"writer"}
    assert held["writer"]["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert held["writer"]["containers"][0]["image"] == "registry.example.org/dats-rag-gpu:0.1.0"


def test_keda_takes_the_autoscalers_place_and_looks_at_a_queue_of_ours(example: list[Resource]) -> None:
    from dats_common.contracts.routing import QUEUE_NAMES

    assert of_kind(example, "HorizontalPodAutoscaler") == {}
    scaled = of_kind(example, "ScaledObject")["query"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == "query"
    (queue,) = [each["metadata"]["queueName"] for each in scaled["triggers"] if each["type"] == "rabbitmq"]
    assert queue in QUEUE_NAMES


def test_prometheus_finds_every_service_that_has_metrics(example: list[Resource]) -> None:
    (monitor,) = of_kind(example, "ServiceMonitor").values()
    wanted, ports = monitor["spec"]["selector"]["matchLabels"], {each["port"] for each in monitor["spec"]["endpoints"]}
    for name, service in of_kind(example, "Service").items():
        assert wanted.items() <= service["metadata"]["labels"].items(), name
        assert {port["name"] for port in service["spec"]["ports"]} <= ports, name


def test_the_operators_rules_are_prometheus_own() -> None:
    from deploy.kubernetes import __main__ as rules

    assert rules.RESOURCE.read_text(encoding="utf-8") == rules.document(), "run python -m deploy.kubernetes"


def test_the_files_in_the_manifests_are_those_of_the_images() -> None:
    images = ROOT / "deploy" / "images"
    for theirs, ours in (("rag-service.yaml", "base"), ("rag-service.gpu.yaml", "overlays/gpu")):
        assert (MANIFESTS / ours / "rag-service.yaml").read_text() == (images / theirs).read_text()
