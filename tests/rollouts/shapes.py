"""Requests for the tests of housekeeping: what is asked, with which instructions, and beside which conversation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from openclaw_rl.v1.turn_pb2 import ChatMessage, SamplingParams, Turn

MAIN_SYSTEM = "You are Claw, a personal assistant. Be brief."
#: The session's conversation before the request.
CONVERSATION = [("user", "my sourdough is flat"),
                ("assistant", "It probably proved too long. How warm is your kitchen?"),
                ("user", "27 degrees"), ("assistant", "Then two hours are plenty.")]


@dataclass(frozen=True)
class Request:
    """One request. `where`: "fresh" has no session beside it, "beside" is in the session and continues nothing of it,
    "inside" continues its conversation."""

    text: str
    where: str
    system: str = ""
    temperature: float = 0.7
    max_tokens: int = 512

    def turn(self, number: int) -> Turn:
        """The turn as the policy server would record it, of the session `s` but for fresh ones."""
        history = CONVERSATION if self.where == "inside" else []
        system = self.system or (MAIN_SYSTEM if self.where == "inside" else "")
        messages = [ChatMessage(role="system", content=system)] if system else []
        messages += [ChatMessage(role=role, content=text) for role, text in [*history, ("user", self.text)]]
        return Turn(turn_id=f"r{number}", session_id=f"fresh{number}" if self.where == "fresh" else "s",
                    messages=messages, api="chat.completions",
                    response=ChatMessage(role="assistant", content=f"answer {number}"),
                    sampling=SamplingParams(temperature=self.temperature, max_tokens=self.max_tokens))


def requests(name: str) -> list[Request]:
    """All requests of NAME.yaml."""
    groups = yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text())
    return [Request(**entry) for entries in groups.values() for entry in entries]
