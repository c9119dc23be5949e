"""A session is forgotten by a real mesh: no file shows it any more, and the version that it trained is rebuilt."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.client import PolicyServiceClient, TrainerServiceClient
from openclaw_rl.client.component import ComponentServiceClient
from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.runtime.home import Home
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import environment_pb2, turn_pb2
from tests.mesh.mesh import Mesh, make_home
from tests.support.waiting import until

MARK = "Quetzalcoatlus7319"
ANN, BOB, CAT = "ann-5581", "bob-5582", "cat-5583"


@pytest.fixture
def own_mesh(model: Path, tmp_path: Path) -> Iterator[Mesh]:
    """A mesh of this test's own: what it forgets would be missed by others."""
    mesh = Mesh(make_home(tmp_path / "home", model, {
        "policy_server": {"port": 0, "grpc_port": 0, "max_tokens": 16}, "env_server": {"port": 0},
        "prm_judge": {"port": 0},
        "trainer": {"port": 0, "min_samples": 3, "update_interval": 3600, "gate": {"enabled": False}}}))
    try:
        mesh.command("local-start")  # on a busy machine it may end with a component that is DEGRADED for a moment
        until(mesh.all_running, 120, "a running mesh")
        yield mesh
    finally:
        mesh.cli("stop-all")


def files_with(home: Home, text: str) -> list[str]:
    return [str(path.relative_to(home.root)) for path in home.root.rglob("*")
            if path.is_file() and not path.is_relative_to(home.models) and text.encode() in path.read_bytes()]


def complain(mesh: Mesh, session: str, secret: str) -> str:
    """A conversation whose first turn is judged bad; the id of that turn."""
    first, _ = mesh.session(session, f"What is a {secret} in short?", f"No, that is wrong. A {secret} is a pterosaur.",
                            done=True)
    return first


def test_a_session_is_forgotten(own_mesh: Mesh) -> None:
    mesh, home = own_mesh, own_mesh.home
    bob, cat = complain(mesh, BOB, "heron"), complain(mesh, CAT, "stork")
    ann = complain(mesh, ANN, MARK)
    until(lambda: any(v["active"] and v["version"] == 1 for v in mesh.json("versions")), 300, "version 1")
    before, = (v for v in mesh.json("versions") if v["version"] == 1)
    assert {ann, bob, cat} <= set(before["turns"])
    (home.root / "env_server" / "state.db.corrupt-20260101T000000").write_text(f"{ANN} {MARK}")
    assert files_with(home, MARK) and files_with(home, ANN)

    done = mesh.command("forget", "--session", ANN, "--yes", "--no-wait", "--json")
    assert done.returncode == 0, done.stderr + mesh.logs()
    result = json.loads(done.stdout)
    assert result["outcome"] in ("rebuilding", "rebuilt") and result["void_versions"] == [1]
    assert result["base_version"] == 0 and result["active_version"] != 1
    assert ann in result["turns"] and not {bob, cat} & set(result["turns"])
    assert not files_with(home, MARK) and not files_with(home, ANN)
    assert not mesh.json("turns", "--session", ANN)
    until(lambda: any(v["active"] and v["version"] == 2 for v in mesh.json("versions")), 300, "version 2")
    done = mesh.command("forget", "--session", ANN, "--yes", "--json")  # again, as after a crash
    assert json.loads(done.stdout)["outcome"] == "rebuilt", done.stdout + done.stderr
    after, = (v for v in mesh.json("versions") if v["active"])
    assert after["version"] == 2 and after["parent"] == 0 and after["digest"] != before["digest"]
    assert ann not in after["turns"] and sorted(after["turns"]).count(bob) == sorted(after["turns"]).count(cat) == 1
    with PolicyServiceClient(home=home) as policy:
        state = policy.get_policy().state
    assert list(state.kept_versions) == [0, 2] and 1 in state.withdrawn_versions
    with TrainerServiceClient(home=home) as trainer:
        assert trainer.get_version(version=1).version.detail.startswith("void: ")
        fates = {s.turn_id: s for s in trainer.list_samples(turn_ids=[ann, bob, cat]).samples}
    assert fates[ann].reason.startswith("forgotten") and fates[bob].version == fates[cat].version == 2

    # A turn that was still under way when it was forgotten: it is let go, and stands in nobody's way.
    mesh.cli("stop-all")
    late = turn_pb2.Turn(turn_id="turn_late", session_id=ANN, model=EMBEDDED_MODEL,
                         messages=[turn_pb2.ChatMessage(role="user", content=MARK)],
                         response=turn_pb2.ChatMessage(role="assistant", content=MARK))
    late.requested_at.FromSeconds(before_forgetting(home))
    store = Database(home.component("policy_server") / "state.db")
    Outbox(store, "turns").put("turn_late", environment_pb2.PolicyEvent(turn=late).SerializeToString())
    store.close()
    mesh.command("local-start")
    with ComponentServiceClient(component="policy_server", home=home) as component:
        def delivered() -> bool:
            outbox, = component.get_status().status.outboxes
            return outbox.delivered > 0 and not outbox.pending and not outbox.rejected
        until(delivered, 30, "the late turn's delivery")
    assert not mesh.json("turns", "--session", ANN)
    assert mesh.session(ANN, "Hello again", done=True), "a new conversation is welcome"
    until(lambda: mesh.json("turns", "--session", ANN), 30, "its turn")
    again = mesh.command("forget", "--session", ANN, "--yes", "--json")
    assert json.loads(again.stdout)["outcome"] in ("rebuilt", "nothing_trained"), again.stderr
    assert not files_with(home, MARK)


def before_forgetting(home: Home) -> int:
    """A second before the session was forgotten, as the environment server remembers it."""
    with sqlite3.connect(home.component("env_server") / "state.db") as db:
        return int(db.execute("SELECT MIN(before) FROM forgotten").fetchone()[0]) - 1
