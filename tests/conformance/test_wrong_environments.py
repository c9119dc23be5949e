"""The kit fails each wrong environment server on its fault, with the sentence that says so, and on nothing else."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest
import yaml

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Need, checks_of
from openclaw_rl.conformance.listener import Listener
from openclaw_rl.conformance.process import ServerProcess
from openclaw_rl.conformance.runner import run
from openclaw_rl.conformance.services import SERVICES
from tools.conformance.own import configuration

from .harness import failed
from .wrong.environments import EXPECTED

_GROUPS = ("onward.arrives", "onward.unchanged", "onward.order", "environment", "ring.acks", "component.serves",
           "component.health")


@pytest.mark.slow
@pytest.mark.parametrize("fault", EXPECTED)
async def test_a_wrong_environment_fails(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    id, seen = EXPECTED[fault]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listener = Listener("127.0.0.1:0")
    await listener.start()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(
        {"components": configuration("environment", port, listener.address)}))
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path))
    process = ServerProcess(f"{sys.executable} -m tests.conformance.wrong.environments {fault}", f"127.0.0.1:{port}",
                            tmp_path / "data")
    try:
        await process.start()
        kit = Context(SERVICES["environment"], process.address, listener=listener, process=process)
        some = [one for one in checks_of("environment") if one.id.startswith(_GROUPS) and Need.START not in one.needs]
        report = await run(kit, some)
        await kit.close()
    finally:
        await process.stop()
        await listener.stop()
    assert list(failed(report)) == [id]
    assert re.search(seen, failed(report)[id])
