"""The examples of servers/embedding, as their users run them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import openai
import pytest
import yaml
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_reflection.v1alpha import reflection_pb2

from openclaw_rl.client import ComponentServiceClient, JudgeServiceClient
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home, read_record
from tests.mesh.fake_api import FakeApi
from tests.support.waiting import until

FOLDER = Path(__file__).parents[2] / "servers/embedding"


@contextmanager
def running(home: Home, example: str, *args: str, says: str, **variables: str) -> Iterator[re.Match[str]]:
    """An example, until SIGTERM, which it has to end well after. Yields what it said."""
    log = home.root / f"{example}.log"
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, str(FOLDER / example), *args], stdout=output, stderr=output,
                                   env={**os.environ, "OPENCLAW_RL_HOME": str(home.root), **variables})
    try:
        yield until(lambda: re.search(says, log.read_text()) or process.poll(), 60, f"{example} is up")
        process.send_signal(signal.SIGTERM)
        # uvicorn ends well, then hands the signal on.
        assert process.wait(30) in (0, -signal.SIGTERM), log.read_text()
    finally:
        process.kill()
        process.wait()


def resolved(channel: grpc.Channel, version: str, symbol: str) -> str:
    """The file that reflection finds for a symbol."""
    ask = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)
    [response] = ask(iter([reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)]), timeout=10)
    file = response.file_descriptor_response.file_descriptor_proto[0]
    return FileDescriptorProto.FromString(file).name


def test_a_judge_in_somebody_elses_server(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    with running(home, "judge_in_your_server.py", "127.0.0.1:0", says=r"serve on port (\d+)") as said:
        address = f"127.0.0.1:{said[1]}"
        with grpc.insecure_channel(address) as channel:
            now = channel.unary_unary("/example.Clock/Now", response_deserializer=Timestamp.FromString)
            assert now(b"", timeout=10).seconds > 0
            for version in ("v1", "v1alpha"):
                assert resolved(channel, version, "openclaw_rl.v1.JudgeService.Judge") == "openclaw_rl/v1/judge.proto"
        with JudgeServiceClient(home=home) as judge:  # found by its record
            with pytest.raises(MeshError) as caught:
                judge.judge(transition={})
            assert caught.value.violations[0][0] == "transition.turn.messages"
            verdict = judge.judge(transition={
                "turn": {"turn_id": "t", "messages": [{"role": "user", "content": "What is a heron?"}],
                         "response": {"role": "assistant", "content": "A fish."}},
                "next_state": {"messages": [{"role": "user", "content": "That is wrong."}]}}).judgement
            assert verdict.score == -1
        with ComponentServiceClient(component="prm_judge", home=home) as component:
            assert component.get_status().status.address == address
    assert read_record(home, "prm_judge") is None


def test_drain_ends_the_component(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    with running(home, "judge_in_your_server.py", "127.0.0.1:0", says=r"serve on port (\d+)"), \
            ComponentServiceClient(component="prm_judge", home=home) as component:
        component.drain()
        until(lambda: read_record(home, "prm_judge") is None, 30, "the end")


def test_the_door_in_somebody_elses_application(tmp_path: Path) -> None:
    home, api = Home(tmp_path).create(), FakeApi()
    home.config_file.write_text(yaml.safe_dump({"components": {"policy_server": {"model": "glm-4-flash"}}}))
    try:
        with running(home, "door_in_your_app.py", "0", says=r"running on (http://\S+)", OPENAI_API_KEY="sk-1",
                     ZHIPUAI_API_KEY="", OPENAI_BASE_URL=api.url) as said:
            assert httpx.get(f"{said[1]}/hello", trust_env=False).json() == {"hello": "from your own route"}
            client = openai.OpenAI(base_url=f"{said[1]}/assistant/v1", api_key="none", max_retries=10,
                                   http_client=httpx.Client(trust_env=False))
            stream = client.chat.completions.create(model="glm-4-flash", stream=True, messages=[
                {"role": "user", "content": "What is a heron?"}])
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "A heron is a bird. "
            with ComponentServiceClient(component="policy_server", home=home) as component:
                status = component.get_status().status
            assert not status.http_address and status.outboxes[0].pending == 1  # the turn waits for an env server
    finally:
        api.close()


def test_a_judge_in_a_script() -> None:
    done = subprocess.run([sys.executable, str(FOLDER / "judge_script.py"), "What is a heron?", "A fish.",
                           "That is wrong."], capture_output=True, text=True, check=True, timeout=60)
    assert "score -1" in done.stdout


def test_a_mesh_in_one_program(tmp_path: Path) -> None:
    home, api = Home(tmp_path).create(), FakeApi()
    home.config_file.write_text(yaml.safe_dump({"components": {"policy_server": {"model": "glm-4-flash"},
                                                               "prm_judge": {"judge": "rules"}}}))
    try:
        done = subprocess.run([sys.executable, str(FOLDER / "mesh_in_one_program.py"), "What is a heron?",
                               "That is wrong."], capture_output=True, text=True, check=True, timeout=120, env={
                                   **os.environ, "OPENCLAW_RL_HOME": str(tmp_path), "OPENAI_API_KEY": "sk-1",
                                   "ZHIPUAI_API_KEY": "", "OPENAI_BASE_URL": api.url})
    finally:
        api.close()
    assert "policy_server 127.0.0.1:" in done.stdout and "A heron is a bird." in done.stdout
    assert "judged: -1" in done.stdout
    assert not list(home.run.glob("*.json")), "all have ended"
