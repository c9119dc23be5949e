"""The version that was active before the kit came: what its versions are made from, and where it goes back to."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import google_crc32c
import grpc

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.policy_calls import policy, state
from openclaw_rl.conformance.weights_versions import Made, Maker, Playbooks, Weights, next_number
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1.playbook_pb2 import Playbook
from openclaw_rl.v1.weights_pb2 import VersionManifest, WeightOffer
from openclaw_rl.weights import playbook
from openclaw_rl.weights.format.digest import manifest_digest, tensor_digest

_KEY = "weights"


class Base:
    """What the kit found.

    Attributes:
        version: that was active.
        maker: makes versions from it.
    """

    def __init__(self, kit: Context, found: pb.PolicyState, maker: Maker) -> None:
        self.version = found.active_version
        self.maker = maker
        self._kit = kit
        self._digest = found.active_digest

    async def make(self, skip: int = 0) -> Made:
        """A new version with the next number, or one of a number that is higher by `skip`."""
        now = await state(self._kit)
        return self.maker.make(next_number(now) + skip, now)

    async def bad(self) -> Made:
        """See Maker.bad."""
        now = await state(self._kit)
        return self.maker.bad(next_number(now), now)

    @property
    def weights(self) -> Weights:
        """The maker of a model with weights.

        Raises:
            Skipped: it is an API model.
        """
        if not isinstance(self.maker, Weights):
            self._kit.skip("the server has an API model: its versions are playbooks, which always travel dense")
        return self.maker

    async def go_home(self) -> None:
        """Make the version that the kit found the active one again."""
        kit = self._kit
        now = await state(kit)
        if now.active_version == self.version and not now.pinned:
            return
        kit.expect(self.version in now.kept_versions, f"version {self.version}, which was active before the kit came, "
                   f"is not kept any more: {list(now.kept_versions)} are, and {now.active_version} is active")
        await kit.unary("ActivateVersion", pb.ActivateVersionRequest(
            version=self.version, reason="the conformance kit goes back", pin=False), timeout=60)
        now = await state(kit)
        kit.expect(now.active_version == self.version and now.active_digest == self._digest,
                   f"after ActivateVersion of {self.version} version {now.active_version} is active"
                   + ("" if now.active_version != self.version else ", with another digest than before"))


@contextlib.asynccontextmanager
async def from_home(kit: Context) -> AsyncIterator[Base]:
    """What was found, worked out once in a run. Behind the check the server is back there."""
    base = kit.memo.get(_KEY)
    if base is None:
        base = kit.memo[_KEY] = await _find(kit)
    try:
        yield base
    except BaseException:
        with contextlib.suppress(Exception):  # what went wrong first is what is told
            await base.go_home()
        raise
    await base.go_home()


async def _find(kit: Context) -> Base:
    found = await state(kit)
    if not found.accepts_weights:
        kit.skip(f"the engine {found.engine!r} takes no weights (accepts_weights)")
    if found.pinned:
        kit.skip(f"an operator pinned version {found.active_version}: lift the pin (`openclaw-rl unpin`) to have the "
                 "weight stream checked")
    try:
        offer, _ = await fetch(kit, [], stop=True)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        if found.vocab_size:
            kit.skip("FetchWeights is not implemented here: the kit can't make versions of a model that it "
                     "does not know")
        return Base(kit, found, Playbooks(Playbook()))
    specs = list(offer.tensors)
    if len(specs) == 1 and playbook.is_playbook(specs[0]):
        _, data = await fetch(kit, [playbook.TENSOR])
        return Base(kit, found, Playbooks(playbook.parse(data)))
    names = Weights.choose(specs)
    tensors = {}
    for name in names:
        _, tensors[name] = await fetch(kit, [name])
    return Base(kit, found, Weights(specs, tensors))


async def fetch(kit: Context, names: Sequence[str], *, version: int | None = None, from_byte: int = 0,
                stop: bool = False) -> tuple[WeightOffer, bytes]:
    """FetchWeights: the offer and the bytes.

    Args:
        names: of the tensors; none for all.
        stop: take the offer only.

    Raises:
        grpc.aio.AioRpcError: the server refused it.
        Failed: it is no offer with chunks behind it.
    """
    request = pb.PolicyServiceFetchWeightsRequest(tensors=names, from_byte=from_byte)
    if version is not None:
        request.version = version
    call = kit.stream("FetchWeights", request, timeout=60, channel=kit.channel_as("policy_server"))
    offer: WeightOffer | None = None
    data = bytearray()
    async for answer in call:
        kind = answer.WhichOneof("message")
        if offer is None:
            kit.expect(kind == "offer", f"FetchWeights begins with `{kind}`, not with `offer`")
            offer = answer.offer
            if stop:
                call.cancel()
                return offer, b""
            continue
        kit.expect(kind == "chunk", f"FetchWeights has `{kind}` behind its offer, where chunks are due")
        chunk = answer.chunk
        kit.expect(chunk.offset == from_byte + len(data), f"a chunk of FetchWeights begins at byte {chunk.offset}; due "
                   f"is byte {from_byte + len(data)}")
        kit.expect(google_crc32c.value(chunk.data) == chunk.crc32c, f"the CRC-32C of the chunk at byte {chunk.offset} "
                   "of FetchWeights is wrong")
        data += chunk.data
    kit.expect(offer is not None, "FetchWeights ended well without an offer")
    assert offer is not None
    return offer, bytes(data)


async def look_at_fetched(kit: Context, now: pb.PolicyState) -> None:
    """What FetchWeights gives must be the active version."""
    offer, _ = await fetch(kit, [], stop=True)
    kit.expect(offer.manifest.version == now.active_version, f"FetchWeights without a version gives version "
               f"{offer.manifest.version}; {now.active_version} is active")
    kit.expect(offer.manifest.digest == now.active_digest, "FetchWeights gives another digest than GetPolicy")
    kit.expect(manifest_digest(offer.tensors) == offer.manifest.digest,
               "the digests of the tensors of FetchWeights do not make the manifest's digest")
    name = min(offer.tensors, key=lambda spec: spec.encoded_bytes).name
    spec = next(spec for spec in offer.tensors if spec.name == name)
    _, data = await fetch(kit, [name])
    kit.expect(len(data) == spec.encoded_bytes, f"FetchWeights of {name!r} gives {len(data)} bytes; the offer says "
               f"{spec.encoded_bytes}")
    kit.expect(tensor_digest(data) == spec.sha256, f"what FetchWeights gives of {name!r} has not the digest that its "
               "offer says")
    if len(data) > 1:
        _, rest = await fetch(kit, [name], from_byte=len(data) // 2)
        kit.expect(rest == data[len(data) // 2 :], f"FetchWeights of {name!r} from byte {len(data) // 2} does not give "
                   "the rest of it")


async def manifest_of(kit: Context, version: int) -> VersionManifest | None:
    """The manifest of a kept version; None when it is not kept."""
    return next((one for one in (await policy(kit)).manifests if one.version == version), None)
