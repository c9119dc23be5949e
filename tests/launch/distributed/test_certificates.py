"""Who may talk to Ray, and certificates that end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console

from openclaw_rl.config import Config
from openclaw_rl.launch.distributed import certificates, cluster, ray_node
from openclaw_rl.launch.distributed.start import DistributedStart
from openclaw_rl.launch.distributed.steps import StepError
from openclaw_rl.launch.status import report
from openclaw_rl.runtime.home import Home
from tests.launch.distributed.conftest import make_config
from tests.rpc.auth.certs import make_certs, reissue, serial


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return Home(tmp_path / "home").create()


def test_all_of_ray_asks_for_a_token(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runtime_env agent obeys whoever sends a request otherwise, TLS or not."""
    starting = DistributedStart(home, make_config(), Console(quiet=True))
    monkeypatch.setattr(DistributedStart, "_roots", dict.fromkeys(starting.plan.all_hosts, "/there"))
    sent = [starting._files(host, {})["certs/ray/token"] for host in starting.plan.all_hosts]
    assert len(sent) > 1 and len(set(sent)) == 1 and len(sent[0]) == 64
    assert DistributedStart(home, make_config(), Console(quiet=True))._ray_token != starting._ray_token
    assert "RAY_AUTH_MODE" not in ray_node.variables(str(tmp_path))
    (tmp_path / ray_node.TOKEN_FILE).write_bytes(sent[0])
    found = ray_node.variables(str(tmp_path))
    assert (found["RAY_AUTH_MODE"], found["RAY_AUTH_TOKEN_PATH"]) == ("token", str(tmp_path / "token"))


def test_who_connects_for_another_machine_takes_the_token_that_is_here(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ray_node.variables(str(tmp_path))
    (tmp_path / ray_node.TOKEN_FILE).write_text("x")
    environ: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(StepError, match="Ray is not installed"):
        cluster.do("nodes", "10.0.0.1:6379", asked, "m")
    assert environ["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token")


@pytest.mark.parametrize(("days", "anew"), [(20, True), (40, False)])
def test_an_operators_certificate_that_ends_soon_is_made_anew(home: Home, days: int, anew: bool) -> None:
    make_certs(home.certs)
    reissue(home.certs, "operator", -1, days)
    before = serial(home.certs, "operator")
    starting = DistributedStart(home, make_config(), Console(quiet=True))
    certificates.provide(home, starting.plan, {}, {}, ray=False)
    assert (serial(home.certs, "operator") != before) == anew


def test_status_tells_when_the_operators_certificate_ends(home: Home) -> None:
    config = Config.model_validate({"security": {"tls": "on"}})
    make_certs(home.certs)
    assert report(home, config).problems == []
    reissue(home.certs, "operator", -1, 20)
    (problem,) = report(home, config).problems
    assert "operator.crt ends on" in problem and "certs renew" in problem
