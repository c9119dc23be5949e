"""Episodes in real sandboxes with the real model while users talk, and what becomes of them when the environment server
is killed in their middle."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from openclaw_rl.client import episodes as client
from openclaw_rl.v1.environment_pb2 import Episode
from tests.mesh.mesh import Mesh
from tests.mesh.test_faults import Users
from tests.support.waiting import until

#: Of a small run: an episode of two steps at most.
SMALL = ("--groups", "1", "--group-size", "1", "--max-steps", "2")


@pytest.fixture(scope="module")
def kinds(mesh: Mesh) -> list[str]:
    """Environments that this machine has all for."""
    found = [info["type"] for info in mesh.json("environments") if not info["problem"] and info["tasks"]]
    assert found, mesh.json("environments")
    if os.environ.get("OPENCLAW_RL_TEST_REQUIRE") == "all":
        assert {"terminal", "gui", "swe", "tool_call"} <= set(found), mesh.json("environments")
    return found


def every_turn_has_its_fate(mesh: Mesh, episodes: list[dict[str, Any]]) -> dict[str, list[client.Step]]:
    """Wait for them; gives the turns of each episode."""
    def done() -> dict[str, list[client.Step]] | None:
        found = {episode["episode"]: client.steps(mesh.home, Episode(session_id=episode["session"]))
                 for episode in episodes}
        return None if any(step.fate.fate == "pending" for steps in found.values() for step in steps) else found

    found: dict[str, list[client.Step]] = until(done, 300, "a fate for every turn")
    for step in (step for steps in found.values() for step in steps):
        assert step.fate.fate == "trained" or step.fate.reason, step
    return found


def told_to_the_trainer(mesh: Mesh) -> dict[str, sqlite3.Row]:
    """What the trainer knows of episodes, by id."""
    path = mesh.home.component("trainer") / "state.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as db:
        db.row_factory = sqlite3.Row
        return {row["episode_id"]: row for row in db.execute("SELECT * FROM episodes")}


def test_episodes_of_all_kinds_while_users_talk(mesh: Mesh, kinds: list[str]) -> None:
    with Users(mesh, "beside-episodes") as users:
        users.said(2)
        done = mesh.command("episodes", "run", "--type", "all", *SMALL, "--seed", "1", "--json", timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        users.said(2)
    assert not users.failures
    runs = {run["type"]: run for run in json.loads(done.stdout)["runs"]}
    assert set(runs) == set(kinds)
    for run in runs.values():
        assert (run["over"], run["total"], run["error"]) == (1, 1, ""), run
        assert not run["broken"], [episode["error"] for episode in run["episodes"]]
    episodes = [episode for run in runs.values() for episode in run["episodes"]]
    steps = every_turn_has_its_fate(mesh, episodes)
    for episode in episodes:
        turns = steps[episode["episode"]]
        assert [step.number for step in turns] == list(range(1, episode["steps"] + 1)), episode
        assert {step.fate.turn_class for step in turns} == {"main"}
        assert all(step.fate.score is not None for step in turns), "each step is judged"
    known = told_to_the_trainer(mesh)
    for episode in episodes:
        told = known[episode["episode"]]
        assert (told["outcome"], told["steps"], told["group_id"]) == (
            episode["outcome"], episode["steps"], episode["group"])
    until(lambda: not mesh.json("environments", "leases"), 30, "all sandboxes given back")


def test_an_environment_server_that_is_killed_amid_episodes(mesh: Mesh, kinds: list[str]) -> None:
    until(mesh.all_running, 120, "all running")
    kind = "terminal" if "terminal" in kinds else kinds[0]
    before = {episode["episode"] for episode in mesh.json("episodes", "list", "--limit", "1000")}
    # More than run while a busy machine looks for one that runs: two take a second.
    command = [str(Path(sys.executable).parent / "openclaw-rl"), "episodes", "run", "--type", kind, "--groups", "60",
               "--group-size", "2", "--parallel", "2", "--json"]
    run = subprocess.Popen(command, env=mesh.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def new() -> list[dict[str, Any]]:
        return [episode for episode in mesh.json("episodes", "list", "--limit", "1000")
                if episode["episode"] not in before]

    with Users(mesh, "killed-amid-episodes") as users:
        until(lambda: (there := new()) and any(episode["steps"] for episode in there)
              and any(not episode["done"] for episode in there), 100, "an episode under way")
        pid = mesh.record("env_server").pid
        sandboxes = psutil.Process(pid).children(recursive=True)
        os.kill(pid, signal.SIGKILL)
        users.said(2)
        until(lambda: mesh.states()["env_server"] == "RUNNING" and mesh.record("env_server").pid != pid, 120,
              "a new env_server")
    assert not users.failures, "nobody who talks notices"
    output, errors = run.communicate(timeout=60)
    assert run.returncode == 1 and json.loads(output)["runs"][0]["error"], output + errors
    episodes = new()
    assert all(episode["done"] for episode in episodes), "none runs any more"
    broken = [episode for episode in episodes if episode["outcome"] is None]
    assert broken and {episode["error"] for episode in broken} == {"the environment server ended"}
    every_turn_has_its_fate(mesh, episodes)
    known = told_to_the_trainer(mesh)
    for episode in broken:
        if episode["episode"] in known:  # none of those that had not come to a turn
            assert known[episode["episode"]]["outcome"] is None
    until(lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in sandboxes),
          30, "the end of the killed server's sandboxes")
    again = mesh.json("episodes", "run", "--type", kind, *SMALL)
    assert again["runs"][0]["over"] == 1 and not again["runs"][0]["broken"]
