"""Tiny models of each family, and samples for them. Nothing here imports megatron-core."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.algorithms.example import Example
from openclaw_rl.training.backends.interface import HeldOut
from tests.training.fakes import write_tokenizer

VOCABULARY = 97  # odd: two ranks can't share it evenly

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 38, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.5, "factor": 4.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


@dataclass(frozen=True)
class Family:
    """How a tiny model is made."""

    config: type[Any]
    settings: dict[str, Any]
    dtype: torch.dtype = torch.bfloat16


FAMILIES = {
    "llama": Family(LlamaConfig, {"tie_word_embeddings": True}),
    "llama3": Family(LlamaConfig, {"tie_word_embeddings": False, "rope_parameters": _LLAMA3}, torch.float32),
    "mistral": Family(MistralConfig, {"tie_word_embeddings": False, "head_dim": 10}, torch.float16),
    "qwen2": Family(Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": Family(Qwen3Config, {"tie_word_embeddings": False, "head_dim": 10}),
}

PROMPTS = [HeldOut(prompt, good) for prompt, good in (
    ("hello", "a good answer"), ("what is this?", "it is fine"), ("and now", "more"))]


def make(folder: Path, family: str, dtype: torch.dtype | None = None) -> Path:
    """A folder with a random model and a tokenizer.

    Args:
        dtype: of its tensors; default the family's.
    """
    torch.manual_seed(11)
    made = FAMILIES[family]
    model = AutoModelForCausalLM.from_config(made.config(**_SIZES | made.settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms are ones and biases zeros, which hides mistakes
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(dtype or made.dtype).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def examples(count: int = 5) -> list[Example]:
    """Samples of different lengths, scores and hints."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for number in range(count):
        prompt, response = (torch.randint(2, VOCABULARY, (size,), generator=generator).tolist()
                            for size in (5 + 3 * number, 9 + 4 * (count - number)))
        behaviour = (-4.5 - torch.rand(len(response), generator=generator)).tolist()
        hinted = number % 2 == 0
        found.append(Example(f"turn-{number}", prompt, response, behaviour, [number % 2] * len(response),
                             (-1, 1, 0)[number % 3], "brief" if hinted else "",
                             [7, 8, *prompt] if hinted else None))
    return found


def episodes(count: int = 5) -> list[Example]:
    """Steps of episodes: the same with advantages; two of them go on within their text."""
    found = []
    for number, example in enumerate(examples(count)):
        at, tokens = 4, len(example.response_ids)
        advantages = [(-1) ** number * 0.7] * at + [0.9] * (tokens - at)
        joined = {"gaps": [(at, [9, 8, 7, 6])], "turns": 2} if number in (1, 4) else {}
        found.append(replace(example, hint="", teacher_prompt_ids=None, advantages=advantages, **joined))
    return found


def settings(**changes: object) -> TrainerConfig:
    """Of a step whose losses are all there."""
    return TrainerConfig(**{"method": "full", "learning_rate": 1e-3, "kl_weight": 0.1, "reward_weight": 0.5,
                            "max_kl": 99.0, "device": "cpu", **changes})


def never() -> bool:
    """Don't stop."""
    return False
