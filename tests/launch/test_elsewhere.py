"""A component that the configuration names by its address, of whatever make."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import yaml

from openclaw_rl.api import PolicyClient
from openclaw_rl.client import ComponentServiceClient
from openclaw_rl.client.door import http_address
from openclaw_rl.home import Home
from openclaw_rl.launch.status import report
from openclaw_rl.v1 import component_pb2 as pb
from openclaw_rl.v1 import component_pb2_grpc


class Foreign(component_pb2_grpc.ComponentServiceServicer):
    """A policy server of another make."""

    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(status=pb.ComponentStatus(
            name="policy_server", state=pb.COMPONENT_STATE_RUNNING, http_address="http://127.0.0.1:4711"))


@pytest.fixture
def foreign() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor())
    component_pb2_grpc.add_ComponentServiceServicer_to_server(Foreign(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield address
    server.stop(0)


def home_with(folder: Path, **addresses: str) -> Home:
    home = Home(folder / "home").create()
    home.config_file.write_text(yaml.safe_dump({"components": {
        name: {"address": address} for name, address in addresses.items()}}))
    return home


def test_it_is_found_where_the_configuration_says(tmp_path: Path, foreign: str) -> None:
    home = home_with(tmp_path, policy_server=foreign)
    with ComponentServiceClient(component="policy_server", home=home) as client:
        assert client.address == foreign
    assert report(home)["policy_server"].state == "RUNNING"
    assert PolicyClient(home=home).base_url == http_address(home) == "http://127.0.0.1:4711"


def test_another_component_at_the_address_is_told(tmp_path: Path, foreign: str) -> None:
    found = report(home_with(tmp_path, prm_judge=foreign))["prm_judge"]
    assert found.state == "FAILED"
    assert found.detail.startswith(f"policy_server answers at {foreign}") and "components.prm_judge.address" in \
        found.detail


def test_nobody_there(tmp_path: Path) -> None:
    home = home_with(tmp_path, policy_server="127.0.0.1:1")
    assert http_address(home) == ""
    assert "does not answer at 127.0.0.1:1" in report(home)["policy_server"].detail
