"""Checks of control over weights: one trainer at a time, overridden by an operator."""

from __future__ import annotations

import grpc

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Level, check
from openclaw_rl.conformance.policy_calls import ANSWER, first_event, state
from openclaw_rl.conformance.refusal import refusal
from openclaw_rl.conformance.weights_cycle import MAY, POLICY, SECONDS, operator, still
from openclaw_rl.conformance.weights_home import from_home
from openclaw_rl.conformance.weights_stream import Sync
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.policy_pb2 import ActivateVersionRequest

_AFTER = ("weights.cycle",)
_TRAINER = "policy.proto: SyncWeights; metadata openclaw-trainer"
#: Another trainer's id.
OTHER = "trainer_" + "0d" * 16


@check("weights.newest", "Of two streams of one trainer, the newer continues and the older ends with ABORTED.",
       services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS, where=_TRAINER)
async def newest(kit: Context) -> None:
    async with from_home(kit) as base, Sync(kit) as older:
        made = await base.make()
        await older.need(made)
        async with Sync(kit) as newer:
            await kit.until(lambda: older.ended, kit.deadline, f"the older of two streams of one trainer did not end "
                            f"within {kit.deadline:g} s")
            kit.expect(older.error is not None and refusal(older.error).code is grpc.StatusCode.ABORTED,
                       f"the older of two streams of one trainer {older.how()}; it must end with ABORTED")
            await newer.stage(made)
            await newer.say(abort=pb.WeightAbort(version=made.version, reason="the check is over"))


@check("weights.another_trainer", "While one trainer is connected, another is rejected with ANOTHER_TRAINER, and the "
                                  "first continues.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS,
       where=_TRAINER)
async def another(kit: Context) -> None:
    async with from_home(kit) as base, Sync(kit) as first:
        second = Sync(kit, OTHER)
        await kit.until(lambda: second.ended or second.first is not None, kit.deadline, "a second trainer got neither "
                        f"an answer nor an error within {kit.deadline:g} s")
        taken = second.error is None
        how = second.how() if second.ended else "was let in"
        await second.cut()
        kit.expect(not taken, f"the stream of a second trainer {how} while the first was connected")
        refused = refusal(second.error) if second.error is not None else None
        kit.expect(refused is not None and refused.reason == "ANOTHER_TRAINER", f"the stream of a second trainer "
                   f"{how}, for the reason {refused.reason if refused else ''!r}, not ANOTHER_TRAINER")
        made = await base.make()
        await first.need(made)
        await first.say(abort=pb.WeightAbort(version=made.version, reason="the check is over"))


@check("weights.unnamed_trainer", "A trainer without an id takes the stream over.", services=POLICY, needs=MAY,
       after=_AFTER, seconds=SECONDS, where=_TRAINER, level=Level.SHOULD)
async def unnamed(kit: Context) -> None:
    async with Sync(kit) as first, Sync(kit, "") as second:
        await kit.until(lambda: first.ended, kit.deadline, "a trainer without an id was let in, and the stream of the "
                        "one before it goes on")
        kit.expect(not second.ended, f"the stream of a trainer without an id {second.how()}")


@check("weights.pin", "While the active version is pinned, offers are rejected as PINNED, retryable; `state` and "
                      "WatchPolicy report the pin and its end.", services=POLICY, needs=MAY, after=_AFTER,
       seconds=SECONDS, where="policy.proto: ActivateVersionRequest.pin")
async def pinned(kit: Context) -> None:
    async with from_home(kit) as base, Sync(kit) as sync:
        watch = kit.stream("WatchPolicy", timeout=SECONDS)
        await first_event(kit, watch)
        now = await operator(kit, pin=True)
        kit.expect(now.pinned and now.active_version == base.version, "ActivateVersion with pin and no version does "
                   "not pin the active one")
        told = (await first_event(kit, watch, kit.deadline)).state
        kit.expect(told.pinned, "WatchPolicy tells a change after a version was pinned, and not that it is pinned")
        await kit.until(lambda: sync.state.pinned, kit.deadline, "the trainer was not told by `state` that the version "
                        "was pinned")
        made = await base.make()
        await sync.refuses(made, ["PINNED"], "an offer while the active version is pinned", retryable=True)
        await still(kit, base, "the version is pinned")
        now = await operator(kit, pin=False)
        kit.expect(not now.pinned, "ActivateVersion with pin false does not lift the pin")
        await kit.until(lambda: not sync.state.pinned, kit.deadline, "the trainer was not told by `state` that the pin "
                        "was lifted")
        await sync.stage(made)
        await sync.say(abort=pb.WeightAbort(version=made.version, reason="the check is over"))


@check("weights.rollback", "An operator's rollback withdraws later versions: `state` reports it, and they and their "
                           "descendants are rejected.", services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS,
       where="policy.proto: ActivateVersion, PolicyState.withdrawn_versions")
async def rolled_back(kit: Context) -> None:
    async with from_home(kit) as base, Sync(kit) as sync:
        made = await base.make(skip=1)  # a number below it stays free
        await sync.stage(made)
        await sync.commit(made)
        older = await base.make()
        older.manifest.version, older.manifest.parent = made.version - 1, base.version
        await sync.refuses(older, ["TOO_OLD"], f"version {older.version}, where {made.version} is active,")
        child = await base.make()
        await sync.stage(child)
        # The operator goes back while a version that builds on the one that is taken back is staged.
        before = len(sync.states)
        now = await operator(kit, base.version)
        kit.expect(now.active_version == base.version, f"ActivateVersion of {base.version} answers with version "
                   f"{now.active_version} active")
        kit.expect(made.version in now.withdrawn_versions, f"an operator went back from version {made.version} to "
                   f"{base.version}, and withdrawn_versions do not have {made.version}")
        await kit.until(lambda: len(sync.states) > before and sync.state.active_version == base.version, kit.deadline,
                        "the trainer was not told by `state` that an operator activated another version")
        kit.expect(made.version in sync.state.withdrawn_versions, "`state` does not tell which version was taken back")
        await sync.say(commit=pb.WeightCommit(version=child.version))
        await sync.rejected(child.version, ["WRONG_BASE", "TOO_OLD", "PROTOCOL"], "the commit of a version whose "
                            "parent was taken back meanwhile")
        await still(kit, base, "an operator went back")
        await sync.refuses(made, ["TOO_OLD"], f"version {made.version}, which was taken back,")
        grandchild = await base.make(skip=2)
        grandchild.manifest.parent = made.version
        await sync.refuses(grandchild, ["WRONG_BASE"], f"a version that was made from {made.version}, which was "
                           "taken back,")


@check("weights.rollback.pinned", "While a version is pinned, activating another is rejected with PINNED, unless the "
                                  "pin moves along.", services=POLICY, needs=MAY,
       after=("weights.rollback", "weights.pin"), seconds=SECONDS,
       where="policy.proto: ActivateVersionRequest.pin")
async def rolled_back_pinned(kit: Context) -> None:
    async with from_home(kit) as base, Sync(kit) as sync:
        made = await base.make()
        await sync.stage(made)
        await sync.commit(made)
        await operator(kit, pin=True)
        refused = await kit.refused(kit.unary("ActivateVersion", ActivateVersionRequest(version=base.version),
                                              timeout=ANSWER), grpc.StatusCode.FAILED_PRECONDITION,
                                    what=f"ActivateVersion of {base.version}, while {made.version} is pinned,")
        kit.expect(refused.reason == "PINNED", f"ActivateVersion while another version is pinned was refused for the "
                   f"reason {refused.reason!r}, not PINNED")
        now = await operator(kit, base.version, pin=True)
        kit.expect(now.active_version == base.version and now.pinned, f"ActivateVersion of {base.version} with pin "
                   f"answers with version {now.active_version}, {'pinned' if now.pinned else 'not pinned'}")
        await operator(kit, pin=False)


@check("weights.home", "The version active before the run is active again, and accepts new versions.",
       services=POLICY, needs=MAY, after=_AFTER, seconds=SECONDS, where="policy.proto: ActivateVersion")
async def home(kit: Context) -> None:
    async with from_home(kit) as base, Sync(kit) as sync:
        made = await base.make()
        await sync.stage(made)
        await sync.commit(made)
        await base.go_home()
        now = await state(kit)
        kit.expect(not now.pinned and now.active_version == base.version, f"version {now.active_version} is active, "
                   f"not {base.version}")
