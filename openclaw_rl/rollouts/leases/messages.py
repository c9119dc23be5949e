"""Conversion of leases, tasks and observations to messages."""

from __future__ import annotations

import orjson

from openclaw_rl.rollouts.environments.interface import Observation, Opening, StepResult
from openclaw_rl.rollouts.leases.actions import to_json
from openclaw_rl.rollouts.leases.broadcast import LeaseView
from openclaw_rl.rollouts.leases.lease import Lease
from openclaw_rl.rollouts.leases.warm_pool import WarmPool
from openclaw_rl.rollouts.tasks.task import Task
from openclaw_rl.rpc.messages import to_timestamp
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1 import turn_pb2

#: Characters of the last action in a view.
MOST_ACTION = 20_000
_SPLITS = {"train": pb.TASK_SPLIT_TRAIN, "held_out": pb.TASK_SPLIT_HELD_OUT}


def observation(seen: Observation) -> pb.Observation:
    return pb.Observation(json=orjson.dumps(seen.data).decode(), image_png=seen.image_png)


def acquired(lease: Lease) -> pb.AcquireResponse:
    environment_type = lease.warm_pool.configured.environment_type
    assert environment_type is not None
    return pb.AcquireResponse(lease_id=lease.id, expires_at=to_timestamp(lease.expires_at),
                              action_schema_json=orjson.dumps(environment_type.action_schema).decode(),
                              observation_schema_json=orjson.dumps(environment_type.observation_schema).decode(),
                              sandbox=environment_type.sandbox)


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


def environment(warm_pool: WarmPool, tasks: int) -> pb.EnvironmentInfo:
    configured = warm_pool.configured
    info = pb.EnvironmentInfo(
        type=configured.name, kind=configured.type_name, backend=configured.backend.name if configured.backend else "",
        image=configured.config.image or "", capacity=warm_pool.capacity, leased=warm_pool.leased, warm=warm_pool.warm,
        starting=warm_pool.starting, waiting=warm_pool.waiting, problem=warm_pool.problem or warm_pool.failure,
        tasks=tasks)
    if configured.environment_type is not None:
        info.action_schema_json = orjson.dumps(configured.environment_type.action_schema).decode()
        info.observation_schema_json = orjson.dumps(configured.environment_type.observation_schema).decode()
    return info


def task(one: Task) -> pb.TaskInfo:
    return pb.TaskInfo(task_id=one.id, goal=one.goal, split=_SPLITS[one.split], max_steps=one.max_steps or 0,
                       tags=one.tags, problem=one.problem)


def lease_view(view: LeaseView) -> pb.WatchLeaseResponse:
    return pb.WatchLeaseResponse(
        lease=lease(view.lease), action_json=to_json(view.action)[:MOST_ACTION] if view.action else "",
        view=observation(view.observation) if view.observation is not None else None, at=to_timestamp(view.at),
        ended=bool(view.lease.ended))
