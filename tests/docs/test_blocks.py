"""The documentation's code without a mesh: configurations, JSON, Python, and each command's options."""

from __future__ import annotations

import functools
import json
import re
import shlex
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from openclaw_rl.cli.commands import app
from openclaw_rl.config import load_config
from openclaw_rl.docs.commands import commands as all_commands
from openclaw_rl.docs.commands import examples
from openclaw_rl.rollouts.tasks.load import load
from tests.docs.blocks import README, ROOT, SHELL, Block, blocks, calls, commands, documents, pages
from tests.docs.commands import NOT_RUN, not_run, runnable

#: Placeholders of the documentation and something that they may be.
_SAMPLES = {"N": "1", "M": "2", "P": "9464", "HOST": "10.0.0.1"}


def _blocks(*languages: str) -> list[Block]:
    return [block for file in documents() for block in blocks(file, *languages)]


@functools.cache
def _command_line() -> Any:
    return typer.main.get_command(app)


def parse(arguments: list[str]) -> None:
    """Let the real command line parse arguments, and do nothing."""
    command = _command_line()
    name, rest = "openclaw-rl", [_SAMPLES.get(word, word) for word in arguments]
    while True:
        context = command.make_context(name, list(rest))
        if not hasattr(command, "resolve_command"):
            return
        rest = [*getattr(context, "_protected_args", []), *context.args]
        if not rest:
            return
        name, command, rest = command.resolve_command(context, rest)


@pytest.mark.parametrize("block", _blocks("yaml"), ids=str)
def test_yaml_is_a_configuration_or_a_task(block: Block, tmp_path: Path) -> None:
    data = yaml.safe_load(block.text)
    file = tmp_path / "example.yaml"
    file.write_text(block.text)
    if isinstance(data, list):
        (task,) = load("terminal", tmp_path, bundled=False)
        assert not task.problem
    else:
        load_config(file)


@pytest.mark.parametrize("block", _blocks("python"), ids=str)
def test_python_can_be_compiled(block: Block) -> None:
    compile(textwrap.dedent(block.text), str(block), "exec")


def _shell() -> list[tuple[Block, str]]:
    return [(block, command) for block in _blocks(*SHELL) for command in commands(block)]


def test_every_command_is_parsed() -> None:
    wrong, seen = [], 0
    for block, command in _shell():
        for arguments in calls(command, "openclaw-rl"):
            seen += 1
            try:
                parse(arguments)
            except Exception as error:
                wrong.append(f"{block}: openclaw-rl {shlex.join(arguments)}: {error}")
    assert not wrong, "\n".join(wrong)
    assert seen > 90


def test_examples_in_the_help_are_parsed() -> None:
    wrong = []
    for name, command in all_commands():
        for example in examples(command):
            example = re.sub(r"\s\([^)]*\)", "", re.sub(", then |, and on the other machine ", "; ", example))
            wrong += [f"{name}: {' '.join(arguments)}: {error}" for arguments in calls(example, "openclaw-rl")
                      if (error := _error(arguments))]
    assert not wrong, "\n".join(wrong)


def _error(arguments: list[str]) -> str:
    try:
        parse(arguments)
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def test_an_option_that_there_is_not_is_found() -> None:
    assert "--nosuch" in _error(["turns", "--nosuch"])
    assert _error(["nosuch"]) and _error(["rollback"]) and not _error(["rollback", "0"])
    assert list(calls("A=1 openclaw-rl turns --json | jq '.[] | .x' > f; openclaw-rl status", "openclaw-rl")) == [
        ["turns", "--json"], ["status"]]


def test_commands_in_sentences_exist() -> None:
    """In `code` spans, where optional parts stand in brackets and several commands may share one."""
    known = dict(all_commands())
    own = {option for parameter in _command_line().params for option in parameter.opts}
    wrong = []
    for file in (README, *pages("en"), *pages("zh")):
        for span in re.findall(r"`openclaw-rl ([^`\n]+)`", file.read_text()):
            words = re.sub(r"'[^']*'|[\[\];]", " ", span).replace("\\|", "|").split()
            name = words[0]
            if len(words) > 1 and f"{name} {words[1]}" in known:
                name = f"{name} {words[1]}"
            if name.isupper() or name in own:
                continue
            if name not in known:
                wrong.append(f"{file.name}: openclaw-rl {span}: there is no {name}")
                continue
            below = [command for full, command in known.items() if full == name or full.startswith(f"{name} ")]
            there = {option for command in below for p in command.params for option in p.opts} | {"--help"}
            # A span that pipes into another program has that one's options too.
            there |= {"-r"} if "jq" in words else set()
            wrong += [f"{file.name}: openclaw-rl {span}: there is no {word}" for word in words
                      if re.fullmatch(r"--?[a-z][\w-]*", word) and word not in there]
    assert not wrong, "\n".join(wrong)


def test_json_in_commands_is_json() -> None:
    for block, command in _shell():
        for data in re.findall(r"-d '(\{.*?\})'(?:\s|$)", command, re.S):
            try:
                json.loads(data)
            except ValueError as error:
                pytest.fail(f"{block}: {data}: {error}")


def test_extras_that_are_installed_are_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name for file in documents() for group in re.findall(r"openclaw-rl\[([\w,]+)\]", file.read_text())
             for name in group.split(",")}
    assert {"embedded", "distributed", "dashboard"} <= named <= set(extras)


def test_what_is_not_run_is_in_the_documentation_and_says_why() -> None:
    texts = [command for _, command in _shell()]
    assert all(why for _, why in NOT_RUN)
    assert not_run("./tools/start    # an environment") and not_run("OPENCLAW_RL_API_KEY=$KEY openclaw-rl chat --url "
                                                                    "https://HOST:30000")
    assert not not_run("openclaw-rl turns")
    share = sum(bool(not_run(text)) for text in texts) / len(texts)
    assert share < 0.25, "most commands are to be run"


def test_what_is_run_otherwise() -> None:
    known = {"TURN": "turn_1", "127.0.0.1:30000": "127.0.0.1:4711"}
    assert runnable("openclaw-rl trace TURN --json   # OTLP", known) == "openclaw-rl trace turn_1 --json"
    assert runnable("curl http://127.0.0.1:30000/v1/models", known) == "curl http://127.0.0.1:4711/v1/models"
    assert runnable("openclaw-rl chat", known).endswith("< question.txt")
    assert runnable("openclaw-rl chat 'hi'", known) == "openclaw-rl chat 'hi'"


def test_every_tool_is_parsed_or_run() -> None:
    """Scripts that the pages name are there."""
    for block, command in _shell():
        for script in re.findall(r"(?:^|\s)((?:\./)?(?:tools|servers|clients)/[\w./-]+)", command):
            assert (ROOT / script).exists() or not_run(command), f"{block}: there is no {script}"
