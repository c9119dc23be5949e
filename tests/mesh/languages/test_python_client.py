"""Python's own clients on what the other languages' are tried on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from openclaw_rl.client import (
    AsyncDelivery,
    AsyncPolicyServiceClient,
    AsyncTrainerServiceClient,
    ComponentServiceClient,
    Credentials,
    Delivery,
    EnvironmentServiceClient,
    JudgeServiceClient,
    MeshError,
    OutsideCredentials,
    PolicyServiceClient,
    TrainerServiceClient,
)
from openclaw_rl.rpc.messages import new_id
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1.turn_pb2 import ChatMessage, NextState, SamplingParams, Transition, Turn


class Peers:
    """Addresses by name, and clients without a mesh's folder."""

    def __init__(self, variables: dict[str, str], home: Home) -> None:
        self._variables, self.home = variables, home

    def __getitem__(self, name: str) -> str:
        return self._variables[f"OPENCLAW_RL_TEST_{name}"]

    def client(self, kind: Any, name: str, **options: Any) -> Any:
        return kind(self[name], home=self.home, **options)


@pytest.fixture
def to(peers: dict[str, str], tmp_path: Path) -> Peers:
    return Peers(peers, Home(tmp_path))


def transition() -> Transition:
    return Transition(turn=Turn(turn_id=new_id("t"), messages=[ChatMessage(role="user", content="What is a heron?")],
                                response=ChatMessage(role="assistant", content="A fish.")),
                      next_state=NextState(messages=[ChatMessage(role="user", content="No, that is wrong.")]))


def test_chat_versions_and_feedback(to: Peers) -> None:
    session = new_id("python-")
    with to.client(PolicyServiceClient, "POLICY") as policy:
        assert policy.check().status.name == "policy_server"
        answer = policy.ask("What is a heron?", session_id=session, max_tokens=8, min_version=0)
        assert "".join(answer) == answer.text == answer.message.content
        assert answer.session_id == session and answer.turn_id.startswith("turn_") and answer.tokens
        assert policy.feedback(answer.turn_id, 1, "well")
        state = next(iter(policy.follow_policy()))
        assert state.active_version in state.kept_versions
        with pytest.raises(MeshError) as newer:
            policy.ask("Hi", exact_version=10**6).read()
        assert newer.value.code is grpc.StatusCode.FAILED_PRECONDITION and newer.value.reason.startswith("VERSION_")
        with pytest.raises(MeshError) as bad:
            policy.ask("Hi", sampling=SamplingParams(top_p=7)).read()
        assert any("top_p" in field for field, _ in bad.value.violations)
        assert policy.pin(reason="a test").pinned
        assert not policy.unpin().pinned
        tokens = [event.token.id for event in policy.generate(prompt_ids=[1, 4093, 198], sampling=SamplingParams(
            max_tokens=4, temperature=0)) if event.HasField("token")]
        scored = policy.score(token_ids=[1, 4093, 198, *tokens])
        assert len(scored.logprobs) == 2 + len(tokens)


async def test_asyncio(to: Peers) -> None:
    async with to.client(AsyncPolicyServiceClient, "POLICY") as policy, \
            to.client(AsyncTrainerServiceClient, "TRAINER") as trainer:
        texts = await asyncio.gather(*(policy.ask("Hi", max_tokens=4, no_record=True).read() for _ in range(3)))
        assert len(texts) == 3
        async with policy.ask("Tell me a very long story.", max_tokens=500, no_record=True) as story:
            async for _ in story:
                break
        with pytest.raises(MeshError) as late:
            await policy.ask("Tell me a very long story.", max_tokens=500, no_record=True, timeout=0.05).read()
        assert late.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert (await trainer.list_versions()).versions[0].manifest.version == 0
        with pytest.raises(TimeoutError):  # a quiet watch is left by the caller's own end
            async with asyncio.timeout(0.5):
                async for _ in trainer.follow_training():
                    raise TimeoutError


def test_a_live_session_and_a_lease(to: Peers) -> None:
    with to.client(EnvironmentServiceClient, "ENVIRONMENT") as env:
        with env.live(session_id=new_id("python-live-"), max_tokens=8) as session:
            assert "".join(session.say("Hi")) and session.turn is not None
        with env.lease("tool_call", wait=10, ttl=10) as lease:
            lease.reset("weather-city", seed=1)
            assert "weather" in lease.step("get_weather", {"city": "Oslo"}).observation.json
            assert 0 <= lease.evaluate().outcome <= 1
        with pytest.raises(MeshError) as ended:
            env.renew(lease_id=lease.id)
        assert ended.value.reason in ("LEASE_ENDED", "LEASE_LOST")


def test_judge_and_stats(to: Peers) -> None:
    with to.client(JudgeServiceClient, "JUDGE") as judge:
        assert judge.judge(transition=transition()).judgement.score == -1
    with to.client(ComponentServiceClient, "JUDGE") as component:
        stats = component.follow_stats(0.1)
        assert [next(stats).name for _ in range(2)] == ["prm_judge"] * 2
    with Delivery("transitions", to["JUDGE"], home=to.home) as delivery:
        message = transition()
        message.turn.turn_class = 2  # a side turn: nothing is trained on it
        with pytest.raises(TypeError):
            delivery.send(Turn(turn_id="t"))
    with to.client(TrainerServiceClient, "TRAINER") as trainer:
        trainer.pause(reason="a test")
        trainer.resume()


def test_certificates_and_keys(to: Peers) -> None:
    certs = Path(to["CERTS"])
    with to.client(JudgeServiceClient, "SECURE_JUDGE", credentials=Credentials(certs, "operator")) as judge:
        assert judge.check().status.secure
        assert judge.judge(transition=transition()).judgement.score == -1
    with to.client(JudgeServiceClient, "SECURE_JUDGE", credentials=Credentials(certs, "policy_server")) as judge:
        with pytest.raises(MeshError, match="the certificate says policy_server") as role:
            judge.judge(transition=transition())
        assert role.value.reason == "WRONG_ROLE" and role.value.metadata == {"role": "policy_server"}
    authority = (certs / "ca.crt").read_bytes()
    for name, reason in (("KEY_CHAT", ""), ("KEY_READ", "WRONG_SCOPE")):
        with to.client(JudgeServiceClient, "SECURE_KEYS",
                       credentials=OutsideCredentials(to[name], authority)) as judge:
            if not reason:
                assert judge.judge(transition=transition()).judgement.score == -1
                continue
            with pytest.raises(MeshError, match="needs the scope chat") as scope:
                judge.judge(transition=transition())
            assert scope.value.reason == reason
    with to.client(JudgeServiceClient, "SECURE_KEYS",
                   credentials=OutsideCredentials("wrong", authority)) as judge, pytest.raises(MeshError) as key:
        judge.check()
    assert key.value.reason == "UNKNOWN_KEY"


@pytest.mark.parametrize(("name", "secure", "said"), [
    ("HTTP1", False, "speaks HTTP/1, not gRPC"), ("SECURE_JUDGE", False, "this side has no certificate"),
    ("JUDGE", True, "it speaks plain text, and this side TLS")])
def test_addresses_that_are_none_of_ours(to: Peers, name: str, secure: bool, said: str) -> None:
    options = {"credentials": Credentials(Path(to["CERTS"]), "operator")} if secure else {}
    with to.client(JudgeServiceClient, name, **options) as client, pytest.raises(MeshError, match=said) as error:
        client.check(timeout=20)
    assert error.value.code is grpc.StatusCode.UNAVAILABLE


def test_components_that_are_not_the_one(to: Peers) -> None:
    with to.client(PolicyServiceClient, "NEXT_MAJOR") as policy:
        with pytest.raises(MeshError, match=r"contract 2\.0") as mismatch:
            policy.check()
        assert mismatch.value.reason == "CONTRACT_MISMATCH"
    with to.client(TrainerServiceClient, "JUDGE") as trainer:
        with pytest.raises(MeshError, match="prm_judge answers at") as wrong:
            trainer.check()
        assert wrong.value.reason == "WRONG_COMPONENT"
        with pytest.raises(MeshError, match="does not serve this call"):
            trainer.list_versions()
    with to.client(PolicyServiceClient, "POLICY") as policy, pytest.raises(MeshError, match="at most 16 MiB") as large:
        policy.ask("x" * (17 << 20)).read()
    assert large.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_wrong_receivers(to: Peers) -> None:
    for name, reason in (("NEVER_ACKS", "NO_ACK"), ("ACKS_OTHERS", "FOREIGN_ACK")):
        delivery = await AsyncDelivery("turns", to[name], home=to.home, ack_timeout=0.5).__aenter__()
        try:
            await delivery.send(Turn(turn_id=new_id("t")))
            with pytest.raises(MeshError) as wrong:
                await delivery.flush(3)
            assert wrong.value.reason == reason
        finally:
            await delivery.aclose()
    async with AsyncDelivery("turns", to["CUTS"], home=to.home) as delivery:
        for _ in range(7):
            await delivery.send(Turn(turn_id=new_id("t")))
    assert delivery.delivered == 7
