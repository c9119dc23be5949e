"""A conversation in the terminal: what is shown when, and its commands."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from openclaw_rl.api.facade import PolicyClient
from openclaw_rl.cli.chat_screen import Screen
from openclaw_rl.cli.chat_session import HELP, Conversation, converse, told
from openclaw_rl.client.facts import TurnFate
from openclaw_rl.client.stories import TurnStory
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1.turn_pb2 import Judgement, Vote
from tests.client.fake_door import FakeDoor


@pytest.fixture
def door() -> Iterator[FakeDoor]:
    door = FakeDoor()
    yield door
    door.close()


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """What is typed, and Ctrl-D behind it."""
    rest = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(rest)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)


def test_a_conversation_and_its_commands(door: FakeDoor, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    typed(monkeypatch, "hello", "", "/down too long", "shorter", "/what", "/new", "again", "/quit", "never")
    with PolicyClient(door.url) as client:
        converse(client, {"max_tokens": 9}, None)
    posts = [(path, body) for path, body, _ in door.requests]
    assert [path for path, _ in posts] == ["/v1/chat/completions", "/v1/feedback", *["/v1/chat/completions"] * 2]
    assert posts[1][1] == {"turn_id": "turn_1", "score": -1, "comment": "too long"}
    assert [len(body["messages"]) for path, body in posts if "messages" in body] == [1, 3, 1]
    assert posts[0][1]["max_tokens"] == 9
    shown = capsys.readouterr()
    assert shown.out == "You said: hello\nYou said: shorter\nYou said: again\n"
    assert "(answer 1, version 7, session ses_new)\n" in shown.err and "(answer 2, version 7)\n" in shown.err
    assert f"there is no /what\n{HELP}\n" in shown.err and "judgements and new versions are not told" in shown.err


def test_what_can_not_be_done_does_not_end_it(door: FakeDoor, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    typed(monkeypatch, "/up", "/why", "/compare", "hello", "/why", "/compare 2", "/compare x", "/compare", "more")
    with PolicyClient(door.url) as client:
        converse(client, {}, None)
    assert [body["messages"][-1]["content"] for _, body, _ in door.requests] == ["hello", "more"]
    said = capsys.readouterr().err
    for text in ("error: there is no answer yet to give feedback on\n", "start the conversation without --url\n",
                 "there is no answer yet\n", "2: not the number of an answer here, which are 1 to 1\n",
                 "x: not the number of an answer here", "version 7 gave all answers here and still answers"):
        assert text in said


def test_a_question_is_asked_again_outside_of_the_conversation(door: FakeDoor, monkeypatch: pytest.MonkeyPatch,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    """Else it would be the same question again, which is a complaint."""
    typed(monkeypatch, "a heron?", "a stork?", "/compare 1", "/compare 2", "an owl?")
    with PolicyClient(door.url, system="Be kind.") as client:
        converse(client, {"temperature": 0.5}, None)
        assert len(client.messages) == 7
    first, second, again_1, again_2, last = (body for _, body, _ in door.requests)
    assert again_1["messages"] == first["messages"] and again_2["messages"] == second["messages"]
    assert again_1["turn_type"] == again_2["turn_type"] == "side" and again_1["temperature"] == 0.5
    assert len({again_1["session_id"], again_2["session_id"], last["session_id"]}) == 3
    assert last["session_id"] == "ses_new" and "turn_type" not in last
    shown = capsys.readouterr()
    assert "question 1: a heron?\nversion 7 answered:\n" in shown.err and "version 7 answers:\n" in shown.err
    assert shown.out.count("You said: a heron?\n") == 3


def test_by_default_what_another_version_answered_is_compared(door: FakeDoor) -> None:
    class News:
        active, judged = 8, None

        def answered(self, number: int, turn_id: str) -> None:
            assert (number, turn_id) == (1, "turn_1")

    with PolicyClient(door.url) as client:
        conversation = Conversation(client, {}, Screen(), None, News())  # type: ignore[arg-type]
        conversation.say("a heron?")
        conversation.command("/compare")
    assert door.requests[1][1]["messages"] == door.requests[0][1]["messages"]


def test_notes_wait_for_the_end_of_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    with screen.answer():
        screen.write("A heron")
        thread = threading.Thread(target=screen.note, args=("answer 1 judged -1, hint: [b]short\x1b",))
        thread.start()
        thread.join(60)
        assert capsys.readouterr() == ("A heron", "")
        screen.write(" is.\n")
    assert capsys.readouterr() == (" is.\n", "answer 1 judged -1, hint: [b]short\N{REPLACEMENT CHARACTER}\n")
    screen.note("at once")
    assert capsys.readouterr() == ("", "at once\n")


def test_a_note_is_written_above_the_line_that_is_typed(monkeypatch: pytest.MonkeyPatch,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("openclaw_rl.cli.chat_screen.err", Console(stderr=True, force_terminal=True))
    monkeypatch.setattr("openclaw_rl.cli.chat_screen.readline", SimpleNamespace(get_line_buffer=lambda: "What is"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)

    def typing(prompt: str) -> str:
        screen.note("training begins")
        return " What is a heron? "

    monkeypatch.setattr("builtins.input", typing)
    assert screen.read() == "What is a heron?"
    assert capsys.readouterr() == ("\r\x1b[Kyou> What is", "\x1b[2mtraining begins\x1b[0m\n")


def test_without_a_mesh_it_says_so_once(tmp_path: Path, door: FakeDoor, monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    """The policy server still answers; that news of the components fail does not end the conversation."""
    home = Home(tmp_path / "home").create()
    typed(monkeypatch, "hello", "/why")
    with PolicyClient(door.url) as client:
        converse(client, {}, home)
    shown = capsys.readouterr()
    assert shown.out == "You said: hello\n" and "error: env_server is not running" in shown.err


def test_a_turns_story() -> None:
    fate = TurnFate("turn_1", "ses_1", "main", 0, -1, "trained", 1, "", "What is\na heron?", "A heron " * 40)
    votes = [Vote(judge="rules", score=-1, rationale="a complaint", hint="Shorter."), Vote(judge="llm", error="no key")]
    lines = told(TurnStory(fate, Judgement(turn_id="turn_1", votes=votes, score=-1, hint="Shorter."))).splitlines()
    assert " ".join(line.split()[0] for line in lines) == "turn asked answered vote vote judged hint fate"
    assert lines[1] == "  asked     What is a heron?" and lines[2].endswith("…") and len(lines[2]) < 220
    assert lines[3:5] == ["  vote      rules: -1; a complaint", "  vote      llm: failed: no key"]
    assert lines[5:] == ["  judged    -1", "  hint      Shorter.", "  fate      trained version 1"]
    pending = TurnFate("turn_2", "ses_1", "main", 0, None, "not_trainable", None, "a retry")
    assert told(TurnStory(pending, None)).splitlines()[-1] == "  fate      not trainable: a retry"
