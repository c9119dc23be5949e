"""models: what is here, what it takes, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openclaw_rl.cli.commands import app
from openclaw_rl.runtime.home import Home
from tests.support.models import small_model


def test_models_that_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path / "home"))
    home = Home(tmp_path / "home").create()
    made = small_model(tmp_path / "other")
    made.rename(home.models / "tiny--Llama-Small")
    for name in ("org--Broken", ".being-made"):
        (home.models / name).mkdir()
    home.config_file.write_text("components: {policy_server: {model: /nowhere/mine}}\n")
    done = CliRunner().invoke(app, ["models", "--json"])
    embedded, broken, tiny, mine = json.loads(done.output)
    assert [model["model"] for model in (embedded, broken, tiny, mine)] == [
        "smollm2-135m-instruct", "org/Broken", "tiny/Llama-Small", "/nowhere/mine"]
    assert embedded["problem"].startswith("comes with the first start") and embedded["weights"] is None
    assert "config.json" in broken["problem"] and broken["serving"] is None
    assert mine["problem"] == "its folder is not there" and mine["configured"] and not tiny["configured"]
    assert tiny["problem"] == "" and tiny["serving"] == 4 * tiny["weights"] and tiny["disk"] > 2 * tiny["weights"]
    shown = CliRunner().invoke(app, ["models"])
    assert shown.exit_code == 0 and "tiny/Llama-Small" in shown.output and "of memory are free now" in shown.output
