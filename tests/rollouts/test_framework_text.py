"""Text that frameworks write in the user's name is removed."""

from __future__ import annotations

import pytest

from openclaw_rl.rollouts.classification.framework_text import is_framework_text, strip_framework_text
from openclaw_rl.v1.turn_pb2 import ChatMessage, ContentPart, ToolCall
from tests.rollouts.harness import Harness, answer, tool, turn, user

METADATA = ('Conversation info (untrusted metadata):\n```json\n{\n  "message_id": "45",\n  "sender": "Ann"\n}\n```\n\n'
            'Sender (untrusted metadata):\n```json\n{"id": "1"}\n```\n\n')

BANNERS = [
    "Error: LLM request timed out.", "LLM request timed out.", "(no response)", "[no response]", "（无回复）",
    "[Request interrupted by user]", "[Request interrupted by user for tool use]", "NO_REPLY", "HEARTBEAT_OK",
    "⚠️ Agent failed before reply: all models failed", "API Error: 529 overloaded", "API Error (Connection error.)",
    "Context overflow: prompt too large for the model. Try /reset.", "错误: 模型请求超时,请稍后再试",
    "The AI service is temporarily overloaded. Please try again in a moment.", "Request timed out.",
    "Continue where you left off. The previous model attempt failed or timed out.",
    "[Retry after the previous model attempt failed or timed out]\n\nplease list the files",
    "A new session was started via /new or /reset. Greet the user in one sentence.",
    "Read HEARTBEAT.md if it exists. Follow it. If nothing needs attention, reply HEARTBEAT_OK.",
    "Pre-compaction memory flush. Database memories in memory/x.md. If there are none, reply NO_REPLY.",
    "This session is being continued from a previous conversation that ran out of context. Summary: bread.",
    "<system-reminder>\nThe todo list is empty.\n</system-reminder>", METADATA,
    "System: [2026-03-16 15:30:00 UTC] Exec completed (code 0)", "<summary>We baked bread.</summary>",
    "[cron:daily] Send the report.", "   ", "[Conversation summary]\nWe baked bread.",
    "⚠️ Agent couldn't generate a response. Please try again.", "Agent couldn’t generate a response.",
    "⚠️ Agent couldn't generate a response. Note: some tool actions may have already been executed — please verify.",
    "No response from OpenClaw.", "No response from agent", "No response from the model.",
    "I committed the changes with git hash 1a2b3c4 & commit msg: fix: a", "I updated the files.",
    "Scheduled poll. If there is nothing to do reply with exactly NO_REPLY.", "没有事项时只回复 HEARTBEAT_OK",
]
WORDS = [
    "Error: cannot find module 'left-pad'", "Error: request timed out", "no response", "no", "there was no response",
    "why do I get \"Error: LLM request timed out\"?", "what does NO_REPLY mean?", "the model is wrong",
    "continue where you left off", "Request interrupted by user: what is that?", "The API failed again, fix it",
    "No response from the server", "no response from my landlord", "no response from the API, fix it",
    "The agent couldn't generate a response, why?", "I updated the files. Look again.",
    "error in line 3: the agent is not defined", "heartbeat", "read HEARTBEAT.md to me", "summary: too long",
    "没有回复", "错误:文件不存在", "why did you answer HEARTBEAT_OK just now?", "you should not reply NO_REPLY",
    "session summary: too long, shorter please", "connection error", "你为什么回复 HEARTBEAT_OK",
]


@pytest.mark.parametrize("text", BANNERS)
def test_a_frameworks_text_is_no_opinion(text: str) -> None:
    assert is_framework_text(text)
    assert strip_framework_text(user(text)) is None
    assert strip_framework_text(ChatMessage(role="user", parts=[ContentPart(text=text)])) is None


@pytest.mark.parametrize("text", WORDS)
def test_a_users_words_stay_as_they_are(text: str) -> None:
    assert strip_framework_text(user(text)) == user(text)


@pytest.mark.parametrize("text", [
    METADATA + "Too long, please.", "<system-reminder>x</system-reminder>\nToo long, please.",
    "System: [2026-03-16 15:30:00 UTC] Node connected\n\nToo long, please.",
    "Too long, please.\n\n<environment_details>\n# Files\na.py\n</environment_details>",
    "[message_id: 17]\nToo long, please.",
])
def test_the_users_words_among_it_stay(text: str) -> None:
    assert strip_framework_text(user(text)) == user("Too long, please.")


def test_parts_are_looked_at_one_by_one() -> None:
    picture = ContentPart(image_url="data:image/png;base64,AA")
    given = ChatMessage(role="user", parts=[ContentPart(text="<system-reminder>x</system-reminder>"), picture,
                                            ContentPart(text="wrong button"), ContentPart(text="NO_REPLY")])
    assert strip_framework_text(given) == ChatMessage(role="user", parts=[picture, ContentPart(text="wrong button")])
    assert strip_framework_text(ChatMessage(role="user", parts=[picture])) is not None, "a picture says something"


def test_a_tools_error_is_its_result_and_a_stand_in_is_not() -> None:
    for text in ("Error: LLM request timed out.", "Error: no such file", "(no response)", "NO_REPLY", ""):
        assert strip_framework_text(tool(text)) == tool(text)
    assert strip_framework_text(tool("[openclaw] missing tool result in session history; inserted a stand-in.")) is None
    assert strip_framework_text(tool("[Old tool result content cleared]")) is None


def test_a_turn_with_nothing_but_such_text_behind_it_stays_open(harness: Harness) -> None:
    harness.tell(turn("t0", [user("hi")], "hello"))
    interrupted = [user("hi"), answer("hello"), user("[Request interrupted by user]")]
    harness.tell(turn("t1", interrupted, "ok"))
    assert harness.states()["t0"] == "OPEN"
    assert harness.turns()["t1"].parent_turn_id == "t0"
    harness.tell(turn("t2", [*interrupted, answer("ok"), user("thanks")], "welcome"))
    assert [message.content for message in harness.sent()["t1"].messages] == ["thanks"]
    assert harness.states()["t0"] == "OPEN", "the thanks are for t1"


def test_the_next_real_words_count_behind_a_heartbeat(harness: Harness) -> None:
    harness.tell(turn("t0", [user("hi")], "hello"))
    beat = [user("hi"), answer("hello"), user("Read HEARTBEAT.md if it exists. If nothing needs attention, reply "
                                              "HEARTBEAT_OK.")]
    harness.tell(turn("beat", beat, "HEARTBEAT_OK"))
    assert harness.states() == {"t0": "OPEN", "beat": "NOT_TRAINABLE"}
    harness.tell(turn("t1", [*beat, answer("HEARTBEAT_OK"), user("too short")], "ok"))
    assert [message.content for message in harness.sent()["t0"].messages] == ["too short"]
    # The same where the heartbeat was never ours.
    harness.tell(turn("x0", [user("hi")], "hello", session_id="x"))
    harness.tell(turn("x1", [*beat, answer("HEARTBEAT_OK"), user("too short")], "ok", session_id="x"))
    assert [message.content for message in harness.sent()["x0"].messages] == ["too short"]


def test_results_and_words_that_come_in_several_messages_are_all_there(harness: Harness) -> None:
    calls = ChatMessage(role="assistant", tool_calls=[ToolCall(id="c1", name="a", arguments_json="{}"),
                                                      ToolCall(id="c2", name="b", arguments_json="{}")])
    harness.tell(turn("t0", [user("go")], calls))
    behind = [tool("2", "c2"), user("<system-reminder>x</system-reminder>"), tool("1", "c1"), user("no, wait"),
              ChatMessage(role="user", parts=[ContentPart(text="look"), ContentPart(image_url="https://x/y.png")])]
    harness.tell(turn("t1", [user("go"), calls, *behind], "ok"))
    assert list(harness.sent()["t0"].messages) == [behind[0], *behind[2:]]
    assert harness.journal.lines[-2][3] == "2\n1\nno, wait\nlook\n[image https://x/y.png]"


def test_reasoning_that_a_client_leaves_out_changes_nothing(harness: Harness) -> None:
    for tag in ("think", "thinking", "reasoning"):
        harness.tell(turn(f"{tag}0", [user(tag)], f"<{tag}>hm\nhm</{tag}>\n\nyes"))
        harness.tell(turn(f"{tag}1", [user(tag), answer("yes"), user("no")], "ok"))
        assert [message.content for message in harness.sent()[f"{tag}0"].messages] == ["no"]
