"""The parts of the engine that need no server."""

from __future__ import annotations

import asyncio
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from openclaw_rl.config import ConfigError, PolicyServerConfig
from openclaw_rl.serving.engines import factory as making
from openclaw_rl.serving.engines.embedded.sampler import Draw, sample
from openclaw_rl.serving.engines.embedded.shaping import Shaper
from openclaw_rl.serving.engines.interface import EngineBusy, EngineError, Sampling, Shaping
from openclaw_rl.serving.engines.sglang import arguments, cpu, hook, request_tag
from openclaw_rl.serving.engines.sglang.pool import Pool


class PoolMember:
    def __init__(self) -> None:
        self.running, self.accepting, self.serving = 0, True, True


async def test_a_session_stays_where_its_cache_is() -> None:
    workers = [PoolMember(), PoolMember()]
    pool = Pool(workers, 8, 8, 5)
    first = await pool.acquire("a", [1])
    assert await pool.acquire("b", [1]) is not first
    for _ in range(3):
        assert await pool.acquire("a", [1]) is first


async def test_a_prompt_goes_where_its_beginning_went() -> None:
    pool = Pool([PoolMember(), PoolMember()], 8, 8, 5)
    prompt = [random.randrange(100) for _ in range(100)]
    first = await pool.acquire("", prompt)
    assert await pool.acquire("", list(range(100))) is not first
    assert await pool.acquire("", [*prompt, 1, 2, 3]) is first


async def test_a_session_moves_when_its_worker_is_much_busier_or_out() -> None:
    workers = [PoolMember(), PoolMember()]
    pool = Pool(workers, 4, 8, 5)
    home = await pool.acquire("a", [1])
    for _ in range(2):
        assert await pool.acquire("a", [1]) is home
    assert await pool.acquire("a", [1]) is not home  # 3 against 0, and 2 more are borne
    home.accepting = False
    assert await pool.acquire("b", [1]) is not home


async def test_those_who_wait_are_served_in_order_and_not_too_many_wait() -> None:
    worker = PoolMember()
    pool = Pool([worker], 1, 2, 5)
    await pool.acquire("", [1])
    order: list[int] = []

    async def wait(number: int) -> None:
        await pool.acquire("", [1])
        order.append(number)

    tasks = [asyncio.create_task(wait(i)) for i in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(EngineBusy):
        await pool.acquire("", [1])
    gone = tasks[0]
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    pool.release(worker)
    await tasks[1]
    assert order == [1] and worker.running == 1


async def test_nobody_waits_for_ever_without_a_worker() -> None:
    worker = PoolMember()
    worker.accepting = worker.serving = False
    with pytest.raises(EngineError, match="no SGLang worker has answered"):
        await Pool([worker], 1, 1, 0.02).acquire("", [1])


@pytest.mark.parametrize("seed", [None, 0, 5, 2**63 - 1])
def test_a_seed_survives_its_way_through_sglang(seed: int | None) -> None:
    asked = request_tag.ask(seed)
    assert request_tag.asked(asked) and request_tag.seed_of(asked) == seed
    assert all(0 <= digit < 128 for digit in asked)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.3, 0.6), (0.0, 1.0)])
def test_the_hooks_figures_are_the_embedded_samplers(temperature: float, top_p: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 50) * 3
    rules = [Draw(Sampling(temperature=temperature, top_p=top_p, seed=i)) for i in range(40)]
    theirs: list[Any] = sample(logits, rules, 0)
    drawn = torch.tensor([token.id for token in theirs])
    ids, model, chosen = hook.figures(
        logits, drawn, torch.full((40, 1), temperature or 1.0), torch.full((40,), top_p),
        torch.full((40,), 1 if temperature == 0 else 1 << 30), [None] * 40)
    assert ids.tolist() == drawn.tolist()
    assert model.tolist() == pytest.approx([token.model_logprob for token in theirs], abs=1e-4)
    assert chosen.tolist() == pytest.approx([token.logprob for token in theirs], abs=1e-4)


def test_the_hooks_figures_are_the_embedded_samplers_with_penalties_too() -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 50) * 3
    rule = Shaping(frequency_penalty=0.5, logit_bias={3: 2.0}, min_p=0.05, top_k=7)
    draws = [Draw(Sampling(temperature=0.9, seed=i, shaping=rule), Shaper(rule, [], [i, i, 4], ())) for i in range(40)]
    theirs: list[Any] = sample(logits, draws, 0)
    info = SimpleNamespace(penalizer_orchestrator=None, logit_bias=torch.zeros(1))

    def change(_info: Any, values: torch.Tensor) -> None:  # in place, as SGLang does
        values.copy_(torch.stack([draw.shaper(row) for draw, row in zip(draws, values, strict=True)]))

    shaped = logits.clone()
    hook.shape(change, info, shaped)
    _, model, chosen = hook.figures(
        shaped, torch.tensor([token.id for token in theirs]), torch.full((40, 1), 0.9), torch.ones(40),
        torch.full((40,), 7), [None] * 40, torch.full((40, 1), 0.05), info.openclaw_rl_logits)
    assert model.tolist() == pytest.approx([token.model_logprob for token in theirs], abs=1e-4)
    assert chosen.tolist() == pytest.approx([token.logprob for token in theirs], abs=1e-4)
    plain = SimpleNamespace(penalizer_orchestrator=None)
    hook.shape(lambda _info, _logits: None, plain, logits)
    assert not hasattr(plain, "openclaw_rl_logits"), "batches without any of them are not copied"


def test_a_seed_draws_from_the_distribution_that_is_told() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0, -1.0]])
    many = 4000
    ids, _, chosen = hook.figures(
        logits.repeat(many, 1), torch.zeros(many, dtype=torch.long), torch.ones(many), torch.full((many,), 0.9),
        torch.full((many,), 1 << 30), [random.Random(i).random() for i in range(many)])
    for token in range(4):
        share = (ids == token).float().mean().item()
        told = chosen[ids == token]
        assert share == pytest.approx(math.exp(told[0]) if len(told) else 0, abs=0.03)
    assert 3 not in ids.tolist()


def test_the_sampler_is_only_touched_for_requests_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bag:
        pass

    output, info = Bag(), Bag()
    output.next_token_logits = torch.randn(2, 300)  # type: ignore[attr-defined]
    output.next_token_logprobs = torch.tensor([-7.0, -7.0])  # type: ignore[attr-defined]
    output.next_token_token_ids_logprobs_val = [torch.zeros(1), torch.zeros(3)]  # type: ignore[attr-defined]
    info.temperatures, info.top_ps, info.top_ks = torch.ones(2, 1), torch.ones(2), torch.full((2,), 1 << 30)  # type: ignore
    monkeypatch.setattr(hook, "served_version", lambda: 12)
    drawn = hook.sampler_forward(lambda *args, **kwargs: torch.tensor([4, 5]), None, output, info, True, [0, 0],
                                 [[9], request_tag.ask(None)], torch.tensor([7, 8]))
    values = output.next_token_token_ids_logprobs_val  # type: ignore[attr-defined]
    assert drawn.tolist() == [4, 5] and values[0].tolist() == [0.0]
    expected = torch.log_softmax(output.next_token_logits[1].double(), -1)[5].item()  # type: ignore[attr-defined]
    assert values[1].tolist() == pytest.approx([expected, expected, 12])
    assert output.next_token_logprobs[0] == -7  # type: ignore[attr-defined]


def test_the_cpu_platform_is_only_there_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    assert cpu.activate() is None
    monkeypatch.setenv("SGLANG_PLATFORM", cpu.NAME)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cpu.activate() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cpu.activate() == "openclaw_rl.serving.engines.sglang.cpu_platform:CpuPlatform"


def test_the_command_line_of_a_cpu_and_of_a_gpu(tmp_path: Path) -> None:
    settings = PolicyServerConfig(device="cpu", sglang={"arguments": {"log-level": "debug", "disable-x": False}})
    values = arguments.engine_arguments(settings, tmp_path, 7, 1024)
    line = " ".join(arguments.command_line(values))
    assert "--device cpu" in line and "--weight-version 7" in line and "--log-level debug" in line
    assert "--incremental-streaming-output" in line.split() and "--disable-x" not in line
    assert arguments.environment("cpu")["SGLANG_PLATFORM"] == cpu.NAME
    assert "SGLANG_PLATFORM" not in arguments.environment("cuda")
    assert "--device" not in arguments.command_line(arguments.engine_arguments(
        PolicyServerConfig(device="cuda"), tmp_path, 0, 1024))


@pytest.mark.parametrize(("sglang", "error"), [
    ({"arguments": {"port": 1}}, "sglang.arguments.port: is set by openclaw-rl itself"),
    ({"tensor_parallel": 2}, "sglang.tensor_parallel: 2 needs GPUs"),
    ({"addresses": ["10.0.0.1:30000"]}, "'10.0.0.1:30000' is not http://HOST:PORT"),
    ({"addresses": ["http://a:1", "http://a:1"]}, "one is there twice")])
def test_settings_that_can_not_be_are_named(sglang: dict[str, Any], error: str) -> None:
    settings = PolicyServerConfig(engine="sglang", device="cpu", sglang=sglang)
    assert any(error in problem for problem in arguments.validate_settings(settings))


def test_sglang_that_is_not_installed_is_named_with_the_line_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making.importlib.util, "find_spec", lambda name: None)
    assert making.engine_name(PolicyServerConfig()) == "embedded"
    for settings in (PolicyServerConfig(engine="sglang"), PolicyServerConfig(sglang={"tool_parser": "qwen25"})):
        assert "pip install 'openclaw-rl[sglang]'" in making.validate_settings(settings)[0]


@pytest.mark.parametrize("gpu", [True, False])
def test_auto_takes_sglang_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch, gpu: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert making.engine_name(PolicyServerConfig()) == ("sglang" if gpu else "embedded")
    assert making.engine_name(PolicyServerConfig(engine="openai", model="glm-4-flash")) == "openai"


async def test_a_model_folder_without_a_tokenizer_is_named_before_anything_starts(tiny: Path, tmp_path: Path) -> None:
    from contextlib import AsyncExitStack

    from openclaw_rl.runtime.home import Home

    settings = PolicyServerConfig(engine="sglang", device="cpu", model=str(tiny))
    async with AsyncExitStack() as engines:
        with pytest.raises(ConfigError, match=r"tokenizer_config\.json is missing"):
            await making.make_policy(settings, Home(tmp_path), lambda text: None, engines)
