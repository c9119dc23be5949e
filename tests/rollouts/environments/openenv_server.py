"""An OpenEnv server on the official package: `.venv/openenv/bin/python openenv_server.py PORT`. Guess a number."""

from __future__ import annotations

import random
import sys
import time
from typing import Any, Literal

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field


class Detail(BaseModel):
    loud: bool = False


class Guess(Action):  # type: ignore[misc]
    number: int = Field(ge=0, le=100, description="The guess.")
    trick: Literal["", "raise", "sleep", "nasty", "flood"] = ""
    detail: Detail | None = None


class Seen(Observation):  # type: ignore[misc]
    hint: str = ""


class Game(Environment[Guess, Seen, State]):  # type: ignore[misc]
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State(step_count=0)
        self._secret = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Seen:
        if options.get("secret", 0) == "broken":
            raise RuntimeError("no such secret")
        self._secret = options.get("secret", random.Random(seed).randint(0, 100))
        self._state = State(episode_id=episode_id, step_count=0)
        return Seen(hint=f"Guess from 0 to 100 (seed {seed}).")

    def step(self, action: Guess, **_: Any) -> Seen:
        self._state.step_count += 1
        if action.trick == "raise":
            raise RuntimeError("the game broke")
        if action.trick == "sleep":
            time.sleep(1)
        if action.trick == "nasty":
            return Seen(hint="<script>alert(1)</script>\x1b]0;title\x07\x00\u202e", reward=float("nan"))
        if action.trick == "flood":
            return Seen(hint="x" * (20 << 20))
        if action.number == self._secret:
            return Seen(hint="Right.", reward=1.0, done=True)
        return Seen(hint="Higher." if action.number < self._secret else "Lower.", reward=0.1)

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    uvicorn.run(create_app(Game, Guess, Seen, env_name="guess", max_concurrent_envs=2), host="127.0.0.1",
                port=int(sys.argv[1]), log_level="warning")
