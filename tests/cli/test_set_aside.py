"""openclaw-rl set-aside: what was refused and what was damaged, of all components, without asking them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openclaw_rl.cli.commands import app
from openclaw_rl.config import Config
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.mesh_file import MeshFile
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.storage.quarantine import Quarantine
from openclaw_rl.v1 import environment_pb2, turn_pb2


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


def run(*args: str) -> str:
    result = CliRunner().invoke(app, ["set-aside", *args], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_nothing_is_set_aside_where_there_is_no_mesh(home: Home) -> None:
    assert run() == "nothing is set aside\n" and json.loads(run("--json")) == {"messages": [], "files": []}


def test_components_on_other_hosts_are_not_passed_over_in_silence(home: Home) -> None:
    mesh_file.write(home.create(), MeshFile(Config(), "", {"env_server": "127.0.0.1", "trainer": "192.0.2.4"}))
    result = CliRunner().invoke(app, ["set-aside", "--json"], catch_exceptions=False)
    assert json.loads(result.stdout) == {"messages": [], "files": []}
    assert "not included: trainer (on 192.0.2.4)" in result.stderr and "env_server" not in result.stderr


def test_messages_and_files_of_a_running_mesh_are_listed(home: Home) -> None:
    store = Database(home.component("policy_server") / "state.db")  # stays open: the mesh runs
    outbox = Outbox(store, "turns")
    turn = turn_pb2.Turn(turn_id="t1", session_id="s1")
    outbox.put("t1", environment_pb2.PolicyEvent(turn=turn).SerializeToString())
    outbox.set_aside(["t1"], "turn.session_id: 300 characters; it must have 1 to 256")
    trainer = Database(home.component("trainer") / "state.db")
    quarantine = Quarantine(trainer, "samples")
    with trainer.transaction() as db:
        quarantine.keep(db, "t2", "bad token record: [x]", b"\xff\xff")
        quarantine.keep(db, "t3", "bad score",
                        turn_pb2.Sample(judgement=turn_pb2.Judgement(score=7)).SerializeToString())
    (home.component("prm_judge")).mkdir()
    (home.component("prm_judge") / "state.db").write_text("no database")
    (home.component("prm_judge") / "state.db.corrupt-20260101T000000").write_bytes(bytes(1000))
    folder = home.component("trainer") / "set-aside" / "version-9-x"
    folder.mkdir(parents=True)
    (folder / "f").write_bytes(bytes(500))
    for name, size in (("telemetry/trainer.db.damaged-1", 7), ("models/small.damaged-1", 8), ("logs/x.foreign-1", 9)):
        path = home.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(size))

    listed = json.loads(run("--json"))
    assert [(m["component"], m["id"], m["reason"]) for m in listed["messages"]] == [
        ("trainer", "t3", "bad score"), ("trainer", "t2", "bad token record: [x]"),
        ("policy_server", "t1", "turn.session_id: 300 characters; it must have 1 to 256")]
    assert [(f["component"], Path(f["path"]).name, f["bytes"]) for f in listed["files"]] == [
        ("prm_judge", "state.db.corrupt-20260101T000000", 1000), ("trainer", "version-9-x", 500),
        ("telemetry", "trainer.db.damaged-1", 7), ("models", "small.damaged-1", 8), ("logs", "x.foreign-1", 9)]
    text = run()
    assert "policy_server t1: turn.session_id: 300 characters" in text and "bad token record: [x]" in text
    assert "version-9-x" in text

    [one] = json.loads(run("--id", "t1", "--json"))["messages"]
    assert one["content"] == {"turn": {"turn_id": "t1", "session_id": "s1"}}
    assert '"score": 7' in run("--id", "t3") and "2 bytes" in run("--id", "t2")
    assert run("--id", "nobody") == "nothing is set aside of nobody\n"
    store.close()
    trainer.close()
