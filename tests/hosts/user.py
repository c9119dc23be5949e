"""Users of the OpenAI door, run on a host: `user.py ARGUMENTS` (JSON), with the key in OPENCLAW_RL_TEST_KEY.

Has sessions of the given texts one after the other: `sessions` of them, or until the file `until` is there. Writes a
line for each request to `log`, as tools/chaos/load.py does: outcome, turn id, text, version.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import httpx


def main(url: str, ca: str, log: str, texts: list[str], user: str, sessions: int = 1, until: str = "",
         max_tokens: int = 24, timeout: float = 120) -> None:
    key = os.environ["OPENCLAW_RL_TEST_KEY"]
    number = 0
    with Path(log).open("a", buffering=1) as lines, httpx.Client(
            verify=ssl.create_default_context(cafile=ca), trust_env=False, timeout=timeout,
            headers={"Authorization": f"Bearer {key}"}) as client:
        while not Path(until).exists() if until else number < sessions:
            messages: list[dict[str, Any]] = []
            for i, text in enumerate(texts):
                messages.append({"role": "user", "content": text})
                headers = {"X-Session-Id": f"{user}-{number}"} | (
                    {"X-Session-Done": "1"} if i == len(texts) - 1 else {})
                entry = ask(client, f"{url}/v1/chat/completions", headers,
                            {"messages": messages, "max_tokens": max_tokens})
                lines.write(json.dumps({"user": user, "what": "chat", **entry}) + "\n")
                if entry["outcome"] != "complete":
                    break
                messages.append({"role": "assistant", "content": entry["text"]})
            number += 1


def ask(client: httpx.Client, url: str, headers: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    """One request; its line."""
    entry: dict[str, Any] = {"at": time.time(), "tool_calls": 0}
    try:
        response = client.post(url, headers=headers, json=body)
    except httpx.HTTPError as error:
        return {**entry, "outcome": "unreachable", "error": repr(error)}
    entry["seconds"] = time.time() - entry["at"]
    if response.status_code != 200:
        return {**entry, "outcome": "refused", "status": response.status_code, "error": response.text[:500]}
    return {**entry, "outcome": "complete", "turn_id": response.headers["x-openclaw-turn-id"],
            "version": int(response.headers["x-openclaw-policy-version"]),
            "text": response.json()["choices"][0]["message"]["content"]}


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
