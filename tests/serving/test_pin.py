"""A pin over ActivateVersion, and what the trainer's stream is told while it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.serving.entrypoints.grpc.weights_service import WeightsService
from openclaw_rl.serving.versions.registry import PolicyVersions
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1 import weights_pb2
from openclaw_rl.weights.transfer.errors import SyncError
from openclaw_rl.weights.transfer.receiver import WeightReceiver
from tests.serving.test_versions import FakeEngine, Server, base

__all__ = ["base"]  # a fixture


@pytest.fixture
async def server(tmp_path: Path, base: Path) -> Server:
    server = Server(tmp_path / "policy_server", base)
    await server.start()
    await server.add(1)
    return server


async def test_an_operator_pins_and_lifts_the_pin(server: Server) -> None:
    service = WeightsService(server.versions)
    state = (await service.activate(pb.ActivateVersionRequest(pin=True, reason="a demonstration"))).state
    assert state.pinned and state.active_version == 1 and "a demonstration" in service.pin
    with pytest.raises(MeshError) as error:
        await service.activate(pb.ActivateVersionRequest(version=0))
    assert error.value.reason == "PINNED" and "a demonstration" in error.value.message
    assert not (await service.activate(pb.ActivateVersionRequest(pin=False))).state.pinned
    assert (await service.activate(pb.ActivateVersionRequest(version=0))).state.active_version == 0
    with pytest.raises(MeshError, match="version"):
        await service.activate(pb.ActivateVersionRequest(reason="neither a version nor a pin"))


async def test_no_version_follows_a_pinned_one_also_when_it_was_on_its_way(server: Server) -> None:
    receiver = WeightReceiver(server.versions)
    newer = weights_pb2.VersionManifest(version=2, parent=1, model_id="m", digest="x")
    receiver._admit(newer)
    await server.versions.activate(None, pin=True)
    with pytest.raises(SyncError, match="openclaw-rl unpin") as rejection:
        receiver._admit(newer)
    assert rejection.value.reason == weights_pb2.WEIGHT_REJECT_REASON_PINNED and rejection.value.retryable
    server.versions.store.write(newer, [], base=0)
    with pytest.raises(SyncError):
        await server.versions.commit(2, lambda: receiver._admit(newer))
    assert server.versions.state().active_version == 1
    await server.versions.activate(None, pin=False)
    await server.versions.commit(2, lambda: receiver._admit(newer))
    assert server.versions.state().active_version == 2


async def test_a_pin_that_cannot_be_written_down_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("openclaw_rl.serving.versions.version_state.write_durably", full)
    with pytest.raises(MeshError, match="can't be written down") as error:
        await WeightsService(server.versions).activate(pb.ActivateVersionRequest(pin=True))
    assert error.value.retryable and not server.versions.state().pinned


async def test_an_api_model_has_no_version_to_pin(tmp_path: Path) -> None:
    versions = PolicyVersions(tmp_path, None, FakeEngine(accepts_weights=False))
    await versions.start()
    with pytest.raises(MeshError) as error:
        await WeightsService(versions).activate(pb.ActivateVersionRequest(pin=True))
    assert error.value.reason == "NO_WEIGHTS"
