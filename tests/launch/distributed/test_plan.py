"""What would run where, and what is wrong with a configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from openclaw_rl.cli.commands import app
from openclaw_rl.config import Config
from openclaw_rl.launch.distributed import plan as plans
from tests.launch.distributed.conftest import EXAMPLE, make_config


def made(components: dict[str, Any], names: dict[str, str] | None = None, **distributed: Any) -> plans.Plan:
    def resolve(host: str) -> str:
        if names is None or host not in names:
            if host[0].isdigit():
                return host
            raise OSError("no such host")
        return names[host]

    return plans.make(Config.model_validate({"mode": "distributed", "components": {
        "policy_server": {"host": "10.0.0.1"}, "env_server": {"host": "10.0.0.2"}, "prm_judge": {"host": "10.0.0.3"},
        "trainer": {"host": "10.0.0.4"}, **components}, "distributed": distributed}), resolve)


def test_the_example_as_it_stands(plan: plans.Plan) -> None:
    assert plan.problems == []
    assert plan.hosts == {"policy_server": "10.0.0.1", "env_server": "10.0.0.2", "prm_judge": "10.0.0.3",
                          "trainer": "10.0.0.4"}
    assert plan.head == "10.0.0.1" and plan.components("10.0.0.3") == ["prm_judge"]
    assert plan.mesh == plans.make(make_config()).mesh != plans.make(make_config(), lambda host: "10.1.1.1").mesh


def test_each_host_listens_on_its_address_and_knows_the_others(plan: plans.Plan) -> None:
    config = plans.derived(plan, "10.0.0.2").components
    assert (config.env_server.host, config.env_server.address) == ("10.0.0.2", None)
    assert config.policy_server.address == "10.0.0.1:50051" and config.trainer.address == "10.0.0.4:50054"
    moved = plans.derived(plan, "10.0.0.2", {**plan.hosts, "prm_judge": "10.0.0.2"}).components
    assert moved.prm_judge.address is None and moved.prm_judge.host == "10.0.0.2"
    clients = plans.for_clients(plan.config, plan.hosts).components
    assert clients.env_server.address == "10.0.0.2:50052"
    assert plans.http_address(plan.config, plan.hosts) == "https://10.0.0.1:30000"


def test_what_runs_already_is_not_placed() -> None:
    plan = made({"prm_judge": {"address": "judges.example:1"}, "trainer": {"enabled": False}})
    assert set(plan.hosts) == {"policy_server", "env_server"} and not plan.problems
    assert plans.derived(plan, "10.0.0.1").components.prm_judge.address == "judges.example:1"


@pytest.mark.parametrize(("components", "names", "text"), [
    ({"trainer": {"host": "gpu-box"}}, None, r"components\.trainer\.host: 'gpu-box' is no host that this machine kno"),
    ({"trainer": {"host": "one"}}, {"one": "10.0.0.1"},
     r"components\.trainer\.host: 'one' and '10\.0\.0\.1' are the same host, 10\.0\.0\.1"),
    ({"trainer": {"host": "10.0.0.1", "port": 50051}}, None,
     r"components\.trainer\.port: 50051 is components\.policy_server\.grpc_port too, on the same host 10\.0\.0\.1"),
    ({"policy_server": {"host": "10.0.0.1", "port": 6379}}, None, r"port: 6379 is distributed\.ray_port too"),
    ({"trainer": {"host": "10.0.0.4", "port": 0}}, None, r"components\.trainer\.port: 0 is not allowed on several"),
    ({"trainer": {"host": "127.0.0.1"}}, None, r"components\.trainer\.host: '127\.0\.0\.1' is loopback"),
    ({"trainer": {"host": "0.0.0.0"}}, None, r"'0\.0\.0\.0' names no host"),
    ({name: {"enabled": False} for name in EXAMPLE["components"]}, None, "no component is to be started"),
])
def test_each_mistake_has_its_sentence(components: dict[str, Any], names: dict[str, str] | None, text: str) -> None:
    [problem] = made(components, names).problems
    assert re.search(text, problem)


def test_rays_port_is_looked_for_on_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = {"trainer": {"host": "10.0.0.4", "port": 6379}}
    [problem] = made(trainer, head="10.0.0.4").problems
    assert "6379 is distributed.ray_port too, on the same host 10.0.0.4" in problem
    assert made({"policy_server": {"host": "10.0.0.1", "port": 6379}}, head="10.0.0.4").problems == []
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.4:6379")
    assert made(trainer, head="10.0.0.4").problems == [], "a cluster that is joined has its own"


def test_same_port_on_two_hosts_is_no_problem() -> None:
    assert made({"trainer": {"host": "10.0.0.4", "port": 50051}}).problems == []


def test_dry_run_touches_no_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("subprocess.Popen", lambda *_args, **_kwargs: pytest.fail("a command was run"))
    file = tmp_path / "distributed_config.yaml"
    file.write_text(yaml.safe_dump(EXAMPLE))
    result = CliRunner().invoke(app, ["distributed-start", "--config", str(file), "--dry-run"])
    assert result.exit_code == 0, result.output
    for words in (("policy_server", "10.0.0.1", "HTTP 30000, gRPC 50051", "2 workers"), ("trainer", "10.0.0.4", "8 G"),
                  ("env_server", "128 terminal (openclaw/terminal-env:latest)"), ("head 10.0.0.1:6379", "encrypted")):
        assert any(all(word in line for word in words) for line in result.output.splitlines()), words
    assert not (tmp_path / "home").exists()
    file.write_text(yaml.safe_dump({**EXAMPLE, "components": {"trainer": {"host": "no-such-host.invalid"}}}))
    bad = CliRunner().invoke(app, ["distributed-start", "--config", str(file), "--dry-run"])
    assert bad.exit_code == 1 and "is no host that this machine knows" in bad.output


def test_each_command_names_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path))
    (tmp_path / "config.yaml").write_text("mode: local\n")
    result = CliRunner().invoke(app, ["distributed-start"])
    assert "openclaw-rl local-start" in str(result.exception)
    (tmp_path / "config.yaml").write_text("mode: distributed\n")
    result = CliRunner().invoke(app, ["local-start"])
    assert "openclaw-rl distributed-start" in str(result.exception)
