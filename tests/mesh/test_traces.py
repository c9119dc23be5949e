"""The mesh's spans at a real Jaeger, asked through its own query API, and by `openclaw-rl trace`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.launch import jaeger
from tests.mesh.mesh import Mesh, make_home, running
from tests.support.required import left_out
from tests.support.waiting import until

CALLER = "ab" * 16  #: the caller's trace
SECRET = "heron4711"


@pytest.fixture
def traced(model: Path, tmp_path: Path) -> Iterator[Mesh]:
    """A mesh with a Jaeger beside it."""
    if jaeger.find() is None:
        left_out("jaeger is missing; tools/outside-tools builds it")
    mesh = Mesh(make_home(tmp_path / "home", model, {
        "policy_server": {"port": 0, "grpc_port": 0, "max_tokens": 16}, "env_server": {"port": 0},
        "prm_judge": {"port": 0}, "trainer": {"port": 0, "min_samples": 2, "update_interval": 2,
                                              "gate": {"enabled": False}}}))
    with running(mesh, "--jaeger"):
        yield mesh


class Query:
    """Jaeger's query API."""

    def __init__(self, address: str) -> None:
        self._http = httpx.Client(base_url=address, trust_env=False, timeout=10)

    def traces(self, service: str, **tags: str) -> list[list[dict[str, Any]]]:
        """Spans of the traces in which a span of the service has all these tags."""
        answer = self._http.get("/api/traces", params={"service": f"openclaw-rl.{service}", "limit": 100,
                                                       "tags": json.dumps({k.replace("__", "."): v
                                                                           for k, v in tags.items()})})
        answer.raise_for_status()
        return [self._spans(trace) for trace in answer.json()["data"]]

    @staticmethod
    def _spans(trace: dict[str, Any]) -> list[dict[str, Any]]:
        services = {key: process["serviceName"] for key, process in trace["processes"].items()}
        return [{"name": span["operationName"], "id": span["spanID"], "trace": span["traceID"],
                 "service": services[span["processID"]], "tags": {tag["key"]: tag["value"] for tag in span["tags"]},
                 "parent": [r["spanID"] for r in span["references"] if r["refType"] == "CHILD_OF"],
                 "links": [r["traceID"] for r in span["references"] if r["refType"] == "FOLLOWS_FROM"]}
                for span in trace["spans"]]


def test_a_turn_and_its_version_in_jaeger_and_on_the_command_line(traced: Mesh) -> None:
    mesh = traced
    query = Query(mesh.json("status")["jaeger"]["address"])
    first = mesh.chat([{"role": "user", "content": f"What is a {SECRET}?"}], headers={
        "X-Session-Id": "s", "traceparent": f"00-{CALLER}-{'cd' * 8}-01"})
    turn = first.headers["x-openclaw-turn-id"]
    until(lambda: turn in mesh.turns("s"), 30, "the turn is recorded")
    until(lambda: query.traces("env_server", openclaw__turn__id=turn), 60, "so is its span, which a kill would lose")
    for name in ("env_server", "prm_judge"):  # what follows comes from other processes
        os.kill(mesh.record(name).pid, signal.SIGKILL)
    messages = [{"role": "user", "content": f"What is a {SECRET}?"}, first.json()["choices"][0]["message"],
                {"role": "user", "content": "That is wrong. Answer in one short sentence."}]
    second = mesh.chat(messages, headers={"X-Session-Id": "s"}).json()["choices"][0]["message"]
    mesh.chat([*messages, second, {"role": "user", "content": "Thanks, that is great!"}],
              headers={"X-Session-Id": "s", "X-Session-Done": "1"})
    until(mesh.all_running, 120, "both are back")
    fate = until(lambda: (mesh.turns("s").get(turn) or {}).get("trained_version"), 300, "the turn is trained")

    # For a turn: its votes, and the version that it trained.
    hops = ("turn record", "next state", "evaluate", "sample", "train")
    (spans,) = until(lambda: [t for t in query.traces("trainer", openclaw__turn__id=turn)
                              if {s["name"] for s in t}.issuperset(hops)], 60, "the turn's trace is there")
    assert {span["trace"] for span in spans} == {CALLER}
    by_name = {span["name"]: span for span in spans}
    chat = by_name[f"chat {EMBEDDED_MODEL}"]
    assert chat["parent"] == [by_name["POST /v1/chat/completions"]["id"]]
    for name in hops:
        assert by_name[name]["parent"] == [chat["id"]], name
    vote = next(span for name, span in by_name.items() if name.startswith("vote "))
    assert vote["service"] == "openclaw-rl.prm_judge" and vote["parent"] == [by_name["evaluate"]["id"]]
    assert vote["tags"]["gen_ai.evaluation.score.value"] == -1
    assert by_name["train"]["tags"]["openclaw.policy.version.trained"] == fate
    assert {span["service"].partition(".")[2] for span in spans} == {
        "policy_server", "env_server", "prm_judge", "trainer"}
    assert query.traces("policy_server", openclaw__session__id="s", openclaw__policy__version="0")
    assert query.traces("env_server", openclaw__turn__class="main", openclaw__turn__id=turn)

    # For a version: its turns, and its way into the policy server.
    def step() -> list[dict[str, Any]] | None:
        found = query.traces("trainer", openclaw__policy__version__trained=str(fate))
        steps = [t for t in found if any(s["name"] == "train step" for s in t)]
        # Two processes export their spans, each in its own time.
        return steps[0] if steps and {"activate version", "weight sync"} <= {s["name"] for s in steps[0]} else None

    made = {span["name"]: span for span in until(step, 60, "the version is activated")}
    listed = next(v["turns"] for v in mesh.json("versions") if v["version"] == fate)
    assert turn in listed
    assert turn in mesh.cli("versions", "show", str(fate))
    assert CALLER in made["train step"]["links"] and len(made["train step"]["links"]) == len(listed)
    found = query.traces("trainer", openclaw__policy__version__trained=str(fate))
    assert {s["tags"]["openclaw.turn.id"] for t in found for s in t if s["name"] == "train"} == set(listed)
    assert made["weight sync"]["parent"] == [made["train step"]["id"]]
    for name in ("stage version", "activate version"):
        assert made[name]["parent"] == [made["weight sync"]["id"]]
        assert made[name]["service"] == "openclaw-rl.policy_server"
    assert SECRET not in json.dumps([spans, found]), "no message text unless asked for"

    # The same from the files in the mesh's folder.
    tree = mesh.cli("trace", turn)
    for line in ("POST /v1/chat/completions", "vote ", f"trained version {fate}"):
        assert line in tree, tree
    tree = mesh.cli("trace", "--version", str(fate))
    assert all(text in tree for text in ("train step", "weight sync", "activate version", *listed)), tree
    assert "running already" in mesh.command("local-start", "--jaeger").stderr
