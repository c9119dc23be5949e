"""The READMEs of the four tell all of their RPCs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from openclaw_rl.v1 import environment_pb2, judge_pb2, policy_pb2, trainer_pb2

SERVERS = Path(__file__).parents[2] / "servers"


@pytest.mark.parametrize(("folder", "contract"), [
    ("policy", policy_pb2), ("environment", environment_pb2), ("judge", judge_pb2), ("trainer", trainer_pb2)])
def test_all_rpcs_are_told(folder: str, contract: object) -> None:
    text = (SERVERS / folder / "README.md").read_text()
    [service] = contract.DESCRIPTOR.services_by_name.values()  # type: ignore[attr-defined]
    streams = {(False, False): "", (False, True): "answers", (True, False): "requests", (True, True): "both ways"}
    told = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", text, re.MULTILINE))
    for method in service.methods:
        kind = streams[method.client_streaming, method.server_streaming]
        assert told[method.name].strip() == kind, method.name
