"""A real SGLang, started by the engine, serves the embedded model on the CPU."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from safetensors.torch import load_file, save_file

from openclaw_rl.config import EMBEDDED_MODEL, PolicyServerConfig
from openclaw_rl.runtime.process import all_processes
from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
from openclaw_rl.serving.engines.interface import Shaping
from openclaw_rl.serving.engines.sglang.engine import SglangEngine
from openclaw_rl.serving.engines.sglang.process import OWNER, end_leftovers
from openclaw_rl.serving.interfaces import ChatCall, Delta, End
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy, Transcript
from openclaw_rl.v1 import turn_pb2
from tests.serving.engines.sglang.conftest import respond
from tests.support.models import embedded_model
from tests.support.waiting import eventually

pytest.importorskip("sglang")
pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder() -> Path:
    return embedded_model()


@pytest.fixture(scope="module")
def newer(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another version of the model: one matrix is 10 % larger."""
    made = tmp_path_factory.mktemp("newer")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.3.mlp.up_proj.weight"
    tensors[name] = (tensors[name] * 1.1).contiguous()
    save_file(tensors, made / "model.safetensors", {"format": "pt"})
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SglangEngine]:
    root = tmp_path_factory.mktemp("sglang")
    settings = PolicyServerConfig(engine="sglang", max_context=1024, max_batch=8, device="cpu")
    engine = SglangEngine(folder, settings, root / "state", root / "logs", EMBEDDED_MODEL)
    await engine.start()
    yield engine
    await engine.stop()
    assert not _processes(root / "state"), "stopping leaves nothing behind"
    assert end_leftovers(root / "state") == []


def _processes(owner: Path) -> list[psutil.Process]:
    found = []
    for process in all_processes():
        try:
            if process.environ().get(OWNER) == str(owner) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


async def test_a_chat_streams_and_agrees_with_the_embedded_engine(engine: SglangEngine, folder: Path) -> None:
    template = ChatTemplate(folder)
    policy = TokenPolicy(engine, template)
    call = ChatCall(messages=[turn_pb2.ChatMessage(role="user", content="What is the capital of France?")],
                    sampling=policy.fill(turn_pb2.SamplingParams(temperature=0, max_tokens=24, top_logprobs=3)))
    transcript = Transcript()
    events = [event async for event in policy.chat(call, transcript)]
    assert isinstance(events[-1], End) and "Paris" in events[-1].message.content
    assert sum(isinstance(event, Delta) for event in events) > 3
    embedded = EmbeddedEngine(folder, device="cpu", max_context=1024)
    await embedded.start()
    try:
        ids = [*(transcript.prompt_ids or []), *transcript.response_ids]
        (theirs, _), (ours, _) = await engine.score(ids), await embedded.score(ids)
        drawn = await respond(engine, ids[:20], 16, temperature=0.7, top_p=0.9, seed=5)
        again = await respond(engine, ids[:20], 16, temperature=0.7, top_p=0.9, seed=5)
        checked, _ = await embedded.score([*ids[:20], *(token.id for token in drawn)])
        rule = Shaping(frequency_penalty=1.5, presence_penalty=0.5, logit_bias={30: 4.0}, min_p=0.02, top_k=30,
                       min_tokens=8)
        shaped = await respond(engine, ids[:20], 16, temperature=0.9, shaping=rule)
        shaped_own, _ = await embedded.score([*ids[:20], *(token.id for token in shaped)])
        read = await engine.read(ids[:20], 2)
    finally:
        await embedded.stop()
    # bfloat16 activations against float32 ones.
    gaps = [abs(a - b) for a, b in zip(theirs, ours, strict=True)]
    gaps += [abs(a - token.model_logprob) for a, token in zip(checked[19:], drawn, strict=True)]
    assert max(gaps) < 0.6 and sum(gaps) / len(gaps) < 0.08
    own = [abs(a - token.model_logprob) for a, token in zip(shaped_own[19:], shaped, strict=True)]
    assert len(shaped) >= 8 and max(own) < 0.6, "penalties and bias are not in the model's own log-probabilities"
    assert [token.id for token in read] == ids[1:20] and all(len(token.top) == 2 for token in read)
    assert all(token.top[0][1] >= token.model_logprob - 0.01 for token in read)
    sampled = [token.model_logprob for token in drawn]
    assert [token.id for token in again] == [token.id for token in drawn]
    assert all(token.logprob > model for token, model in zip(drawn, sampled, strict=True) if model > -1)
    assert transcript.logprobs == [0.0] * len(transcript.response_ids)  # greedy


async def test_eight_responses_go_on_through_updates(engine: SglangEngine, newer: Path, folder: Path) -> None:
    prompts = [[1, 504, 260, 3575, 282 + i] for i in range(8)]
    before = await engine.score(prompts[0])
    made = engine.status().counters["engine_tokens"]
    responses = [asyncio.create_task(respond(engine, prompt, 60, temperature=1.0)) for prompt in prompts]

    def all_running() -> bool:
        status = engine.status()
        return status.counters["engine_tokens"] > made + 24 and status.gauges["running"] == 8

    await eventually(all_running, 60)
    await engine.stage(1, newer)
    pause = await engine.activate(1)
    assert pause.steps == 1
    results = await asyncio.gather(*responses)
    spans = [[token.version for token in tokens] for tokens in results]
    assert all(versions == sorted(versions) for versions in spans)
    assert sum(set(versions) == {0, 1} for versions in spans) >= 6  # some may have ended before
    after = await engine.score(prompts[0])
    assert after[1] == 1 and after[0] != before[0]


async def test_a_killed_server_comes_back_with_the_active_version(engine: SglangEngine, newer: Path) -> None:
    if engine.active_version == 0:  # it runs alone
        await engine.stage(1, newer)
        await engine.activate(1)
    ids = [1, 504, 260, 3575, 282]
    score = await engine.score(ids)
    made = engine.status().counters["engine_tokens"]
    running = asyncio.create_task(respond(engine, ids, 40, temperature=1.0))
    await eventually(lambda: engine.status().counters["engine_tokens"] > made + 3, 60)
    process = engine._manager.workers[0].process
    assert process and process.pid
    os.kill(process.pid, signal.SIGKILL)
    await eventually(lambda: engine.status().workers[0].state == "out", 30)
    assert engine.status().alarms
    tokens = await running  # goes on from where it was
    assert len(tokens) == 40 or tokens[-1].id in engine.info.eos_ids
    assert {token.version for token in tokens} == {1}
    assert engine.status().workers[0].state == "serving" and engine.status().workers[0].version == 1
    assert await engine.score(ids) == score


async def test_a_server_dies_with_its_policy_server(tmp_path: Path) -> None:
    """Also when that is killed: nobody can clean up then."""
    root = Path(__file__).parents[4]
    script = ("import asyncio, pathlib, sys\n"
              "from openclaw_rl.serving.engines.sglang.process import ServerProcess\n"
              "async def main():\n"
              f"    server = ServerProcess([], {{'PYTHONPATH': {str(root)!r}}}, pathlib.Path({str(tmp_path)!r}), "
              f"pathlib.Path({str(tmp_path / 'log')!r}), 'tests.serving.engines.sglang.sleeper')\n"
              "    await server.start()\n"
              "    print(server.pid, flush=True)\n"
              "    await asyncio.sleep(600)\n"
              "asyncio.run(main())\n")
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout
    pid = int(await parent.stdout.readline())
    await eventually(lambda: (tmp_path / "log").read_text() == "up\n", 60)
    parent.kill()
    await parent.wait()
    await eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 30)
