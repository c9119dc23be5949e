from __future__ import annotations

import random

import pytest

from openclaw_rl.sessions import index as index_module
from openclaw_rl.sessions.index import ConversationIndex
from openclaw_rl.v1.turn_pb2 import ChatMessage, ToolCall


def chat(*texts: str, system: str = "") -> list[ChatMessage]:
    """Alternating user and assistant messages, a user's first."""
    talk = [ChatMessage(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(texts)]
    return [ChatMessage(role="system", content=system), *talk] if system else talk


def call(id: str, name: str = "ls") -> ChatMessage:
    return ChatMessage(role="assistant", tool_calls=[ToolCall(id=id, name=name, arguments_json="{}")])


def result(id: str, text: str = "a b") -> ChatMessage:
    return ChatMessage(role="tool", content=text, tool_call_id=id)


def remember(index: ConversationIndex, client: str, session: str, *texts: str, system: str = "",
             **options: bool) -> None:
    *messages, response = chat(*texts, system=system)
    index.remember(client, session, messages, response, **options)


def test_a_request_continues_the_longest_conversation() -> None:
    index = ConversationIndex()
    remember(index, "ann", "s1", "hi", "hello")
    remember(index, "ann", "s2", "hi", "hello", "and", "more")
    assert index.match("ann", chat("hi", "hello", "bye")) == "s1"
    assert index.match("ann", chat("hi", "hello", "and", "more", "bye")) == "s2"
    assert index.match("ann", chat("hi")) is None
    assert index.match("ann", chat("hi", "good day", "bye")) is None


def test_clients_are_never_mixed() -> None:
    index = ConversationIndex()
    remember(index, "ann", "s1", "hi", "hello")
    index.remember("ann", "s2", chat("list"), call("call_1"))
    assert index.match("bob", chat("hi", "hello", "bye")) is None
    assert index.match("bob", [*chat("list"), call("call_1"), result("call_1")]) is None


def test_the_same_question_again_and_again_is_a_session_each_time() -> None:
    index = ConversationIndex()
    for i in range(5):
        assert index.match("ann", chat("hi")) is None
        remember(index, "ann", f"s{i}", "hi", "hello")
        assert index.match("ann", chat("hi", "hello", "bye")) == f"s{i}"
        remember(index, "ann", f"s{i}", "hi", "hello", "bye", "see you")


def test_of_several_the_one_that_waits_counts_then_the_newest() -> None:
    now = [0.0]
    index = ConversationIndex(idle=300, clock=lambda: now[0])
    for session in ("old", "s1", "s2", "done"):
        now[0] += 100
        remember(index, "ann", session, "hi", "hello", done=session == "done")
    found = [index.match("ann", chat("hi", "hello", "bye")) for _ in range(3)]
    assert found == ["s2", "s1", "done"], "old has waited too long: the newest then"
    assert index.match("ann", chat("hi", "hello", "again")) == "done", "an edited request finds its session, too"


def test_instructions_keep_conversations_apart_and_may_change() -> None:
    index = ConversationIndex()
    remember(index, "ann", "poet", "hi", "hello", system="You are a poet. It is 12:01.")
    remember(index, "ann", "cook", "hi", "hello", system="You are a cook. It is 12:02.")
    assert index.match("ann", chat("hi", "hello", "bye", system="You are a poet. It is 12:03.")) == "poet"
    assert index.match("ann", chat("hi", "hello", "bye", system="You are a poet. It is 12:04.")) == "poet"
    assert index.match("ann", chat("hi", "hello", "bye", system="You are a cook. It is 12:05.")) == "cook"
    remember(index, "ann", "only", "yo", "hello", system="Be brief.")
    assert index.match("ann", chat("yo", "hello", "bye", system="Be brief. The user likes bread.")) == "only"


def test_ids_of_tool_calls_are_exact() -> None:
    index = ConversationIndex()
    for i in range(3):
        index.remember("ann", f"s{i}", chat("list"), call(f"call_{i}"))
    for i in (1, 0, 2, 1):  # also once it was continued
        assert index.match("ann", [*chat("list"), call(f"call_{i}"), result(f"call_{i}")]) == f"s{i}"
    assert index.match("ann", [*chat("summary"), result("call_1")]) == "s1", "the result is there without its call"
    assert index.match("ann", [*chat("edited"), call("call_0"), result("call_0"), *chat("go on")]) == "s0"
    # After a last answer that is equal everywhere.
    for i in range(3):
        index.remember("ann", f"s{i}", [*chat("list"), call(f"call_{i}"), result(f"call_{i}")], *chat("", "two")[1:])
    for i in (1, 0, 2):
        talk = [*chat("list"), call(f"call_{i}"), result(f"call_{i}"), *chat("", "two", "thanks")[1:]]
        assert index.match("ann", talk) == f"s{i}"


def test_an_id_that_is_no_more_than_a_functions_name_does_no_harm() -> None:
    index = ConversationIndex()
    for i in range(3):
        index.remember("ann", f"s{i}", chat(f"list {i}"), call("functions.ls:0"))
    for i in (1, 0, 2):
        assert index.match("ann", [*chat(f"list {i}"), call("functions.ls:0"), result("functions.ls:0")]) == f"s{i}"
    renamed = [*chat("list 1"), call("other"), result("other")]
    assert index.match("ann", renamed) == "s1", "a client's own ids"


def test_a_users_words_are_no_response() -> None:
    index = ConversationIndex()
    remember(index, "ann", "s1", "hi", "hello")
    forged = [ChatMessage(role="user", content="hi"), ChatMessage(role="user", content="hello")]
    assert index.match("ann", forged) is None


def test_the_index_is_bounded_and_keeps_what_is_used() -> None:
    index = ConversationIndex(limit=4)
    remember(index, "ann", "s1", "1", "a")
    remember(index, "ann", "s2", "2", "b")
    assert index.match("ann", chat("1", "a", "go on")) == "s1"
    remember(index, "ann", "s3", "3", "c")
    assert len(index) == 4
    assert index.match("ann", chat("2", "b", "go on")) is None or len(index) == 4
    assert index.match("ann", chat("3", "c", "go on")) == "s3"
    for i in range(50):
        remember(index, "ann", f"n{i}", "same", "question")
    assert len(index) <= 4 and len(index.unsaved()) <= 4 and len(index._waiting) <= 4


LONG = ("I would like to know how long the dough may stand in a warm kitchen",
        "That depends on its temperature: at 27 degrees two hours are enough, then it belongs into the fridge.")
LONG_TOO = ("And when I take wholemeal flour instead of white flour, what changes then",
            "It ferments faster, since it has more minerals and enzymes: take a third of the time off.")


def test_a_conversation_without_its_beginning_is_recognised_by_its_answers() -> None:
    index = ConversationIndex()
    remember(index, "ann", "s1", "hi", "hello", *LONG)
    remember(index, "ann", "s1", "hi", "hello", *LONG, *LONG_TOO)
    assert index.match("ann", chat("Summary: we greeted.", "Understood.", *LONG, *LONG_TOO, "thanks")) == "s1"
    assert index.match("ann", chat("edited", "hello", *LONG, "thanks")) == "s1"
    assert index.match("bob", chat("edited", "hello", *LONG, "thanks")) is None, "another client's"
    assert index.match("ann", chat("edited", "hello", "thanks")) is None, "small talk says nothing"


def test_earlier_answers_tell_which_of_several_it_is() -> None:
    index = ConversationIndex()
    remember(index, "ann", "s1", *LONG_TOO)
    remember(index, "ann", "s1", *LONG_TOO, *LONG)
    remember(index, "ann", "s2", "good day", "hello", *LONG)
    assert index.match("ann", chat("edited", "x", *LONG, "thanks")) == "s2", "the newest that waits"
    assert index.match("ann", chat("edited", LONG_TOO[1], *LONG, "thanks")) == "s1"


@pytest.mark.parametrize(("asked", "sent_back"), [
    ("<memories>\nAnn likes tea\n</memories>\n\nWhat is 2+2?", "What is 2+2?"),
    ("Recalled: Ann likes tea\nWhat is 2+2?", "What is 2+2?"),
    ("What is 2+2?\n\n# Reminder\nOnly whole numbers.", "What is 2+2?"),
    ("Compare:\n1\n2\n<environment_details>\nx y\n</environment_details>", "Compare:\n1\n2"),
])
@pytest.mark.parametrize("answer", ["4", LONG[1]])
def test_notes_that_are_gone_in_the_next_request_do_not_matter(asked: str, sent_back: str, answer: str) -> None:
    index = ConversationIndex()
    remember(index, "ann", "s1", asked, answer)
    remember(index, "ann", "s2", "What is 3+3?", "6")
    assert index.match("ann", chat(sent_back, answer, "<memories>\nnone\n</memories>\nthanks")) == "s1"
    assert index.match("ann", chat("What is 4+4?", "4", "thanks")) is None


def test_a_response_that_was_cut_off_is_continued_by_what_the_client_has_of_it() -> None:
    index = ConversationIndex()
    remember(index, "ann", "s1", "why?", "I would say that the", complete=False)
    assert index.match("ann", chat("why?", "I wou", "be brief")) == "s1"
    assert index.match("ann", chat("how?", "I wou", "be brief")) is None
    remember(index, "ann", "s2", "how?", "", complete=False)
    assert index.match("ann", chat("how?")) == "s2", "the client tries again"
    remember(index, "ann", "s2", "how?", "so")
    assert index.match("ann", chat("how?")) is None, "it has its answer: another conversation"


def test_a_session_can_be_forgotten() -> None:
    index = ConversationIndex()
    remember(index, "ann", "s1", "hi", "hello")
    remember(index, "ann", "s2", "hi", "hello")
    assert index.forget("s2") > 0
    assert index.match("ann", chat("hi", "hello", "bye")) == "s1"
    assert all(entry.session == "s1" for entry in index.unsaved())


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no-ids"])
def test_a_thousand_interleavings_of_equal_agents(ids: bool) -> None:
    """Agents with the same prompt, tools and answers: each request continues a session in which exactly its messages
    were said, and that no other has continued. With ids of tool calls it is the agent's own; without, two agents whose
    histories are equal are interchangeable."""
    for seed in range(1000):
        rng = random.Random(seed)
        index = ConversationIndex()
        talks: list[list[ChatMessage]] = [[] for _ in range(rng.randint(2, 5))]
        own: dict[int, str] = {}
        said: dict[str, list[ChatMessage]] = {}
        running: dict[int, str] = {}
        left = {agent: rng.randint(1, 4) for agent in range(len(talks))}
        while left or running:
            agent = rng.choice([*left, *running])
            talk = talks[agent]
            if agent in running:
                session = running.pop(agent)
                id = f"call_{rng.getrandbits(64):x}" if ids else ""
                response = call(id) if rng.random() < 0.6 else chat("", rng.choice("xy"))[1]
                index.remember("ann", session, list(talk), response)
                talk.append(response)
                said[session] = list(talk)
                continue
            before = list(talk)
            if talk and talk[-1].tool_calls:
                talk.append(result(talk[-1].tool_calls[0].id, rng.choice(["a b", ""])))
            else:
                talk.append(ChatMessage(role="user", content=rng.choice(["go on", "no"]) if talk else "list"))
            found = index.match("ann", list(talk))
            assert (found is None) == (not before), seed
            session = found or f"s{agent}"
            assert said.get(session, []) == before, seed
            if ids and any(message.tool_calls for message in before):
                assert session == own[agent], seed
            said.pop(session, None)  # it is continued
            own[agent] = running[agent] = session
            left[agent] -= 1
            if not left[agent]:
                del left[agent]


def test_look_ups_do_not_grow_with_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, counts = ConversationIndex._look_up, []
    monkeypatch.setattr(ConversationIndex, "_look_up", lambda self, key: counts.append(1) or look_up(self, key))

    def cost(index: ConversationIndex, messages: list[ChatMessage]) -> int:
        counts.clear()
        index.match("ann", messages)
        return len(counts)

    index = ConversationIndex()
    costs = []
    for i in range(2_000):
        messages = [*chat("list"), call(f"call_{i}")]
        index.remember("ann", f"s{i}", chat("list"), messages[-1])
        costs.append(cost(index, [*messages, result(f"call_{i}")]))
        assert max(map(len, index._entries.values())) <= index_module._MOST_CANDIDATES
    assert set(costs) == {2}
    foreign = chat(*("xy" * 500), "x")
    assert cost(index, foreign) <= 500 + 4 * index_module._MOST_ANSWERS
