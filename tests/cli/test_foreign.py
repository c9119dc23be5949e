"""Commands in a mesh whose judge and environment server are of another make, and keep neither log nor spans."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from openclaw_rl.cli.commands import app
from openclaw_rl.rpc.errors import unimplemented
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import component_pb2 as pb
from openclaw_rl.v1.component_pb2_grpc import ComponentServiceServicer
from tests.client.peers import serving


class Keeps(ComponentServiceServicer):
    """Keeps a journal, and no more."""

    async def ReadLogs(self, request: pb.ReadLogsRequest, context: Any) -> AsyncIterator[pb.ReadLogsResponse]:
        if request.source != pb.LOG_SOURCE_JOURNAL:
            raise unimplemented("a log")
        yield pb.ReadLogsResponse(lines=["[SESSION: s] what was said"])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    home = Home(tmp_path).create()
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path))
    with serving(ComponentServiceServicer()) as env, serving(Keeps()) as judge:
        home.config_file.write_text(yaml.safe_dump({"components": {
            "env_server": {"address": env.address}, "prm_judge": {"address": judge.address},
            "policy_server": {"address": env.address}, "trainer": {"address": env.address}}}))
        yield home


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def test_one_that_keeps_no_log_says_so_and_is_not_followed(home: Home) -> None:
    for args in (("logs", "env_server"), ("logs", "-f", "env_server", "prm_judge")):
        result = run(*args)
        assert result.exit_code == 1 and "env_server: ReadLogs" in result.output
        assert "local-start" not in result.output and "trying again" not in result.output


def test_the_journal_is_asked_of_one_that_keeps_it(home: Home) -> None:
    result = run("logs", "--journal")
    assert result.exit_code == 0 and result.output == "[SESSION: s] what was said\n"


def test_a_turn_without_spans_is_told_with_who_keeps_none(home: Home) -> None:
    result = run("trace", "turn_1")
    assert result.exit_code == 1
    assert "there are no spans of turn turn_1 (" in result.output and "env_server keeps no spans" in result.output
    assert "`openclaw-rl turns` lists the turns" in result.output


def test_a_journal_that_nobody_here_writes(home: Home) -> None:
    config = yaml.safe_load(home.config_file.read_text())
    del config["components"]["prm_judge"], config["components"]["trainer"]
    home.config_file.write_text(yaml.safe_dump(config))
    result = run("logs", "--journal")
    assert result.exit_code == 1 and "our environment server and judge write it as turns come" in result.output
    assert "local-start" not in result.output
