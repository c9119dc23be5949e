"""Components are killed or stopped while users talk: nothing is lost, and nobody but the killed one is disturbed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from openclaw_rl.launch.supervisor import Supervisor
from openclaw_rl.runtime.home import COMPONENTS
from tests.mesh.mesh import Mesh
from tests.mesh.test_ring import COMPLAINT, check_books, check_fates
from tests.support.waiting import until


class Users:
    """Somebody who talks all the time, one short session after another."""

    def __init__(self, mesh: Mesh, name: str) -> None:
        self.mesh, self.name = mesh, name
        self.turns: list[str] = []
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._talk, daemon=True)

    def __enter__(self) -> Users:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)

    def _talk(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                self.turns += self.mesh.session(f"{self.name}-{number}", "What is rain?", COMPLAINT, done=True)
                self._stop.wait(0.2)  # a user reads; what is said without a pause is a heap to train on
            except (httpx.HTTPError, AssertionError) as error:
                self.failures.append(str(error))
                self._stop.wait(0.5)

    def said(self, count: int) -> None:
        """Wait for so many more turns."""
        wanted = len(self.turns) + count
        until(lambda: len(self.turns) >= wanted, 120, f"{count} more turns of {self.name}")


def fates_of(mesh: Mesh, turns: list[str]) -> dict[str, dict[str, Any]]:
    known = {turn["turn"]: turn for turn in mesh.json("turns")}
    return {turn: known[turn] for turn in turns if turn in known}


def all_trained(mesh: Mesh, turns: list[str]) -> bool:
    fates = fates_of(mesh, turns)
    return len(fates) == len(turns) and all(fate["fate"] != "pending" for fate in fates.values())


@pytest.fixture(autouse=True)
def settled(mesh: Mesh) -> Iterator[None]:
    """Each test begins and ends with all four up."""
    until(mesh.all_running, 120, "all running")
    yield
    until(mesh.all_running, 120, "all running again")


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_killed_component_comes_back_and_nothing_is_lost(mesh: Mesh, name: str) -> None:
    # Counted as started: one killed earlier comes back too, after a pause.
    until(lambda: Supervisor(mesh.home).processes()[name].state == "RUNNING", 30)
    with Users(mesh, f"killed-{name}") as users:
        users.said(3)
        pid = mesh.record(name).pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: mesh.states()[name] == "RUNNING" and mesh.record(name).pid != pid, 120, f"a new {name}")
        users.said(3)
    if name != "policy_server":
        assert not users.failures, "nobody who talks notices"
    until(lambda: all_trained(mesh, users.turns), 300, "a fate for every turn")
    check_fates(fates_of(mesh, users.turns).values())
    check_books(mesh)


def test_a_conversation_without_a_session_id_survives_a_killed_policy_server(mesh: Mesh) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is a heron?"}]
    first = mesh.chat(messages)
    pid = mesh.record("policy_server").pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: mesh.states()["policy_server"] == "RUNNING" and mesh.record("policy_server").pid != pid, 120,
          "a new policy server")
    messages += [first.json()["choices"][0]["message"], {"role": "user", "content": COMPLAINT}]
    second = mesh.chat(messages)
    session = first.json()["session_id"]
    assert second.json()["session_id"] == session
    ids = [response.headers["x-openclaw-turn-id"] for response in (first, second)]
    until(lambda: list(mesh.turns(session)) == ids, 30, "both turns in one session")
    turns = mesh.turns(session)
    assert {turn["branch"] for turn in turns.values()} == {ids[0]}
    until(lambda: mesh.turns(session)[ids[0]]["score"] == -1, 60, "the complaint is about the first answer")


@pytest.mark.parametrize("name", ["env_server", "prm_judge", "trainer"])
def test_turns_wait_for_a_component_that_is_down(mesh: Mesh, name: str) -> None:
    supervisor = Supervisor(mesh.home)
    with Users(mesh, f"down-{name}") as users:
        users.said(2)
        supervisor.stop(name)
        assert mesh.states()[name] == "STOPPED"
        users.said(6)
        assert mesh.command("status").returncode == 1
        supervisor.start(name)
        until(mesh.all_running, 120, f"{name} is back")
        users.said(2)
    assert not users.failures, "nobody who talks notices"
    until(lambda: all_trained(mesh, users.turns), 300, "a fate for every turn")
    check_books(mesh)


@pytest.mark.timeout(900)
def test_serving_goes_on_while_versions_change(mesh: Mesh) -> None:
    before = mesh.json("status")["policy_version"]
    errors: list[str] = []
    stop = threading.Event()
    spans: list[set[str]] = []

    def stream() -> None:
        while not stop.is_set():
            body = {"messages": [{"role": "user", "content": "Tell me a long story."}], "stream": True,
                    "max_tokens": 120, "seed": None}
            try:
                with httpx.stream("POST", f"{mesh.url}/v1/chat/completions", json=body, timeout=120,
                                  headers={"X-Turn-Type": "side"}, trust_env=False) as response:
                    lines = [line for line in response.iter_lines() if line]
                    if response.status_code != 200 or lines[-1] != "data: [DONE]":
                        errors.append(f"{response.status_code} {lines[-1:]}")
                    spans.append({response.headers["x-openclaw-policy-version"]})
            except httpx.HTTPError as error:
                errors.append(repr(error))

    threads = [threading.Thread(target=stream, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    with Users(mesh, "swapping"):
        until(lambda: (mesh.json("status")["policy_version"] or 0) >= before + 2, 600, "two new versions")
    stop.set()
    for thread in threads:
        thread.join(120)
    assert not errors
    assert len({version for span in spans for version in span}) >= 2


def test_memory_of_the_components_is_modest(mesh: Mesh) -> None:
    for name in ("env_server", "prm_judge"):
        assert psutil.Process(mesh.record(name).pid).memory_info().rss < 400 * 2**20
