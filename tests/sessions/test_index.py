from __future__ import annotations

from openclaw_rl.sessions.index import ConversationIndex
from openclaw_rl.v1.turn_pb2 import ChatMessage


def chat(*texts: str) -> list[ChatMessage]:
    """Alternating user and assistant messages, a user's first."""
    return [ChatMessage(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(texts)]


def remember(index: ConversationIndex, client: str, session: str, *texts: str) -> None:
    *messages, response = chat(*texts)
    index.remember(client, session, messages, response)


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
    assert index.match("bob", chat("hi", "hello", "bye")) is None


def test_what_two_sessions_share_is_not_guessed() -> None:
    index = ConversationIndex()
    remember(index, "ann", "s1", "hi", "hello")
    remember(index, "ann", "s2", "hi", "hello")
    remember(index, "ann", "s1", "hi", "hello")
    assert index.match("ann", chat("hi", "hello", "bye")) is None


def test_a_users_words_are_no_response() -> None:
    index = ConversationIndex()
    remember(index, "ann", "s1", "hi", "hello")
    forged = [ChatMessage(role="user", content="hi"), ChatMessage(role="user", content="hello")]
    assert index.match("ann", forged) is None


def test_the_index_is_bounded_and_keeps_what_is_used() -> None:
    index = ConversationIndex(limit=2)
    remember(index, "ann", "s1", "1", "a")
    remember(index, "ann", "s2", "2", "b")
    assert index.match("ann", chat("1", "a", "go on")) == "s1"
    remember(index, "ann", "s3", "3", "c")
    assert len(index) == 2
    assert index.match("ann", chat("2", "b", "go on")) is None
    assert index.match("ann", chat("1", "a", "go on")) == "s1"


LONG = ("I would like to know how long the dough may stand in a warm kitchen",
        "That depends on its temperature: at 27 degrees two hours are enough, then it belongs into the fridge.")
LONG_TOO = ("And when I take wholemeal flour instead of white flour, what changes then",
            "It ferments faster, since it has more minerals and enzymes: take a third of the time off.")


def test_a_conversation_without_its_beginning_is_recognised_by_its_long_exchanges() -> None:
    index = ConversationIndex()
    remember(index, "ann", "s1", "hi", "hello", *LONG)
    remember(index, "ann", "s1", "hi", "hello", *LONG, *LONG_TOO)
    assert index.match("ann", chat("Summary: we greeted.", "Understood.", *LONG, *LONG_TOO, "thanks")) == "s1"
    assert index.match("ann", chat("edited", "hello", *LONG, "thanks")) == "s1"
    assert index.match("bob", chat("edited", "hello", *LONG, "thanks")) is None, "another client's"
    assert index.match("ann", chat("edited", "hello", "thanks")) is None, "small talk says nothing"


def test_exchanges_of_two_sessions_are_not_guessed() -> None:
    index = ConversationIndex()
    remember(index, "ann", "s1", "hi", "hello", *LONG)
    remember(index, "ann", "s2", "good day", "hello", *LONG)
    assert index.match("ann", chat("edited", "hello", *LONG, "thanks")) is None
    remember(index, "ann", "s3", "yo", "hello", *LONG_TOO)
    remember(index, "ann", "s4", "hey", "hello", LONG_TOO[0] + " now", LONG_TOO[1])
    assert index.match("ann", chat("edited", "x", *LONG_TOO, "y", "z", "bye")) == "s3"
    both = chat("edited", "x", *LONG_TOO, LONG_TOO[0] + " now", LONG_TOO[1], "bye")
    assert index.match("ann", both) is None
