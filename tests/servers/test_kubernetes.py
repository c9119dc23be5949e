"""The Kubernetes manifests: valid by Kubernetes' own schemas, and at one with the components. They run nowhere here."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from openclaw_rl.config import Config, load_config
from openclaw_rl.runtime.home import COMPONENTS
from tests.servers.deployed import KUBERNETES, VARIANTS, container, documents, of_kind, pod

#: Oldest and newest Kubernetes that the manifests are held against.
VERSIONS = ("1.29", "1.37")
both = pytest.mark.parametrize("variant", VARIANTS)


def config(variant: str, folder: Path) -> Config:
    """The configuration that the pods get."""
    (config_map,) = of_kind(variant, "ConfigMap").values()
    file = folder / "config.yaml"
    file.write_text(config_map["data"]["config.yaml"])
    return load_config(file)


@both
@pytest.mark.parametrize("version", VERSIONS)
def test_each_manifest_is_valid(variant: str, version: str) -> None:
    assert len(documents(variant)) == 15
    for document in documents(variant):
        kubernetes_validate.validate(copy.deepcopy(document), version, strict=True)


def test_the_validator_finds_what_is_wrong() -> None:
    wrong = copy.deepcopy(of_kind("base", "StatefulSet")["trainer"])
    container(wrong)["resource"] = container(wrong).pop("resources")
    with pytest.raises(kubernetes_validate.ValidationError, match="resource"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@both
def test_the_configuration_is_ours_and_names_the_services(variant: str, tmp_path: Path) -> None:
    components = config(variant, tmp_path).components
    services = of_kind(variant, "Service")
    for name in COMPONENTS:
        section = getattr(components, name)
        host, port = section.address.split(":")
        listens = {section.grpc_port, section.port} if name == "policy_server" else {section.port}
        assert int(port) in listens and section.host == "0.0.0.0"
        assert {entry["port"] for entry in services[host]["spec"]["ports"]} == listens
        stateful_set = of_kind(variant, "StatefulSet")[host]
        assert {entry["containerPort"] for entry in container(stateful_set)["ports"]} == listens
        labels = stateful_set["spec"]["template"]["metadata"]["labels"]
        assert services[host]["spec"]["selector"].items() <= labels.items()


@both
def test_what_a_pod_mounts_is_there_and_its_secrets_are_references(variant: str, tmp_path: Path) -> None:
    security = config(variant, tmp_path).security
    assert not of_kind(variant, "Secret")
    for name, stateful_set in of_kind(variant, "StatefulSet").items():
        volumes = {volume["name"]: volume for volume in pod(stateful_set)["volumes"]}
        claims = {claim["metadata"]["name"] for claim in stateful_set["spec"]["volumeClaimTemplates"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in container(stateful_set)["volumeMounts"]}
        assert mounts.keys() == volumes.keys() | claims
        assert mounts["certs"] == str(security.certs)
        assert volumes["config"]["configMap"]["name"] in of_kind(variant, "ConfigMap")
        for secret in (volume["secret"] for volume in volumes.values() if "secret" in volume):
            # Kubernetes gives root's file to the pod's group; nobody else may read a key.
            assert secret["defaultMode"] == 0o440
        if name == "policy-server":
            assert Path(mounts["keys"]) == security.keys.parent if security.keys else False


@both
def test_nothing_runs_as_root_and_each_is_asked_how_it_is(variant: str) -> None:
    names = {"policy-server": "policy_server", "env-server": "env_server", "prm-judge": "prm_judge",
             "trainer": "trainer"}
    for app, stateful_set in of_kind(variant, "StatefulSet").items():
        its_pod, its_container = pod(stateful_set), container(stateful_set)
        assert its_pod["securityContext"]["runAsNonRoot"] and its_pod["securityContext"]["runAsUser"] == 10001
        assert its_container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                    "capabilities": {"drop": ["ALL"]}}
        assert its_container["resources"]["requests"] and its_container["resources"]["limits"]["memory"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            command = its_container[probe]["exec"]["command"]
            assert command[:4] == ["python", "health.py", names[app], "/config.yaml"]


def _allowed(policies: dict[str, dict[str, Any]], source: str, target: str, port: int) -> bool:
    return any({"podSelector": {"matchLabels": {"app.kubernetes.io/component": source}}} in rule["from"]
               and {"port": port} in rule["ports"]
               for rule in policies[target]["spec"]["ingress"])


@both
def test_the_network_lets_the_ring_through_and_no_other_way(variant: str) -> None:
    policies = of_kind(variant, "NetworkPolicy")
    assert policies["nobody-else"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    apps = {"policy-server": 50051, "env-server": 50052, "prm-judge": 50053, "trainer": 50054}
    ring = {("policy-server", "env-server"), ("env-server", "prm-judge"), ("prm-judge", "trainer"),
            ("trainer", "policy-server"), ("policy-server", "policy-server"), ("policy-server", "trainer")}
    for source in apps:
        for target, port in apps.items():
            assert _allowed(policies, source, target, port) == ((source, target) in ring), (source, target)


def test_gpus_are_asked_for_in_the_overlay_only(tmp_path: Path) -> None:
    def gpus(variant: str) -> dict[str, Any]:
        return {name: limits["nvidia.com/gpu"] for name, stateful_set in of_kind(variant, "StatefulSet").items()
                if "nvidia.com/gpu" in (limits := container(stateful_set)["resources"]["limits"])}

    components = config("gpu", tmp_path).components
    assert gpus("base") == {}
    assert gpus("gpu") == {"policy-server": components.policy_server.workers, "trainer": components.trainer.gpus}
    tags = {container(s)["image"] for s in of_kind("gpu", "StatefulSet").values()}
    assert {"openclaw-rl-policy:0.1.0-sglang", "openclaw-rl-trainer:0.1.0-megatron"} < tags


def test_no_manifest_is_left_out() -> None:
    for variant in VARIANTS:
        listed = yaml.safe_load((KUBERNETES / variant / "kustomization.yaml").read_text())
        named = {*listed["resources"], *(patch["path"] for patch in listed.get("patches", ())), "config.yaml",
                 "kustomization.yaml"}
        assert {file.name for file in (KUBERNETES / variant).iterdir()} == named - {"../base"}
