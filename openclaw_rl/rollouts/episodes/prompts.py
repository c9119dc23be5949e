"""Prompts of episodes: observations as messages, calls as actions."""

from __future__ import annotations

import json
from collections.abc import Sequence

from openclaw_rl.rollouts.environments.interface import Observation, Opening, Tool
from openclaw_rl.rollouts.leases.actions import BadJson, read
from openclaw_rl.rollouts.tasks.task import Action
from openclaw_rl.v1.turn_pb2 import ChatMessage, ToolCall, ToolDefinition

#: Characters of an observation shown to a policy, and of the arguments repeated in an error.
MOST_SHOWN = 4000
_MOST_REPEATED = 200
#: Calls of one response that are performed.
MOST_CALLS = 16
#: The function that ends an episode, if there is one: a response without a call counts as a call of it.
SUBMIT = "submit"
_PNG = b"\x89PNG\r\n\x1a\n"


class BadCall(Exception):
    """A call is no valid action; the text is for the policy to read."""


def definitions(tools: Sequence[Tool]) -> list[ToolDefinition]:
    """The functions as tool definitions of a request."""
    return [ToolDefinition(name=tool.name, description=tool.description,
                           parameters_json=json.dumps(tool.parameters, ensure_ascii=False)) for tool in tools]


def opening_messages(opening: Opening, forms: bool = False) -> list[ChatMessage]:
    """The first messages of an episode.

    Args:
        forms: append the form of each function's call to the goal, since a small model mistakes a function's schema
            for a form to fill in.
    """
    messages = [ChatMessage(role="system", content=opening.instructions)] if opening.instructions else []
    parts = [opening.goal or "There is no goal.", observation_text(opening.observation),
             _forms(opening.tools) if forms else ""]
    return [*messages, ChatMessage(role="user", content="\n\n".join(filter(None, parts)))]


def _forms(tools: Sequence[Tool]) -> str:
    lines = [json.dumps({"name": tool.name, "arguments": dict.fromkeys(tool.parameters.get("required") or (), "...")},
                        ensure_ascii=False) for tool in tools]
    return "\n".join(["Call one of these:", *lines]) if lines else ""


def observation_text(observation: Observation, error: str = "") -> str:
    """An observation as text; empty if there is nothing to see."""
    text = observation.text.strip()
    parts = [f"error: {error}" if error and error not in text else "", cut(text, MOST_SHOWN)]
    if observation.image_png:
        parts.append(_picture(observation.image_png))
    return "\n".join(filter(None, parts))


def result(call: ToolCall, text: str) -> ChatMessage:
    """The message that answers a call."""
    return ChatMessage(role="tool", tool_call_id=call.id, name=call.name, content=text or "(nothing)")


def action(call: ToolCall) -> Action:
    """Convert a call to an action.

    Raises:
        BadCall: its arguments are no JSON object, or none that an action may have.
    """
    try:
        arguments = read(call.arguments_json or "{}")
    except BadJson as error:
        raise BadCall(f"error: the arguments of {call.name} are not valid JSON ({str(error)[:100]}): "
                      f"{cut(call.arguments_json, _MOST_REPEATED)}") from None
    if not isinstance(arguments, dict):
        raise BadCall(f"error: the arguments of {call.name} must be a JSON object, and are: "
                      f"{cut(call.arguments_json, _MOST_REPEATED)}")
    return Action(call.name, arguments)


def submission(tools: Sequence[Tool], text: str) -> Action | None:
    """The action that a response without a call stands for; None if nothing can be submitted."""
    tool = next((tool for tool in tools if tool.name == SUBMIT), None)
    if tool is None:
        return None
    takes_answer = "answer" in (tool.parameters.get("properties") or {})
    return Action(SUBMIT, {"answer": text} if takes_answer else {})


def as_json(actions: Sequence[Action]) -> str:
    """Actions for an event: an object, or a list of several; empty for none."""
    found = [{"name": action.name, "arguments": dict(action.arguments)} for action in actions]
    return json.dumps(found[0] if len(found) == 1 else found, ensure_ascii=False) if found else ""


def cut(text: str, most: int) -> str:
    """Cut the middle out of a long text, and say how much."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _picture(png: bytes) -> str:
    if png[:8] == _PNG and len(png) >= 24:
        return f"(screenshot {int.from_bytes(png[16:20], 'big')}x{int.from_bytes(png[20:24], 'big')})"
    return "(screenshot)"
