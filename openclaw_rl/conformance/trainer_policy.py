"""The kit as a trainer's policy server: takes each version, looks at all that comes, activates it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import google_crc32c

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.services import SERVICES
from openclaw_rl.rpc.messages import now
from openclaw_rl.v1 import playbook_pb2, policy_pb2, weights_pb2
from openclaw_rl.weights import playbook
from openclaw_rl.weights.format.digest import manifest_digest, tensor_digest

_DENSE = weights_pb2.TENSOR_ENCODING_DENSE
#: Bytes that are granted at once: few, so that a transfer of any size has to wait for more.
_CREDIT = 4 * 2**20


class SyncPolicy:
    """Answers SyncWeights until the check is over.

    Attributes:
        streams: streams that were opened.
        offers: manifests that were offered.
        activated: versions that were committed.
        problems: what was wrong with what came, for a person.

    Args:
        base: manifest of the trainer's version 0, which it says to have; None is that of an API model.
    """

    def __init__(self, kit: Context, base: weights_pb2.VersionManifest | None) -> None:
        assert kit.listener is not None
        self.streams = 0
        self.offers: list[weights_pb2.VersionManifest] = []
        self.activated: list[weights_pb2.VersionManifest] = []
        self.problems: list[str] = []
        self._base = base or _base()
        self.opened = asyncio.Event()
        kit.listener.replace(SERVICES["policy"].path("SyncWeights"), self._sync)
        kit.listener.replace(SERVICES["policy"].path("GetPolicy"), self._get)

    async def _get(self, request: Any, context: Any) -> AsyncIterator[policy_pb2.GetPolicyResponse]:
        yield policy_pb2.GetPolicyResponse(state=self._state(), manifests=[self._base, *self.activated])

    async def _sync(self, requests: Any, context: Any) -> AsyncIterator[policy_pb2.SyncWeightsResponse]:
        self.streams += 1
        self.opened.set()
        yield policy_pb2.SyncWeightsResponse(state=self._state())
        transfer: _Transfer | None = None
        async for request in requests:
            kind = request.WhichOneof("message")
            if kind == "offer":
                transfer = _Transfer(request.offer, self.problems)
                self.offers.append(request.offer.manifest)
                yield policy_pb2.SyncWeightsResponse(need=transfer.need())
                if not transfer.total:
                    yield policy_pb2.SyncWeightsResponse(staged=weights_pb2.WeightStaged(version=transfer.version))
            elif transfer is None:
                self.problems.append(f"`{kind}` came before an offer")
            elif kind == "chunk":
                if (grant := transfer.take(request.chunk)) is not None:
                    yield policy_pb2.SyncWeightsResponse(progress=grant)
                if transfer.complete:
                    transfer.check()
                    yield policy_pb2.SyncWeightsResponse(staged=weights_pb2.WeightStaged(version=transfer.version))
            elif kind == "commit":
                if not transfer.complete:
                    self.problems.append(f"version {transfer.version} was committed before it was staged")
                self.activated.append(transfer.manifest)
                yield policy_pb2.SyncWeightsResponse(activated=weights_pb2.WeightActivated(
                    version=request.commit.version, pause_ms=0.1))

    def _state(self) -> policy_pb2.PolicyState:
        active = self.activated[-1] if self.activated else self._base
        kept = sorted({0, *(manifest.version for manifest in self.activated)})
        return policy_pb2.PolicyState(
            active_version=active.version, active_digest=active.digest, kept_versions=kept, highest_version=kept[-1],
            model="conformance", model_id=self._base.model_id, engine="openai", activated_at=now(),
            accepts_weights=True)


def _base() -> weights_pb2.VersionManifest:
    """Version 0 of an API model: a playbook without instructions."""
    name, dtype, shape, data = playbook.tensor(playbook_pb2.Playbook())
    spec = weights_pb2.TensorSpec(name=name, dtype=dtype, shape=shape, sha256=tensor_digest(data))
    return weights_pb2.VersionManifest(version=0, digest=manifest_digest([spec]), algorithm="base",
                                       model_id="conformance")


class _Transfer:
    def __init__(self, offer: weights_pb2.WeightOffer, problems: list[str]) -> None:
        self.manifest, self.version = offer.manifest, offer.manifest.version
        self._tensors, self._problems = list(offer.tensors), problems
        self.total = sum(spec.encoded_bytes for spec in offer.tensors)
        self._data, self._granted = bytearray(), 0
        if not offer.HasField("base_version") and manifest_digest(offer.tensors) != offer.manifest.digest:
            problems.append(f"the digest of version {self.version} is not that of its tensors")

    @property
    def complete(self) -> bool:
        return len(self._data) == self.total

    def need(self) -> weights_pb2.WeightNeed:
        """All of it, from the start."""
        self._granted = _CREDIT
        return weights_pb2.WeightNeed(version=self.version, tensors=[spec.name for spec in self._tensors],
                                      credit_bytes=_CREDIT)

    def take(self, chunk: weights_pb2.WeightChunk) -> weights_pb2.WeightProgress | None:
        """Keep a chunk; more credit when it is due."""
        at = f"the chunk at byte {chunk.offset} of version {self.version}"
        if chunk.offset != len(self._data):
            self._problems.append(f"{at} came where byte {len(self._data)} was due")
        if google_crc32c.value(chunk.data) != chunk.crc32c:
            self._problems.append(f"{at} has a wrong CRC-32C")
        if len(chunk.data) > 4 * 2**20:
            self._problems.append(f"{at} has {len(chunk.data)} bytes, more than 4 MiB")
        self._data += chunk.data
        if len(self._data) > self._granted:
            self._problems.append(f"{len(self._data)} bytes of version {self.version} came; {self._granted} were "
                                  "granted")
        if self.complete or len(self._data) < self._granted // 2:
            return None
        self._granted += _CREDIT
        return weights_pb2.WeightProgress(version=self.version, received_bytes=len(self._data), total_bytes=self.total,
                                          credit_bytes=_CREDIT)

    def check(self) -> None:
        """The digests of what came whole."""
        at = 0
        for spec in self._tensors:
            data = self._data[at:at + spec.encoded_bytes]
            at += spec.encoded_bytes
            if spec.encoding == _DENSE and hashlib.sha256(data).digest() != spec.sha256:
                self._problems.append(f"tensor {spec.name} of version {self.version} is not what its digest says")
