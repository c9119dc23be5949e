"""Which environments a configuration means."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import ConfigError, EnvServerConfig
from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments import plugins
from openclaw_rl.rollouts.environments.factory import configured_environments
from openclaw_rl.rollouts.environments.interface import Context
from openclaw_rl.runtime.home import Home
from tests.rollouts.leases.fake import FakeType


def make_fake(config: EnvironmentConfig, context: Context) -> FakeType:
    context.warnings.append(f"{context.name} in {context.folder.name}")
    return FakeType()


def make_nothing(config: EnvironmentConfig, context: Context) -> FakeType:
    raise ZeroDivisionError("division by zero")


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(group: str) -> list[EntryPoint]:
        assert group == "openclaw_rl.environments"
        return [EntryPoint(name, f"{__name__}:{attribute}", group) for name, attribute in
                (("terminal", "make_fake"), ("swe", "make_fake"), ("gui", "make_fake"), ("tool_call", "make_fake"),
                 ("broken", "make_nothing"), ("gone", "no_such_thing"))]

    monkeypatch.setattr(plugins.metadata, "entry_points", entry_points)


def settings(**environments: Any) -> EnvServerConfig:
    return EnvServerConfig.model_validate({"environments": environments, "max_parallel": 3})


def test_without_a_configuration_all_kinds_that_come_along(points: None, tmp_path: Path) -> None:
    found = configured_environments(settings(), Home(tmp_path))
    assert [(one.name, one.config.count, one.named, one.problem) for one in found] == [
        (name, 3, False, "") for name in ("gui", "swe", "terminal", "tool_call")]


def test_named_ones(points: None, tmp_path: Path) -> None:
    config = settings(terminal={"count": 2}, box={"count": 5, "kind": "terminal"})
    found = configured_environments(config, Home(tmp_path))
    assert [(one.name, one.type_name, one.config.count, one.named) for one in found] == [
        ("box", "terminal", 5, True), ("terminal", "terminal", 2, True)]
    assert found[0].warnings == ["box in box"] and not any(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "words"), [
    ("nothing", "environments.nothing.kind: 'nothing' is no kind of environment; there are: broken, gone, gui"),
    ("broken", "the kind 'broken' can't be made: ZeroDivisionError: division by zero"),
    ("gone", "can't be loaded: AttributeError")])
def test_one_that_can_t_be_made_costs_no_other(points: None, tmp_path: Path, name: str, words: str) -> None:
    bad, good = sorted(configured_environments(settings(terminal={"count": 1}, **{name: {"count": 1}}), Home(tmp_path)),
                       key=lambda one: one.name == "terminal")
    assert bad.environment_type is None and words in bad.problem
    assert good.environment_type is not None and not good.problem


def test_a_kind_that_there_is_none_of(points: None) -> None:
    with pytest.raises(ConfigError, match="A plug-in is a package with an entry point"):
        plugins.load_type("nothing", "here")


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "x" * 65, "-x", "ä"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of an environment"):
        settings(**{name: {"count": 1}})
