"""openclaw-rl keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openclaw_rl import cli
from openclaw_rl.cli.commands import app
from openclaw_rl.config import Config, ConfigError
from openclaw_rl.rpc.auth.keys import KeyRing
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.mesh_file import MeshFile


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["keys", *args])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_a_keys_life(home: Path) -> None:
    assert "no keys;" in run()[1]
    code, out, err = run("add", "laptop", "--scope", "chat", "--scope", "read", "--expires", "30d")
    shown = out.strip()
    assert code == 0 and shown.startswith("ocl_") and "laptop" in err and shown not in err
    ring = KeyRing(home / "keys.json")
    assert ring.find(shown)
    listed = run("list")[1]
    assert "laptop" in listed and "chat, read" in listed and "good until" in listed and shown not in listed
    code, out, _ = run("rotate", "laptop", "--json")
    newer = json.loads(out)
    assert newer["scopes"] == ["chat", "read"] and newer["expires"] and not ring.find(shown) and ring.find(newer["key"])
    code, out, _ = run("revoke", "laptop")
    assert code == 0 and "no valid key is left" in out and not ring.find(newer["key"])
    facts = json.loads(run("--json")[1])
    assert [(key["name"], key["good"]) for key in facts["keys"]] == [("laptop", False)] * 2
    assert facts["file"] == str(home / "keys.json")


@pytest.mark.parametrize(("args", "text"), [
    (("add", "a b", "--scope", "chat"), "letters, digits"), (("add", "a", "--scope", "wizard"), "'wizard'"),
    (("add", "a"), "--scope"), (("add", "a", "--scope", "chat", "--expires", "soon"), "30d"),
    (("add", "a", "--scope", "chat", "--expires", "0d"), "30d"), (("rotate", "a", "--keep", "-1h"), "keep")])
def test_wrong_usage(args: tuple[str, ...], text: str) -> None:
    code, _, err = run(*args)
    assert code == 2 and text in err


def test_keys_are_on_the_policy_servers_host(home: Path) -> None:
    place = Home(home).create()
    mesh_file.write(place, MeshFile(Config(), "https://192.0.2.1:30000", {"policy_server": "192.0.2.1"}))
    with pytest.raises(ConfigError, match=r"on host 192\.0\.2\.1: run `openclaw-rl keys` there"):
        run("add", "laptop", "--scope", "chat")
    assert not (home / "keys.json").exists()
    mesh_file.write(place, MeshFile(Config(), "https://127.0.0.1:30000", {"policy_server": "127.0.0.1"}))
    assert run("add", "laptop", "--scope", "chat")[0] == 0


def test_a_name_that_there_is_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["openclaw-rl", "keys", "revoke", "ghost"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1 and "there is no key named 'ghost'" in capsys.readouterr().err
