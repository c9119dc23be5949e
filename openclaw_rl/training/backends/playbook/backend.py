"""Training of the playbook of an API model."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
from typing_extensions import Buffer

from openclaw_rl.config import PlaybookConfig
from openclaw_rl.models import api_calls
from openclaw_rl.models.api_calls import Budget, Names
from openclaw_rl.models.api_endpoints import ApiModel
from openclaw_rl.training.backends.interface import (
    WEIGHTS_FILE,
    Answer,
    BackendWaits,
    Evaluation,
    HeldOut,
    StartPoint,
    Stopped,
)
from openclaw_rl.training.backends.playbook import edits, rules
from openclaw_rl.training.backends.playbook.evidence import Evidence, speaks
from openclaw_rl.training.backends.playbook.writer import RETRY_SECONDS, TIMEOUT, Writer, WriterError
from openclaw_rl.training.buffer.words import numbers
from openclaw_rl.v1.playbook_pb2 import Playbook
from openclaw_rl.weights import playbook

#: Held-out prompts that are asked at the same time.
_AT_ONCE = 4
_T = TypeVar("_T")


@dataclass(slots=True)
class Paid:
    """Cache of the last answers of the APIs. A step that has to wait for one of them is done again with a new back end,
    and must not ask for the others once more."""

    written: tuple[bytes, list[edits.Edit] | None] | None = None  #: digest of the writer's question, and its changes
    answers: tuple[tuple[Any, ...], dict[int, str]] | None = None  #: what the policy was asked, and answers by number


class PlaybookBackend:
    """A playbook, changed by one step at a time.

    Args:
        config: its bounds.
        start: where to go on from.
        writer: words the instructions.
        policy: the API model that has the playbook in its prompt, for the gate.
        names: of the policy's settings, for messages.
        budget: of requests to it.
        lineage: gives a version and those that it was made from.
        next_version: gives the number that the next version will have.
        told: gets what is wrong with the writer; "" when it works.
        paid: answers that were paid for already; outlives this back end.
    """

    def __init__(self, config: PlaybookConfig, start: StartPoint, writer: Writer, policy: ApiModel, names: Names,
                 budget: Budget, lineage: Callable[[int], list[int]], next_version: Callable[[], int],
                 told: Callable[[str], None] = lambda _: None, paid: Paid | None = None) -> None:
        self._config, self._writer, self._policy, self._names = config, writer, policy, names
        self._budget, self._lineage, self._next_version = budget, lineage, next_version
        self._told, self._paid = told, paid or Paid()
        self._playbook = Playbook() if start.weights is None else playbook.parse(start.weights.read_bytes())

    def step(self, examples: Sequence[Evidence], version: int, stop: Callable[[], bool]) -> dict[str, float]:
        """See Backend.step. First each instruction's figures, then what the turns say should change.

        Raises:
            BackendWaits: the writer does not answer.
        """
        started = time.perf_counter()
        new = Playbook()
        new.CopyFrom(self._playbook)
        rules.fade(new, self._config.min_uses)
        self._count(new, examples, version)
        retired = rules.retire(new, self._config.min_uses, self._config.min_score)
        wanted, done, fallback, fresh = speaks(examples), Counter[str](), False, set[str]()
        self._writer.calls = 0
        if wanted:
            changes = self._changes(new, wanted, stop)
            fallback = changes is None
            new, fresh, done = edits.apply(new, edits.from_hints(wanted) if changes is None else changes,
                                           self._next_version())
        retired += rules.bound(new, self._config.max_tokens, self._config.max_entries, fresh)
        self._playbook = new
        return {"entries": len(new.entries), "tokens": rules.size(new), **{
            name: done[name] for name in ("added", "reworded", "merged")},
            "dropped": done["dropped"] + len(retired), "calls": self._writer.calls, "from_hints": fallback,
            "mean_score": sum(item.score for item in examples) / len(examples), "samples": len(examples),
            "seconds": time.perf_counter() - started}

    def _changes(self, new: Playbook, wanted: Sequence[Evidence], stop: Callable[[], bool]) -> list[edits.Edit] | None:
        """Return the writer's changes; it is not asked twice for the same."""
        asked = hashlib.sha256(repr((playbook.dump(new), list(wanted))).encode()).digest()
        if self._paid.written is not None and self._paid.written[0] == asked:
            return self._paid.written[1]
        try:
            changes = self._run(self._writer.write(new, wanted, self._config.max_tokens, self._config.max_entries),
                                stop)
        except WriterError as error:
            self._told(str(error))
            raise BackendWaits(f"the playbook's writer does not work: {error}") from None
        self._told("")
        self._paid.written = asked, changes
        return changes

    def _count(self, new: Playbook, examples: Sequence[Evidence], version: int) -> None:
        """Count the turns that were answered under each instruction, and their scores. An instruction that is there
        was there in all versions of this line since the one that it came with."""
        line = set(self._lineage(version))
        for entry in new.entries:
            for item in examples:
                if item.version is not None and item.version in line and item.version >= entry.added_in:
                    entry.uses += 1
                    entry.score_sum += item.score

    def evaluate(self, prompts: Sequence[HeldOut], max_new_tokens: int, stop: Callable[[], bool], *,
                 base: bool = False) -> Evaluation:
        """See Backend.evaluate. The policy's API answers, with this playbook or with none.

        Raises:
            BackendWaits: the API does not answer.
        """
        text = "" if base else playbook.render(self._playbook)
        key = (text, max_new_tokens, *((prompt.prompt, prompt.temperature) for prompt in prompts))
        if self._paid.answers is None or self._paid.answers[0] != key:
            self._paid.answers = key, {}
        found = self._paid.answers[1]  # all of them when only figures changed since
        if len(found) < len(prompts):
            self._run(self._answers(prompts, text, max_new_tokens, found), stop)
        answers = [found[i] for i in range(len(prompts))]
        return Evaluation([Answer(answer, numbers(answer)) for answer in answers], None)

    async def _answers(self, prompts: Sequence[HeldOut], text: str, max_tokens: int, found: dict[int, str]) -> None:
        room = asyncio.Semaphore(_AT_ONCE)
        system = [{"role": "system", "content": text}] if text else []

        async def ask(connection: openai.AsyncOpenAI, number: int) -> None:
            async def attempt() -> str:
                await self._budget.take()
                reply = await connection.chat.completions.create(
                    model=self._policy.model, temperature=prompts[number].temperature, max_tokens=max_tokens,
                    messages=[*system, {"role": "user", "content": prompts[number].prompt}])  # type: ignore[list-item]
                return api_calls.text_of(reply)

            async with room:
                try:
                    found[number] = await api_calls.call(attempt, RETRY_SECONDS)
                except openai.BadRequestError as error:
                    if api_calls.names_model(error):
                        raise
                    found[number] = ""  # such as a content filter's: no answer

        async with api_calls.client(self._policy, TIMEOUT) as connection:
            try:
                async with asyncio.TaskGroup() as group:
                    for number in set(range(len(prompts))) - found.keys():
                        group.create_task(ask(connection, number))
            except* (openai.OpenAIError, httpx.TransportError) as errors:
                why = api_calls.explain(errors.exceptions[0], self._policy, self._names)
                raise BackendWaits(f"the gate can't ask the policy's API: {why}") from None

    def tensors(self) -> Iterator[tuple[str, str, Sequence[int], Buffer]]:
        """See Backend.tensors."""
        yield playbook.tensor(self._playbook)

    def save(self, folder: Path) -> None:
        """See Backend.save: the playbook's JSON; there is no optimizer."""
        (folder / WEIGHTS_FILE).write_bytes(playbook.dump(self._playbook))

    def close(self) -> None:
        pass  # nothing is held

    def alive(self) -> bool:
        return True

    def _run(self, work: Coroutine[Any, Any, _T], stop: Callable[[], bool]) -> _T:
        """Run a coroutine on this thread, which has no event loop of its own."""
        async def watched() -> _T:
            task = asyncio.ensure_future(work)
            while True:
                await asyncio.wait({task}, timeout=0.2)
                if task.done():
                    return task.result()
                if stop():
                    task.cancel()
                    await asyncio.wait({task})
                    raise Stopped

        return asyncio.run(watched())
