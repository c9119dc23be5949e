"""Failover decisions."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_rl.launch.distributed.failover import PATIENCE, Failover
from tests.launch.distributed.conftest import make_config

HOSTS = {"policy_server": "10.0.0.1", "env_server": "10.0.0.2", "prm_judge": "10.0.0.3", "trainer": "10.0.0.4"}


def watch(moved: dict[str, str] | None = None, **distributed: Any) -> Failover:
    made = Failover(make_config(**distributed), HOSTS, list(HOSTS.values()), moved or {}, 0.0)
    for host in HOSTS.values():
        made.observe(host, "up", 1.0, {})
    return made


def test_a_host_is_gone_since_it_last_answered() -> None:
    made = watch()
    made.observe("10.0.0.3", "up", 100.0, {"prm_judge": {"state": "RUNNING", "pid": 7}})
    made.observe("10.0.0.3", "gone", 100.0 + PATIENCE / 2, detail="no answer")
    assert made.states["10.0.0.3"].state == "up", "a late answer is no reason"
    made.observe("10.0.0.3", "gone", 100.0 + PATIENCE, detail="no answer")
    facts = made.facts(120.0)
    assert facts["hosts"]["10.0.0.3"] == {"state": "gone", "since": 100.0, "detail": "no answer"}
    assert facts["hosts"]["10.0.0.1"]["state"] == "up" and facts["components"]["prm_judge"]["pid"] == 7
    made.observe("10.0.0.3", "reachable", 130.0, detail="its agent is silent")
    made.observe("10.0.0.3", "up", 140.0, {})
    assert made.facts(150.0)["hosts"]["10.0.0.3"] == {"state": "up", "since": 140.0, "detail": ""}


def test_nothing_moves_unless_it_is_allowed() -> None:
    made = watch()
    made.observe("10.0.0.4", "gone", 10_000.0)
    assert made.move(20_000.0) == [] and made.components("10.0.0.4") == ["trainer"]


def test_a_component_goes_to_a_host_that_is_up_and_stays_there() -> None:
    made = watch(elsewhere=True, elsewhere_after=60)
    made.observe("10.0.0.4", "gone", 50.0)
    assert made.move(50.0) == []
    made.observe("10.0.0.1", "gone", 61.0)
    [(name, source, target)] = made.move(61.0)[:1]
    assert (name, source) == ("policy_server", "10.0.0.1") and target in ("10.0.0.2", "10.0.0.3")
    assert made.hosts["trainer"] in ("10.0.0.2", "10.0.0.3") and made.hosts["trainer"] != target, "one each"
    made.observe("10.0.0.4", "up", 70.0, {})
    assert made.components("10.0.0.4") == [] and made.move(500.0) == []
    assert made.moved == {"trainer": made.hosts["trainer"], "policy_server": target}
    again = watch(made.moved, elsewhere=True)
    assert again.hosts == made.hosts


def test_not_where_its_port_is_taken() -> None:
    config = make_config(elsewhere=True, elsewhere_after=10)
    for name in ("env_server", "prm_judge"):
        getattr(config.components, name).port = 50054
    made = Failover(config, HOSTS, list(HOSTS.values()), {}, 0.0)
    for host in ("10.0.0.2", "10.0.0.3"):
        made.observe(host, "up", 100.0, {})
    made.observe("10.0.0.4", "gone", 100.0)
    assert [move for move in made.move(200.0) if move[0] == "trainer"] == []


@pytest.mark.parametrize("allowed", [True, False])
def test_a_host_that_never_came_up_counts_from_the_beginning(allowed: bool) -> None:
    made = Failover(make_config(elsewhere=allowed, elsewhere_after=10), HOSTS, list(HOSTS.values()), {}, 1000.0)
    made.observe("10.0.0.1", "up", 1001.0, {})
    for host in list(HOSTS.values())[1:]:
        made.observe(host, "gone", 1009.0)
    assert bool(made.move(1011.0)) is allowed
