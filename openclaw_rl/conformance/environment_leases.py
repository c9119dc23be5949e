"""Checks of sandbox leases, from acquire to release."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from openclaw_rl.conformance.context import Context, listed
from openclaw_rl.conformance.frame import Level, Need, check
from openclaw_rl.conformance.refusal import refusal
from openclaw_rl.runtime.json import parse_json
from openclaw_rl.v1 import environment_pb2 as pb

_ENVIRONMENT = ["environment"]
_LEASE = "environment.proto: Acquire, Step, Release"
_CODE = grpc.StatusCode
#: Kinds in the order in which they are tried: the light ones first.
_KINDS = ("tool_call", "terminal", "swe", "gui")
#: Seconds for a sandbox to be made, or an action to be done in one.
_SLOW = 30.0


class _Lease:
    """One lease, given back at the end of the block."""

    def __init__(self, kit: Context, type: str, **fields: Any) -> None:
        self._kit, self.type, self.fields = kit, type, fields
        self.id = kit.id("lease")
        self.acquired = pb.AcquireResponse()
        self.opening = pb.ResetResponse()

    async def __aenter__(self) -> _Lease:
        self.acquired = await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def acquire(self) -> pb.AcquireResponse:
        try:
            answer: pb.AcquireResponse = await self._kit.unary("Acquire", pb.AcquireRequest(
                lease_id=self.id, type=self.type, holder="conformance", **self.fields), timeout=_SLOW)
        except grpc.aio.AioRpcError as error:
            self._kit.skip_unimplemented("Acquire", error)
            if error.code() in (_CODE.RESOURCE_EXHAUSTED, _CODE.UNAVAILABLE):
                self._kit.skip(f"no sandbox of {self.type} is free: {refusal(error)}")
            raise
        return answer

    async def reset(self, task: str) -> pb.ResetResponse:
        answer: pb.ResetResponse = await self._kit.unary("Reset", pb.ResetRequest(
            lease_id=self.id, task_id=task, seed=1), timeout=_SLOW)
        self.opening = answer
        return answer

    async def step(self, number: int, action: dict[str, Any]) -> pb.StepResponse:
        answer: pb.StepResponse = await self._kit.unary("Step", pb.StepRequest(
            lease_id=self.id, step=number, action_json=json.dumps(action)), timeout=_SLOW)
        return answer

    async def release(self) -> None:
        await self._kit.unary("Release", pb.ReleaseRequest(lease_id=self.id), timeout=_SLOW)

    def action(self) -> dict[str, Any]:
        """One that the sandbox offers, with the least arguments that its schema wants."""
        for tool in self.opening.tools:
            schema = parse_json(tool.parameters_json or "{}")
            arguments = {name: _example(schema.get("properties", {}).get(name, {}))
                         for name in schema.get("required", [])}
            return {"name": tool.name, "arguments": arguments}
        return {"name": "look", "arguments": {}}


@check("environment.list", "ListEnvironments reports each environment's name, kind, capacity, and schemas of actions "
                           "and observations.", where="environment.proto: EnvironmentInfo", services=_ENVIRONMENT)
async def list_environments(kit: Context) -> None:
    found = (await kit.optional("ListEnvironments")).environments
    kit.memo["environments"] = found
    names = [one.type for one in found]
    kit.expect(len(set(names)) == len(names) and all(names), f"the names are {listed(names)}")
    for one in found:
        kit.expect(one.kind, f"{one.type} has no kind")
        kit.expect(one.capacity > 0 or one.problem, f"{one.type} has capacity {one.capacity}, and no problem")
        for name in ("action_schema_json", "observation_schema_json"):
            text = getattr(one, name)
            if text or not one.problem:
                kit.expect(_is_object(text), f"{name} of {one.type} is no JSON object: {text[:60]!r}")


@check("environment.tasks", "ListTasks reports each task's id, goal and split; ids are unique.",
       where="environment.proto: TaskInfo", services=_ENVIRONMENT, after=["environment.list"])
async def list_tasks(kit: Context) -> None:
    for one in await _environments(kit):
        tasks = (await kit.optional("ListTasks", pb.ListTasksRequest(type=one.type))).tasks
        ids = [task.task_id for task in tasks]
        kit.expect(len(set(ids)) == len(ids) and all(ids), f"the tasks of {one.type} are {listed(ids)}")
        kit.expect(len(ids) == one.tasks, f"{one.type} has {one.tasks} tasks, and ListTasks tells {len(ids)}")
        for task in tasks:
            kit.expect(task.goal or task.problem, f"task {task.task_id} of {one.type} has no goal")
        for split in (pb.TASK_SPLIT_TRAIN, pb.TASK_SPLIT_HELD_OUT):
            half = (await kit.unary("ListTasks", pb.ListTasksRequest(type=one.type, split=split))).tasks
            wrong = [task.task_id for task in half if task.split != split]
            kit.expect(not wrong, f"asked for half {split} of {one.type}; told {listed(wrong)} of the other")


@check("environment.lease", "A lease supports Acquire, Reset, Step, Evaluate and Release.", where=_LEASE,
       services=_ENVIRONMENT, after=["environment.list"], seconds=120)
async def lease(kit: Context) -> None:
    one = await _pick(kit)
    task = await _task(kit, one.type)
    async with _Lease(kit, one.type, ttl=Duration(seconds=60)) as held:
        kit.expect(held.acquired.lease_id == held.id, f"lease_id is {held.acquired.lease_id!r}, not {held.id!r}")
        left = held.acquired.expires_at.seconds - time.time()
        kit.expect(0 < left <= 300, f"with a ttl of 60 s, expires_at is in {left:.0f} s")
        kit.expect(held.id in await _leases(kit, one.type), "ListLeases does not tell it")
        opening = await held.reset(task)
        kit.expect(_is_object(opening.observation.json), f"the first observation is no JSON object: "
                   f"{opening.observation.json[:60]!r}")
        kit.expect(opening.tools, "Reset tells no tools")
        kit.expect(opening.goal or not task, f"task {task} has no goal")
        stepped = await held.step(1, held.action())
        kit.expect(_is_object(stepped.observation.json), "what is seen after a step is no JSON object: "
                   f"{stepped.observation.json[:60]!r}")
        renewed = await kit.unary("Renew", pb.RenewRequest(lease_id=held.id))
        kit.expect(renewed.expires_at.seconds >= held.acquired.expires_at.seconds, "Renew has shortened it")
        if task:
            outcome = (await kit.unary("Evaluate", pb.EvaluateRequest(lease_id=held.id), timeout=_SLOW)).outcome
            kit.expect(0 <= outcome <= 1, f"the outcome is {outcome}")
    kit.expect(held.id not in await _leases(kit, one.type), "ListLeases tells it after Release")


@check("environment.lease.again", "Acquire with the id of an active lease returns that lease, not a second sandbox.",
       where="environment.proto: AcquireRequest.lease_id", services=_ENVIRONMENT, after=["environment.lease"],
       seconds=120)
async def lease_again(kit: Context) -> None:
    one = await _pick(kit)
    async with _Lease(kit, one.type) as held:
        before = sorted(await _leases(kit, one.type))
        again = await held.acquire()
        kit.expect(again.lease_id == held.id, f"lease_id is {again.lease_id!r}")
        kit.expect(sorted(await _leases(kit, one.type)) == before, "there is a lease more")


@check("environment.lease.step-once", "A step repeated with its number is executed once and answered identically.",
       where="environment.proto: StepRequest.step", services=_ENVIRONMENT, after=["environment.lease"],
       seconds=120)
async def step_once(kit: Context) -> None:
    one = await _pick(kit)
    async with _Lease(kit, one.type) as held:
        await held.reset(await _task(kit, one.type))
        action = held.action()
        first, again = await held.step(1, action), await held.step(1, action)
        kit.expect((first.observation.json, first.error) == (again.observation.json, again.error),
                   f"first {first.observation.json[:60]!r}, then {again.observation.json[:60]!r}")
        leases = (await kit.unary("ListLeases", pb.ListLeasesRequest(type=one.type))).leases
        steps = next((lease.steps for lease in leases if lease.lease_id == held.id), None)
        kit.expect(steps == 1, f"ListLeases tells {steps} steps")


@check("environment.lease.order", "Steps out of order, or before a Reset, are rejected with FAILED_PRECONDITION.",
       where="environment.proto: StepRequest.step; the error catalogue", services=_ENVIRONMENT,
       after=["environment.lease"], seconds=120)
async def step_order(kit: Context) -> None:
    one = await _pick(kit)
    async with _Lease(kit, one.type) as held:
        await kit.refused(held.step(1, {"name": "look", "arguments": {}}), _CODE.FAILED_PRECONDITION,
                          what="a step before a Reset")
        await held.reset(await _task(kit, one.type))
        await kit.refused(held.step(5, held.action()), _CODE.FAILED_PRECONDITION, what="step 5 as the first one")


@check("environment.lease.action", "An invalid action is rejected with INVALID_ARGUMENT, or reported to the policy as "
                                   "an error; the lease stays active.",
       where="environment.proto: StepRequest.action_json, StepResponse.error",
       services=_ENVIRONMENT, after=["environment.lease"], seconds=120)
async def step_action(kit: Context) -> None:
    one = await _pick(kit)
    async with _Lease(kit, one.type) as held:
        await held.reset(await _task(kit, one.type))
        number = 1
        for text in ("not json", '{"name": "no_such_action", "arguments": {}}', '{"arguments": 7}'):
            try:
                answer = await kit.unary("Step", pb.StepRequest(lease_id=held.id, step=number, action_json=text),
                                         timeout=_SLOW)
                kit.expect(answer.error, f"{text} was done without an error")
                number += 1
            except grpc.aio.AioRpcError as error:
                kit.expect(error.code() is _CODE.INVALID_ARGUMENT, f"{text} was answered {refusal(error)}")
        await kit.unary("Renew", pb.RenewRequest(lease_id=held.id))


@check("environment.lease.release", "Release is idempotent; a released lease cannot be used.",
       where="environment.proto: Release; the error catalogue: LEASE_LOST, LEASE_ENDED", services=_ENVIRONMENT,
       after=["environment.lease"], seconds=120)
async def lease_release(kit: Context) -> None:
    one = await _pick(kit)
    async with _Lease(kit, one.type) as held:
        pass
    for _ in range(2):
        await held.release()
    await kit.unary("Release", pb.ReleaseRequest(lease_id=kit.id("lease")))
    for what, call in (("Step", held.step(1, {"name": "look", "arguments": {}})),
                       ("Renew", kit.unary("Renew", pb.RenewRequest(lease_id=held.id)))):
        await kit.refused(call, _CODE.NOT_FOUND, _CODE.FAILED_PRECONDITION,
                          what=f"{what} of a lease that was given back")


@check("environment.lease.watch", "WatchLease shows the lease at once, and reports its end.",
       where="environment.proto: WatchLease", services=_ENVIRONMENT, after=["environment.lease"], seconds=120)
async def lease_watch(kit: Context) -> None:
    one = await _pick(kit)
    async with _Lease(kit, one.type) as held:
        await held.reset(await _task(kit, one.type))
        call = kit.stream("WatchLease", pb.WatchLeaseRequest(lease_id=held.id, interval=Duration(nanos=100_000_000)))
        try:
            first = await kit.within(call.read(), 5, "nothing was shown within 5 s")
        except grpc.aio.AioRpcError as error:
            kit.skip_unimplemented("WatchLease", error)
            raise
        kit.expect(first is not grpc.aio.EOF and first.lease.lease_id == held.id, "the first answer shows "
                   "another lease")
        await held.release()
        answer = first
        while answer is not grpc.aio.EOF and not answer.ended:
            answer = await kit.within(call.read(), 5, "nothing was told within 5 s of the lease's end")
        kit.expect(answer is not grpc.aio.EOF, "it ended without an answer that says so")


@check("environment.lease.ttl", "A lease that is not renewed expires after its ttl.",
       where="environment.proto: AcquireRequest.ttl", services=_ENVIRONMENT, after=["environment.lease"], seconds=60)
async def lease_ttl(kit: Context) -> None:
    one = await _pick(kit)
    async with _Lease(kit, one.type, ttl=Duration(seconds=1)) as held:
        end = time.monotonic() + 10
        while held.id in await _leases(kit, one.type):
            kit.expect(time.monotonic() < end, "with a ttl of 1 s it is there after 10 s")
            await asyncio.sleep(0.1)
        await kit.refused(kit.unary("Renew", pb.RenewRequest(lease_id=held.id)), _CODE.NOT_FOUND,
                          _CODE.FAILED_PRECONDITION, what="Renew of a lease that was taken back")


@check("environment.lease.capacity", "An environment at capacity rejects leases with RESOURCE_EXHAUSTED or UNAVAILABLE "
                                     "and RetryInfo; released capacity is available again.",
       where="environment.proto: EnvironmentInfo.capacity", services=_ENVIRONMENT, needs=[Need.START],
       after=["environment.lease"], level=Level.SHOULD, seconds=120)
async def capacity(kit: Context) -> None:
    one = await _pick(kit)
    if one.capacity > 16:
        kit.skip(f"{one.type} has a capacity of {one.capacity}")
    held = [_Lease(kit, one.type) for _ in range(one.capacity)]
    try:
        for lease in held:
            await lease.acquire()
        extra = pb.AcquireRequest(lease_id=kit.id("lease"), type=one.type, holder="conformance")
        refused = await kit.refused(kit.unary("Acquire", extra, timeout=_SLOW), _CODE.RESOURCE_EXHAUSTED,
                                    _CODE.UNAVAILABLE, what=f"lease {one.capacity + 1} of {one.capacity}")
        kit.expect(refused.retry_after is not None, "it came without RetryInfo")
        waiting = asyncio.create_task(kit.unary("Acquire", pb.AcquireRequest(
            lease_id=extra.lease_id, type=one.type, holder="conformance", wait=Duration(seconds=15)), timeout=_SLOW))
        await asyncio.sleep(0.2)
        await held.pop().release()
        await kit.within(waiting, 15, "one that waits did not get the sandbox that was given back")
        await kit.unary("Release", pb.ReleaseRequest(lease_id=extra.lease_id))
    finally:
        for lease in held:
            await lease.release()


async def _environments(kit: Context) -> list[pb.EnvironmentInfo]:
    """Those that can be used; skips the check when there is none."""
    usable = [one for one in kit.memo.get("environments", ()) if not one.problem]
    if not usable:
        kit.skip("it has no environment that can be used")
    return usable


async def _pick(kit: Context) -> pb.EnvironmentInfo:
    order = {kind: place for place, kind in enumerate(_KINDS)}
    return min(await _environments(kit), key=lambda one: order.get(one.kind, len(order)))


async def _task(kit: Context, type: str) -> str:
    """The first task that can be used; "" when there is none."""
    tasks = (await kit.unary("ListTasks", pb.ListTasksRequest(type=type))).tasks
    return next((task.task_id for task in tasks if not task.problem), "")


async def _leases(kit: Context, type: str) -> list[str]:
    return [one.lease_id for one in (await kit.unary("ListLeases", pb.ListLeasesRequest(type=type))).leases]


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except ValueError:
        return False


def _example(schema: dict[str, Any]) -> Any:
    """A value of a schema's type."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    return {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}.get(
        kind if isinstance(kind, str) else "", "echo 1")
