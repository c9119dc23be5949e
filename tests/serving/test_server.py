"""The whole policy server: entrypoints at once, the model a little later, turns to the environment server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.rpc.channel import connect
from openclaw_rl.runtime.home import Home, RunRecord, read_record
from openclaw_rl.serving import server
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy
from openclaw_rl.v1 import (
    common_pb2,
    component_pb2,
    component_pb2_grpc,
    environment_pb2,
    environment_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
)
from tests.serving.stub import EOS, StubEngine, write_tokenizer
from tests.support.waiting import eventually

ASK: list[Any] = [{"role": "user", "content": "Hi"}]


def config(home: Home, **settings: Any) -> Config:
    return Config.model_validate({"components": {
        "policy_server": {"port": 0, "grpc_port": 0, **settings}, "env_server": {"port": 0}}})


@asynccontextmanager
async def running(settings: Config, home: Home) -> AsyncIterator[RunRecord]:
    """A policy server in this process, until the block ends."""
    task = asyncio.create_task(server.run(settings, home))
    try:
        record = await eventually(lambda: task.done() or read_record(home, "policy_server"))
        if task.done():
            task.result()
        yield record
        async with connect(record.address) as channel:
            await component_pb2_grpc.ComponentServiceStub(channel).Drain(component_pb2.DrainRequest())
        async with asyncio.timeout(15):
            await task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def healthy(http: httpx.AsyncClient, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while (await http.get("/healthz")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class Environment(environment_pb2_grpc.EnvironmentServiceServicer):
    """Takes what comes."""

    def __init__(self) -> None:
        self.events: list[environment_pb2.PolicyEvent] = []

    async def RecordTurns(self, request_iterator: Any, context: Any) -> Any:
        await context.send_initial_metadata(())
        async for request in request_iterator:
            self.events += request.events
            yield environment_pb2.RecordTurnsResponse(acks=[
                common_pb2.Ack(id=event.turn.turn_id, status=common_pb2.ACK_STATUS_ACCEPTED)
                for event in request.events])


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Puts a stub in place of the embedded engine; it is ready when the gate is opened."""
    template = ChatTemplate(write_tokenizer(tmp_path / "tokenizer"))
    gate = asyncio.Event()

    async def load(settings: Any, home: Any, tell: Any, engines: Any) -> Any:
        tell("Converting the model (40%)")
        await gate.wait()
        engine = StubEngine(lambda _prompt: [*template.encode("Hello!"), EOS])
        engine.info = type(engine.info)("stub", "stub", "", 2048, 267, (EOS,), False)  # no weights, so no model files
        return TokenPolicy(engine, template), engine, None

    monkeypatch.setattr(server, "make_policy", load)
    return gate


async def test_from_start_to_stop(tmp_path: Path, gate: asyncio.Event) -> None:
    home = Home(tmp_path / "home").create()
    async with running(config(home), home) as record, connect(record.address) as channel, httpx.AsyncClient(
            base_url=record.http_address, verify=False) as http:
        component = component_pb2_grpc.ComponentServiceStub(channel)
        status = (await component.GetStatus(component_pb2.GetStatusRequest())).status
        assert status.state == component_pb2.COMPONENT_STATE_STARTING
        assert status.detail == "Converting the model (40%)"
        assert (await http.get("/healthz")).status_code == 503
        gate.set()
        await healthy(http, 10)
        client = openai.AsyncOpenAI(base_url=f"{record.http_address}/v1", api_key="x", max_retries=0)
        answer = await client.chat.completions.create(model="default", messages=ASK)
        assert answer.choices[0].message.content == "Hello!"
        policy = policy_pb2_grpc.PolicyServiceStub(channel)
        state = (await policy.GetPolicy(policy_pb2.GetPolicyRequest())).state
        assert (state.active_version, state.accepts_weights) == (0, False)
        status = (await component.GetStatus(component_pb2.GetStatusRequest())).status
        assert status.state == component_pb2.COMPONENT_STATE_RUNNING and status.http_address == record.http_address
        assert (status.counters["turns_recorded"], status.outboxes[0].pending) == (1, 1)

        environment = Environment()
        neighbour = grpc.aio.server()
        environment_pb2_grpc.add_EnvironmentServiceServicer_to_server(environment, neighbour)
        port = neighbour.add_insecure_port("127.0.0.1:0")
        await neighbour.start()
        from openclaw_rl.runtime.home import write_record
        write_record(home, RunRecord("env_server", 1, f"127.0.0.1:{port}"))
        event, = await eventually(lambda: environment.events, 15)
        assert event.turn.turn_id == answer.id.removeprefix("chatcmpl-")
        await neighbour.stop(0)
    assert read_record(home, "policy_server") is None




async def test_a_port_in_use(tmp_path: Path, gate: asyncio.Event) -> None:
    home = Home(tmp_path / "home").create()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match=r"HTTP.*in use"):
            await server.run(config(home, port=taken.getsockname()[1]), home)
        with pytest.raises(OSError, match="in use"):
            await server.run(config(home, grpc_port=taken.getsockname()[1]), home)
    assert read_record(home, "policy_server") is None


async def test_what_cannot_be_served_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home").create()
    for name in ("OPENAI_API_KEY", "ZHIPUAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="ZHIPUAI_API_KEY"):
        await server.run(config(home, model="glm-4-flash"), home)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"config\.json"):
        await server.run(config(home, model=str(tmp_path / "empty")), home)
    assert read_record(home, "policy_server") is None


def test_the_name_that_clients_know(tmp_path: Path) -> None:
    settings = config(Home(tmp_path)).components.policy_server
    assert server.served_name(settings.model_copy(update={"model": str(tmp_path)})) == tmp_path.name


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_real_model(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    prepared = Home.default().models
    if prepared.is_dir():  # saves the conversion
        home.models.rmdir()
        home.models.symlink_to(prepared)
    settings = config(home)
    async with running(settings, home) as record:
        async with httpx.AsyncClient(base_url=record.http_address, verify=False) as http:
            await healthy(http, 100)
        client = openai.AsyncOpenAI(base_url=f"{record.http_address}/v1", api_key="x", max_retries=0, timeout=60)
        question: Any = [{"role": "user", "content": "What is the capital of France?"}]
        answer = await client.chat.completions.create(model="smollm2-135m-instruct", messages=question, temperature=0,
                                                      max_tokens=24, logprobs=True, top_logprobs=2)
        text = answer.choices[0].message.content or ""
        assert "Paris" in text and answer.choices[0].finish_reason == "stop"
        stream = await client.chat.completions.create(model="smollm2-135m-instruct", messages=question, temperature=0,
                                                      max_tokens=24, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == text
        content = answer.choices[0].logprobs.content  # type: ignore[union-attr]
        assert content and "".join(token.token for token in content) == text
        assert all(token.logprob == pytest.approx(token.top_logprobs[0].logprob) for token in content)
        both = await asyncio.gather(*(client.chat.completions.create(
            model="default", messages=question, seed=5, max_tokens=16) for _ in range(2)))
        assert both[0].choices[0].message.content == both[1].choices[0].message.content
