"""A version's way: offer, need, chunks within the credit, staged, commit, activated.

In all of weights_* the kit is the trainer. Its versions change next to nothing, have the algorithm "conformance", and
behind each check the version that was active before the kit came is active again.
"""

from __future__ import annotations

import asyncio

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Need, check
from openclaw_rl.conformance.policy_calls import ANSWER, chat, first_event, state
from openclaw_rl.conformance.weights_home import Base, from_home, manifest_of
from openclaw_rl.conformance.weights_stream import Sync
from openclaw_rl.conformance.weights_versions import Made
from openclaw_rl.v1 import policy_pb2
from openclaw_rl.v1 import weights_pb2 as pb

POLICY = ("policy",)
MAY = (Need.WEIGHTS,)
#: Seconds for a check that activates a version: a model's is written whole.
SECONDS = 240.0
#: Bytes of a chunk where there should be many.
SMALL = 16 << 10


@check("weights.state", "The first message of a weight stream is `state`, before the trainer sends anything, and "
                        "equals GetPolicy's.", services=POLICY, needs=MAY, seconds=SECONDS,
       where="policy.proto: SyncWeightsResponse.state")
async def state_first(kit: Context) -> None:
    async with Sync(kit) as sync:
        told, now = sync.state, await state(kit)
        for field in ("active_version", "active_digest", "kept_versions", "highest_version", "withdrawn_versions",
                      "model_id", "accepts_weights", "pinned"):
            kit.expect(getattr(told, field) == getattr(now, field), f"the first `state` has another {field} than "
                       f"GetPolicy: {getattr(told, field)!r}, {getattr(now, field)!r}")
        kit.expect(len(sync.states) == 1, f"{len(sync.states)} `state` messages came though nothing changed")


@check("weights.cycle", "A version that is offered, sent and staged becomes active with the commit, not before, and is "
                        "served from then on.", services=POLICY, needs=MAY, after=["weights.state", "policy.chat"],
       seconds=SECONDS,
       where="policy.proto: SyncWeights")
async def cycle(kit: Context) -> None:
    async with from_home(kit) as base, Sync(kit) as sync:
        watch = kit.stream("WatchPolicy", timeout=SECONDS)
        await first_event(kit, watch)
        made = await base.make()
        need = await sync.need(made)
        kit.expect(list(need.tensors), f"`need` asks for no tensor of version {made.version}, which has new ones")
        lacking = sorted({*made.frames} - {*need.tensors})
        kit.expect(not lacking, f"`need` does not ask for {lacking[0] if lacking else ''!r}, which the server can't "
                   "have")
        kit.expect(need.from_byte == 0, f"`need` wants to go on from byte {need.from_byte} of a version that was never "
                   "sent")
        kit.expect(need.credit_bytes > 0, "`need` grants no credit, and nothing granted any behind it")
        told = await sync.send(made, need, chunk=SMALL)
        await sync.staged(made, need, told)
        await still(kit, base, f"version {made.version} was staged and not committed")
        activated = await sync.commit(made)
        await serves(kit, made, activated)
        changed = (await first_event(kit, watch, kit.deadline)).state
        while changed.active_version != made.version:
            changed = (await first_event(kit, watch, kit.deadline)).state
        await base.go_home()


@check("weights.serving", "Chats are answered while a version arrives and becomes active, each by the version that it "
                          "names.", services=POLICY, needs=MAY, after=["weights.cycle"], seconds=SECONDS,
       where="weights.proto: "
       "WeightStaged; the design: serving never stops")
async def serving(kit: Context) -> None:
    over = asyncio.Event()
    versions: list[int] = []

    async def talk() -> None:
        while not over.is_set():
            versions.append((await chat(kit, "Count to ten.")).start.policy_version)

    async with from_home(kit) as base, Sync(kit) as sync:
        talking = [asyncio.create_task(talk()) for _ in range(3)]
        try:
            made = await base.make()
            await kit.until(lambda: len(versions) >= 3 or any(task.done() for task in talking), 3 * ANSWER,
                            "three chats at the same time were not answered")
            need = await sync.need(made)
            versions.append((await chat(kit)).start.policy_version)  # begun while the version is on its way
            told = await sync.send(made, need, chunk=SMALL)
            await sync.staged(made, need, told)
            versions.append((await chat(kit)).start.policy_version)
            await sync.commit(made)
            begun = len(versions)
            await kit.until(lambda: made.version in versions[begun:] or any(task.done() for task in talking),
                            3 * ANSWER, f"no chat was answered by version {made.version} after it was activated: they "
                            f"say version {versions[-1] if versions else 'nothing'}")
        finally:
            over.set()
            ended = await asyncio.gather(*talking, return_exceptions=True)
        failed = [error for error in ended if isinstance(error, BaseException)]
        kit.expect(not failed, f"a chat failed while version {made.version} came: {failed[0] if failed else ''}")
        kit.expect({*versions} <= {base.version, made.version}, f"chats were answered by the versions "
                   f"{sorted({*versions})}; there were {base.version} and {made.version}")


@check("weights.nothing_lacking", "A version whose tensors are all present needs no bytes and is staged at once.",
       services=POLICY, needs=MAY, after=["weights.cycle"], seconds=SECONDS, where="weights.proto: WeightNeed")
async def nothing_lacking(kit: Context) -> None:
    async with from_home(kit) as base, Sync(kit) as sync:
        made = await base.make()
        await sync.stage(made)
        await sync.commit(made)
        again = Made(pb.VersionManifest(), made.specs)
        again.manifest.CopyFrom(made.manifest)
        again.manifest.version, again.manifest.parent = made.version + 1, made.version
        need = await sync.need(again)
        kit.expect(not need.tensors, f"`need` asks for {need.tensors[0] if need.tensors else ''!r}, which the active "
                   "version has alike")
        await sync.staged(again, need)
        await sync.say(abort=pb.WeightAbort(version=again.version, reason="the check is over"))
        await base.go_home()


async def still(kit: Context, base: Base, when: str) -> None:
    """The version that the kit found must be active, and answer."""
    now = await state(kit)
    kit.expect(now.active_version == base.version, f"{when}, and version {now.active_version} is active in place of "
               f"{base.version}")
    told = (await chat(kit)).start.policy_version
    kit.expect(told == base.version, f"{when}, and a chat is answered by version {told} in place of {base.version}")


async def serves(kit: Context, made: Made, activated: pb.WeightActivated | None = None) -> None:
    """A version must be active, kept as it was offered, and answer."""
    what = (f"version {made.version} was committed" if activated is None
            else f"`activated` told version {made.version}")
    now = await state(kit)
    kit.expect(now.active_version == made.version, f"{what}, and GetPolicy says that {now.active_version} is active")
    kit.expect(now.active_digest == made.manifest.digest, f"{what}, and GetPolicy has another digest than the one that "
               "was offered")
    kit.expect(made.version in now.kept_versions, f"version {made.version} is active and not kept")
    kit.expect(now.highest_version >= made.version, f"version {made.version} is active, and highest_version is "
               f"{now.highest_version}")
    manifest = await manifest_of(kit, made.version)
    kit.expect(manifest is not None, f"GetPolicy has no manifest of version {made.version}")
    for field in ("digest", "model_id", "algorithm", "turn_ids", "parent"):
        kit.expect(getattr(manifest, field) == getattr(made.manifest, field), f"the manifest of version {made.version} "
                   f"has another {field} than the one that was offered")
    told = (await chat(kit)).start.policy_version
    kit.expect(told == made.version, f"{what}, and a chat is answered by version {told}")


async def operator(kit: Context, version: int | None = None, *, pin: bool | None = None) -> policy_pb2.PolicyState:
    """ActivateVersion, as an operator does it; the state after it."""
    request = policy_pb2.ActivateVersionRequest(reason="the conformance kit")
    if version is not None:
        request.version = version
    if pin is not None:
        request.pin = pin
    answer = await kit.unary("ActivateVersion", request, timeout=ANSWER)
    return answer.state  # type: ignore[no-any-return]
