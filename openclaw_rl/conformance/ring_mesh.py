"""Checks of a mesh that knows itself: who names which mesh, and what is refused of another one.

Contract 1.1 has it; a server that tells an older one is not asked.
"""

from __future__ import annotations

import contextlib
from typing import Any

import grpc

from openclaw_rl.conformance.context import Context, listed
from openclaw_rl.conformance.frame import Need, check
from openclaw_rl.conformance.listener import Faults
from openclaw_rl.conformance.material import Material
from openclaw_rl.conformance.ring_onward import traffic
from openclaw_rl.conformance.ring_stream import REJECTED, RingStream, accepted, named
from openclaw_rl.conformance.weights_stream import TRAINER
from openclaw_rl.rpc.membership import COMPONENT_KEY, MESH_KEY
from openclaw_rl.v1 import trainer_pb2
from openclaw_rl.weights.identity import TRAINER_KEY

_WHERE = "common.proto: metadata of a call"
_STRANGE = "mesh-kit-another"
#: Seconds for a message to arrive, and for one not to.
_ARRIVE, _STAY = 20.0, 3.0


def _internal(kit: Context) -> str:
    """The stream into the server that belongs to components."""
    return kit.service.ring or "SyncWeights"


async def _meshes(kit: Context) -> str:
    """The id of the server's mesh; skips the check where the contract has none yet."""
    status = await kit.status()
    if (status.contract_version or "1.0").partition(".")[2] == "0":
        kit.skip("the server speaks contract 1.0, which has no ids of meshes")
    kit.expect(status.mesh_id, "ComponentStatus.mesh_id is empty: the server was given no mesh")
    return status.mesh_id


def _named(headers: Any) -> dict[str, str]:
    return {key: str(value) for key, value in headers or () if key in (MESH_KEY, COMPONENT_KEY)}


@check("component.mesh", "Each response names the mesh and the component in its headers, as the status does.",
       where=_WHERE, after=["component.status"])
async def headers(kit: Context) -> None:
    mesh = await _meshes(kit)
    wanted = {MESH_KEY: mesh, COMPONENT_KEY: kit.service.component}
    call = kit.call("ComponentService/GetStatus")
    await call
    found = {"GetStatus": _named(await call.initial_metadata())}
    rpc = kit.service.ring or "WatchPolicy"
    stream = kit.stream(rpc)
    found[rpc] = _named(await kit.within(stream.initial_metadata(), kit.deadline, f"no headers of {rpc}"))
    wrong = [f"{rpc} has {told or 'neither'}" for rpc, told in found.items() if told != wanted]
    kit.expect(not wrong, f"{listed(wrong)}; {wanted} is due")


@check("component.mesh.foreign", "A call that names another mesh is refused with WRONG_MESH, in a sentence that names "
                                 "both meshes; nothing is taken of it, and it is no alarm here.", where=_WHERE,
       after=["component.mesh"])
async def foreign(kit: Context) -> None:
    mesh, strange = await _meshes(kit), kit.as_mesh(_STRANGE)
    before = await _wrong_mesh(kit)  # of its own next component, which is none of this check's business
    calls = {"GetStatus": lambda: kit.unary("ComponentService/GetStatus", channel=strange),
             _internal(kit): lambda: _first(kit, strange)}
    for what, call in calls.items():
        said = await kit.refused(call(), grpc.StatusCode.FAILED_PRECONDITION, what=f"{what} of another mesh")
        kit.expect(said.reason == "WRONG_MESH", f"{what} of another mesh was refused with the reason {said.reason!r}")
        kit.expect(mesh in said.message and _STRANGE in said.message,
                   f"{what} of another mesh was told {said.message!r}, which does not name both")
    kit.expect(before or not await _wrong_mesh(kit), "being called by another mesh is the alarm wrong_mesh; it is the "
               "caller's fault")


async def _wrong_mesh(kit: Context) -> str:
    """The message of the alarm wrong_mesh, "" without it."""
    return next((alarm.message for alarm in (await kit.status()).alarms if alarm.name == "wrong_mesh"), "")


@check("component.mesh.unnamed", "On plain text, a ring or weight stream that names no mesh is refused with "
                                 "WRONG_MESH; calls that clients make need not name one.", where=_WHERE,
       after=["component.mesh"])
async def unnamed(kit: Context) -> None:
    await _meshes(kit)
    nobody = kit.as_mesh("")
    await kit.unary("ComponentService/GetStatus", channel=nobody)
    if kit.secure:
        kit.skip("certificates name the mesh")
    said = await kit.refused(_first(kit, nobody),
                             grpc.StatusCode.FAILED_PRECONDITION, what=f"{_internal(kit)} without a mesh")
    kit.expect(said.reason == "WRONG_MESH", f"{_internal(kit)} without a mesh was refused with the reason "
               f"{said.reason!r}")


async def _first(kit: Context, channel: grpc.aio.Channel) -> Any:
    """What comes first of that stream; the weight stream is opened as a trainer that takes no other one's place."""
    who = None if kit.service.ring else ((TRAINER_KEY, TRAINER),)
    stream = kit.stream(_internal(kit), channel=channel, metadata=who)
    return await kit.within(stream.read(), kit.deadline, f"{_internal(kit)} was let in: nothing came within "
                            f"{kit.deadline:g} s, and no refusal")


@check("environment.mesh", "A turn of another mesh is REJECTED; one of none belongs to this mesh.", where="turn.proto: "
       "Turn.mesh_id", services=["environment"], after=["component.mesh", "ring.acks.accepted"])
async def foreign_turn(kit: Context) -> None:
    await _meshes(kit)
    message = Material(kit).message(kit.id())
    message.turn.mesh_id = _STRANGE
    stream = RingStream(kit)
    ids = await stream.send([message])
    ack = (await stream.acked(ids))[ids[0]]
    kit.expect(ack.status == REJECTED and _STRANGE in ack.reason,
               f"a turn of the mesh {_STRANGE} was {named(ack.status)} ({ack.reason or 'no reason'})")


@check("trainer.mesh", "A sample whose turn is of another mesh, or of none, is dropped with a reason.",
       where="turn.proto: Turn.mesh_id", services=["trainer"], after=["component.mesh", "ring.acks.accepted"])
async def foreign_sample(kit: Context) -> None:
    await _meshes(kit)
    material, samples = Material(kit), []
    for mesh in (_STRANGE, ""):
        sample = material.sample(material.transition(material.turn(kit.id(), kit.session())), score=1)
        sample.transition.turn.mesh_id = mesh
        samples.append(sample)
    ids = await accepted(kit, samples)
    answer = await kit.unary("ListSamples", trainer_pb2.ListSamplesRequest(turn_ids=ids))
    wrong = [f"{one.turn_id} is {trainer_pb2.SampleFate.Name(one.fate)} ({one.reason or 'no reason'})"
             for one in answer.samples if one.fate != trainer_pb2.SAMPLE_FATE_DROPPED or not one.reason]
    kit.expect(len(answer.samples) == len(ids) and not wrong, listed(wrong) or "not all of them were told")


@check("onward.mesh", "Calls to the next components name the mesh and the component.", where=_WHERE,
       needs=[Need.LISTEN], after=["component.mesh"], seconds=40)
async def named_onward(kit: Context) -> None:
    mesh, listener = await _meshes(kit), kit.listener
    assert listener is not None
    await kit.until(lambda: listener.callers, _ARRIVE, f"the server has not called anybody at {listener.address}")
    wrong = [f"{path} with {told or 'neither'}" for path, told in listener.callers.items()
             if told != {MESH_KEY: mesh, COMPONENT_KEY: kit.service.component}]
    kit.expect(not wrong, f"called: {listed(wrong)}")


@check("onward.mesh.foreign", "Nothing is sent to a next component of another mesh: messages wait, an alarm says so, "
                              "and they go on when the right one answers.", where=_WHERE,
       services=["environment", "judge"], needs=[Need.LISTEN], after=["onward.mesh"], seconds=60)
async def foreign_onward(kit: Context) -> None:
    await _meshes(kit)
    assert kit.listener is not None
    kit.listener.behave(Faults(mesh=_STRANGE))
    kit.listener.cut()
    messages, ids = traffic(kit, 2)
    await accepted(kit, messages)
    with contextlib.suppress(Exception):  # as it should be
        await kit.listener.wait(ids, _STAY, "messages")
    came = kit.listener.first(ids)
    kit.expect(not came, f"{len(came)} messages were sent to a component of the mesh {_STRANGE}")
    alarm = await _wrong_mesh(kit)
    kit.expect(_STRANGE in alarm, f"the alarm wrong_mesh is {alarm!r}; it must name {_STRANGE}")
    kit.listener.behave()
    await kit.listener.wait(ids, _ARRIVE, "messages that waited")
