"""Users of all kinds, who talk through the OpenAI door until they are stopped and log what they got."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import httpx

_QUESTIONS = ("What is rain?", "How do I boil an egg?", "Name three birds.", "What is a heron?", "Why is the sky blue?",
              "What does a baker do?", "How do I fold a shirt?", "What is a river?")
_COMPLAINT = "That is wrong. Answer in one short plain sentence."
_THANKS = "Thanks, that is great!"
_HOUSEKEEPING = ("Generate a short title (at most 5 words) for the following conversation. Answer with the title only.",
                 "Summarize the conversation so far in two sentences, so that it can be continued later.")
_TOOLS = [{"type": "function", "function": {"name": "look_up", "description": "Looks up a word.",
                                            "parameters": {"type": "object", "properties": {
                                                "word": {"type": "string"}}}}}]
_MAX_TOKENS = (8, 20)
#: Seconds for one request: a stopped process keeps it waiting for a while.
_TIMEOUT = 120.0
#: Attempts at one request whose policy process is killed again and again.
_ATTEMPTS = 20


class Door(Protocol):
    """What a user needs to know of the mesh."""

    def url(self) -> str | None: ...

    def excused(self, begin: float, end: float) -> bool: ...


class Log:
    """One JSON line for each request; thread-safe."""

    def __init__(self, file: Path) -> None:
        self.entries: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._file = file.open("w")

    def add(self, entry: dict[str, Any]) -> None:
        """Keep an entry."""
        with self._lock:
            self.entries.append(entry)
            self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
            self._file.flush()

    def complete(self) -> int:
        """Responses that a user has wholly received."""
        with self._lock:
            return sum(entry["outcome"] == "complete" for entry in self.entries)


class User:
    """One user. `kind` says what is special about them: talker, streamer, toolsmith, quitter, keeper, rater.

    Args:
        pause: bounds of the seconds between two requests.
    """

    def __init__(self, door: Door, log: Log, kind: str, number: int, seed: int, stop: threading.Event,
                 pause: tuple[float, float] = (0.5, 3.0)) -> None:
        self._door, self._log, self._kind, self._stop, self._pause = door, log, kind, stop, pause
        self.name = f"{kind}-{number}"
        self._random = random.Random(f"{seed}/{self.name}")
        self._client = httpx.Client(timeout=_TIMEOUT, trust_env=False)
        self._sessions = 0
        self.thread = threading.Thread(target=self._live, name=self.name, daemon=True)

    def _live(self) -> None:
        while not self._stop.is_set():
            self._sessions += 1
            try:
                self._session(f"{self.name}-{self._sessions}")
            except Exception as error:  # a fault of ours: it must not pass for a quiet user
                self._log.add({"user": self.name, "outcome": "user failed", "error": repr(error)})
                self._stop.wait(1)

    def _session(self, session: str) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": self._random.choice(_QUESTIONS)}]
        fields: dict[str, Any] = {}
        if self._kind == "toolsmith":
            fields["tools"] = _TOOLS
            failed = self._random.random() < 0.5
            messages += [{"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "rain"}'}}]},
                {"role": "tool", "tool_call_id": "c1",
                 "content": "Error: no such word" if failed else "Rain: water that falls from clouds."}]
        # Streamers leave their sessions to be inferred.
        headers = {} if self._kind == "streamer" else {"X-Session-Id": session}
        turns = self._random.randint(2, 4)
        for turn in range(turns):
            last = turn == turns - 1
            if last and headers and self._random.random() < 0.7:
                headers["X-Session-Done"] = "1"
            entry = self._ask(session, messages, headers, fields)
            if entry is None or self._stop.is_set():
                return
            messages.append({"role": "assistant", "content": entry["text"]})
            if self._kind == "keeper" and self._random.random() < 0.7:
                self._side(session, messages)
            if self._kind == "rater" or self._random.random() < 0.05:
                self._rate(entry["turn_id"])
            messages.append({"role": "user", "content": self._random.choice(
                (_COMPLAINT, _COMPLAINT, _THANKS, "And why?", self._random.choice(_QUESTIONS)))})

    def _side(self, session: str, messages: list[dict[str, Any]]) -> None:
        """The framework's own request between two of the user's: declared, or not."""
        asked = [*messages, {"role": "user", "content": self._random.choice(_HOUSEKEEPING)}]
        declared = {"X-Turn-Type": "side"} if self._random.random() < 0.5 else {}
        self._ask(session, asked, {"X-Session-Id": session, **declared}, {}, what="side")

    def _rate(self, turn_id: str) -> None:
        body = {"turn_id": turn_id, "rating": self._random.choice(("up", "down")), "comment": "Be brief."}
        self._with_retries({"what": "feedback", "about": turn_id}, lambda url: self._post_feedback(url, body))

    def _ask(self, session: str, messages: list[dict[str, Any]], headers: dict[str, str], fields: dict[str, Any],
             what: str = "chat") -> dict[str, Any] | None:
        """One request, again after a kill of the policy server; None when it has no whole answer."""
        self._stop.wait(self._random.uniform(*self._pause))
        stream = self._kind in ("streamer", "quitter") or self._random.random() < 0.3
        body = {"messages": messages, "max_tokens": self._random.randint(*_MAX_TOKENS), "stream": stream, **fields}
        if self._kind == "quitter" and self._random.random() < 0.4:
            after = self._random.randint(1, 6)
            self._with_retries({"what": what, "session": session},
                               lambda url: self._chat(url, body, headers, hang_up_after=after))
            self._stop.wait(self._random.uniform(0, 0.5))  # then asks the same again
        return self._with_retries({"what": what, "session": session}, lambda url: self._chat(url, body, headers))

    def _with_retries(self, facts: dict[str, Any], request: Callable[[str], dict[str, Any]]) -> dict[str, Any] | None:
        for attempt in range(_ATTEMPTS):
            if (url := self._door.url()) is None:
                self._stop.wait(0.2)
                continue
            begin = time.monotonic()
            entry = {"user": self.name, **facts, "attempt": attempt, "begin": begin, "at": time.time()}
            try:
                entry |= request(url)
            except httpx.HTTPError as error:
                entry |= {"outcome": "broken" if "turn_id" in entry else "unreachable", "error": repr(error)}
                self._client.close()
                self._client = httpx.Client(timeout=_TIMEOUT, trust_env=False)
            entry["end"] = time.monotonic()
            failed = entry["outcome"] in ("unreachable", "refused", "broken")
            if failed:
                # The kill may be a moment old, and not yet noted, when the connection breaks.
                time.sleep(0.3)
                entry["excused"] = self._door.excused(begin, time.monotonic())
            self._log.add(entry)
            if not failed:
                return entry if entry["outcome"] == "complete" else None
            if not entry["excused"]:
                return None
            self._stop.wait(self._random.uniform(0.5, 1.5))
            if self._stop.is_set():
                return None
        return None

    def _post_feedback(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        response = self._client.post(f"{url}/v1/feedback", json=body)
        if response.status_code != 200:
            return {"outcome": "refused", "status": response.status_code, "error": response.text[:300]}
        return {"outcome": "complete", "feedback_id": response.json()["feedback_id"]}

    def _chat(self, url: str, body: dict[str, Any], headers: dict[str, str],
              hang_up_after: int | None = None) -> dict[str, Any]:
        if not body["stream"]:
            response = self._client.post(f"{url}/v1/chat/completions", json=body, headers=headers)
            if response.status_code != 200:
                return {"outcome": "refused", "status": response.status_code, "error": response.text[:300]}
            message = response.json()["choices"][0]["message"]
            return {"outcome": "complete", **_head(response), "text": message["content"] or "",
                    "tool_calls": len(message.get("tool_calls") or [])}
        with self._client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as response:
            if response.status_code != 200:
                return {"outcome": "refused", "status": response.status_code,
                        "error": response.read()[:300].decode(errors="replace")}
            facts = {**_head(response), "text": "", "tool_calls": 0}
            try:
                for count, line in enumerate(response.iter_lines()):
                    data = line.removeprefix("data: ")
                    if data == "[DONE]":
                        return {"outcome": "complete", **facts}
                    if hang_up_after is not None and count >= 2 * hang_up_after:
                        return {"outcome": "hung up", **facts}
                    if data:
                        event = json.loads(data)
                        if "error" in event:
                            return {"outcome": "broken", **facts, "error": data[:300]}
                        for choice in event["choices"]:
                            facts["text"] += choice["delta"].get("content") or ""
                            facts["tool_calls"] += len(choice["delta"].get("tool_calls") or [])
            except httpx.HTTPError as error:
                return {"outcome": "broken", **facts, "error": repr(error)}
            return {"outcome": "broken", **facts, "error": "the stream ended without [DONE]"}


def _head(response: httpx.Response) -> dict[str, Any]:
    return {"status": response.status_code, "turn_id": response.headers["x-openclaw-turn-id"],
            "version": int(response.headers["x-openclaw-policy-version"])}


#: One of each; beyond these, more talkers.
KINDS = ("talker", "streamer", "toolsmith", "quitter", "keeper", "rater")


class Load:
    """So many users at once."""

    def __init__(self, door: Door, log: Log, seed: int, users: int = len(KINDS)) -> None:
        self._stop = threading.Event()
        self.users = [User(door, log, KINDS[i] if i < len(KINDS) else "talker", i, seed, self._stop)
                      for i in range(users)]

    def start(self) -> None:
        """Let them talk."""
        for user in self.users:
            user.thread.start()

    def stop(self, seconds: float = _TIMEOUT + 10) -> list[str]:
        """Let each finish the request that it has begun; names of those who did not."""
        self._stop.set()
        deadline = time.monotonic() + seconds
        for user in self.users:
            user.thread.join(max(0.0, deadline - time.monotonic()))
        return [user.name for user in self.users if user.thread.is_alive()]
