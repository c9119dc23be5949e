"""Playbooks, which an API model's versions consist of, fetched from the component that keeps them."""

from __future__ import annotations

from google.protobuf.message import Message

from openclaw_rl.client.policy import PolicyServiceClient
from openclaw_rl.client.trainer import TrainerServiceClient
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1.playbook_pb2 import Playbook
from openclaw_rl.v1.weights_pb2 import VersionManifest
from openclaw_rl.weights import playbook

#: Algorithm of the versions that have one.
ALGORITHM = "playbook"


def fetch(home: Home, manifest: VersionManifest) -> Playbook | None:
    """The playbook of a version: from the trainer, else from the policy server. That of version 0 is empty. None of a
    version with weights, and when nobody who answers has it any more."""
    if manifest.version == 0:
        return Playbook()
    if manifest.algorithm != ALGORITHM:
        return None
    for client in (TrainerServiceClient, PolicyServiceClient):
        try:
            with client(home=home) as component:
                return playbook.parse(b"".join(map(_data, component.fetch_weights(version=manifest.version))))
        except (MeshError, playbook.PlaybookError):
            continue  # refused by the gate, deleted, or nobody there
    return None


def _data(response: Message) -> bytes:
    return response.chunk.data  # type: ignore[attr-defined, no-any-return]
