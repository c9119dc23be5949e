"""Checks of tensor encodings: deltas, adapters, unlisted tensors."""

from __future__ import annotations

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import check
from openclaw_rl.conformance.policy_calls import state
from openclaw_rl.conformance.weights_cycle import MAY, POLICY, SECONDS, serves, still
from openclaw_rl.conformance.weights_home import Base, from_home
from openclaw_rl.conformance.weights_stream import Sync
from openclaw_rl.conformance.weights_versions import Made, next_number
from openclaw_rl.v1 import weights_pb2 as pb

_AFTER = ("weights.cycle",)
_ENCODING = "weights.proto: TensorEncoding"


async def _activate(kit: Context, base: Base, made: Made, version: int | None = None) -> None:
    async with Sync(kit) as sync:
        need = await sync.stage(made, base=version)
        lacking = sorted({*made.frames} - {*need.tensors})
        kit.expect(not lacking, f"`need` does not ask for {lacking[0] if lacking else ''!r}, which the server can't "
                   "have")
        await serves(kit, made, await sync.commit(made))
        await base.go_home()


@check("weights.base_version", "With base_version, tensors that are not listed are those of that version.",
       services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS, where="weights.proto: WeightOffer.base_version")
async def unlisted(kit: Context) -> None:
    async with from_home(kit) as base:
        _ = base.weights  # a playbook is always listed
        await _activate(kit, base, await base.make(), base.version)


@check("weights.sparse", "A tensor sent as a delta to one that the server has (SPARSE_ZSTD) yields the offered one.",
       services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS, where=_ENCODING)
async def sparse(kit: Context) -> None:
    async with from_home(kit) as base:
        now = await state(kit)
        await _activate(kit, base, base.weights.sparse(next_number(now), now))


@check("weights.low_rank", "A tensor sent as an adapter on one that the server has (LOW_RANK_ZSTD) yields the offered "
                           "one.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS, where=_ENCODING)
async def low_rank(kit: Context) -> None:
    async with from_home(kit) as base:
        now = await state(kit)
        await _activate(kit, base, base.weights.low_rank(next_number(now), now))


@check("weights.encoded.damaged", "A frame that cannot be decoded, or exceeds its tensor, is rejected as "
                                  "DIGEST_MISMATCH, retryable, since the version may be sent dense.", services=POLICY,
       needs=MAY, after=_AFTER,
       seconds=SECONDS, where=_ENCODING)
async def damaged(kit: Context) -> None:
    async with from_home(kit) as base, Sync(kit) as sync:
        now = await state(kit)
        made = base.weights.sparse(next_number(now), now)
        name = base.weights.matrix
        made.frames[name] = bytes(len(made.frames[name]))
        await sync.refuses(made, ["DIGEST_MISMATCH"], "a sparse tensor whose frame is no zstd", retryable=True)
        await still(kit, base, "a damaged frame came")


@check("weights.encoded.base", "A tensor encoded against one that the server lacks is rejected as WRONG_BASE, "
                               "retryable, since the version may be sent dense.", services=POLICY, needs=MAY,
       after=_AFTER,
       seconds=SECONDS, where="weights.proto: TensorSpec.base_sha256")
async def foreign_base(kit: Context) -> None:
    async with from_home(kit) as base, Sync(kit) as sync:
        now = await state(kit)
        made = base.weights.sparse(next_number(now), now)
        made.spec(base.weights.matrix).base_sha256 = bytes(32)
        await sync.refuses(made, ["WRONG_BASE"], "a sparse tensor on one that the server does not have", retryable=True)
        await sync.stage(await base.make())
        await sync.say(abort=pb.WeightAbort(version=made.version, reason="the check is over"))
