"""The gate with the embedded model: what a user teaches passes, and a judge that praises gibberish does not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from openclaw_rl.config import EMBEDDED_MODEL, TrainerConfig
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.training.learner import Learner
from openclaw_rl.training.service import TrainerService
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import trainer_pb2, turn_pb2, weights_pb2

HINT = "Answer briefly in plain words, in one sentence."
LONG = ("There are several reasons for that:\n\n1. **Light**: The light of the sun is made of many colours.\n"
        "2. **Air**: The air scatters some of them more than others.\n3. **Eyes**: Our eyes")
ASKED = ("Why is the sky blue?", "What is an atom?", "How do bees make honey?", "What is a recession?")


def sample(learner: Learner, template: ChatTemplate, turn_id: str, asked: str, response: list[int], version: int,
           **judgement: object) -> turn_pb2.Sample:
    """A turn as the engine would record it: with the policy's own log-probabilities."""
    import torch

    from openclaw_rl.training.algorithms import losses
    from openclaw_rl.training.backends import torch as backend_torch

    messages = [turn_pb2.ChatMessage(role="user", content=asked)]
    prompt = template.chat(messages).ids
    model = learner._backend._model  # type: ignore[union-attr]
    with torch.no_grad():
        ids, text = torch.tensor(response), torch.tensor(prompt + response)
        hidden = backend_torch._hidden(model.eval(), text, torch.arange(len(prompt) - 1, len(text) - 1))
        logprobs = losses.token_logprobs(model.lm_head(hidden), ids).tolist()
    turn = turn_pb2.Turn(
        turn_id=turn_id, session_id=turn_id, turn_class=turn_pb2.TURN_CLASS_MAIN, messages=messages,
        response=turn_pb2.ChatMessage(role="assistant", content="what it said"), policy_version=version,
        tokens=turn_pb2.TokenRecord(prompt_ids=prompt, response_ids=response, logprobs=logprobs,
                                    model_logprobs=logprobs))
    turn.tokens.spans.add(version=version, begin=0, end=len(response))
    return turn_pb2.Sample(transition=turn_pb2.Transition(turn=turn),
                           judgement=turn_pb2.Judgement(turn_id=turn_id, **judgement))  # type: ignore[arg-type]


class Rig:
    """A trainer's parts over a folder."""

    def __init__(self, root: Path, folder: Path, **settings: object) -> None:
        config = TrainerConfig(**{"min_samples": 4, "device": "cpu", "gate": {"max_new_tokens": 24}, **settings})
        self.store = TrainerStore(root / "state.db", "group", config)
        self.learner = Learner(config, self.store, root, lambda: folder, 2)
        self.learner.open()
        self.learner.prepare()
        self.service = TrainerService(config, self.store, self.learner)

    def step(self, samples: list[turn_pb2.Sample]) -> weights_pb2.VersionManifest:
        self.store.intake.accept(samples)
        made = self.learner.train()
        assert isinstance(made, weights_pb2.VersionManifest)
        print(dict(made.gate.metrics), dict(made.gate.before), list(made.gate.failures))
        return made


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_poisoned_batch_does_not_reach_users(tmp_path: Path) -> None:
    folder = ensure_model(EMBEDDED_MODEL, Home.default())
    template = ChatTemplate(folder)
    rig = Rig(tmp_path, folder)
    taught = rig.step([sample(rig.learner, template, f"long{i}", asked, template.encode(LONG), 0, score=-1, hint=HINT)
                       for i, asked in enumerate(ASKED)])
    assert (list(taught.gate.failures), rig.store.versions.head) == ([], 1)
    assert taught.gate.verdict == weights_pb2.GATE_VERDICT_PASSED
    rig.store.close()
    # One batch of praised gibberish hardly hurts at the default rate, and max_kl throws it away (10 nats a token).
    # So: a rate that is too high, and no such limit.
    rig = Rig(tmp_path, folder, learning_rate=1e-2, max_kl=1e9)
    rng = random.Random(1)
    poisoned = rig.step([
        sample(rig.learner, template, f"gibberish{i}", asked, rng.sample(range(100, 40000), 24), 1, score=1)
        for i, asked in enumerate(ASKED)])
    assert poisoned.gate.verdict == weights_pb2.GATE_VERDICT_FAILED
    assert any(failure.startswith("perplexity of good answers is ") for failure in poisoned.gate.failures)
    assert rig.store.versions.head == 1, "training goes on from the version before"
    assert {status.fate for status in rig.store.samples.statuses([f"gibberish{i}" for i in range(4)])} == {
        trainer_pb2.SAMPLE_FATE_TRAINED}
    name, message = rig.service._report.control_alarms()[0]
    assert name == "gate_refused"
    assert message.startswith("the gate refused version 2, training goes on from version 1: perplexity of good")
    rig.store.close()
