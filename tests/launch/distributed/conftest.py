"""The configuration of the examples, and hosts that are not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from openclaw_rl.config import Config
from openclaw_rl.launch.distributed import plan as plans
from openclaw_rl.launch.distributed.host import HostError
from openclaw_rl.launch.distributed.plan import Plan

#: As distributed_config.yaml of the examples.
EXAMPLE: dict[str, Any] = {"mode": "distributed", "components": {
    "policy_server": {"host": "10.0.0.1", "port": 30000, "workers": 2},
    "env_server": {"host": "10.0.0.2", "environments": {
        "terminal": {"count": 128, "image": "openclaw/terminal-env:latest"},
        "gui": {"count": 64, "image": "openclaw/gui-env:latest"}}},
    "prm_judge": {"host": "10.0.0.3", "workers": 4},
    "trainer": {"host": "10.0.0.4", "gpus": 8, "model_size": "8B"}}}


def make_config(**distributed: Any) -> Config:
    return Config.model_validate({**EXAMPLE, "distributed": distributed})


@pytest.fixture
def plan() -> Plan:
    return plans.make(make_config())


class FakeHost:
    """Answers by a function of step and payload."""

    def __init__(self, name: str, answer: Callable[..., Any]) -> None:
        self.name, self.answer = name, answer
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def call(self, step: str, /, timeout: float = 60, say: Any = None, **payload: Any) -> Any:
        self.asked.append((step, payload))
        found = self.answer(step, payload)
        if isinstance(found, HostError):
            raise found
        return found

    def run(self, command: Sequence[str], timeout: float = 30) -> str:
        raise HostError("no commands")
