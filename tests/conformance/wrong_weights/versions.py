"""The small policy server's versions, on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

from openclaw_rl.rpc.errors import failed_precondition, invalid
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1 import weights_pb2
from openclaw_rl.v1.weights_pb2 import VersionManifest
from openclaw_rl.weights import playbook
from openclaw_rl.weights.format.digest import manifest_digest, tensor_digest
from openclaw_rl.weights.format.safetensors import make_spec

MODEL_ID = "small-model"
KEEP = 3


def spec_of(data: bytes) -> weights_pb2.TensorSpec:
    return make_spec(playbook.TENSOR, playbook.DTYPE, [len(data)], tensor_digest(data))


class Versions:
    """Playbooks by version: `state.json` says which is active, beside it are the manifests and the playbooks."""

    accepts_weights = True

    def __init__(self, folder: Path, tokens: bool) -> None:
        self.folder, self.tokens = folder, tokens
        self.pinned = False
        self.changed = asyncio.Event()
        self.active = self.highest = 0
        self.withdrawn: set[int] = set()
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "state.json").exists():
            self.active, self.highest, withdrawn, self.pinned = json.loads((folder / "state.json").read_text())
            self.withdrawn = set(withdrawn)
        else:
            self.keep(VersionManifest(version=0, digest=manifest_digest([spec_of(b"{}")]), model_id=MODEL_ID,
                                      algorithm="base"), b"{}")
            self.save()

    def keep(self, manifest: VersionManifest, data: bytes) -> None:
        (self.folder / f"{manifest.version}.playbook").write_bytes(data)
        (self.folder / f"{manifest.version}.manifest").write_bytes(manifest.SerializeToString())

    def kept(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.manifest"))

    def manifest(self, version: int) -> VersionManifest:
        return VersionManifest.FromString((self.folder / f"{version}.manifest").read_bytes())

    def data(self, version: int) -> bytes:
        return (self.folder / f"{version}.playbook").read_bytes()

    def save(self) -> None:
        new = self.folder / "state.new"
        new.write_text(json.dumps([self.active, self.highest, sorted(self.withdrawn), self.pinned]))
        new.replace(self.folder / "state.json")
        self.changed.set()
        self.changed = asyncio.Event()

    def state(self) -> pb.PolicyState:
        return pb.PolicyState(
            active_version=self.active, active_digest=self.manifest(self.active).digest, kept_versions=self.kept(),
            highest_version=self.highest, withdrawn_versions=sorted(self.withdrawn), model="small", model_id=MODEL_ID,
            engine="small", context_length=1000, vocab_size=256 if self.tokens else 0,
            accepts_weights=self.accepts_weights, pinned=self.pinned)

    async def subscribe(self) -> AsyncIterator[pb.PolicyState]:
        while True:
            changed = self.changed
            yield self.state()
            await changed.wait()

    def commit(self, manifest: VersionManifest, data: bytes) -> None:
        self.keep(manifest, data)
        self.active, self.highest = manifest.version, max(self.highest, manifest.version)
        self.save()
        old = sorted(set(self.kept()) - {0, self.active}, key=lambda v: (v not in self.withdrawn, v))
        for version in old[:-KEEP]:
            (self.folder / f"{version}.manifest").unlink()

    def activate(self, request: pb.ActivateVersionRequest) -> None:
        """As an operator wants it."""
        if not request.HasField("version") and not request.HasField("pin"):
            raise invalid("version", "unset", "one that is kept")
        version = request.version if request.HasField("version") else self.active
        if version not in self.kept():
            raise failed_precondition("VERSION_UNKNOWN", f"version {version} is not kept")
        if version != self.active and self.pinned and not request.HasField("pin"):
            raise failed_precondition("PINNED", f"version {self.active} is pinned")
        if request.HasField("pin"):
            self.pinned = request.pin
        if version != self.active:
            self.take_back(version)
            self.active = version
        self.save()

    def take_back(self, version: int) -> None:
        self.withdrawn = (self.withdrawn | set(range(version + 1, self.highest + 1))) - {version}
