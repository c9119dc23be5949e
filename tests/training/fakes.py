"""Samples and a backend without PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.algorithms.example import AbnormalStep, Example
from openclaw_rl.training.backends.interface import (
    OPTIMIZER_FILE,
    WEIGHTS_FILE,
    Answer,
    Evaluation,
    HeldOut,
    StartPoint,
    Stopped,
)
from openclaw_rl.v1 import turn_pb2

VOCABULARY = 96
WIDTH = 32


def make_model(folder: Path) -> Path:
    """A model folder: bf16 weights, and a tokenizer with one token for each printable ASCII character."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                         initializer_range=0.2,  # so that prompts matter
                         tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, pad_token_id=1)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """One token for each printable ASCII character."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"<s>": 0, **{chr(32 + i): i for i in range(1, 95)}, " ": 95}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def encode(text: str) -> list[int]:
    """Token ids of printable ASCII."""
    return [95 if c == " " else ord(c) - 32 for c in text]


def make_sample(turn_id: str, score: int = -1, hint: str = "", *, words: str = "hello you",
                response: str = "long answer", version: int = 0, session: str = "s") -> turn_pb2.Sample:
    """A judged main turn."""
    ids = encode(response)
    turn = turn_pb2.Turn(
        turn_id=turn_id, session_id=session, turn_class=turn_pb2.TURN_CLASS_MAIN,
        messages=[turn_pb2.ChatMessage(role="user", content=words)],
        response=turn_pb2.ChatMessage(role="assistant", content=response), policy_version=version,
        tokens=turn_pb2.TokenRecord(prompt_ids=encode(f"[{words}]:"), response_ids=ids, logprobs=[-3.0] * len(ids),
                                    model_logprobs=[-4.0] * len(ids)))
    turn.tokens.spans.add(version=version, begin=0, end=len(ids))
    return turn_pb2.Sample(transition=turn_pb2.Transition(turn=turn),
                           judgement=turn_pb2.Judgement(turn_id=turn_id, score=score, hint=hint))


class FakeBackend:
    """Counts its steps in one tensor. What it should do next is said from outside."""

    created: ClassVar[list[FakeBackend]] = []
    fail: ClassVar[Exception | None] = None
    apart: ClassVar[float] = 0.01
    compared: ClassVar[int] = 400
    says: ClassVar[tuple[str, list[int], float]] = ("a fair answer", list(range(10)), 12.0)
    evaluated: ClassVar[list[bool]] = []
    during: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    def __init__(self, folder: Path, config: TrainerConfig, start: StartPoint) -> None:
        self.start = start
        self.steps = int(start.weights.read_text()) if start.weights else 0
        self.batches: list[list[str]] = []
        self.replayed: list[list[str]] = []
        self.closed = self.dead = False
        FakeBackend.created.append(self)

    def step(self, examples: Sequence[Example], version: int, stop: Callable[[], bool]) -> dict[str, float]:
        type(self).during()
        if stop():
            raise Stopped
        if FakeBackend.fail is not None:
            raise FakeBackend.fail
        self.steps += 1
        self.batches.append([e.turn_id for e in examples])
        self.replayed.append([e.turn_id for e in examples if e.replayed])
        return {"loss": 0.5, "kl": 0.1, "grad_norm": 1.0, "logprob_diff_mean": self.apart,
                "logprob_diff_tokens": float(self.compared),
                "samples": float(len(examples)), "seconds": 0.0}

    def evaluate(self, prompts: Sequence[HeldOut], max_new_tokens: int, stop: Callable[[], bool], *,
                 base: bool = False) -> Evaluation:
        if stop():
            raise Stopped
        type(self).evaluated.append(base)
        text, ids, perplexity = type(self).says
        if base:
            text, ids, perplexity = "a good answer", list(range(12)), 10.0
        return Evaluation([Answer(text, ids)] * len(prompts), perplexity)

    def tensors(self) -> Iterator[tuple[str, str, list[int], memoryview]]:
        yield "model.norm.weight", "BF16", [WIDTH], memoryview(bytes([self.steps, 63]) * WIDTH)

    def save(self, folder: Path) -> None:
        (folder / WEIGHTS_FILE).write_text(str(self.steps))
        (folder / OPTIMIZER_FILE).write_text("moments")

    def alive(self) -> bool:
        return not self.dead

    def close(self) -> None:
        self.closed = True

    @classmethod
    def reset(cls) -> None:
        """Forget what other tests did."""
        cls.created, cls.fail, cls.apart, cls.compared = [], None, 0.01, 400
        cls.during = staticmethod(lambda: None)
        cls.says, cls.evaluated = ("a fair answer", list(range(10)), 12.0), []


__all__ = ["AbnormalStep", "FakeBackend", "encode", "make_model", "make_sample"]
