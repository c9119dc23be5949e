"""rollback, pin and unpin wait until a version's weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import yaml
from typer.testing import CliRunner

from openclaw_rl.cli.commands import app
from openclaw_rl.v1 import policy_pb2, policy_pb2_grpc


class Policy(policy_pb2_grpc.PolicyServiceServicer):
    seconds = 0.0

    def ActivateVersion(self, request: policy_pb2.ActivateVersionRequest, context: grpc.ServicerContext
                        ) -> policy_pb2.ActivateVersionResponse:
        self.seconds = context.time_remaining()
        return policy_pb2.ActivateVersionResponse()


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Policy]:
    server, servicer = grpc.server(ThreadPoolExecutor(1)), Policy()
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(
        {"components": {"policy_server": {"address": f"127.0.0.1:{port}"}}}))
    yield servicer
    server.stop(0)


@pytest.mark.parametrize("command", ["rollback 0", "pin 0", "unpin"])
def test_a_large_model_has_minutes(command: str, policy: Policy) -> None:
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    assert policy.seconds > 600
