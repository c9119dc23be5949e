"""From a user's message to a new version that answers, seen from outside."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.mesh.mesh import Mesh
from tests.support.private import open_to_others
from tests.support.waiting import until
from tools.recording.terminal import Terminal

COMPLAINT = "That is wrong. Answer in one short plain sentence, without lists."


def test_a_streamed_answer_as_curl_gets_it(mesh: Mesh) -> None:
    body = {"messages": [{"role": "user", "content": "What is a heron?"}], "stream": True, "max_tokens": 24,
            "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{mesh.url}/v1/chat/completions", json=body, timeout=120, trust_env=False) as response:
        assert response.status_code == 200
        data = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data:")]
    events = [json.loads(line) for line in data[:-1]]
    assert data[-1] == "[DONE]"
    assert sum(bool(e["choices"] and e["choices"][0]["delta"].get("content")) for e in events) > 5, "token by token"
    assert 5 < events[-1]["usage"]["completion_tokens"] <= 24  # what it learned meanwhile may be to answer briefly
    assert response.headers["x-openclaw-turn-id"] and events[0]["session_id"]


def test_the_openai_sdk_works_unchanged(mesh: Mesh) -> None:
    client = openai.OpenAI(base_url=f"{mesh.url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    messages: Any = [{"role": "user", "content": "Name a bird."}]
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=8, logprobs=True)
    assert answer.choices[0].message.content and answer.usage and answer.usage.completion_tokens <= 8
    assert answer.choices[0].logprobs and answer.choices[0].logprobs.content
    stream = client.chat.completions.create(model=model, messages=messages, max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=model, messages=[], max_tokens=8)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such-model", messages=messages)


def test_complaints_become_a_version_that_answers(mesh: Mesh) -> None:
    before = {v["version"] for v in mesh.json("versions")}
    turns = [turn for i in range(3) for turn in mesh.session(f"complain-{i}", "How do I boil an egg?", COMPLAINT,
                                                            "Thanks, that is great!", done=True)]

    def fates() -> dict[str, dict[str, Any]] | None:
        found = {k: v for i in range(3) for k, v in mesh.turns(f"complain-{i}").items()}
        return None if any(t["fate"] == "pending" for t in found.values()) else found

    found = until(fates, 300, "a fate for every turn")
    assert sorted(found) == sorted(turns)
    assert {t["class"] for t in found.values()} == {"main"}
    assert [found[turn]["score"] for turn in turns[:2]] == [-1, 1], "complained of, then thanked for"
    check_fates(found.values())
    assert all(t["trained_version"] not in before for t in found.values())

    versions = until(lambda: [v for v in mesh.json("versions") if v["active"] and v["version"] not in before], 60,
                     "an active new version")
    assert versions[0]["algorithm"] == "combine" and versions[0]["parent"] is not None
    response = mesh.chat([{"role": "user", "content": "What is rain?"}])
    assert int(response.headers["x-openclaw-policy-version"]) >= versions[0]["version"]
    check_books(mesh)


def check_fates(turns: Iterable[dict[str, Any]]) -> None:
    """All were trained. What is neither praised nor blamed may be let go when no step came to ride along with, and so
    is an answer in which the model, as it does at times, says the same again and again."""
    for turn in turns:
        assert (turn["fate"] == "trained" or (turn["score"] == 0 and "no signal" in turn["reason"])
                or turn["reason"].startswith("degenerate: ")), turn


def check_books(mesh: Mesh) -> None:
    """A version's turns are exactly those whose fate is that version."""
    by_version: dict[int, set[str]] = {}
    for turn in mesh.json("turns"):
        if turn["fate"] == "trained":
            by_version.setdefault(turn["trained_version"], set()).add(turn["turn"])
    assert {v["version"]: set(v["turns"]) for v in mesh.json("versions") if v["turns"]} == by_version


def test_side_turns_are_not_trainable(mesh: Mesh) -> None:
    mesh.chat([{"role": "user", "content": "Write a title."}], headers={"X-Session-Id": "side", "X-Turn-Type": "side"})
    turn = until(lambda: list(mesh.turns("side").values()), 20)[0]
    assert (turn["class"], turn["fate"]) == ("side", "not_trainable") and turn["reason"]
    assert turn["trained_version"] is turn["score"] is None


def test_an_open_turn_is_pending_and_feedback_judges_it(mesh: Mesh) -> None:
    reply = mesh.session("thumbs", "What is snow?")
    turn = until(lambda: mesh.turns("thumbs").get(reply[0]), 20)
    assert turn["fate"] == "pending" and turn["reason"].startswith("open")
    response = httpx.post(f"{mesh.url}/v1/feedback", trust_env=False,
                          json={"turn_id": reply[0], "score": -1, "comment": "Say it in five words."})
    assert response.status_code == 200, response.text
    turn = until(lambda: next((t for t in mesh.turns("thumbs").values() if t["fate"] == "trained"), None), 300)
    assert turn["score"] == -1


def test_rolling_back_and_forward_again(mesh: Mesh) -> None:
    newest = mesh.settle()
    assert newest > 0
    mesh.cli("rollback", "0")
    assert mesh.json("status")["policy_version"] == 0
    response = mesh.chat([{"role": "user", "content": "What is rain?"}])
    assert response.headers["x-openclaw-policy-version"] == "0"
    assert [v["version"] for v in mesh.json("versions") if v["active"]] == [0]
    refused = mesh.command("rollback", "99999")
    assert refused.returncode == 1 and "it is not kept here; those that are: 0" in refused.stderr
    mesh.cli("rollback", str(newest))
    assert mesh.json("status")["policy_version"] == newest
    mesh.cli("resume")


def test_chat_and_the_journal(mesh: Mesh) -> None:
    done = mesh.command("chat", "-s", "terminal", "--max-tokens", "8", "Name a tree.")
    assert done.returncode == 0 and done.stdout.strip() and "version" in done.stderr
    assert "session terminal" in done.stderr
    until(lambda: "[SESSION: terminal]" in mesh.command("logs", "--journal", "-n", "500").stdout, 20)
    assert "trainer" in mesh.cli("logs")


def test_a_conversation_tells_how_it_is_judged(mesh: Mesh) -> None:
    command = [str(Path(sys.executable).parent / "openclaw-rl"), "chat", "--max-tokens", "8"]
    with Terminal(command, mesh.env) as terminal:
        terminal.prompt()
        terminal.say("What is a crane?", r"\(answer 1, version \d+, session ")
        terminal.say(COMPLAINT, r"answer 1 judged -1, hint: ")
        assert re.search(r"(classifier|rules): -1", terminal.say("/why", "fate  "))
        assert "version " in terminal.say("/compare 1", r"version \d+ answers:")
        terminal.type("/quit")


def test_a_second_local_start_leaves_all_as_it_is(mesh: Mesh) -> None:
    pids = [c["pid"] for c in mesh.json("status")["components"]]
    done = mesh.command("local-start")
    assert done.returncode == 0 and "running already" in done.stderr, done.stdout
    assert [c["pid"] for c in mesh.json("status")["components"]] == pids


def test_every_figure_of_status_is_there(mesh: Mesh) -> None:
    facts = mesh.json("status")
    assert set(facts) == {"components", "problems", "policy_version", "turns", "samples"}
    assert facts["problems"] == []
    assert facts["turns"]["main"] >= 9 and facts["turns"]["side"] >= 1
    assert facts["samples"]["trained"] >= 9
    done = mesh.command("status")
    assert done.returncode == 0, done.stdout


def test_nothing_in_the_home_is_open_to_other_users(mesh: Mesh, model: Path) -> None:
    public = {file.name for file in model.iterdir()}  # of the base model, as its folder has them
    open_files = [line for line in open_to_others(mesh.home.root) if ".crt " not in line]
    assert [line for line in open_files if Path(line.rpartition(" ")[0]).name not in public] == []
