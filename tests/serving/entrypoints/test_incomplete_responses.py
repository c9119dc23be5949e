"""Responses that were cut by the client, empty or stopped at the limit: from the HTTP entrypoint to the trainer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.client.facts import fate
from openclaw_rl.config import TrainerConfig
from openclaw_rl.reward.judges.rules import RulesJudge
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import turn_pb2
from tests.rollouts.harness import Harness
from tests.serving.entrypoints.conftest import Entrypoint
from tests.support.waiting import eventually

HEADERS = {"X-Session-Id": "s"}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path / "environment")
    yield harness
    harness.store.close()


async def ask(entrypoint: Entrypoint, *texts: str, **fields: Any) -> None:
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    await entrypoint.openai().chat.completions.create(model="stub", messages=messages, extra_headers=HEADERS, **fields)


async def test_each_is_marked_judged_and_trained_on_as_configured(
        entrypoint: Entrypoint, harness: Harness, tmp_path: Path) -> None:
    # The client hears "H" and hangs up; it goes on with what it has heard.
    entrypoint.engine.gate = asyncio.Event()
    stream = await entrypoint.openai().chat.completions.create(
        model="stub", messages=[{"role": "user", "content": "hi"}], stream=True, extra_headers=HEADERS)
    await anext(aiter(stream))
    await stream.close()
    await eventually(entrypoint.turns)
    entrypoint.engine.gate = None
    await ask(entrypoint, "hi", "H", "[Request interrupted by user]", max_tokens=3)
    entrypoint.says("")
    await ask(entrypoint, "hi", "H", "[Request interrupted by user]", "Hel", "no, that is wrong")
    entrypoint.says("Fine.")
    await ask(entrypoint, "hi", "H", "[Request interrupted by user]", "Hel", "no, that is wrong", "", "hello?")

    harness.tell(*entrypoint.turns())
    cut, limit, empty, fine = harness.turns().values()
    assert [summary.flaw for summary in (cut, limit, empty, fine)] == [
        "the client cut the response off", "the response stopped at the token limit", "the response is empty", ""]
    assert [summary.parent_turn_id for summary in (cut, limit, empty, fine)] == [
        "", cut.turn_id, limit.turn_id, empty.turn_id]
    assert {summary.branch_id for summary in (cut, limit, empty, fine)} == {cut.turn_id}
    assert harness.states()[cut.turn_id] == "OPEN", "nobody has said anything of it"
    harness.tracker.end("s")
    words = {turn_id: [message.content for message in state.messages] for turn_id, state in harness.sent().items()}
    assert words == {cut.turn_id: [], limit.turn_id: ["no, that is wrong"], empty.turn_id: ["hello?"],
                     fine.turn_id: []}
    told = fate(cut, None, None).json()
    assert (told["flaw"], told["branch"]) == ("the client cut the response off", cut.turn_id)

    judge = RulesJudge()
    samples = []
    for turn in harness.transitions():
        vote = judge.vote_now(turn_pb2.Transition(turn=turn, next_state=harness.sent()[turn.turn_id]))
        samples.append(turn_pb2.Sample(transition=turn_pb2.Transition(turn=turn), judgement=turn_pb2.Judgement(
            turn_id=turn.turn_id, score=vote.score)))

    def decided(**config: Any) -> list[str]:
        folder = tmp_path / "-".join([*config, *config.values()])
        store = TrainerStore(folder / "state.db", "group", TrainerConfig(**config))
        store.intake.accept(samples)
        statuses = store.samples.statuses([cut.turn_id, limit.turn_id, empty.turn_id])
        store.close()
        return [status.reason.partition(":")[0] or f"{status.score:+d}" for status in statuses]

    assert decided(truncated="keep", degenerate="keep") == ["+0", "-1", "+0"]
    assert decided(truncated="keep", degenerate="drop") == ["+0", "-1", "degenerate"]
    assert decided(truncated="drop", degenerate="keep") == ["truncated", "truncated", "+0"]
    assert decided(truncated="penalise", degenerate="keep") == ["-1", "-1", "+0"]
