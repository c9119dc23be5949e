"""What the clients put together of several calls: an answer, a live session, a lease, a watch that goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from openclaw_rl.client import (
    AsyncComponentServiceClient,
    AsyncEnvironmentServiceClient,
    AsyncPolicyServiceClient,
    ComponentServiceClient,
    EnvironmentServiceClient,
    PolicyServiceClient,
)
from openclaw_rl.rpc import errors
from openclaw_rl.rpc.contract import CONTRACT_VERSION
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.v1 import component_pb2, component_pb2_grpc, environment_pb2, environment_pb2_grpc, policy_pb2
from openclaw_rl.v1.policy_pb2_grpc import PolicyServiceServicer
from openclaw_rl.v1.turn_pb2 import FINISH_REASON_STOP, ChatMessage, ToolDefinition, Turn
from tests.client.peers import Peer, collect, serving
from tests.support.waiting import until


class Policy(PolicyServiceServicer):
    """Says "Hello you" in three pieces; "for ever" never ends, "breaks" ends too early."""

    def __init__(self) -> None:
        self.asked: list[policy_pb2.ChatRequest] = []
        self.activated: list[policy_pb2.ActivateVersionRequest] = []
        self.feedback: list[Any] = []
        self.cancelled = threading.Event()

    async def Chat(self, request: policy_pb2.ChatRequest, context: Any) -> AsyncIterator[policy_pb2.ChatResponse]:
        self.asked.append(request)
        text = request.messages[-1].content
        yield policy_pb2.ChatResponse(start=policy_pb2.ChatStart(turn_id="t1", session_id="s1", policy_version=4))
        try:
            while text == "for ever":
                yield policy_pb2.ChatResponse(delta=policy_pb2.ChatDelta(content="x"))
        finally:
            self.cancelled.set()
        for piece in ("Hello", "", " you"):
            yield policy_pb2.ChatResponse(delta=policy_pb2.ChatDelta(content=piece))
        if text != "breaks":
            yield policy_pb2.ChatResponse(end=policy_pb2.ChatEnd(
                generation=policy_pb2.GenerationEnd(finish_reason=FINISH_REASON_STOP),
                message=ChatMessage(role="assistant", content="Hello you")))

    async def ActivateVersion(self, request: policy_pb2.ActivateVersionRequest,
                              context: Any) -> policy_pb2.ActivateVersionResponse:
        self.activated.append(request)
        return policy_pb2.ActivateVersionResponse(state=policy_pb2.PolicyState(active_version=request.version))

    async def SubmitFeedback(self, request: policy_pb2.SubmitFeedbackRequest,
                             context: Any) -> policy_pb2.SubmitFeedbackResponse:
        self.feedback.append(request.feedback)
        return policy_pb2.SubmitFeedbackResponse(feedback_id="fb")


def test_an_answer_is_its_text() -> None:
    policy = Policy()
    with serving(policy) as peer, PolicyServiceClient(peer.address) as client:
        answer = client.ask("Hi", session_id="s1", min_version=3, max_tokens=5, tools=[ToolDefinition(name="f")])
        assert (answer.turn_id, answer.policy_version) == ("", -1)
        assert list(answer) == ["Hello", " you"]
        assert (answer.turn_id, answer.session_id, answer.policy_version) == ("t1", "s1", 4)
        assert answer.message.content == answer.text == "Hello you" and answer.finish_reason == FINISH_REASON_STOP
        [asked] = policy.asked
        assert asked.turn.session_id == "s1" and asked.turn.min_version == 3 and asked.sampling.max_tokens == 5
        assert not asked.turn.HasField("exact_version") and not asked.HasField("parallel_tool_calls")
        assert client.feedback("t1", -1, "shorter") == "fb" and policy.feedback[0].score == -1
        client.pin(3)
        client.pin()
        client.unpin()
        client.roll_back(2, "worse")
        assert [(a.HasField("version") and a.version, a.HasField("pin") and a.pin, a.HasField("pin"))
                for a in policy.activated] == [(3, True, True), (False, True, True), (False, False, True),
                                               (2, False, False)]


def test_leaving_an_answer_cancels_it_and_a_broken_one_is_told() -> None:
    policy = Policy()
    with serving(policy) as peer, PolicyServiceClient(peer.address) as client:
        with client.ask("for ever") as answer:
            assert next(iter(answer)) == "x"
        assert policy.cancelled.wait(10)
        with pytest.raises(MeshError, match="broke off") as broken:
            client.ask("breaks").read()
        assert broken.value.retryable
        with pytest.raises(MeshError, match="did not answer in time") as late:
            client.ask("for ever", timeout=0.3).read()
        assert late.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_an_answer_with_asyncio() -> None:
    policy = Policy()
    with serving(policy) as peer:
        async with AsyncPolicyServiceClient(peer.address) as client:
            assert await collect(client.ask("Hi")) == ["Hello", " you"]
            assert await client.ask([ChatMessage(role="user", content="Hi")]).read() == "Hello you"
            assert await client.feedback(session_id="s1", comment="well") == "fb"
            assert (await client.pin(3)).active_version == 3
            await client.unpin()
            await client.roll_back(1)
            async with client.ask("for ever") as answer:
                async for _ in answer:
                    break
        assert policy.cancelled.wait(10)


class Environment(environment_pb2_grpc.EnvironmentServiceServicer):
    """Echoes in live sessions; one kind of lease, which lasts for `ttl`."""

    def __init__(self) -> None:
        self.first: environment_pb2.InteractRequest | None = None
        self.leases: set[str] = set()
        self.renewed = 0
        self.released: list[str] = []
        self.steps: list[environment_pb2.StepRequest] = []
        self.refuse: MeshError | None = None

    async def Interact(self, request_iterator: Any, context: Any) -> AsyncIterator[environment_pb2.InteractResponse]:
        async for request in request_iterator:
            self.first = self.first or request
            text = request.messages[-1].content
            if text == "end":
                return
            for word in text.split():
                yield environment_pb2.InteractResponse(content=word)
            yield environment_pb2.InteractResponse(turn=Turn(turn_id=f"turn of {text}"))

    async def Acquire(self, request: environment_pb2.AcquireRequest, context: Any) -> environment_pb2.AcquireResponse:
        if request.type != "tool_call":
            raise errors.not_found("environment", request.type)
        self.leases.add(request.lease_id)
        return environment_pb2.AcquireResponse(lease_id=request.lease_id)

    async def Reset(self, request: environment_pb2.ResetRequest, context: Any) -> environment_pb2.ResetResponse:
        return environment_pb2.ResetResponse(goal=f"do {request.task_id}")

    async def Step(self, request: environment_pb2.StepRequest, context: Any) -> environment_pb2.StepResponse:
        if self.refuse is not None:
            raise self.refuse
        self.steps.append(request)
        return environment_pb2.StepResponse(reward=request.step)

    async def Evaluate(self, request: environment_pb2.EvaluateRequest,
                       context: Any) -> environment_pb2.EvaluateResponse:
        return environment_pb2.EvaluateResponse(outcome=1)

    async def Renew(self, request: environment_pb2.RenewRequest, context: Any) -> environment_pb2.RenewResponse:
        if request.lease_id not in self.leases:
            raise errors.MeshError(grpc.StatusCode.NOT_FOUND, "LEASE_LOST", "gone")
        self.renewed += 1
        return environment_pb2.RenewResponse()

    async def Release(self, request: environment_pb2.ReleaseRequest, context: Any) -> environment_pb2.ReleaseResponse:
        self.released.append(request.lease_id)
        return environment_pb2.ReleaseResponse()


async def test_live_sessions() -> None:
    environment = Environment()
    with serving(environment) as peer:
        with EnvironmentServiceClient(peer.address) as client, client.live(session_id="s1", max_tokens=4) as session:
            assert list(session.say("a b")) == ["a", "b"]
            assert session.turn is not None and session.turn.turn_id == "turn of a b"
            assert list(session.say([ChatMessage(role="tool", content="c")])) == ["c"]
            with pytest.raises(MeshError, match="ended the live session"):
                list(session.say("end"))
            with pytest.raises(MeshError, match="ended the live session"):
                list(session.say("there is none to say it to"))
        assert environment.first is not None
        assert environment.first.turn.session_id == "s1" and environment.first.sampling.max_tokens == 4
        async with AsyncEnvironmentServiceClient(peer.address) as other, other.live() as talk:
            assert await collect(talk.say("a b")) == ["a", "b"]
            assert talk.turn is not None and await collect(talk.say("c")) == ["c"]


async def test_an_answer_that_was_left_is_not_taken_for_the_next_one() -> None:
    with serving(Environment()) as peer:
        with EnvironmentServiceClient(peer.address) as client, client.live() as session:
            assert next(session.say("a b")) == "a"
            with pytest.raises(RuntimeError, match="not read to its end"):
                next(session.say("c"))
        async with AsyncEnvironmentServiceClient(peer.address) as other, other.live() as talk:
            async for _ in talk.say("a b"):
                break
            with pytest.raises(RuntimeError, match="not read to its end"):
                await collect(talk.say("c"))


async def test_what_nobody_reads_leaves_nothing_behind() -> None:
    environment = Environment()
    with serving(environment) as peer:
        async with AsyncEnvironmentServiceClient(peer.address) as client:
            async with client.live():
                await asyncio.sleep(0)
            stream = client.watch_lease(lease_id="l")
            await stream.aclose()  # type: ignore[attr-defined]
            assert len(asyncio.all_tasks()) == 1, "no call of theirs is open"


async def test_a_misspelt_option_is_told() -> None:
    options: Any = {"sesion_id": "s"}
    with PolicyServiceClient("here:1") as policy, EnvironmentServiceClient("here:1") as env:
        for call in (policy.ask, AsyncPolicyServiceClient("here:1").ask):
            with pytest.raises(TypeError, match=r"ask\(\) has no option sesion_id; there are session_id, "):
                call("Hi", **options)
        with pytest.raises(TypeError, match=r"live\(\) has no option metadata"):  # only a chat has it
            env.live(metadata={"a": "b"})  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"lease\(\) has no option sesion_id"):
            env.lease("tool_call", **options)


def test_a_lease_is_renewed_and_given_back() -> None:
    environment = Environment()
    with serving(environment) as peer, EnvironmentServiceClient(peer.address) as client:
        with client.lease("tool_call", ttl=0.6) as lease:
            assert lease.reset("t1", seed=3).goal == "do t1" == lease.opening.goal
            assert lease.step("add", {"a": 1}).reward == 1
            environment.refuse = errors.unavailable("just now")
            with pytest.raises(MeshError, match="just now"):
                lease.step("add", '{"a": 2}')
            environment.refuse = None
            lease.step("add", '{"a": 2}', timeout=3)
            assert [step.step for step in environment.steps] == [1, 2], "the one that failed is the same step again"
            assert environment.steps[1].action_json == '{"name": "add", "arguments": {"a": 2}}'
            assert lease.evaluate().outcome == 1
            until(lambda: environment.renewed >= 2)
            environment.leases.clear()
            until(lambda: lease.lost is not None)
            with pytest.raises(MeshError) as gone:
                lease.step("add")
            assert gone.value.reason == "LEASE_LOST"
        assert environment.released == [lease.id]
        with pytest.raises(MeshError) as closed:
            lease.evaluate()
        assert closed.value.reason == "LEASE_CLOSED"
        with pytest.raises(MeshError, match="there is no environment"):
            client.lease("other")


async def test_a_lease_with_asyncio() -> None:
    environment = Environment()
    with serving(environment) as peer:
        async with AsyncEnvironmentServiceClient(peer.address) as client:
            with pytest.raises(ZeroDivisionError):
                async with client.lease("tool_call", ttl=0.6, lease_id="mine") as lease:
                    await lease.reset()
                    await lease.step("add")
                    assert (await lease.evaluate()).outcome == 1
                    while environment.renewed < 2:
                        await client.renew(lease_id="mine")
                    raise ZeroDivisionError
            assert environment.released == ["mine"]


class Component(component_pb2_grpc.ComponentServiceServicer):
    """Tells two stats, then breaks; `version` is its contract's."""

    def __init__(self, name: str = "env_server", version: str = "1.0", error: MeshError | None = None) -> None:
        self.name, self.version = name, version
        self.error = error or errors.unavailable("stopping", 0.05)
        self.opened = 0

    async def GetStatus(self, request: Any, context: Any) -> component_pb2.GetStatusResponse:
        return component_pb2.GetStatusResponse(status=component_pb2.ComponentStatus(
            name=self.name, contract_version=self.version))

    async def WatchStats(self, request: component_pb2.WatchStatsRequest,
                         context: Any) -> AsyncIterator[component_pb2.WatchStatsResponse]:
        self.opened += 1
        for pid in (1, 2):
            yield component_pb2.WatchStatsResponse(status=component_pb2.ComponentStatus(pid=10 * self.opened + pid))
        raise self.error


async def test_a_watch_goes_on_behind_a_break() -> None:
    component = Component()
    breaks: list[MeshError] = []
    with serving(component) as peer:
        with ComponentServiceClient(peer.address) as client:
            seen = []
            for status in client.follow_stats(0.5, breaks.append):
                seen.append(status.pid)
                if len(seen) == 5:
                    break
            assert seen == [11, 12, 21, 22, 31]
            assert [error.message for error in breaks] == ["stopping", "stopping"]
            component.error = errors.failed_precondition("PAUSED", "no more")
            with pytest.raises(MeshError, match="no more"):
                list(client.follow_stats())
        component.error, component.opened = errors.unavailable("stopping", 0.05), 0
        async with AsyncComponentServiceClient(peer.address) as other:
            seen = []
            async for status in other.follow_stats():
                seen.append(status.pid)
                if len(seen) == 3:
                    break
            assert seen == [11, 12, 21]


def test_a_watch_outlives_a_restart() -> None:
    component = Component()
    peer = Peer(component)
    try:
        with ComponentServiceClient(peer.address) as client:
            stream = client.follow_stats()
            assert next(stream).pid == 11
            peer.stop()
            threading.Timer(0.3, peer.start).start()
            assert next(status.pid for status in stream if status.pid > 12) == 21
            stream.close()  # type: ignore[attr-defined]
    finally:
        peer.close()


async def test_check() -> None:
    with serving(Component()) as peer:
        with EnvironmentServiceClient(peer.address) as client:
            report = client.check()
            assert (report.status.name, report.contract_version) == ("env_server", "1.0")
            assert [warning.partition(", ")[0] for warning in report.warnings] == [
                f"env_server at {peer.address} speaks contract 1.0"]
        async with AsyncPolicyServiceClient(peer.address) as policy:
            with pytest.raises(MeshError, match=r"env_server answers at .*, not policy_server") as wrong:
                await policy.check()
            assert wrong.value.reason == "WRONG_COMPONENT"
            with pytest.raises(MeshError, match=r"does not serve this call: it is not policy_server") as other:
                await policy.get_policy()
            assert other.value.code is grpc.StatusCode.UNIMPLEMENTED
    with serving(Component(version="2.0")) as peer, EnvironmentServiceClient(peer.address) as client:
        with pytest.raises(MeshError, match=r"speaks contract 2\.0, this side 1\.") as mismatch:
            client.check()
        assert mismatch.value.reason == "CONTRACT_MISMATCH"
        assert mismatch.value.metadata == {"server": "2.0", "client": CONTRACT_VERSION}


@pytest.mark.parametrize(("theirs", "warned"), [
    ("", True), ("1.0", True), (CONTRACT_VERSION, False), ("1.99", False), ("0.9", None)])
def test_minor_versions_go_together(theirs: str, warned: bool | None) -> None:
    from openclaw_rl.rpc import contract

    status = component_pb2.ComponentStatus(name="trainer", contract_version=theirs)
    if warned is None:
        with pytest.raises(MeshError):
            contract.check(status, "trainer", "here")
    else:
        assert bool(contract.check(status, "trainer", "here").warnings) is warned


def test_an_older_minor_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from openclaw_rl.rpc import contract

    monkeypatch.setattr(contract, "CONTRACT_VERSION", "1.10")
    status = component_pb2.ComponentStatus(name="trainer", contract_version="1.9")
    assert "older than this side's 1.10" in contract.check(status, "", "here").warnings[0]
