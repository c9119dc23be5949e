"""Leases, tasks and what is seen, as messages."""

from __future__ import annotations

import orjson

from openclaw_rl.rollouts.environments.interface import Observation, Opening, StepResult
from openclaw_rl.rollouts.leases.actions import to_json
from openclaw_rl.rollouts.leases.broadcast import Seen
from openclaw_rl.rollouts.leases.lease import Lease
from openclaw_rl.rollouts.leases.warm_pool import Supply
from openclaw_rl.rollouts.tasks.task import Task
from openclaw_rl.rpc.messages import to_timestamp
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1 import turn_pb2

#: Characters of the last action that a view has.
MOST_ACTION = 20_000
_SPLITS = {"train": pb.TASK_SPLIT_TRAIN, "held_out": pb.TASK_SPLIT_HELD_OUT}


def observation(seen: Observation) -> pb.Observation:
    return pb.Observation(json=orjson.dumps(seen.data).decode(), image_png=seen.image_png)


def acquired(lease: Lease) -> pb.AcquireResponse:
    kind = lease.supply.offer.kind
    assert kind is not None
    return pb.AcquireResponse(lease_id=lease.id, expires_at=to_timestamp(lease.expires_at),
                              action_schema_json=orjson.dumps(kind.action_schema).decode(),
                              observation_schema_json=orjson.dumps(kind.observation_schema).decode(),
                              sandbox=kind.sandbox)


def opening(began: Opening) -> pb.ResetResponse:
    return pb.ResetResponse(
        observation=observation(began.observation), goal=began.goal, instructions=began.instructions,
        tools=[turn_pb2.ToolDefinition(name=tool.name, description=tool.description,
                                       parameters_json=orjson.dumps(tool.parameters).decode())
               for tool in began.tools])


def stepped(result: StepResult) -> pb.StepResponse:
    return pb.StepResponse(observation=observation(result.observation), reward=result.reward, done=result.done,
                           error=result.error)


def lease(held: Lease) -> pb.Lease:
    return pb.Lease(lease_id=held.id, type=held.type, holder=held.holder, task_id=held.task_id, steps=held.steps,
                    acquired_at=to_timestamp(held.acquired_at), expires_at=to_timestamp(held.expires_at),
                    problem=held.problem)


def environment(supply: Supply, tasks: int) -> pb.EnvironmentInfo:
    offer = supply.offer
    info = pb.EnvironmentInfo(
        type=offer.name, kind=offer.kind_name, backend=offer.backend.name if offer.backend else "",
        image=offer.config.image or "", capacity=supply.capacity, leased=supply.leased, warm=supply.warm,
        starting=supply.starting, waiting=supply.waiting, problem=supply.problem or supply.failure, tasks=tasks)
    if offer.kind is not None:
        info.action_schema_json = orjson.dumps(offer.kind.action_schema).decode()
        info.observation_schema_json = orjson.dumps(offer.kind.observation_schema).decode()
    return info


def task(one: Task) -> pb.TaskInfo:
    return pb.TaskInfo(task_id=one.id, goal=one.goal, split=_SPLITS[one.split], max_steps=one.max_steps or 0,
                       tags=one.tags, problem=one.problem)


def seen(now: Seen) -> pb.WatchLeaseResponse:
    return pb.WatchLeaseResponse(
        lease=lease(now.lease), action_json=to_json(now.action)[:MOST_ACTION] if now.action else "",
        view=observation(now.view) if now.view is not None else None, at=to_timestamp(now.at),
        ended=bool(now.lease.ended))
