"""Full fine-tune of the base model on hand-written good answers: what is possible with that model."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModelForCausalLM

from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.training.algorithms import losses
from openclaw_rl.v1 import turn_pb2
from tools.bench.learning.items import Item

EPOCHS, BATCH, RATE = 3, 8, 3e-5


def fine_tune(base: Path, folder: Path, examples: Sequence[Item]) -> None:
    """Train all weights on the examples' good answers, token by token (cross-entropy, AdamW), and write a model folder.

    Args:
        base: folder of the base model.
        folder: made.
    """
    template, model = ChatTemplate(base), AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    end = template.encode("<|im_end|>")
    texts = [(template.chat([turn_pb2.ChatMessage(role="user", content=item.prompt)]).ids,
              template.encode(item.right) + end) for item in examples]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    dice = random.Random(0)
    for _ in range(EPOCHS):
        dice.shuffle(texts)
        for begin in range(0, len(texts), BATCH):
            batch = texts[begin:begin + BATCH]
            tokens = sum(len(answer) for _, answer in batch)
            for prompt, answer in batch:
                logits = model(input_ids=torch.tensor([prompt + answer]), use_cache=False).logits[0]
                values = losses.token_logprobs(logits[len(prompt) - 1:-1], torch.tensor(answer))
                (-values.sum() / tokens).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    # Tied weights stand in the file once, as in the base model's.
    save_file({name: value.detach().bfloat16().contiguous() for name, value in model.named_parameters()},
              folder / "model.safetensors", {"format": "pt"})
