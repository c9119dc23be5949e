"""Agent frameworks from the package index talk to the real mesh, unchanged but for the base URL and a header."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from openclaw_rl.client import EnvironmentServiceClient
from tests.mesh.mesh import Mesh
from tests.support.required import left_out
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python() -> str:
    """The frameworks' own Python; without it these tests are left out, or fail when nothing may be."""
    path = ROOT / ".venv/agents/bin/python"
    if not path.exists():
        left_out(f"{path} is missing; tools/agents-environment makes it")
    return str(path)


#: What a framework says of a model that calls functions for ever, as so small a one may: not the mesh's fault.
ENDLESS = ("MaxTurnsExceeded", "GraphRecursionError", "UsageLimitExceeded")


@pytest.mark.parametrize(("example", "session", "least"), [
    ("openai_agents.py", "agents-sdk", 3), ("langchain_agent.py", "langchain", 3),
    ("pydantic_agent.py", "pydantic-ai", 2)])
def test_a_framework_talks_to_the_mesh(mesh: Mesh, python: str, example: str, session: str, least: int) -> None:
    done = subprocess.run([python, str(ROOT / "clients/agents" / example), f"{mesh.url}/v1"], capture_output=True,
                          text=True, timeout=300, check=False)
    endless = any(error in done.stderr for error in ENDLESS)
    assert done.returncode == 0 or endless, done.stdout + done.stderr
    turns = until(lambda: (found := list(mesh.turns(session).values())) and len(found) >= least and found, 60,
                  f"{least} turns of {session}")
    # The header has joined them, and what the tool reported or the user said next is there to learn from.
    assert {turn["class"] for turn in turns} == {"main"}
    with EnvironmentServiceClient(mesh.record("env_server").address) as environment:
        requests = [turn.request_text for turn in environment.get_session(session_id=session).turns]
    said = {"What is the weather in Paris?", "Thanks, that is right!"}
    # The function's result, which is an error when so small a model gives it impossible arguments.
    assert set(requests) - said or example != "openai_agents.py"
    assert endless or said <= set(requests)
    judged = until(lambda: [turn for turn in mesh.turns(session).values() if turn["score"] is not None], 60, "a score")
    assert all(turn["score"] in (-1, 0, 1) for turn in judged)


def test_langchain_gets_the_tool_call_that_it_asks_for(mesh: Mesh, python: str) -> None:
    code = """
import sys
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
@tool
def weather(city: str) -> str:
    "The weather in a city."
    return city
model = ChatOpenAI(base_url=sys.argv[1], api_key="none", model="smollm2-135m-instruct", max_tokens=60, temperature=0)
message = model.bind_tools([weather], tool_choice="weather").invoke("What is the weather in Paris?")
def called(message):  # so small a model may not come to the end of its arguments
    return [call["name"] for call in [*message.tool_calls, *message.invalid_tool_calls]]
assert called(message) == ["weather"], message
chunks = list(model.bind_tools([weather], tool_choice="weather").stream("What is the weather in Paris?"))
whole = chunks[0]
for chunk in chunks[1:]:
    whole += chunk
assert called(whole) == ["weather"], whole
"""
    done = subprocess.run([python, "-c", code, f"{mesh.url}/v1"], capture_output=True, text=True, timeout=300,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
