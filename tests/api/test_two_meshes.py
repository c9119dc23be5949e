"""Two meshes that are wired to one another by mistake, as when one starts on the ports of the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.api.in_process import InProcessMesh
from openclaw_rl.v1 import component_pb2
from tests.api.test_in_process import IDLE, talk
from tests.mesh.fake_api import FakeApi
from tests.mesh.in_process import in_process_mesh
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _api(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    api = FakeApi()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    yield
    api.close()


def _status(mesh: InProcessMesh, name: str) -> component_pb2.ComponentStatus:
    server = mesh._runs[name].server
    assert server is not None
    return server.status()


def _wrong(mesh: InProcessMesh, name: str) -> str:
    """The component's alarm about another mesh."""
    return next((alarm.message for alarm in _status(mesh, name).alarms if alarm.name == "wrong_mesh"), "")


async def test_cross_wired_meshes_train_on_nothing_of_one_another(tmp_path: Path) -> None:
    """Of the mesh "ours" the environment server has the other's judge, and the trainer the other's policy server."""
    async with in_process_mesh(tmp_path / "theirs", "gpt-4o-mini", IDLE) as theirs:
        strange: dict[str, dict[str, Any]] = {
            **IDLE, "prm_judge": {"address": theirs.record("prm_judge").address},
            "trainer": {**IDLE["trainer"], "policy_servers": [theirs.record("policy_server").address]}}
        async with in_process_mesh(tmp_path / "ours", "gpt-4o-mini", strange) as ours:
            here, there = _status(ours, "env_server").mesh_id, _status(theirs, "env_server").mesh_id
            assert here and there and here != there
            turns = await talk(ours.http_address, "hi", "no, that is wrong", "thanks")
            for name in ("env_server", "trainer"):
                said = await eventually(lambda name=name: _wrong(ours, name), what=f"an alarm of {name}")
                assert there in said, said
                assert _status(ours, name).state == component_pb2.COMPONENT_STATE_DEGRADED
            for name, caller in (("prm_judge", "env_server"), ("policy_server", "trainer")):
                status = _status(theirs, name)
                assert status.gauges["foreign_calls_refused"] >= 1 and not _wrong(theirs, name)
                assert f"{caller} of the mesh {here} calls" in status.detail
            outbox = await eventually(lambda: next((box for box in _status(ours, "env_server").outboxes
                                                    if box.pending >= 2), None))
            assert outbox.rejected == 0 and outbox.delivered == 0 and not outbox.connected, "all of it waits"
            # What the other mesh does itself goes on meanwhile.
            own = await talk(theirs.http_address, "hi", "no, that is wrong", "thanks", session="own")
            await eventually(lambda: _status(theirs, "trainer").counters["samples_accepted"] >= 2)
        judged = _status(theirs, "prm_judge").counters["transitions"]
        assert judged == _status(theirs, "trainer").counters["samples_accepted"] <= len(own)
        assert not set(turns) & set(own)
