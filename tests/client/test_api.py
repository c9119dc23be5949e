"""The Python API."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import openclaw_rl
from openclaw_rl import PolicyClient, PolicyError, get_component_stats
from openclaw_rl.config import Config
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.mesh_file import MeshFile
from tests.client.fake_door import FakeDoor


@pytest.fixture
def door() -> Iterator[FakeDoor]:
    door = FakeDoor()
    yield door
    door.close()


def test_a_conversation_is_kept_until_a_new_session(door: FakeDoor) -> None:
    with PolicyClient(door.url + "/v1", system="Be brief.", api_key="k1") as client:
        reply = client.chat("hello", temperature=0)
        assert (str(reply), reply.turn_id, reply.policy_version) == ("You said: hello", "turn_1", 7)
        assert reply.session_id == "ses_new"
        client.chat("shorter")
        path, body, headers = door.requests[-1]
        assert path == "/v1/chat/completions" and headers["authorization"] == "Bearer k1"
        assert body["model"] == "the-model" and body["session_id"] == "ses_new"
        assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "user"]
        assert door.requests[0][1]["temperature"] == 0
        client.new_session()
        client.chat("again")
        body = door.requests[-1][1]
        assert len(body["messages"]) == 2 and "session_id" not in body


def test_feedback_means_the_last_answer(door: FakeDoor) -> None:
    with PolicyClient(door.url) as client:
        with pytest.raises(PolicyError, match="no answer yet"):
            client.feedback(1)
        client.chat("hello")
        assert client.feedback(-1, "too long") == "fb_1"
        assert door.requests[-1][:2] == ("/v1/feedback", {"turn_id": "turn_1", "score": -1, "comment": "too long"})


def test_a_refusal_leaves_the_conversation_as_it_was(door: FakeDoor) -> None:
    with PolicyClient(door.url) as client:
        client.chat("hello")
        before = list(client.messages)
        door.fail = (401, "missing bearer token")
        with pytest.raises(PolicyError, match="missing bearer token") as refused:
            client.chat("more")
        assert refused.value.status == 401
        door.fail, door.break_off = None, True
        with pytest.raises(PolicyError, match="the engine failed"):
            client.chat("more")
        assert client.messages == before


def test_nobody_there_says_what_to_do() -> None:
    with PolicyClient("http://127.0.0.1:1") as client, pytest.raises(PolicyError, match="openclaw-rl local-start"):
        client.chat("hello")


def test_the_mesh_file_says_where_a_mesh_on_several_hosts_is(door: FakeDoor, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENCLAW_RL_API_KEY", "OPENCLAW_RL_API_KEYS"):
        monkeypatch.delenv(name, raising=False)
    home = Home(tmp_path).create()
    mesh_file.write(home, MeshFile(Config(), door.url))
    (home.root / "first-key").write_text("ocl_first\n")
    with PolicyClient(home=home) as client:
        assert str(client.chat("hello")) == "You said: hello"
    assert door.requests[-1][2]["authorization"] == "Bearer ocl_first"
    with PolicyClient(door.url, home=home) as client:
        client.chat("hello")
    assert "authorization" not in door.requests[-1][2], "a key of the mesh is for no other address"
    mesh_file.write(home, MeshFile(Config(), "http://127.0.0.1:1"))
    with PolicyClient(home=home) as client, pytest.raises(PolicyError) as raised:
        client.chat("hello")
    assert "distributed-start" in str(raised.value) and "local-start" not in str(raised.value)


def test_stats_of_a_mesh_that_does_not_run(tmp_path: Path) -> None:
    stats = get_component_stats(Home(tmp_path))
    assert (stats["policy_qps"], stats["prm_queue"], stats["training"]) == (0.0, 0, False)
    assert set(stats["components"].values()) == {"STOPPED"}


def test_importing_the_package_is_cheap() -> None:
    code = "import openclaw_rl, sys; print(sorted({'grpc', 'httpx', 'pydantic', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert all(hasattr(openclaw_rl, name) for name in openclaw_rl.__all__)
    with pytest.raises(AttributeError):
        _ = openclaw_rl.nothing
