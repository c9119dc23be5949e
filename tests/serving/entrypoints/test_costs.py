"""What tools/bench/gateway.py measures in time, counted."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import pytest

from openclaw_rl.serving.entrypoints.openai import app, requests
from tests.serving.entrypoints.conftest import Entrypoint


async def test_what_a_streamed_answer_costs(entrypoint: Entrypoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is parsed once and asked of the engine once, and a token is at most one event of the stream."""
    calls = Counter[str]()

    def count(place: ModuleType, name: str) -> None:
        real = getattr(place, name)

        def counted(*args: Any) -> Any:
            calls[name] += 1
            return real(*args)

        monkeypatch.setattr(place, name, counted)

    for place, name in ((app, "parse_object"), (requests, "parse_messages"), (requests, "both_digests")):
        count(place, name)
    text = "A river runs to the sea."
    entrypoint.says(text)
    tokens = len(entrypoint.template.encode(text))
    async with entrypoint.http() as client:
        response = await client.post("/v1/chat/completions", json={
            "model": "default", "stream": True, "messages": [{"role": "user", "content": "hi"}]})
    events = [line for line in response.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert len(events) <= tokens + 3  # the role before; the reason why it ended and the mark behind
    assert len(entrypoint.engine.prompts) == 1
    assert calls == {"parse_object": 1, "parse_messages": 1, "both_digests": 1}
