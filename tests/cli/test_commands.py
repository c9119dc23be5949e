"""Each command by itself: help, output for programs, and what it says when it can't."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from openclaw_rl import cli
from openclaw_rl.cli.commands import app
from openclaw_rl.cli.overview import COMMANDS
from openclaw_rl.cli.terminal import print_json
from openclaw_rl.client.facts import TurnFate, Version
from openclaw_rl.config import Config, load_config
from openclaw_rl.launch.checks import StartError
from openclaw_rl.observability.log_reader import Tail
from tests.client.fake_door import FakeDoor

ALL = ["init", "certs", "certs show", "certs renew", "certs add", "keys", "keys list", "keys add",
            "keys revoke", "keys rotate", "local-start", "models",
            "distributed-start", "mesh", "mesh id", "mesh export", "mesh join", "mesh leave", "status", "doctor",
            "dashboard", "metrics", "chat", "turns", "trace", "episodes", "episodes run", "episodes list",
            "episodes show", "episodes check", "environments", "environments tasks", "environments leases",
            "environments watch",
            "versions", "versions show", "versions diff", "versions export", "versions import",
            "rollback", "pin", "unpin", "pause", "resume", "train-now",
            "forget", "logs", "backup", "restore", "set-aside", "conformance", "docs", "stop-all"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def door() -> Iterator[FakeDoor]:
    door = FakeDoor()
    yield door
    door.close()


def run(*args: str, text: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, args, input=text)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def run_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["openclaw-rl", *args])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0), capsys.readouterr().err


def test_help_loads_only_what_it_needs() -> None:
    """Each start of the command pays for what is imported, so a command's own needs are imported by its function."""
    heavy = ["asyncio", "grpc", "google.protobuf", "opentelemetry", "pydantic", "sqlite3", "yaml"]
    end = "; print([name for name in {!r} if name in sys.modules])"

    def loaded(code: str, names: list[str]) -> str:
        done = subprocess.run([sys.executable, "-c", f"import sys; {code}{end.format(names)}"], capture_output=True,
                              text=True, check=True, timeout=60)
        return done.stdout.splitlines()[-1]

    assert loaded("import openclaw_rl.cli.commands", heavy) == "[]"
    overview = ("from openclaw_rl import cli; sys.argv = ['openclaw-rl', '--help']\n"
                "try: cli.main()\nexcept SystemExit: pass\n")
    assert loaded(f"exec({overview!r})", [*heavy, "rich", "openclaw_rl.cli.turns"]) == "[]"
    code = "from openclaw_rl.cli.overview import load; load(['-h', 'turns'])"
    assert loaded(code, [*heavy, "openclaw_rl.cli.turns", "openclaw_rl.cli.mesh"]) == "['openclaw_rl.cli.turns']"


def test_the_overview_knows_every_command_and_its_module() -> None:
    modules = {name: callback.__module__ for name, callback in _top(app)}
    assert modules == {name: f"openclaw_rl.cli.{command.module}" for name, command in COMMANDS.items()}
    shown = run("--help")[1]
    assert [line.split()[0] for line in shown.partition("Commands:")[2].splitlines()
            if line.startswith("  ") and line[2:3].strip() and line.split()[0] in COMMANDS] == list(COMMANDS)


def _top(typer_app: typer.Typer) -> Iterator[tuple[str, Any]]:
    for command in typer_app.registered_commands:
        assert command.callback
        yield command.name or command.callback.__name__.replace("_", "-"), command.callback
    for group in typer_app.registered_groups:
        assert group.name and group.typer_instance
        yield group.name, group.typer_instance.registered_commands[0].callback


def test_the_version() -> None:
    assert run("--version") == (0, f"openclaw-rl {version('openclaw-rl')}\n")


@pytest.mark.parametrize(("typed", "meant"), [("statsu", "'status'"), ("version", "'versions'"),
                                                ("local_start", "'local-start'")])
def test_a_mistyped_command(typed: str, meant: str) -> None:
    code, output = run(typed)
    assert code == 2 and f"No such command '{typed}'. Did you mean {meant}?" in output


def test_an_unknown_command() -> None:
    code, output = run("xyz")
    assert code == 2 and "No such command 'xyz'." in output and "mean" not in output


@pytest.mark.parametrize("encoding, shown", [("utf-8", "苍鹭".encode()), ("ascii", b"\\u82cd\\u9e6d")])
def test_json_is_json_in_every_encoding(encoding: str, shown: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding, "replace", write_through=True))
    print_json({"text": "苍鹭"})
    assert shown in written.getvalue() and json.loads(written.getvalue()) == {"text": "苍鹭"}


@pytest.mark.parametrize("command", ALL)
def test_help_has_an_example(command: str) -> None:
    code, output = run(*command.split(), "--help")
    assert code == 0 and f"openclaw-rl {command}" in output.split("Example:")[1]


def test_every_command_is_looked_at() -> None:
    def names(typer_app: typer.Typer, prefix: str = "") -> Iterator[str]:
        for command in typer_app.registered_commands:
            assert command.callback
            yield prefix + (command.name or command.callback.__name__.replace("_", "-"))
        for group in typer_app.registered_groups:
            assert group.name and group.typer_instance
            yield prefix + group.name
            yield from names(group.typer_instance, f"{prefix}{group.name} ")

    assert sorted(names(app)) == sorted(ALL)
    assert run()[1].index("init") < run()[1].index("stop-all")


def test_init_writes_a_configuration_that_is_the_default(home: Path) -> None:
    assert run("init")[0] == 0
    assert load_config(home / "config.yaml") == Config()
    assert "# Seconds without a request after which a session ends." in (home / "config.yaml").read_text()
    code, output = run("init")
    assert code == 1 and "--force" in output
    assert run("init", "--force")[0] == 0


def test_init_in_a_home_that_is_a_file(home: Path) -> None:
    home.write_text("")
    code, output = run("init")
    assert code == 1 and "OPENCLAW_RL_HOME" in output


def test_status_with_nothing_running() -> None:
    code, output = run("status", "--json")
    facts = json.loads(output)
    assert code == 1
    assert [c["name"] for c in facts["components"]] == ["policy_server", "env_server", "prm_judge", "trainer"]
    assert all(c == {"name": c["name"], "state": "STOPPED", "host": None, "pid": None, "address": None, "detail": "",
                      "alarms": []}
               for c in facts["components"])
    assert facts["policy_version"] is None
    assert facts["turns"] == {"main": None, "side": None, "unknown": None}
    assert facts["samples"] == {"accepted": None, "trained": None, "pending": None, "dropped": {},
                                "per_hour": {"accepted": None, "trained": None, "dropped": None}}
    code, output = run("status")
    assert code == 1 and output.count("STOPPED") == 4 and "`openclaw-rl local-start` starts one" in output


@pytest.mark.parametrize("args", [("turns",), ("versions",), ("rollback", "1"), ("turns", "--json"),
                                  ("versions", "show", "1"), ("versions", "diff", "0", "1"), ("pause",), ("resume",),
                                  ("train-now",)])
def test_facts_with_nothing_running(args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    code, error = run_main(monkeypatch, capsys, *args)
    assert code == 1 and "openclaw-rl local-start" in error and "Traceback" not in error


@pytest.mark.parametrize("width", [80, 160])
def test_tables_fit_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = "waits for the trainer's next step: needs 2 more samples or 41 s"
    turns = [TurnFate(f"turn_{i:032d}", f"ses_{i:032d}", "main", 12, -1, fate, version, reason, "What? " * 30)
             for i, (fate, version, reason) in enumerate([("pending", None, waits), ("pending", None, waits),
                                                          ("trained", 12, ""), ("dropped", None, "no signal"),
                                                          ("dropped", None, "too stale: " + "x" * 50)])]
    versions = [Version(12, 11, "d" * 64, "combine", "2026-11-29T20:37:18.123456+00:00", True, ["t"],
                        {f"metric_{i}": 0.123456 for i in range(20)} | {"loss": 0.25, "kl": 1e-05})]
    monkeypatch.setattr("openclaw_rl.client.facts.turns", lambda *_args, **_kwargs: iter(turns))
    monkeypatch.setattr("openclaw_rl.client.facts.versions", lambda *_args, **_kwargs: versions)
    for command in ("turns", "versions"):
        monkeypatch.setattr(f"openclaw_rl.cli.{command}.out", Console(width=width))
    code, output = run("turns")
    rows, notes = output.splitlines()[1:6], output.splitlines()[6:]
    assert code == 0 and all(len(row) <= width for row in rows)
    assert all(row.startswith(turn.turn) for row, turn in zip(rows, turns, strict=True))
    assert [word in row for row, word in zip(rows, ("pending (1)", "pending (1)", "trained 12", "dropped: no signal",
                                                    "dropped (2)"), strict=True)] == [True] * 5
    assert notes == [f"(1) {waits}", f"(2) {turns[4].reason}"]
    code, output = run("versions")
    assert code == 0 and len(output.splitlines()) == 3 and max(map(len, output.splitlines())) <= width
    assert "loss 0.25, kl 1e-05" in output and ("d" * 12 in output) == (width == 160)


def test_stop_all_with_nothing_running() -> None:
    assert run("stop-all") == (0, "nothing was running\n")


def test_stop_all_tells_what_goes_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    (home / "config.yaml").write_text("components: {prm_judge: {address: 'judge.example:50053'}}")
    monkeypatch.setattr("openclaw_rl.launch.start.stop_all", lambda *_: ["trainer"])
    assert run("stop-all") == (0, "stopped trainer\n"
                                  "prm_judge at judge.example:50053 was not started from here and goes on\n")


def test_options_take_precedence_over_the_configuration_file(home: Path, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    start = Mock(side_effect=StartError("enough"))
    monkeypatch.setattr("openclaw_rl.launch.start.local_start", start)
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(home))  # put back after it
    file = tmp_path / "mine.yaml"
    file.write_text("components: {policy_server: {port: 1234, max_tokens: 9}, trainer: {port: 0}}\n")
    code, _ = run_main(monkeypatch, capsys, "local-start", "-c", str(file), "--model", "Qwen/Qwen2.5-0.5B-Instruct",
                       "--port", "0", "--judge", "classifier", "--home", str(tmp_path / "other"))
    used, config = start.call_args.args[:2]
    assert code == 1 and used.root == tmp_path / "other" and os.environ["OPENCLAW_RL_HOME"] == str(used.root)
    policy, others = config.components.policy_server, config.components
    assert (policy.model, policy.port, policy.max_tokens, others.prm_judge.judge, others.trainer.port) == (
        "Qwen/Qwen2.5-0.5B-Instruct", 0, 9, "classifier", 0)
    code, error = run_main(monkeypatch, capsys, "local-start", "--model", "")
    assert code == 1 and "components.policy_server.model: '' is not allowed" in error


def test_an_error_that_was_shown_is_not_repeated(home: Path, monkeypatch: pytest.MonkeyPatch,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    """local-start shows it before it ends what it started."""
    error = StartError("trainer can't run: no model")
    monkeypatch.setattr("openclaw_rl.launch.start.local_start", Mock(side_effect=error))
    assert run_main(monkeypatch, capsys, "local-start") == (1, ANY) and "no model" in str(error)
    error.shown = True
    code, output = run_main(monkeypatch, capsys, "local-start")
    assert code == 1 and "no model" not in output


def test_a_bad_configuration_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("components: {trainer: {min_samples: 0}}\nmoode: local\n")
    code, error = run_main(monkeypatch, capsys, "local-start", "--config", str(file))
    assert code == 1 and "components.trainer.min_samples: 0 is not allowed" in error
    assert f"{file}:2: moode: unknown key; allowed here: " in error and "Did you mean mode?" in error
    code, error = run_main(monkeypatch, capsys, "local-start", str(tmp_path / "none.yaml"))
    assert code == 1 and "none.yaml: No such file" in error


def test_a_missing_key_is_named_before_anything_starts(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ZHIPUAI_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "glm.yaml"
    file.write_text("components: {policy_server: {model: glm-4-flash}}")
    code, error = run_main(monkeypatch, capsys, "local-start", "-c", str(file))
    assert code == 1 and "ZHIPUAI_API_KEY" in error and "smollm2-135m-instruct" in error
    assert not (home / "run" / "supervisor.json").exists()


def test_chat_in_one_shot_and_piped(door: FakeDoor) -> None:
    code, output = run("chat", "--url", door.url, "-s", "mine", "what", "is", "it")
    assert code == 0 and "You said: what is it\n" in output and "(version 7, session mine)" in output
    code, output = run("chat", "--url", door.url, text="piped words\n")
    assert code == 0 and "You said: piped words\n" in output


def test_logs(home: Path) -> None:
    assert run("logs")[0] == 1
    assert run("logs", "nobody")[0] == 2
    (home / "logs").mkdir(parents=True)
    (home / "logs/trainer.log").write_text("".join(f"line {i} [x]\n" for i in range(30)))
    (home / "logs/rl_trace_20260316.log").write_text("[MAIN] Action\n")
    code, output = run("logs", "-n", "2")
    assert code == 0 and output == "trainer       line 28 [x]\ntrainer       line 29 [x]\n"
    assert run("logs", "--journal")[1] == "[MAIN] Action\n"


def test_a_tail_follows_rotation(tmp_path: Path) -> None:
    file = tmp_path / "trainer.log"
    tail = Tail(tmp_path, "trainer")
    assert list(tail.new()) == []
    file.write_text("a\nhal")
    assert list(tail.new()) == ["a"]
    with file.open("a") as more:
        more.write("f\nb\n")
    os.rename(file, tmp_path / "trainer.log.1")
    file.write_text("c\n")
    assert list(tail.new()) == ["half", "b", "c"]
