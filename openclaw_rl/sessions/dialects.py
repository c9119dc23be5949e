"""Histories as agent frameworks rewrite them, and the conversations that they stand for.

Frameworks without native tool calls put a call and its result into text. The conversation is restored from it, so that
the answer is found again and what the tool reported is its next state. Only digests and next states are made of the
restored messages; the model gets what the client sent. Shapes, as these projects' sources have them:

- smolagents: calls as an assistant's "Calling tools:\\n[{...}]", results as a user's "Observation:\\n..."
- CrewAI: a step of ReAct, its result behind it in the same assistant's message: "...\\nObservation: ..."
- DSPy's ReAct: all steps in the user's message, as fields `[[ ## thought_0 ## ]]`, `[[ ## observation_0 ## ]]`
- OpenHands and Cline (Roo): results as a user's "EXECUTION RESULT of [...]:" or "[tool for '...'] Result:"
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import orjson

from openclaw_rl.v1 import turn_pb2

_CALLING = "Calling tools:\n["
#: The tool by which smolagents' code agents record their own text once more.
_CODE_TOOL = "python_interpreter"
#: Longest list of calls that is parsed, in characters.
_LONGEST_CALLS = 50_000
_RESULT = re.compile(r"(?:Call id: \S{1,200}\n)?(?:Observation|Error):\n|EXECUTION RESULT of \[|"
                     r"\[[a-z_]{2,40}(?: for '[^\n]{0,300}')?\] Result:")
_OBSERVATION = "\nObservation:"
_ACTION = re.compile(r"^Action:", re.MULTILINE)
_FIELD = re.compile(r"\[\[ ## (\w{1,80}) ## \]\]\n?")
_STEP = re.compile(r"(thought|tool_name|tool_args|observation)_(\d{1,5})")
_STEP_ENDS = "\n\nRespond with the corresponding output fields"


def restore(messages: Sequence[turn_pb2.ChatMessage]) -> Sequence[turn_pb2.ChatMessage]:
    """The conversation that a request's messages stand for; `messages` itself where they are as they should be."""
    for i, message in enumerate(messages):
        if _rewritten(message):
            return [*messages[:i], *(part for message in messages[i:] for part in _restored(message))]
    return messages


def own_words(text: str) -> str:
    """An assistant's text without what a framework puts behind or around it: the result of a step of ReAct, the marks
    of DSPy's fields."""
    text = text[:_result_begins(text)]
    return _FIELD.sub("", text) if "[[ ## " in text else text


def _rewritten(message: turn_pb2.ChatMessage) -> bool:
    text = _text(message)
    if message.role == "assistant":
        return _CALLING in text or _result_begins(text) < len(text)
    return message.role == "user" and bool(_RESULT.match(text) or "[[ ## observation_0 ## ]]" in text)


def _restored(message: turn_pb2.ChatMessage) -> Iterator[turn_pb2.ChatMessage]:
    if not _rewritten(message):
        yield message
        return
    text = _text(message)
    if message.role == "user":
        if "[[ ## observation_0 ## ]]" in text:
            yield from _steps(text)
        else:
            restored = turn_pb2.ChatMessage()
            restored.CopyFrom(message)
            restored.role = "tool"
            yield restored
        return
    words, calling, calls = text.partition(_CALLING)
    if calling:
        yield turn_pb2.ChatMessage(role="assistant", content=words.strip(), tool_calls=_calls(f"[{calls}"))
        return
    end = _result_begins(text)
    yield turn_pb2.ChatMessage(role="assistant", content=text[:end])
    yield turn_pb2.ChatMessage(role="tool", content=text[end:].strip())


def _text(message: turn_pb2.ChatMessage) -> str:
    if len(message.parts) == 1 and not message.content:
        return message.parts[0].text
    return message.content


def _result_begins(text: str) -> int:
    """Where the result begins in a step of ReAct; the text's length if it is none."""
    at = text.find(_OBSERVATION)
    return at if at >= 0 and _ACTION.search(text, 0, at) else len(text)


def _calls(text: str) -> list[turn_pb2.ToolCall]:
    """The calls that smolagents prints as Python has them; none if they can't be read."""
    if len(text) > _LONGEST_CALLS:
        return []
    try:
        calls = ast.literal_eval(text)
        found = [(str(call["id"]), call["function"]["name"], call["function"]["arguments"]) for call in calls]
        return [turn_pb2.ToolCall(id=id, name=name, arguments_json=(
                    arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()))
                for id, name, arguments in found if name != _CODE_TOOL]
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError, UnicodeError):
        return []


def _steps(text: str) -> Iterator[turn_pb2.ChatMessage]:
    """The steps of a trajectory of DSPy, behind what the user said."""
    first = _FIELD.search(text, text.find("[[ ## thought_0 ## ]]"))
    fields = list(_FIELD.finditer(text, first.start() if first else 0))
    yield turn_pb2.ChatMessage(role="user", content=text[:fields[0].start()].replace("[[ ## trajectory ## ]]", ""))
    said: list[str] = []
    for field, following in zip(fields, [*fields[1:], None], strict=True):
        if (step := _STEP.fullmatch(field[1])) is None:
            break
        value = text[field.end():following.start() if following else len(text)]
        if step[1] == "observation":
            yield turn_pb2.ChatMessage(role="assistant", content="\n".join(said))
            yield turn_pb2.ChatMessage(role="tool", content=value.partition(_STEP_ENDS)[0].strip())
            said = []
        else:
            said.append(value.strip())
