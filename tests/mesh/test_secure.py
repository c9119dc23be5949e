"""The real mesh with certificates: the ring turns, certificates change under it, and nobody gets in without one."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from openclaw_rl.client import ComponentServiceClient
from openclaw_rl.rpc.auth.tls import Credentials
from openclaw_rl.rpc.channel import sync_connect
from openclaw_rl.rpc.errors import from_rpc_error
from openclaw_rl.runtime.home import COMPONENTS
from openclaw_rl.v1 import environment_pb2, environment_pb2_grpc, policy_pb2, policy_pb2_grpc
from tests.mesh.mesh import Mesh, make_home, running
from tests.support.waiting import until


@pytest.fixture(scope="module")
def secure(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    mesh = Mesh(make_home(tmp_path_factory.mktemp("secure") / "home", model, {
        "policy_server": {"port": 0, "grpc_port": 0}, "env_server": {"port": 0}, "prm_judge": {"port": 0},
        "trainer": {"port": 0, "min_samples": 1, "update_interval": 1, "gate": {"enabled": False}}},
        security={"tls": "on"}))
    refused = mesh.command("local-start")
    assert refused.returncode == 1 and "`openclaw-rl init` makes" in refused.stderr, refused.stderr
    mesh.command("init")  # which leaves the configuration
    with running(mesh):
        yield mesh


def post(mesh: Mesh, path: str, **fields: object) -> httpx.Response:
    trusted = ssl.create_default_context(cafile=str(mesh.home.certs / "ca.crt"))
    response = httpx.post(f"{mesh.url}{path}", json=fields, timeout=120, trust_env=False, verify=trusted)
    assert response.status_code == 200, response.text
    return response


def test_the_ring_turns_while_certificates_change(secure: Mesh) -> None:
    certs = secure.home.certs
    for name in COMPONENTS:
        with ComponentServiceClient(component=name, home=secure.home) as client:
            assert client.get_status().status.secure, name
    answer: list[str] = []
    operator = Credentials(certs, "operator")
    with sync_connect(secure.record("policy_server").address, "policy_server", operator) as channel:
        stream = policy_pb2_grpc.PolicyServiceStub(channel).Chat(policy_pb2.ChatRequest(
            messages=[{"role": "user", "content": "Tell me a long story."}], sampling={"max_tokens": 64}), timeout=300)
        answer.append(next(stream).delta.content)
        reader = threading.Thread(target=lambda: answer.extend(piece.delta.content for piece in stream))
        reader.start()
        secure.cli("certs", "renew")
        response = post(secure, "/v1/chat/completions", max_tokens=16,
                        messages=[{"role": "user", "content": "What is a heron?"}])
        post(secure, "/v1/feedback", turn_id=response.headers["x-openclaw-turn-id"], score=-1)
        reader.join(300)
    assert len(answer) > 20 and not reader.is_alive()
    # Turn, transition, sample and weights go on over connections with the new certificates.
    until(lambda: any(v["active"] and v["version"] for v in secure.json("versions")), 300, "a version that answers")
    assert secure.all_running()
    chat = secure.command("chat", text="hi\n")
    assert chat.returncode == 0, chat.stderr


@pytest.mark.parametrize(("role", "reason"), [("prm_judge", "WRONG_ROLE"), ("operator", "WRONG_ROLE"),
                                              (None, "UNAVAILABLE")])
def test_only_the_trainer_syncs_weights_and_only_the_policy_server_records_turns(
        secure: Mesh, role: str | None, reason: str) -> None:
    mine = Credentials(secure.home.certs, role) if role else None
    with sync_connect(secure.record("policy_server").address, "policy_server", mine) as policy, \
            sync_connect(secure.record("env_server").address, "env_server", mine) as env:
        sync, record = policy_pb2_grpc.PolicyServiceStub(policy), environment_pb2_grpc.EnvironmentServiceStub(env)
        for call in (sync.SyncWeights(iter([policy_pb2.SyncWeightsRequest()]), timeout=20),
                     record.RecordTurns(iter([environment_pb2.RecordTurnsRequest()]), timeout=20)):
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert from_rpc_error(caught.value).reason == reason
