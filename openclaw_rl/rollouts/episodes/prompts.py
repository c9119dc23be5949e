"""What a policy reads of an environment, and what its calls say to it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from openclaw_rl.rollouts.environments.interface import Observation, Opening, Tool
from openclaw_rl.rollouts.leases.actions import BadJson, read
from openclaw_rl.rollouts.tasks.task import Action
from openclaw_rl.v1.turn_pb2 import ChatMessage, ToolCall, ToolDefinition

#: Characters of one observation that a policy is shown, and of the arguments that an error repeats.
MOST_SHOWN = 4000
_MOST_REPEATED = 200
#: Calls of one response that are done.
MOST_CALLS = 16
#: The function that ends an episode, where there is one: a response without a call counts as one of it.
SUBMIT = "submit"
_PNG = b"\x89PNG\r\n\x1a\n"


class BadCall(Exception):
    """A call is no action; the text is for the policy to read."""


def definitions(tools: Sequence[Tool]) -> list[ToolDefinition]:
    """The functions as a request offers them."""
    return [ToolDefinition(name=tool.name, description=tool.description,
                           parameters_json=json.dumps(tool.parameters, ensure_ascii=False)) for tool in tools]


def opening(said: Opening, forms: bool = False) -> list[ChatMessage]:
    """The messages that an episode begins with.

    Args:
        forms: behind the goal, how each function is called. A small model takes a function's schema for what it is to
            fill in.
    """
    messages = [ChatMessage(role="system", content=said.instructions)] if said.instructions else []
    parts = [said.goal or "There is no goal.", shown(said.observation), _forms(said.tools) if forms else ""]
    return [*messages, ChatMessage(role="user", content="\n\n".join(filter(None, parts)))]


def _forms(tools: Sequence[Tool]) -> str:
    lines = [json.dumps({"name": tool.name, "arguments": dict.fromkeys(tool.parameters.get("required") or (), "...")},
                        ensure_ascii=False) for tool in tools]
    return "\n".join(["Call one of these:", *lines]) if lines else ""


def shown(observation: Observation, error: str = "") -> str:
    """An observation as text; empty when there is nothing to see."""
    text = observation.text.strip()
    parts = [f"error: {error}" if error and error not in text else "", cut(text, MOST_SHOWN)]
    if observation.image_png:
        parts.append(_picture(observation.image_png))
    return "\n".join(filter(None, parts))


def result(call: ToolCall, text: str) -> ChatMessage:
    """What a call gave."""
    return ChatMessage(role="tool", tool_call_id=call.id, name=call.name, content=text or "(nothing)")


def action(call: ToolCall) -> Action:
    """The action that a call is.

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
    """The action that a response without a call stands for; None where nothing can be submitted."""
    tool = next((tool for tool in tools if tool.name == SUBMIT), None)
    if tool is None:
        return None
    takes_answer = "answer" in (tool.parameters.get("properties") or {})
    return Action(SUBMIT, {"answer": text} if takes_answer else {})


def as_json(actions: Sequence[Action]) -> str:
    """Actions for those who watch: an object, or a list when there are several; empty for none."""
    found = [{"name": action.name, "arguments": dict(action.arguments)} for action in actions]
    return json.dumps(found[0] if len(found) == 1 else found, ensure_ascii=False) if found else ""


def cut(text: str, most: int) -> str:
    """A text's beginning and end, with a word of what is left out between them."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _picture(png: bytes) -> str:
    if png[:8] == _PNG and len(png) >= 24:
        return f"(screenshot {int.from_bytes(png[16:20], 'big')}x{int.from_bytes(png[20:24], 'big')})"
    return "(screenshot)"
