"""What reads users' texts takes time in proportion to them: twice the text, twice the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.sessions.fingerprint import both_digests, request_digest
from openclaw_rl.v1.turn_pb2 import ChatMessage

#: Texts that are a trap for a pattern that looks for a closing mark from every opening one, or for runs of characters.
TRAPS = {"reasoning": "<think>", "closings": "</think>", "special tokens": "<|im_start|>", "halves": "<|im_",
         "spaces": " ", "lines": "\n", "reminders": "<system-reminder>", "calls": "<tool_call>{", "words": "a b ",
         "digits": "1", "brackets": "[", "quotes": "\\\"", "braces": "{{"}


def seconds(work: Callable[[], Any]) -> float:
    """CPU time, the least of a few: the machine may be busy."""
    def once() -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    return min(once() for _ in range(3))


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("role", ["user", "assistant", "tool", "system"])
def test_digests(trap: str, role: str) -> None:
    def work(times: int) -> Callable[[], Any]:
        messages = [ChatMessage(role=role, content=TRAPS[trap] * times)]
        return lambda: (both_digests(messages), request_digest(messages))

    times = 200_000 // len(TRAPS[trap])
    assert seconds(work(2 * times)) < 3 * seconds(work(times)) + 0.005


@pytest.mark.parametrize("trap", TRAPS)
def test_prompts(template: ChatTemplate, trap: str) -> None:
    def work(times: int) -> Callable[[], Any]:
        messages = [ChatMessage(role="user", content=TRAPS[trap] * times)]
        return lambda: template.chat(messages)

    times = 20_000 // len(TRAPS[trap])
    assert seconds(work(2 * times)) < 3 * seconds(work(times)) + 0.005
