"""What is deployed, read as its tools read it."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.required import left_out

SERVERS = Path(__file__).parents[2] / "servers"
KUBERNETES = SERVERS / "kubernetes"
VARIANTS = ("base", "gpu")


@cache
def documents(variant: str) -> list[dict[str, Any]]:
    """The manifests of base or of an overlay, as `kubectl apply -k` sends them."""
    tool = shutil.which("kubectl")
    command = [tool, "kustomize"] if tool else [shutil.which("kustomize") or "", "build"]
    if not command[0]:
        left_out("kubectl and kustomize are missing; tools/outside-tools builds kustomize")
    done = subprocess.run([*command, str(KUBERNETES / variant)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def of_kind(variant: str, kind: str) -> dict[str, dict[str, Any]]:
    """Manifests of a kind by name."""
    return {document["metadata"]["name"]: document for document in documents(variant) if document["kind"] == kind}


def pod(stateful_set: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = stateful_set["spec"]["template"]["spec"]
    return spec


def container(stateful_set: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod(stateful_set)["containers"]
    found: dict[str, Any] = only
    return found
