"""The plan: repeatable, complete, as many kills as asked for."""

from __future__ import annotations

from collections import Counter

import pytest

from openclaw_rl.runtime.home import COMPONENTS
from tools.chaos.plan import DAMAGES, KINDS, make_plan


def test_the_same_seed_makes_the_same_plan() -> None:
    assert make_plan(5, 40) == make_plan(5, 40)
    assert make_plan(5, 40) != make_plan(6, 40)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kills", [1, 8, 200])
def test_it_kills_as_often_as_asked_and_breaks_each_kind_once_at_least(seed: int, kills: int) -> None:
    plan = make_plan(seed, kills)
    assert sum(action.kills for action in plan) == kills
    assert {action.kind for action in plan} == set(KINDS)
    assert [action.number for action in plan] == list(range(1, len(plan) + 1))
    assert {name for action in plan for name in action.names} <= {*COMPONENTS, "home"}


def test_the_long_run_has_all_of_it() -> None:
    plan = make_plan(1, 200)
    victims = Counter(name for action in plan if action.kind == "kill" for name in action.names)
    assert set(victims) == set(COMPONENTS) and min(victims.values()) >= 25
    assert {action.how["when"] for action in plan if action.kind == "kill"} == {
        "any", "several", "start", "step", "transfer"}
    assert {(action.names[0], action.how["what"]) for action in plan if action.kind == "damage"} == set(DAMAGES)
    assert {action.how["what"] for action in plan if action.kind == "cut"} == {"cut", "cut_every", "slow", "refuse"}
    assert {action.names[0] for action in plan if action.kind == "disk"} == {*COMPONENTS, "home"}


def test_only_the_faults_asked_for() -> None:
    assert {action.kind for action in make_plan(1, 5, ["stop", "cut"])} == {"stop", "cut"}
    with pytest.raises(ValueError, match="there are kill, stop"):
        make_plan(1, 5, ["fire"])
