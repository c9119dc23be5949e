"""Histories as agent frameworks send them back: the answer is found, with a session id and without, and what came
behind it is its next state. The shapes of smolagents, CrewAI, Cline, aider, OpenHands and DSPy are those of their own
sources, the others are as they are known to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from openclaw_rl.sessions.index import ConversationIndex
from openclaw_rl.v1.turn_pb2 import FINISH_REASON_CANCELLED, ChatMessage, ToolCall
from tests.rollouts.harness import Harness, answer, tool, turn, user

SYSTEM = ChatMessage(role="system", content="You are an agent.")
NOTES = "<memories>\n- likes tea\n</memories>\n\n"
REACT = "Thought: I should look.\nAction: search\nAction Input: {\"query\": \"herons\"}"
CODE = "Thought: I add the numbers.\n<code>\nprint(17 + 25)\n"
INVOKE = "I look.\n<function=execute_bash>\n<parameter=command>\nls\n</parameter>\n"
READ = "<thinking>I need the file.</thinking>\n\n<read_file>\n<path>a.py</path>\n</read_file>"
CALL = ToolCall(id="call_8f3a91c2d4", name="web_search", arguments_json='{"query": "herons"}')
TOOLS = ("Call id: call_8f3a91c2d4\nObservation:\nA heron is a bird.")
DSPY = ("[[ ## next_thought ## ]]\nI should look it up.\n\n[[ ## next_tool_name ## ]]\nsearch\n\n"
        "[[ ## next_tool_args ## ]]\n{\"query\": \"herons\"}\n\n[[ ## completed ## ]]")
DSPY_ASKS = "\n\nRespond with the corresponding output fields, starting with the field `[[ ## next_thought ## ]]`."


@dataclass
class Shape:
    """A request, what was answered, the next request, and what it says of the answer."""

    name: str
    asked: Sequence[ChatMessage]
    response: ChatMessage
    then: Sequence[ChatMessage]
    words: list[str]
    options: dict[str, object] = field(default_factory=dict)


SHAPES = [
    Shape("memory plug-in", [user(NOTES + "What is 2+2?")], answer("4"),
          [user("What is 2+2?"), answer("4"), user("<memories>\n- likes tea\n</memories>\n\nwrong")],
          ["<memories>\n- likes tea\n</memories>\n\nwrong"]),
    Shape("memory plug-in, a message of its own", [user("Recalled: likes tea"), user("What is 2+2?")], answer("4"),
          [user("What is 2+2?"), answer("4"), user("Recalled: likes milk"), user("wrong")],
          ["Recalled: likes milk", "wrong"]),
    Shape("smolagents, tools", [user("New task:\nherons?")], ChatMessage(role="assistant", tool_calls=[CALL]),
          [user("New task:\nherons?"),
           answer("Calling tools:\n[{'id': 'call_8f3a91c2d4', 'type': 'function', 'function': {'name': 'web_search', "
                  "'arguments': {'query': 'herons'}}}]"), user(TOOLS)], [TOOLS]),
    Shape("smolagents, code", [user("New task:\n17 + 25?")], answer(CODE),
          [user("New task:\n17 + 25?"),
           answer(CODE + "</code>\nCalling tools:\n[{'id': 'call_2', 'type': 'function', 'function': {'name': "
                         "'python_interpreter', 'arguments': 'print(17 + 25)'}}]"),
           user("Observation:\nExecution logs:\n42")], ["Observation:\nExecution logs:\n42"]),
    Shape("aider", [user("fix a.py\n\n# *SEARCH/REPLACE block* Rules:\nBe exact.")], answer("Here is the fix."),
          [user("I have *added these files to the chat* so you can go ahead and edit them.\n\na.py"), answer("Ok."),
           user("fix a.py"), answer("Here is the fix."),
           user("I committed the changes with git hash 1a2b3c4 & commit msg: fix: a"), answer("Ok."),
           user("It still fails.")], ["It still fails."]),
    Shape("Cline", [user("<task>\nread a.py\n</task>\n<environment_details>\n# Time 12:00\n</environment_details>")],
          answer(READ + "\n\nI also want to"),
          [user("<task>\nread a.py\n</task>\n<environment_details>\n# Time 12:00\n</environment_details>"),
           answer(READ + "\n\n[Response interrupted by a tool use result. Only one tool may be used at a time and "
                         "should be placed at the end of the message.]"),
           user("[read_file for 'a.py'] Result:\nx = 1")],
          ["[read_file for 'a.py'] Result:\nx = 1"], {"finish_reason": FINISH_REASON_CANCELLED}),
    Shape("Roo", [user("<task>\nread a.py\n</task>")], answer(READ),
          [user("<task>\nread a.py\n</task>"), answer(READ),
           user("[read_file for 'a.py'] Result:\nx = 1\n<environment_details>\n# Time 12:01\n</environment_details>")],
          ["[read_file for 'a.py'] Result:\nx = 1\n<environment_details>\n# Time 12:01\n</environment_details>"]),
    Shape("OpenHands", [user("list the files\n\nENVIRONMENT REMINDER: You have 9 turns left.")], answer(INVOKE),
          [user("list the files"), answer(INVOKE.rstrip() + "\n</function>"),
           user("EXECUTION RESULT of [execute_bash]:\na.py")], ["EXECUTION RESULT of [execute_bash]:\na.py"]),
    Shape("CrewAI", [user("Current Task: herons")], answer(REACT),
          [user("Current Task: herons"), answer(REACT + "\nObservation: A heron is a bird.")],
          ["Observation: A heron is a bird."]),
    Shape("AG2", [ChatMessage(role="user", name="user_proxy", content="herons?")], answer("Let me look."),
          [ChatMessage(role="user", name="user_proxy", content="herons?"),
           ChatMessage(role="assistant", name="assistant", content="Let me look."),
           ChatMessage(role="user", name="critic", content="Cite a source.")], ["Cite a source."]),
    Shape("DSPy", [user("[[ ## question ## ]]\nherons?\n\n[[ ## trajectory ## ]]\n" + DSPY_ASKS)], answer(DSPY),
          [user("[[ ## question ## ]]\nherons?\n\n[[ ## trajectory ## ]]\n"
                "[[ ## thought_0 ## ]]\nI should look it up.\n\n[[ ## tool_name_0 ## ]]\nsearch\n\n"
                "[[ ## tool_args_0 ## ]]\n{\"query\": \"herons\"}\n\n"
                "[[ ## observation_0 ## ]]\nA heron is a bird." + DSPY_ASKS)], ["A heron is a bird."]),
    Shape("Goose", [user("herons?"), user("<info-msg>\nIt is currently 12:00\n</info-msg>")],
          ChatMessage(role="assistant", tool_calls=[CALL]),
          [user("herons?"), ChatMessage(role="assistant", tool_calls=[CALL]), tool("A heron is a bird.", CALL.id),
           user("<info-msg>\nIt is currently 12:01\n</info-msg>")],
          ["A heron is a bird.", "<info-msg>\nIt is currently 12:01\n</info-msg>"]),
    Shape("Continue", [user("```a.py\nx = 1\n```\nexplain")], answer("It sets x."),
          [ChatMessage(role="system", content="Rules"), user("```a.py\nx = 2\n```\nexplain"), answer("It sets x."),
           user("shorter")], ["shorter"]),
    Shape("Open WebUI", [user("### Task:\nRespond using the context.\n<context>\n<source id=\"1\">birds</source>\n"
                              "</context>\n\nherons?")], answer("<think>\nhm\n</think>\nBirds."),
          [user("herons?"), answer("Birds."), user("No, the plant.")], ["No, the plant."]),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_answer_is_found_with_a_session_id(harness: Harness, shape: Shape) -> None:
    harness.tell(turn("t0", [SYSTEM, *shape.asked], shape.response, **shape.options))
    harness.tell(turn("t1", [SYSTEM, *shape.then], "ok"))
    state = harness.sent()["t0"]
    assert [message.content for message in state.messages] == shape.words
    assert state.next_turn_id == "t1"
    harness.tracker.end("s")
    assert harness.sent().keys() == {"t0", "t1"}, "both are trained on"


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_session_is_found_without_its_id(shape: Shape) -> None:
    index = ConversationIndex()
    other = ChatMessage(role="assistant", content="Something else.")
    for i in range(3):  # others of the kind, with answers of their own
        index.remember("ann", f"other{i}", [SYSTEM, *shape.asked], other)
    index.remember("ann", "s", [SYSTEM, *shape.asked], shape.response, complete=not shape.options)
    index.remember("ann", "last", [SYSTEM, user("unrelated")], other)
    assert index.match("bob", [SYSTEM, *shape.then]) is None
    assert index.match("ann", [SYSTEM, *shape.then]) == "s"
