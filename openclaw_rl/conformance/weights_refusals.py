"""Checks of unacceptable versions: each is `rejected` with its reason, the stream continues, and the old version stays
active."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import check
from openclaw_rl.conformance.policy_calls import state
from openclaw_rl.conformance.weights_cycle import MAY, POLICY, SECONDS, still
from openclaw_rl.conformance.weights_home import Base, from_home
from openclaw_rl.conformance.weights_stream import Sync, piece
from openclaw_rl.conformance.weights_versions import Made, Weights
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.weights.format.safetensors import make_spec

_AFTER = ("weights.cycle",)
_REASONS = "weights.proto: WeightRejectReason"


@contextlib.asynccontextmanager
async def refusing(kit: Context) -> AsyncIterator[tuple[Base, Sync]]:
    """A stream on which something is refused: behind it the stream goes on and the old version answers."""
    async with from_home(kit) as base, Sync(kit) as sync:
        yield base, sync
        good = await base.make(skip=1)
        await sync.need(good)
        await sync.say(abort=pb.WeightAbort(version=good.version, reason="the check is over"))
        await still(kit, base, "a version was rejected")


@check("weights.refuses.unsupported_engine", "An engine without weight updates rejects an offer as UNSUPPORTED.",
       services=POLICY, needs=MAY, seconds=SECONDS, where=_REASONS)
async def unsupported_engine(kit: Context) -> None:
    now = await state(kit)
    if now.accepts_weights:
        kit.skip("the engine takes weights (accepts_weights)")
    async with Sync(kit) as sync:
        spec = make_spec("playbook", "U8", [2], bytes(32))
        made = Made(pb.VersionManifest(version=now.highest_version + 1, model_id=now.model_id), [spec]).seal()
        await sync.refuses(made, ["UNSUPPORTED"], "an offer to an engine that takes no weights")


@check("weights.refuses.credit", "Bytes beyond the credit, or beyond the transfer, are rejected.", services=POLICY,
       needs=MAY, after=_AFTER, seconds=SECONDS, where="weights.proto: WeightNeed.credit_bytes")
async def beyond_credit(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        made = await base.make()
        need = await sync.need(made)
        data = made.transfer(need.tensors)
        due = len(data) - need.from_byte
        if need.credit_bytes < min(due, 15 << 20):
            what = f"a chunk of {need.credit_bytes + 1} bytes, where {need.credit_bytes} were granted,"
            chunk = piece(made.version, need.from_byte, data[need.from_byte : need.from_byte + need.credit_bytes + 1])
        else:  # the credit is for all: nothing else can be too much
            what = f"a chunk that has one byte more than the {due} of the transfer"
            chunk = piece(made.version, need.from_byte, data[need.from_byte :] + b"\0")
        await sync.say(chunk=chunk)
        await sync.rejected(made.version, ["BAD_CHUNK", "PROTOCOL"], what, due=need.from_byte)


@check("weights.refuses.crc", "A chunk with a wrong CRC-32C is rejected as BAD_CHUNK, retryable, and the same version "
                              "can be resent.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS,
       where=_REASONS)
async def wrong_crc(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        made = await base.make()
        need = await sync.need(made)
        data = made.transfer(need.tensors)
        chunk = piece(made.version, need.from_byte, data[need.from_byte : need.from_byte + need.credit_bytes])
        chunk.crc32c ^= 1
        await sync.say(chunk=chunk)
        await sync.rejected(made.version, ["BAD_CHUNK"], "a chunk with a wrong CRC-32C", retryable=True,
                            due=need.from_byte)
        await sync.stage(made)
        await sync.say(abort=pb.WeightAbort(version=made.version, reason="the check is over"))


@check("weights.refuses.offset", "A chunk out of order is rejected as BAD_CHUNK, retryable.",
       services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS, where=_REASONS)
async def wrong_offset(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        made = await base.make()
        need = await sync.need(made)
        at = need.from_byte + 1
        await sync.say(chunk=piece(made.version, at, made.transfer(need.tensors)[at : at + 100]))
        await sync.rejected(made.version, ["BAD_CHUNK"], f"a chunk at byte {at}, where byte {need.from_byte} was due,",
                            retryable=True, due=need.from_byte)


@check("weights.refuses.tensor_digest", "A tensor whose bytes do not match the offered digest is rejected as "
                                        "DIGEST_MISMATCH.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS,
       where=_REASONS)
async def wrong_tensor(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        made = await base.make()
        name = base.maker.changes[0]
        spec = made.spec(name)
        spec.sha256 = bytes(255 - byte for byte in spec.sha256)
        await sync.refuses(made.seal(), ["DIGEST_MISMATCH"], f"a tensor ({name}) with another digest than its bytes "
                           "have")


@check("weights.refuses.manifest_digest", "A version whose tensor digests do not match the manifest is rejected as "
                                          "DIGEST_MISMATCH.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS,
       where=_REASONS)
async def wrong_manifest(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        made = await base.make()
        made.manifest.digest = made.manifest.digest[::-1]
        await sync.refuses(made, ["DIGEST_MISMATCH"], "a manifest with another digest than its tensors make")


@check("weights.refuses.model", "A version of another base model is rejected as WRONG_MODEL, not retryable.",
       services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS, where=_REASONS)
async def wrong_model(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        made = await base.make()
        made.manifest.model_id = "conformance-of-another-model"
        await sync.refuses(made, ["WRONG_MODEL"], "a version of another base model", retryable=False)


@check("weights.refuses.base", "A version whose unlisted tensors refer to an unknown version is rejected as "
                               "WRONG_BASE.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS,
       where="weights.proto: "
       "WeightOffer.base_version")
async def wrong_base(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        made = await base.make()
        missing = made.version + 1000
        await sync.refuses(made, ["WRONG_BASE"], f"an offer with base_version {missing}, which there is not,",
                           offer=made.offer(missing))


@check("weights.refuses.unknown_tensor", "A version with a tensor that the model does not have is rejected as "
       "UNKNOWN_TENSOR.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS, where=_REASONS)
async def unknown_tensor(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        made = await base.make()
        made.specs.append(make_spec("conformance.unknown", "F32", [1], bytes(32)))
        made.frames["conformance.unknown"] = bytes(4)
        await sync.refuses(made.seal(), ["UNKNOWN_TENSOR"], "a tensor that the model does not have", retryable=False)


@check("weights.refuses.shape", "A version with a tensor of another type or number of dimensions is rejected as "
       "WRONG_SHAPE.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS, where=_REASONS)
async def wrong_shape(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        made = await base.make()
        spec = made.spec(base.maker.changes[0])
        spec.shape.append(1)  # as many values, in one dimension more
        await sync.refuses(made.seal(), ["WRONG_SHAPE"], f"tensor {spec.name} in {len(spec.shape)} dimensions",
                           retryable=False)


@check("weights.refuses.content", "Unservable content with a correct digest is rejected: NaN as NOT_FINITE, an invalid "
                                  "playbook as WRONG_SHAPE.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS,
       where="weights.proto: WEIGHT_REJECT_REASON_NOT_FINITE; playbook.proto: Playbook")
async def bad_content(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        reason = pb.WeightRejectReason.Name(base.maker.bad_reason).removeprefix("WEIGHT_REJECT_REASON_")
        await sync.refuses(await base.bad(), [reason], base.maker.bad_what, retryable=False)


@check("weights.refuses.encoding", "A tensor in an unknown encoding is rejected as UNSUPPORTED, retryable, since it "
                                   "may be sent dense.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS,
       where=_REASONS)
async def unknown_encoding(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        made = await base.make()
        spec = made.spec(base.maker.changes[0])
        spec.encoding = 99  # type: ignore[assignment]
        spec.base_sha256 = bytes(32)
        # A receiver that knows no encoding but the dense one may look at the base first.
        reasons = ["UNSUPPORTED"] if isinstance(base.maker, Weights) else ["UNSUPPORTED", "WRONG_BASE", "PROTOCOL"]
        await sync.refuses(made, reasons, "a tensor in an encoding of number 99")


@check("weights.refuses.order", "Messages out of order are rejected as PROTOCOL: a commit before `staged`, a chunk "
                                "without an offer.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS,
       where=_REASONS)
async def wrong_order(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        made = await base.make()
        await sync.say(chunk=piece(made.version, 0, b"conformance"))
        await sync.rejected(made.version, ["PROTOCOL"], "a chunk of a version that was not offered")
        made = await base.make(skip=1)
        await sync.say(commit=pb.WeightCommit(version=made.version))
        await sync.rejected(made.version, ["PROTOCOL"], "a commit of a version that was not offered")
        await sync.need(made)
        await sync.say(commit=pb.WeightCommit(version=made.version))
        await sync.rejected(made.version, ["PROTOCOL"], "a commit of a version that was offered and not sent")


@check("weights.abort", "A version aborted by the trainer is not answered and never becomes active; its received bytes "
                        "are kept.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS,
       where="weights.proto: WeightAbort")
async def aborted(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        made = await base.make()
        need = await sync.need(made)
        half = len(made.transfer(need.tensors)) // 2
        await sync.send(made, need, upto=half)
        await sync.say(abort=pb.WeightAbort(version=made.version, reason="the kit gives it up"))
        again = await sync.need(made)
        kit.expect(again.from_byte == half, f"{half} bytes were sent before the trainer gave version {made.version} "
                   f"up; offered again it is wanted from byte {again.from_byte}")
        await sync.say(abort=pb.WeightAbort(version=made.version, reason="the kit gives it up"))
        await sync.say(commit=pb.WeightCommit(version=made.version))
        await sync.rejected(made.version, ["PROTOCOL"], "a commit of a version that the trainer has given up")


@check("weights.superseded", "An offer of another version aborts the one in progress.", services=POLICY,
       needs=MAY, after=_AFTER, seconds=SECONDS, where="policy.proto: SyncWeights")
async def superseded(kit: Context) -> None:
    async with refusing(kit) as (base, sync):
        made = await base.make()
        await sync.stage(made)
        newer = await base.make(skip=1)
        await sync.need(newer)
        await sync.say(commit=pb.WeightCommit(version=made.version))
        await sync.rejected(made.version, ["PROTOCOL"], f"the commit of version {made.version}, after version "
                            f"{newer.version} was offered,")
