"""A stub engine and a small byte-level tokenizer with a chat template, for tests without a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from openclaw_rl.serving.engines.interface import (
    EngineBusy,
    EngineError,
    EngineInfo,
    EngineStatus,
    Finished,
    Pause,
    PromptTooLong,
    Sampling,
    Token,
)

#: SmolLM2's: knows neither tools nor the role.
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
EOS = 2


def write_tokenizer(folder: Path, template: str | None = CHATML) -> Path:
    """A tokenizer of 256 bytes, three special tokens and a few merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["th", "he", "in", "er", "Ġt", "Ġa", "Ġth", "Ġthe"]
    vocab = {piece: i for i, piece in enumerate([*SPECIAL, *alphabet, *words])}
    merges = [("t", "h"), ("h", "e"), ("i", "n"), ("e", "r"), ("Ġ", "t"), ("Ġ", "a"), ("Ġ", "th"), ("Ġth", "e")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "bos_token": "<|im_start|>",
        "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>", "chat_template": template}))
    return folder


class StubEngine:
    """Says what `script` gives for a prompt: token ids, then the end. Its clock is the event loop's."""

    def __init__(self, script: Callable[[list[int]], Sequence[int]], *, delay: float = 0.0, context: int = 2048,
                 vocab: int = 267) -> None:
        self.info = EngineInfo("stub", "stub", "0" * 16, context, vocab, (EOS, 0), True)
        self.script = script
        self.delay = delay
        self.active_version = 3
        self.swap_after: dict[int, int] = {}  #: token index -> version from there on
        self.fail_after: int | None = None
        self.busy = False
        self.running = 0
        self.cached = 0  #: prompt tokens that were not computed again
        self.likelihood: Callable[[Sequence[int]], float] = lambda _response: -0.25  #: model_logprob of its tokens
        self.cleared = 0  #: calls of clear_prefixes
        self.prompts: list[list[int]] = []
        self.samplings: list[Sampling] = []
        self.gate: asyncio.Event | None = None  #: when set, tokens wait for it

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *,
                       session: str = "") -> AsyncIterator[Token | Finished]:
        if self.busy:
            raise EngineBusy("256 requests wait already", 3.0)
        if len(prompt_ids) >= self.info.context_length:
            raise PromptTooLong(len(prompt_ids), self.info.context_length)
        self.prompts.append(list(prompt_ids))
        self.samplings.append(sampling)
        self.running += 1
        try:
            room = min(sampling.max_tokens, self.info.context_length - len(prompt_ids))
            response = self.script(list(prompt_ids))
            for i, token in enumerate(response):
                if i == self.fail_after:
                    raise EngineError("the accelerator is gone")
                if i >= room:
                    yield Finished("length")
                    return
                if self.gate is not None and i:
                    await self.gate.wait()
                await asyncio.sleep(self.delay)
                self.active_version = self.swap_after.get(i, self.active_version)
                top = [(token, -0.25), (5, -2.0)][:sampling.top_logprobs]
                yield Token(token, -0.5, self.likelihood(response), self.active_version, top, 0 if i else self.cached)
                if token in (*self.info.eos_ids, *sampling.stop_token_ids):
                    break
            yield Finished("stop")
        finally:
            self.running -= 1

    def clear_prefixes(self) -> None:
        self.cleared += 1

    async def score(self, token_ids: Sequence[int]) -> tuple[list[float], int]:
        return [-1.0] * (len(token_ids) - 1), self.active_version

    async def read(self, token_ids: Sequence[int], top: int) -> list[Token]:
        return [Token(i, -1.0, -1.0, self.active_version, [(i, -1.0), (5, -2.0)][:top]) for i in token_ids[1:]]

    async def stage(self, version: int, folder: Path) -> None:
        pass

    async def activate(self, version: int) -> Pause:
        self.active_version = version
        return Pause(0.0, 0)

    def discard(self, version: int) -> None:
        pass

    def status(self) -> EngineStatus:
        return EngineStatus({"running": self.running, "waiting": 0, "tokens_per_s": 0.0})
