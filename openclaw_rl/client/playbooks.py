"""What an API model's version consists of: its playbook, fetched from who has it."""

from __future__ import annotations

from google.protobuf.message import Message

from .. import playbook
from ..home import Home
from ..mesh.errors import MeshError
from ..v1.playbook_pb2 import Playbook
from ..v1.weights_pb2 import VersionManifest
from .policy import PolicyServiceClient
from .trainer import TrainerServiceClient

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
            with client(home=home) as door:
                return playbook.parse(b"".join(map(_data, door.fetch_weights(version=manifest.version))))
        except (MeshError, playbook.PlaybookError):
            continue  # refused by the gate, deleted, or nobody there
    return None


def _data(response: Message) -> bytes:
    return response.chunk.data  # type: ignore[attr-defined, no-any-return]
