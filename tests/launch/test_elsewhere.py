"""A component that the configuration names by its address, of whatever make."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import yaml

from openclaw_rl.api.facade import PolicyClient
from openclaw_rl.client import ComponentServiceClient
from openclaw_rl.client.openai_address import http_address
from openclaw_rl.config import Config
from openclaw_rl.launch.status import report
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import component_pb2 as pb
from openclaw_rl.v1 import component_pb2_grpc


class Foreign(component_pb2_grpc.ComponentServiceServicer):
    """A policy server of another make, with versions of its own."""

    def __init__(self, contract_version: str = "1.0") -> None:
        self.contract_version = contract_version

    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(status=pb.ComponentStatus(
            name="policy_server", state=pb.COMPONENT_STATE_RUNNING, http_address="http://127.0.0.1:4711",
            package_version="7.1", contract_version=self.contract_version))


@contextmanager
def serving(servicer: Foreign) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor())
    component_pb2_grpc.add_ComponentServiceServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield address
    finally:
        server.stop(0)


@pytest.fixture
def foreign() -> Iterator[str]:
    with serving(Foreign()) as address:  # type: ignore[abstract]
        yield address


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


def test_one_of_another_contract_is_told(tmp_path: Path) -> None:
    with serving(Foreign("2.0")) as address:  # type: ignore[abstract]
        found = report(home_with(tmp_path, policy_server=address))["policy_server"]
    assert found.state == "FAILED" and "speaks contract 2.0, this side 1." in found.detail


def test_its_package_has_versions_of_its_own(tmp_path: Path, foreign: str) -> None:
    mesh = report(home_with(tmp_path, policy_server=foreign))
    mesh["trainer"].status = pb.ComponentStatus(package_version="0.1.0")  # one of ours
    assert mesh["policy_server"].status is not None and mesh.problems == []
    mesh["prm_judge"].status = pb.ComponentStatus(package_version="0.2.0")
    assert len(mesh.problems) == 1 and "7.1" not in mesh.problems[0]


def test_another_component_is_told_in_a_mesh_on_several_hosts_too(tmp_path: Path, foreign: str) -> None:
    home = home_with(tmp_path)
    config = Config.model_validate({"components": {"prm_judge": {"address": foreign}}})
    mesh_file.write(home, mesh_file.MeshFile(config))
    found = report(home)["prm_judge"]
    assert (found.state, found.status) == ("FAILED", None) and found.detail.startswith("policy_server answers at")


def test_nobody_there(tmp_path: Path) -> None:
    home = home_with(tmp_path, policy_server="127.0.0.1:1")
    assert http_address(home) == ""
    assert "does not answer at 127.0.0.1:1" in report(home)["policy_server"].detail
