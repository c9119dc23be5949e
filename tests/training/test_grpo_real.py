"""GRPO with the embedded model: two episodes of two steps through the real trainer, and what becomes of their words."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from openclaw_rl.config import EMBEDDED_MODEL, TrainerConfig
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.training.learner import Learner
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import common_pb2, turn_pb2, weights_pb2

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LOOK, END = "I look into the folder.", {"good": "It is done.", "bad": "No idea, sorry."}


def steps(template: ChatTemplate, episode: str, outcome: float) -> list[turn_pb2.Sample]:
    """Two turns; the second one's prompt is the first one's, its response and what was seen."""
    messages = [turn_pb2.ChatMessage(role="user", content="List the files and say when it is done.")]
    first = template.chat(messages).ids
    look = template.encode(f"{LOOK}<|im_end|>")
    seen = template.encode("\n<|im_start|>user\na.txt b.txt<|im_end|>\n<|im_start|>assistant\n")
    end = template.encode(f"{END[episode]}<|im_end|>")
    found = []
    for step, (prompt, response) in enumerate(((first, look), ([*first, *look, *seen], end)), 1):
        turn = turn_pb2.Turn(
            turn_id=f"{episode}-{step}", session_id=f"ses-{episode}", turn_class=turn_pb2.TURN_CLASS_MAIN,
            messages=messages, response=turn_pb2.ChatMessage(role="assistant", content=LOOK),
            tokens=turn_pb2.TokenRecord(prompt_ids=prompt, response_ids=response, logprobs=[-2.0] * len(response),
                                        model_logprobs=[-2.0] * len(response),
                                        spans=[common_pb2.VersionSpan(version=0, begin=0, end=len(response))]),
            episode=turn_pb2.EpisodeStep(episode_id=episode, group_id="g", group_size=2, step=step, type="terminal",
                                         task_id="t"))
        found.append(turn_pb2.Sample(transition=turn_pb2.Transition(turn=turn), judgement=turn_pb2.Judgement(
            turn_id=turn.turn_id, votes=[turn_pb2.Vote(judge="rules", score=0)])))
    found[-1].transition.outcome.CopyFrom(turn_pb2.EpisodeOutcome(value=outcome, steps=2))
    return found


def test_a_step_on_the_embedded_model(tmp_path: Path) -> None:
    folder = ensure_model(EMBEDDED_MODEL, Home.default())
    config = TrainerConfig(device="cpu", gate={"max_new_tokens": 8})
    store = TrainerStore(tmp_path / "state.db", "group", config)
    learner = Learner(config, store, tmp_path, lambda: folder, 2, prompts=2)
    try:
        learner.open()
        template = ChatTemplate(folder)
        store.intake.accept([*steps(template, "good", 1.0), *steps(template, "bad", 0.0)])
        store.episodes.settle(time.time())
        manifest = learner.train(episodes=True)
        assert isinstance(manifest, weights_pb2.VersionManifest), manifest
        figures = manifest.metrics
        print({name: round(value, 4) for name, value in sorted(figures.items())})
        assert (manifest.algorithm, figures["samples"], figures["texts"]) == ("grpo", 4, 2)  # one text an episode
        assert 0 < figures["step_kl"] <= config.max_kl
        assert figures["entropy"] > 0
        assert figures["logprob_complained_after"] < figures["logprob_complained_before"]
        assert learner.versions.verify(1)
        assert store.samples.statuses(["bad-2"])[0].advantage == pytest.approx(-1, abs=1e-3)
    finally:
        learner.release()
        store.close()
