"""The engine against servers that do what SGLang does, and what it does when things go wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from openclaw_rl.serving.engines.interface import (
    EngineBusy,
    EngineError,
    Finished,
    PromptTooLong,
    Sampling,
    Shaping,
    WeightsError,
)
from openclaw_rl.serving.engines.sglang.engine import SglangEngine
from tests.serving.engines.conftest import save_model
from tests.serving.engines.sglang.conftest import Make, respond
from tests.serving.engines.sglang.fake import FakeSglang
from tests.support.waiting import eventually


async def test_tokens_come_with_both_log_probabilities_and_their_version(make: Make, fakes: list[FakeSglang]) -> None:
    engine = await make(fakes[0])
    tokens = await respond(engine, [5, 6], 3, top_logprobs=2, seed=9, temperature=1.5, top_p=0.9)
    assert [token.id for token in tokens] == [7, 8, 9]
    assert [(token.model_logprob, token.logprob, token.version) for token in tokens] == [(-0.5, -0.25, 0)] * 3
    assert tokens[0].top == [(7, -0.5), (3, -1.5)]
    asked = fakes[0].requests()[0]
    assert asked["input_ids"] == [5, 6] and asked["sampling_params"]["temperature"] == 1.5
    assert asked["sampling_params"]["top_p"] == 0.9 and asked["token_ids_logprob"][:3] == [0, 0, 0]
    assert len(asked["token_ids_logprob"]) > 3  # the seed


async def test_penalties_are_passed_on(make: Make, fakes: list[FakeSglang]) -> None:
    engine = await make(fakes[0])
    shaping = Shaping(frequency_penalty=0.5, presence_penalty=1, repetition_penalty=1.2, logit_bias={5: -3.0}, top_k=4,
                      min_p=0.1, min_tokens=2, ignore_eos=True)
    await respond(engine, [5, 6], 3, shaping=shaping)
    await respond(engine, [5, 6], 3)
    first, second = (asked["sampling_params"] for asked in fakes[0].requests())
    added = {key: value for key, value in first.items() if key not in second}
    assert added == {"frequency_penalty": 0.5, "presence_penalty": 1, "repetition_penalty": 1.2, "min_p": 0.1,
                     "logit_bias": {"5": -3.0}, "top_k": 4, "min_new_tokens": 2, "ignore_eos": True}


async def test_stop_ids_and_room_end_a_response(make: Make, fakes: list[FakeSglang]) -> None:
    engine = await make(fakes[0], max_context=128)
    items = [item async for item in engine.generate([5], Sampling(stop_token_ids=(9,)))]
    assert items[-1] == Finished("stop") and [item.id for item in items[:-1]] == [6, 7, 8, 9]  # type: ignore
    items = [item async for item in engine.generate([1] * 126, Sampling())]
    assert items[-1] == Finished("length") and len(items) == 3


async def test_scores_are_those_of_the_given_tokens(make: Make, fakes: list[FakeSglang]) -> None:
    engine = await make(fakes[0])
    assert await engine.score([1, 2, 3]) == ([-0.2, -0.3], 0)
    assert [(token.id, token.model_logprob, token.top) for token in await engine.read([1, 2], 1)] == [
        (2, -0.2, [(9, -0.1)])]


@pytest.mark.parametrize(("ids", "error"), [
    ([], "at least one is needed"), ([1, 128], "token id 1: 128 is not allowed: 0 to 127"), ([-1], "-1"),
    ([True], "True is not allowed")])
async def test_what_kills_a_server_never_reaches_it(make: Make, fakes: list[FakeSglang], ids: list[int],
                                                    error: str) -> None:
    engine = await make(fakes[0])
    with pytest.raises(ValueError, match=error):
        await respond(engine, ids)
    with pytest.raises(ValueError, match=error):
        await engine.score(ids)
    assert not fakes[0].requests()


async def test_a_long_prompt_and_a_full_queue_are_refused(make: Make, fakes: list[FakeSglang]) -> None:
    fakes[0].delay = 0.05
    engine = await make(fakes[0], max_context=128, max_batch=1, max_waiting=1)
    with pytest.raises(PromptTooLong):
        await respond(engine, [1] * 128)
    running = [asyncio.create_task(respond(engine, [1], 10)) for _ in range(2)]
    await eventually(lambda: engine.status().gauges["waiting"] == 1)
    with pytest.raises(EngineBusy):
        await respond(engine, [1])
    await asyncio.gather(*running)


async def test_a_cancelled_response_is_aborted_alone(make: Make, fakes: list[FakeSglang]) -> None:
    engine = await make(fakes[0])
    other = asyncio.create_task(respond(engine, [1], 100))
    stream = engine.generate([5], Sampling(max_tokens=1000))
    await anext(stream)  # type: ignore[call-overload]
    await stream.aclose()  # type: ignore[attr-defined]
    await eventually(lambda: "/abort_request" in fakes[0].paths())
    assert len(await other) == 100
    await eventually(lambda: fakes[0].running == 0)


async def test_an_update_pauses_in_place_and_reads_the_version_back(make: Make, fakes: list[FakeSglang],
                                                                    other: Path) -> None:
    engine = await make(fakes[0])
    before = len(fakes[0].calls)
    responses = [asyncio.create_task(respond(engine, [i + 1], 100)) for i in range(8)]
    await eventually(lambda: engine.status().counters["engine_tokens"] > 40)
    await engine.stage(3, other)
    pause = await engine.activate(3)
    assert engine.active_version == 3 and pause.steps == 1
    for response in await asyncio.gather(*responses):
        versions = [token.version for token in response]
        assert len(versions) == 100 and versions == sorted(versions) and set(versions) == {0, 3}
    assert [path for path in fakes[0].paths() if path != "/abort_request"][-4:] == [
        "/pause_generation", "/update_weights_from_disk", "/update_weight_version", "/continue_generation"]
    called = [path for path, _ in fakes[0].calls]
    assert "/model_info" in called[called.index("/update_weight_version", before):
                                   called.index("/continue_generation", before)]
    sent = next(body for path, body in fakes[0].calls[before:] if path == "/update_weights_from_disk")
    assert sent["flush_cache"] is False and sent["abort_all_requests"] is False
    assert (Path(sent["model_path"]) / "model.safetensors").samefile(other / "model.safetensors")
    assert "/abort_request" not in fakes[0].paths()


async def test_what_the_cache_holds_of_another_activation_is_never_used(make: Make, fakes: list[FakeSglang],
                                                                        tiny: Path, other: Path) -> None:
    engine = await make(fakes[0])
    for version, folder in ((1, other), (0, tiny)):
        await respond(engine, [5])
        await engine.stage(version, folder)
        await engine.activate(version)
    await respond(engine, [5])
    keys = [asked["extra_key"] for asked in fakes[0].requests()]
    assert len(set(keys)) == 3  # also back at version 0: what ran on ended there with weights of version 1
    engine.clear_prefixes()
    assert [token.cached_tokens for token in await respond(engine, [5, 6, 7], 3)] == [2, 0, 0]
    assert fakes[0].requests()[-1]["extra_key"] not in keys


async def test_tensors_go_between_begin_and_end(make: Make, fakes: list[FakeSglang], other: Path) -> None:
    engine = await make(fakes[0], sglang={"update": "tensors"})
    before = len(fakes[0].paths())
    await engine.stage(1, other)
    await engine.activate(1)
    assert fakes[0].paths()[before:] == [
        "/pause_generation", "/begin_weight_update", "/update_weights_from_tensor", "/end_weight_update",
        "/update_weight_version", "/continue_generation"]


@pytest.mark.parametrize("wrong", ["shape", "missing", "nan"])
async def test_weights_that_do_not_fit_are_refused_before_a_server_sees_them(
        make: Make, fakes: list[FakeSglang], tmp_path: Path, wrong: str) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    folder = save_model(tmp_path / "bad")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    if wrong == "missing":
        del tensors[name]
    else:
        tensors[name] = tensors[name].T.contiguous() if wrong == "shape" else tensors[name] * torch.nan
    save_file(tensors, folder / "model.safetensors")
    engine = await make(fakes[0])
    before = fakes[0].paths()
    with pytest.raises(WeightsError, match=name):
        await engine.stage(1, folder)
    assert fakes[0].paths() == before
    with pytest.raises(WeightsError, match="not staged"):
        await engine.activate(1)


@pytest.mark.parametrize("refused", ["/update_weights_from_disk", "/update_weight_version"])
async def test_a_refused_update_leaves_the_old_version_and_no_response_fails(
        make: Make, fakes: list[FakeSglang], other: Path, refused: str) -> None:
    engine = await make(fakes[0])
    running = asyncio.create_task(respond(engine, [1], 100))
    await eventually(lambda: engine.status().counters["engine_tokens"] > 3)
    fakes[0].refuse[refused] = 1
    await engine.stage(1, other)
    with pytest.raises(WeightsError, match=r"version 1 is not active.*shapes do not fit"):
        await engine.activate(1)
    assert {token.version for token in await running} == {0}
    assert engine.active_version == 0 and fakes[0].version == "0"
    updates = [body["model_path"] for path, body in fakes[0].calls if path == "/update_weights_from_disk"]
    assert updates[-1] == fakes[0].model_path  # the old weights again: the refused ones may be there in part
    await engine.stage(2, other)
    await engine.activate(2)
    assert (await respond(engine, [1]))[0].version == 2


async def test_a_server_that_does_not_take_the_version_is_found(make: Make, fakes: list[FakeSglang],
                                                                other: Path) -> None:
    engine = await make(*fakes)
    fakes[0].forget_version = True
    await engine.stage(1, other)
    await engine.activate(1)
    assert [worker.state for worker in engine.status().workers] == ["out", "serving"]
    assert "reports '0'" in engine.status().alarms[0][1]
    fakes[0].forget_version = False
    await eventually(lambda: engine.status().workers[0].state == "serving")
    assert engine.status().workers[0].version == 1


async def test_a_worker_that_fails_an_update_is_brought_back_while_the_other_serves(
        make: Make, fakes: list[FakeSglang], other: Path) -> None:
    engine = await make(*fakes)
    fakes[1].refuse["/update_weights_from_disk"] = 4
    await engine.stage(1, other)
    await engine.activate(1)
    assert engine.active_version == 1
    assert [worker.state for worker in engine.status().workers] == ["serving", "out"]
    before = len(fakes[1].requests())
    for _ in range(3):
        assert {token.version for token in await respond(engine, [1])} == {1}
    await eventually(lambda: not engine.status().alarms)
    assert fakes[1].version == "1"
    assert len(fakes[1].requests()) == before


async def test_a_response_goes_on_elsewhere_when_its_worker_dies(make: Make, fakes: list[FakeSglang]) -> None:
    engine = await make(*fakes)
    responses = [asyncio.create_task(respond(engine, [i], 60, session=f"s{i}")) for i in range(6)]
    await eventually(lambda: fakes[0].running > 0 and fakes[1].running > 0
                     and engine.status().counters["engine_tokens"] > 30)
    await fakes[0].stop()
    for i, response in enumerate(await asyncio.gather(*responses)):
        assert [token.id for token in response] == [i + 1 + at for at in range(60)]  # none lost, none twice
    await eventually(lambda: engine.status().workers[0].state == "out")
    assert engine.status().gauges["workers_serving"] == 1
    fakes[0].version = "default"  # it is started anew, with the base model
    await fakes[0].start()
    await eventually(lambda: engine.status().workers[0].state == "serving")
    assert fakes[0].version == "0"


async def test_a_response_waits_for_the_only_worker_to_come_back(make: Make, fakes: list[FakeSglang]) -> None:
    engine = await make(fakes[0])
    fakes[0].break_after = 5
    assert [token.id for token in await respond(engine, [0], 12)] == list(range(1, 13))
    assert engine.status().counters["engine_continued"] == 1


async def test_a_server_that_somebody_else_updates_is_taken_out(make: Make, fakes: list[FakeSglang]) -> None:
    engine = await make(*fakes)
    fakes[0].refuse["/pause_generation"] = 2
    fakes[0].version = "theirs"
    await eventually(lambda: engine.status().workers[0].state == "out")
    await eventually(lambda: engine.status().workers[0].state == "serving")
    assert fakes[0].version == "0"


@pytest.mark.parametrize(("change", "error"), [
    ({"hook": False}, "without openclaw-rl's hook"), ({"context_length": 512}, "context of 512"),
    ({"tp_size": 2}, "tensor_parallel is 1: set it to 2")])
async def test_a_server_that_does_not_fit_is_named(make: Make, fakes: list[FakeSglang], change: dict[str, int],
                                                   error: str) -> None:
    for name, value in change.items():
        setattr(fakes[0], name, value)
    with pytest.raises(EngineError, match=error):
        await make(fakes[0])


async def test_another_models_server_is_named(make: Make, fakes: list[FakeSglang], tmp_path: Path) -> None:
    fakes[0].model_path = str(save_model(tmp_path / "wide", vocab_size=160))
    with pytest.raises(EngineError, match="which is another model than"):
        await make(fakes[0])


async def test_stopping_ends_what_runs(make: Make, fakes: list[FakeSglang]) -> None:
    engine: SglangEngine = await make(fakes[0], max_batch=1)
    fakes[0].delay = 0.05
    tasks = [asyncio.create_task(respond(engine, [1], 100)) for _ in range(2)]
    await eventually(lambda: engine.status().gauges["waiting"] == 1)
    await engine.stop()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, EngineError)
