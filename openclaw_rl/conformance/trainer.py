"""Checks of a trainer: samples, versions, pauses."""

from __future__ import annotations

import asyncio
import re
import time

import grpc

from openclaw_rl.conformance.context import Context, listed
from openclaw_rl.conformance.frame import Need, check
from openclaw_rl.conformance.material import Material
from openclaw_rl.conformance.refusal import refusal
from openclaw_rl.conformance.ring_stream import accepted
from openclaw_rl.conformance.trainer_policy import SyncPolicy
from openclaw_rl.v1 import trainer_pb2, turn_pb2

_TRAINER = ["trainer"]
_FATES = "trainer.proto: SampleStatus"
#: Seconds for a training step of the few samples of a check.
_STEP = 15.0
#: Seconds for a new version to arrive: its trainer may evaluate it before.
_ARRIVE = 60.0


@check("trainer.fates", "A sample whose judgement failed is dropped, with a reason, and never trained on.",
       where="design, Words: all failed is failed, which is not 0 and is never trained on", services=_TRAINER,
       after=["ring.acks.accepted"])
async def fates(kit: Context) -> None:
    samples = [_sample(kit) for _ in range(2)]
    await accepted(kit, samples)
    for one in await _statuses(kit, [sample.transition.turn.turn_id for sample in samples]):
        kit.expect(one.fate == trainer_pb2.SAMPLE_FATE_DROPPED, f"{one.turn_id} is {_fate(one)}")
        kit.expect(one.reason.strip(), f"{one.turn_id} is dropped without a reason")
        kit.expect(not one.HasField("version"), f"{one.turn_id} is dropped, and has version {one.version}")
        kit.expect(not one.HasField("score"), f"{one.turn_id} has the score {one.score}, and its judgement failed")


@check("trainer.fates.list", "ListSamples returns fates in the requested order, omits unknown turns, and says when "
                             "each was accepted.", where=f"{_FATES}; ListSamples", services=_TRAINER,
       after=["ring.acks.accepted"])
async def fates_list(kit: Context) -> None:
    samples = [_sample(kit) for _ in range(3)]
    await accepted(kit, samples)
    ids = [sample.transition.turn.turn_id for sample in reversed(samples)]
    found = await _statuses(kit, [ids[0], kit.id("unknown"), *ids[1:]])
    kit.expect([one.turn_id for one in found] == ids, f"asked for {listed(ids)}; told "
               f"{listed(one.turn_id for one in found)}")
    for one in found:
        kit.expect(one.fate in trainer_pb2.SampleFate.values()[1:], f"{one.turn_id} has the fate {one.fate}")
        kit.expect(abs(one.accepted_at.seconds - time.time()) < 3600, f"accepted_at of {one.turn_id} is "
                   f"{one.accepted_at.seconds} s since 1970")


@check("trainer.fates.pending", "ListSamples without turns returns the pending ones only.",
       where="trainer.proto: ListSamplesRequest.turn_ids", services=_TRAINER, after=["trainer.fates"])
async def fates_pending(kit: Context) -> None:
    wrong = [one for one in await _statuses(kit, []) if one.fate != trainer_pb2.SAMPLE_FATE_PENDING]
    kit.expect(not wrong, f"{wrong[0].turn_id} is {_fate(wrong[0])}" if wrong else "")


@check("trainer.versions", "ListVersions returns versions in ascending order, each with a manifest whose digest is a "
                           "lower-case hexadecimal SHA-256 and whose parent is older.",
       where="weights.proto: VersionManifest", services=_TRAINER)
async def versions(kit: Context) -> None:
    answer = await kit.unary("ListVersions")
    numbers = [one.manifest.version for one in answer.versions]
    kit.expect(numbers == sorted(set(numbers)), f"the versions are {listed(numbers, 10)}")
    for one in answer.versions:
        manifest = one.manifest
        kit.expect(re.fullmatch(r"[0-9a-f]{64}", manifest.digest), f"version {manifest.version} has the digest "
                   f"{manifest.digest!r}")
        kit.expect(manifest.version == 0 or (manifest.HasField("parent") and manifest.parent < manifest.version),
                   f"version {manifest.version} has the parent {manifest.parent}")
        kit.expect(manifest.algorithm, f"version {manifest.version} names no algorithm")
    kit.expect(sum(one.active for one in answer.versions) <= 1, "several versions are active")


@check("trainer.versions.get", "GetVersion returns each version of ListVersions, and `before` pages backwards.",
       where="trainer.proto: GetVersion, ListVersionsRequest.before", services=_TRAINER, after=["trainer.versions"])
async def versions_get(kit: Context) -> None:
    found = (await kit.unary("ListVersions")).versions
    for one in found[-3:]:
        number = one.manifest.version
        same = (await kit.unary("GetVersion", trainer_pb2.GetVersionRequest(version=number))).version.manifest
        kit.expect((same.version, same.digest) == (number, one.manifest.digest), f"GetVersion({number}) tells version "
                   f"{same.version}, digest {same.digest[:12]}; ListVersions {one.manifest.digest[:12]}")
        older = (await kit.unary("ListVersions", trainer_pb2.ListVersionsRequest(before=number))).versions
        kit.expect(all(other.manifest.version < number for other in older), f"ListVersions before {number} tells "
                   f"{listed(other.manifest.version for other in older)}")


@check("trainer.watch", "WatchTraining stays open while nothing happens, and ends when cancelled.",
       where="trainer.proto: WatchTraining", services=_TRAINER)
async def watch(kit: Context) -> None:
    call = kit.stream("WatchTraining")
    await kit.within(call.initial_metadata(), 3, "no headers within 3 s: nobody knows when the watch has begun")
    try:
        async with asyncio.timeout(0.5):
            answer = await call.read()
        kit.expect(answer is not grpc.aio.EOF, "it ended by itself")
    except TimeoutError:
        pass
    call.cancel()
    await kit.status()


@check("trainer.pause", "While training is paused, TrainNow is rejected with FAILED_PRECONDITION, reason PAUSED, and "
                        "samples are still accepted; after Resume it succeeds.",
       where="trainer.proto: Pause, Resume; the error catalogue",
       services=_TRAINER, needs=[Need.START], after=["ring.acks.accepted"])
async def pause(kit: Context) -> None:
    await kit.optional("Pause", trainer_pb2.PauseRequest(reason="the conformance kit"))
    try:
        refused = await kit.refused(kit.unary("TrainNow"), grpc.StatusCode.FAILED_PRECONDITION, what="TrainNow")
        kit.expect(refused.reason == "PAUSED", f"the reason is {refused.reason!r}")
        await accepted(kit, [_sample(kit)])
        await kit.optional("Pause", trainer_pb2.PauseRequest(reason="once more"))
    finally:
        await kit.unary("Resume", trainer_pb2.ResumeRequest())
    try:
        await kit.unary("TrainNow")
    except grpc.aio.AioRpcError as error:
        kit.expect(refusal(error).reason != "PAUSED", "TrainNow is still refused as PAUSED")


@check("trainer.pause.kept", "A pause survives a restart.",
       where="trainer.proto: Pause: starts no further step until resumed", services=_TRAINER, needs=[Need.START],
       after=["trainer.pause"], seconds=120)
async def pause_kept(kit: Context) -> None:
    await kit.optional("Pause", trainer_pb2.PauseRequest(reason="the conformance kit"))
    await kit.restart()
    try:
        await kit.refused(kit.unary("TrainNow"), grpc.StatusCode.FAILED_PRECONDITION, what="TrainNow after the restart")
    finally:
        await kit.unary("Resume", trainer_pb2.ResumeRequest())


@check("trainer.fates.kept", "Fates survive a kill (SIGKILL): a sample has one final fate.",
       where="design, Guarantees 2: every main turn reaches one fate, once", services=_TRAINER, needs=[Need.START],
       after=["trainer.fates"], seconds=120)
async def fates_kept(kit: Context) -> None:
    samples = [_sample(kit) for _ in range(3)]
    await accepted(kit, samples)
    ids = [sample.transition.turn.turn_id for sample in samples]
    before = await _statuses(kit, ids)
    await kit.restart()
    after = await _statuses(kit, ids)
    kit.expect([_fate(one) for one in after] == [_fate(one) for one in before],
               f"before: {listed(map(_fate, before))}; after: {listed(map(_fate, after))}")


@check("trainer.trains", "Samples with scores and hints end once, as trained(version), an existing version that names "
                         "their turns, or as dropped(reason).",
       where="design, Words: every sample ends in exactly one fate", services=_TRAINER, needs=[Need.START],
       after=["trainer.fates"], seconds=120)
async def trains(kit: Context) -> None:
    material = Material(kit, real=True)
    samples = []
    for number in range(8):
        turn = material.turn(kit.id(), kit.session())
        samples.append(material.sample(material.transition(turn), 1 if number % 2 else -1,
                                       "" if number % 2 else "Name one colour only, in lower case."))
    policy = await _policy(kit)
    if policy is not None:
        await kit.within(policy.opened.wait(), _STEP, "the trainer did not open SyncWeights at its policy server "
                         f"within {_STEP:g} s")
    await accepted(kit, samples)
    ids = [sample.transition.turn.turn_id for sample in samples]
    try:
        await kit.unary("TrainNow")
    except grpc.aio.AioRpcError as error:
        kit.expect(error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE),
                   f"TrainNow was answered {refusal(error)}")
    end = time.monotonic() + _STEP
    while any(one.fate == trainer_pb2.SAMPLE_FATE_PENDING for one in await _statuses(kit, ids)):
        if time.monotonic() > end:
            kit.skip(f"no step was made within {_STEP:g} s, as without a policy server or a model")
        await asyncio.sleep(0.1)
    found = await _statuses(kit, ids)
    kit.expect(len(found) == len(ids), f"{len(found)} of {len(ids)} samples have a fate")
    for one in found:
        kit.expect(one.reason.strip() or one.fate == trainer_pb2.SAMPLE_FATE_TRAINED, f"{one.turn_id} is {_fate(one)}")
        if one.fate == trainer_pb2.SAMPLE_FATE_TRAINED:
            manifest = (await kit.unary("GetVersion", trainer_pb2.GetVersionRequest(version=one.version))
                        ).version.manifest
            kit.expect(one.turn_id in manifest.turn_ids, f"{one.turn_id} trained version {one.version}, which does not "
                       "name it")
    if policy is not None and any(one.fate == trainer_pb2.SAMPLE_FATE_TRAINED for one in found):
        await _delivered(kit, policy, max(one.version for one in found))


async def _policy(kit: Context) -> SyncPolicy | None:
    """The kit as the trainer's policy server; None when it is not its neighbour."""
    if kit.listener is None:
        return None
    versions = (await kit.unary("ListVersions")).versions
    base = next((one.manifest for one in versions if one.manifest.version == 0), None)
    return SyncPolicy(kit, base)


async def _delivered(kit: Context, policy: SyncPolicy, version: int) -> None:
    """Raise Failed unless the version arrives, whole and right, and is told as active."""
    await kit.until(lambda: any(one.version >= version for one in policy.activated), _ARRIVE,
                    lambda: f"version {version} was trained and not brought to the policy server in {_ARRIVE:g} s; "
                    f"offered: {listed(one.version for one in policy.offers)}; {listed(policy.problems)}")
    kit.expect(not policy.problems, listed(policy.problems))
    end = time.monotonic() + 5
    while not (told := (await kit.unary("GetVersion", trainer_pb2.GetVersionRequest(version=version))).version).active:
        kit.expect(time.monotonic() < end, f"the policy server has activated version {version}, and GetVersion tells "
                   f"{told.detail!r}")
        await asyncio.sleep(0.1)


def _sample(kit: Context) -> turn_pb2.Sample:
    """One with a judgement that failed."""
    material = Material(kit)
    return material.sample(material.transition(material.turn(kit.id(), kit.session())))


async def _statuses(kit: Context, ids: list[str]) -> list[trainer_pb2.SampleStatus]:
    return list((await kit.unary("ListSamples", trainer_pb2.ListSamplesRequest(turn_ids=ids))).samples)


def _fate(status: trainer_pb2.SampleStatus) -> str:
    name = trainer_pb2.SampleFate.Name(status.fate)[12:].lower()
    detail = status.reason or (f"version {status.version}" if status.HasField("version") else "")
    return f"{name} ({detail})" if detail else name
