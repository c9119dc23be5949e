"""Checks of broken streams: they resume at the byte named by the receiver."""

from __future__ import annotations

import asyncio

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Need, check
from openclaw_rl.conformance.policy_calls import state
from openclaw_rl.conformance.weights_cycle import MAY, POLICY, SECONDS, SMALL, serves, still
from openclaw_rl.conformance.weights_home import Base, from_home
from openclaw_rl.conformance.weights_stream import Sync
from openclaw_rl.conformance.weights_versions import Made
from openclaw_rl.v1 import weights_pb2 as pb

_AFTER = ("weights.cycle",)
#: Where a transfer is cut, in percent.
_CUTS = (10, 45, 80)
#: Seconds that a server has to write what came before its stream breaks without a word. What it had told by `progress`
#: is on disk already.
_SETTLE = 0.5


async def _part(kit: Context, made: Made, percent: int, *, abruptly: bool) -> int:
    """Open a stream, send the version up to so many percent, and break the stream; gives the byte up to which it was
    sent."""
    async with Sync(kit) as sync:
        need = await sync.need(made)
        upto = max(need.from_byte, len(made.transfer(need.tensors)) * percent // 100)
        await sync.send(made, need, upto=upto, chunk=SMALL)
        if abruptly:
            await asyncio.sleep(_SETTLE)
        else:
            await sync.finish()
        return upto


async def _go_on(kit: Context, made: Made, sent: int, how: str) -> None:
    """Offer it again: from_byte says that what came is there, and the rest is enough."""
    async with Sync(kit) as sync:
        need = await sync.need(made)
        _look_at(kit, made, need, sent, how)
        await sync.send(made, need, chunk=SMALL)
        await sync.staged(made, need)
        await sync.say(abort=pb.WeightAbort(version=made.version, reason="the check is over"))


def _look_at(kit: Context, made: Made, need: pb.WeightNeed, sent: int, how: str) -> None:
    kit.expect(need.from_byte > 0, f"{how}; {sent} bytes of version {made.version} had been sent, and it is wanted "
               "from byte 0 again")
    kit.expect(need.from_byte <= sent, f"{how}; {sent} bytes of version {made.version} had been sent, and it is wanted "
               f"from byte {need.from_byte}")


@check("weights.resume", "After a stream breaks at any point, the transfer resumes from what the server has on disk.",
       services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS,
       where="weights.proto: WeightNeed.from_byte")
async def resumed(kit: Context) -> None:
    async with from_home(kit) as base:
        made = await base.make()
        for i, percent in enumerate(_CUTS):
            sent = await _part(kit, made, percent, abruptly=bool(i % 2))
            async with Sync(kit) as sync:
                need = await sync.need(made)
                _look_at(kit, made, need, sent, f"the stream was {'broken' if i % 2 else 'closed'} at {percent} %")
        await _go_on(kit, made, sent, f"the stream broke {len(_CUTS)} times")
        await still(kit, base, "a transfer broke and was staged, and not committed")


@check("weights.resume.staged", "A version staged when the stream broke is staged again without further bytes, and can "
                                "then be committed.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS,
       where="weights.proto: WeightNeed")
async def resumed_staged(kit: Context) -> None:
    async with from_home(kit) as base:
        made = await base.make()
        async with Sync(kit) as sync:
            await sync.stage(made)
        await still(kit, base, f"the stream broke when version {made.version} was staged and not committed")
        await _without_a_byte(kit, base, made)


async def _without_a_byte(kit: Context, base: Base, made: Made) -> None:
    async with Sync(kit) as sync:
        need = await sync.need(made)
        left = len(made.transfer(need.tensors)) - need.from_byte
        kit.expect(left == 0, f"version {made.version} had been staged, and {left} bytes of it are wanted again")
        await sync.staged(made, need)
        await serves(kit, made, await sync.commit(made))
        await base.go_home()


@check("weights.resume.activated", "If `activated` was lost, the version offered again is rejected as ALREADY_ACTIVE; "
                                   "a different one under its number is not.", services=POLICY, needs=MAY, after=_AFTER,
       seconds=SECONDS, where="weights.proto: WEIGHT_REJECT_REASON_ALREADY_ACTIVE")
async def lost_activated(kit: Context) -> None:
    async with from_home(kit) as base:
        made = await base.make()
        async with Sync(kit) as sync:
            await sync.stage(made)
            await sync.say(commit=pb.WeightCommit(version=made.version))
            await sync.finish(seconds=60.0)  # `activated` may have come; nobody has read it
        await serves(kit, made)
        async with Sync(kit) as sync:
            kit.expect(sync.state.active_version == made.version, f"version {made.version} is active, and the first "
                       f"`state` of a new stream says {sync.state.active_version}")
            await sync.refuses(made, ["ALREADY_ACTIVE"], f"version {made.version}, which is active,")
            other = await base.make()
            other.manifest.version = made.version
            await sync.refuses(other, ["DIGEST_MISMATCH", "TOO_OLD", "PROTOCOL"], f"another version under the number "
                               f"{made.version}, which is active,")
        await base.go_home()


@check("weights.killed", "After kill -9 during a transfer, it resumes from what is on disk.", services=POLICY,
       needs=(Need.START,), after=_AFTER, seconds=SECONDS, where="weights.proto: WeightNeed.from_byte")
async def killed(kit: Context) -> None:
    async with from_home(kit) as base:
        made = await base.make()
        async with Sync(kit) as sync:
            need = await sync.need(made)
            sent = len(made.transfer(need.tensors)) * 6 // 10
            await sync.send(made, need, upto=sent, chunk=SMALL)
            await asyncio.sleep(_SETTLE)
            await kit.restart()
        await still(kit, base, "the server was killed in the middle of a transfer")
        await _go_on(kit, made, sent, "the server was killed at 60 %")


@check("weights.killed.staged", "After kill -9 between `staged` and the commit, the old version is active, and the new "
                                "one needs no further bytes.", services=POLICY, needs=(Need.START,), after=_AFTER,
       seconds=SECONDS,
       where="the design: a weight update is all or nothing")
async def killed_staged(kit: Context) -> None:
    async with from_home(kit) as base:
        made = await base.make()
        async with Sync(kit) as sync:
            await sync.stage(made)
            await kit.restart()
        await still(kit, base, f"the server was killed when version {made.version} was staged and not committed")
        await _without_a_byte(kit, base, made)


@check("weights.killed.active", "After kill -9 following `activated`, the new version is active.", services=POLICY,
       needs=(Need.START,), after=_AFTER, seconds=SECONDS, where="the design: a weight update is all or nothing")
async def killed_active(kit: Context) -> None:
    async with from_home(kit) as base:
        made = await base.make()
        async with Sync(kit) as sync:
            await sync.stage(made)
            await sync.commit(made)
            await kit.restart()
        await serves(kit, made)
        await base.go_home()
        await kit.restart()
        now = await state(kit)
        kit.expect(now.active_version == base.version, f"version {base.version} was activated again, and after kill -9 "
                   f"{now.active_version} is active")
        kit.expect(made.version in now.withdrawn_versions, f"version {made.version} was taken back, and after kill -9 "
                   "withdrawn_versions do not have it")
