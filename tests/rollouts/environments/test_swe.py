"""Repositories in real sandboxes: what is read, edited, written and run, and how it is judged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import BadAction, BadTask, Context, StepResult
from openclaw_rl.rollouts.environments.swe.actions import arguments as read_arguments
from openclaw_rl.rollouts.environments.swe.check import part
from openclaw_rl.rollouts.environments.swe.environment import OBSERVATION_SCHEMA, SweEnvironment
from openclaw_rl.rollouts.environments.swe.plugin import SweType, make
from openclaw_rl.rollouts.environments.swe.text import cut, edited, numbered, region
from openclaw_rl.rollouts.sandboxes.factory import backend
from openclaw_rl.rollouts.sandboxes.interface import WORK, SandboxError
from openclaw_rl.rollouts.tasks.task import Action, Task
from tests.support.required import left_out

FILES = {"adding.py": "def add(a, b):\n    return a - b\n", "sub/notes.txt": "one\ntwo\none\n"}
HIDDEN = """
import unittest

from adding import add


class Add(unittest.TestCase):
    def test_zero(self):
        self.assertEqual(add(3, 0), 3)

    def test_sum(self):
        self.assertEqual(add(3, 4), 7)
"""


def task(*, setup: Mapping[str, Any] | None = None, check: Mapping[str, Any] | None = None) -> Task:
    return Task("t", "swe", "Repair it.", setup=setup or {"files": FILES},
                check=check or {"hidden": {"test_hidden.py": HIDDEN}})


@pytest.fixture
async def kind(tmp_path: Path) -> AsyncIterator[SweType]:
    config = EnvironmentConfig(count=2, backend="bubblewrap", disk="8MB")
    kind = make(config, Context("swe", tmp_path / "swe", backend(config, tmp_path)))
    if rejection := await kind.validate():
        left_out(rejection.message)
    yield kind


@pytest.fixture
async def swe(kind: SweType) -> AsyncIterator[SweEnvironment]:
    environment = await kind.make()
    await environment.reset(task(), None)
    yield environment
    await environment.close()


async def do(swe: SweEnvironment, name: str, **arguments: Any) -> StepResult:
    result = await swe.step(Action(name, arguments), 20)
    jsonschema.validate(result.observation.data, OBSERVATION_SCHEMA)
    return result


async def text(swe: SweEnvironment, name: str, **arguments: Any) -> str:
    return (await do(swe, name, **arguments)).observation.text


async def test_reads_files_and_folders(swe: SweEnvironment) -> None:
    assert await text(swe, "read", path="adding.py") == "     1  def add(a, b):\n     2      return a - b"
    assert await text(swe, "read", path="sub/notes.txt", start=2, lines=1) == "     2  two\n(lines 2 to 2 of 3)"
    assert "sub/" in await text(swe, "read", path=".")
    assert (await do(swe, "read", path="nothing.py")).error == "there is no nothing.py"
    await do(swe, "run", command="printf 'a\\0b' >binary; mkfifo pipe; head -c 2000000 /dev/zero | tr '\\0' x >large")
    assert "no text" in (await do(swe, "read", path="binary")).error
    assert "no plain file" in (await do(swe, "read", path="pipe")).error
    assert "more than" in (await do(swe, "read", path="large")).error


async def test_edits_what_is_there_once(swe: SweEnvironment) -> None:
    await do(swe, "run", command="chmod 755 adding.py")
    result = await do(swe, "edit", path="adding.py", old="a - b", new="a + b")
    assert not result.error
    assert "     2      return a + b" in result.observation.text
    assert "-rwxr-xr-x" in await text(swe, "run", command="ls -l adding.py")
    twice = await do(swe, "edit", path="sub/notes.txt", old="one", new="1")
    assert "2 times, in lines 1, 3" in twice.error
    near = await do(swe, "edit", path="adding.py", old="return a + b\n\n", new="")
    assert "`old` is not (line 2" in near.error
    assert "adding.py" in near.error
    assert "there is no x.py" in (await do(swe, "edit", path="x.py", old="a", new="b")).error
    assert "a folder" in (await do(swe, "edit", path="sub", old="a", new="b")).error
    assert await text(swe, "run", command="cat sub/notes.txt") == "one\ntwo\none\n[exit code 0]"


async def test_a_full_disk_costs_no_file(swe: SweEnvironment) -> None:
    full = await do(swe, "run", command="cat /dev/zero >full; ls -l full | wc -l")
    assert "No space left" in full.observation.text
    result = await do(swe, "write", path="adding.py", content="x" * 200_000)
    assert "can't be written" in result.error
    assert "return a - b" in await text(swe, "read", path="adding.py")


async def test_writes_new_files_in_new_folders(swe: SweEnvironment) -> None:
    assert not (await do(swe, "write", path="new/deep/-file.txt", content="hé\n")).error
    assert await text(swe, "run", command="cat new/deep/-file.txt") == "hé\n[exit code 0]"
    assert (await do(swe, "write", path="sub", content="")).error
    assert (await do(swe, "write", path=".", content="")).error


async def test_runs_commands_within_bounds(swe: SweEnvironment) -> None:
    failed = await do(swe, "run", command="echo out; echo err >&2; exit 3")
    assert failed.observation.data == {"text": "out\nerr\n[exit code 3]", "exit_code": 3, "truncated": False,
                                       "timed_out": False}
    long = await do(swe, "run", command="seq 100000")
    assert long.observation.data["truncated"]
    assert len(long.observation.text) < 13_000
    assert "characters are left out" in long.observation.text
    assert "\n100000\n[exit code 0]" in long.observation.text
    odd = await text(swe, "run", command=r"printf 'a\0b\033[2Jc\xff'")
    assert odd == "a\ufffdb\ufffd[2Jc\ufffd\n[exit code 0]"
    late = await swe.step(Action("run", {"command": "echo first; sleep 60"}), 0.5)
    assert late.observation.data["timed_out"]
    assert late.observation.text.startswith("first\n[killed: it took more than 0.5 s]")
    endless = await do(swe, "run", command="yes")
    assert endless.observation.data["exit_code"] is None
    assert endless.observation.data["truncated"]


@pytest.mark.parametrize(("name", "arguments", "words"), [
    ("delete", {}, ["'delete'", "`read`"]),
    ("read", {"path": "../../etc/passwd"}, ["`path`", "../../etc/passwd", "a path in the repository"]),
    ("read", {"path": "/etc/passwd"}, ["`path`", "/etc/passwd"]),
    ("read", {"path": "a\0b"}, ["`path`", "NUL"]),
    ("read", {"path": "a", "start": 0}, ["`start`", "0", "from 1"]),
    ("read", {"path": "a", "lines": "all"}, ["`lines`", "'all'", "1 to 500"]),
    ("write", {"path": "a", "content": "\ud800"}, ["`content`", "surrogate"]),
    ("write", {"path": "a"}, ["`content` of `write` is missing"]),
    ("edit", {"path": "a", "old": "", "new": "x"}, ["`old`", "1 to"]),
    ("edit", {"path": "a", "old": "x", "new": "x"}, ["the same"]),
    ("run", {"command": "x" * 30_000}, ["`command`", "20,000"]),
    ("run", {"command": ["ls"]}, ["`command`", "a text"]),
])
def test_bad_actions_are_named(name: str, arguments: Any, words: list[str]) -> None:
    with pytest.raises(BadAction) as caught:
        read_arguments(Action(name, arguments))
    assert all(word in str(caught.value) for word in words), caught.value


async def test_bad_actions_change_nothing(swe: SweEnvironment) -> None:
    with pytest.raises(BadAction):
        await swe.step(Action("write", {"path": "../x", "content": "x"}), 5)
    assert await text(swe, "run", command="git status --short; ls ..") == "repo\n[exit code 0]"


async def test_the_part_of_hidden_tests_that_pass_is_the_outcome(swe: SweEnvironment) -> None:
    before = await swe.evaluate()
    assert before.value == 0.5
    assert "1 of 2 tests fail" in before.detail
    assert "Add.test_sum: AssertionError: -1 != 7" in before.detail
    await do(swe, "edit", path="adding.py", old="a - b", new="a + b")
    after = await swe.evaluate()
    assert (after.value, after.detail) == (1.0, "all 2 tests pass")
    assert (await swe.evaluate()).value == 1, "as often as one likes"


@pytest.mark.parametrize("trick", [
    "printf 'import os\\nos._exit(0)\\n' >adding.py",
    "printf 'import sys\\nsys.exit(0)\\n' >adding.py",
    "printf 'class TestCase: pass\\ndef main(): pass\\n' >unittest.py",
    "printf 'raise SystemExit(0)\\n' | tee sitecustomize.py usercustomize.py conftest.py",
    "printf 'print(\\'{\"passed\": [\"a\"], \"failed\": {}}\\')\\n' >>adding.py",
    "mkdir -p test_hidden.py; touch test_hidden.py/x",
    "ln -s /etc/passwd test_hidden.py",
    "printf 'import unittest\\n' >test_hidden.py; chmod 000 test_hidden.py; chmod 644 test_hidden.py",
    f"rm -rf {WORK}/repo/* {WORK}/repo/.git",
    f"rm -rf {WORK}/repo; ln -s /usr {WORK}/repo",
    "head -c 7000000 /dev/zero >zeros; cp zeros zeros2",
    "chmod 000 adding.py",
    "while :; do for f in $(find / -name 'test_hidden*' 2>/dev/null); do echo >$f; done; done &",
    "printf 'while True: pass\\n' >adding.py",
])
async def test_tricks_are_not_rewarded(swe: SweEnvironment, trick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_rl.rollouts.environments.swe.check._SECONDS", 2.0 if "while True" in trick else 20.0)
    await do(swe, "run", command=trick)
    outcome = await swe.evaluate()
    assert outcome.value <= 0.5
    assert outcome.detail


async def test_tests_that_break_everything_end_in_an_outcome(swe: SweEnvironment) -> None:
    await do(swe, "write", path="adding.py", content="import os, signal\nos.kill(-1, signal.SIGKILL)\n")
    outcome = await swe.evaluate()
    assert outcome.value == 0
    assert outcome.detail
    assert not swe.problem


async def test_a_check_by_shell(kind: SweType) -> None:
    environment = await kind.make()
    await environment.reset(task(check={"tests": "python3 -B -m unittest discover -s checks", "hidden": {
        "checks/test_it.py": "import sys\nsys.path.insert(0, '.')\n" + HIDDEN}}), None)
    half = await environment.evaluate()
    assert half.value == 0.5
    assert "AssertionError" in half.detail
    await do(environment, "edit", path="adding.py", old="a - b", new="a + b")
    assert (await environment.evaluate()).value == 1
    await environment.close()


async def test_a_reset_leaves_nothing_of_before(swe: SweEnvironment) -> None:
    await do(swe, "run", command="echo x >new; (sleep 100 &) ; echo y >/tmp/y")
    first = await text(swe, "run", command="git log --format=%H")
    opening = await swe.reset(task(), 1)
    assert opening.goal == "Repair it."
    assert "adding.py" in opening.observation.text
    assert "No such file" in await text(swe, "run", command="ls new; ls /tmp/y; pgrep sleep")
    assert await text(swe, "run", command="git log --format=%H") == first, "the first commit is the same each time"
    nothing = await swe.reset(None, None)
    assert "is empty" in nothing.observation.text
    assert (await swe.evaluate()).value == 0


async def test_what_can_not_be_set_up_says_so(kind: SweType) -> None:
    environment = await kind.make()
    with pytest.raises(BadTask, match=r"`setup\.run` can't be done: no luck"):
        await environment.reset(task(setup={"run": "echo no luck; exit 1"}), None)
    await environment.reset(task(), None)
    assert await text(environment, "run", command="ls") == "adding.py\nsub\n[exit code 0]"
    await environment.close()
    assert environment.problem
    with pytest.raises(SandboxError):
        await do(environment, "run", command="ls")


@pytest.mark.parametrize(("setup", "check", "words"), [
    ({}, None, ["`setup` is empty"]),
    ({"file": {}}, None, ["`setup`", "'file'", "`files`"]),
    ({"files": {"../x": ""}}, None, ["`setup.files`", "'../x'", "relative path"]),
    ({"files": {".git/config": ""}}, None, ["'.git/config'"]),
    ({"files": {"a": 1}}, None, ["`setup.files`, a", "1", "a text"]),
    ({"files": ["a"]}, None, ["`setup.files`", "a mapping"]),
    ({"run": 1}, None, ["`setup.run`", "1", "shell text"]),
    (None, {"hidden": {"helper.py": ""}}, ["`check` has no tests", "test*.py"]),
    (None, {"tests": ""}, ["`check.tests`", "''"]),
    (None, {"run": "true"}, ["`check`", "'run'", "`tests`", "`hidden`"]),
])
def test_bad_tasks_are_named(setup: Any, check: Any, words: list[str], tmp_path: Path) -> None:
    config = EnvironmentConfig(count=1)
    kind = make(config, Context("swe", tmp_path, backend(config, tmp_path)))
    bad = Task("t", "swe", "g", setup={"files": FILES} if setup is None else setup,
               check={"tests": "true"} if check is None else check)
    with pytest.raises(BadTask) as caught:
        kind.check_task(bad)
    assert all(word in str(caught.value) for word in words), caught.value


def test_lines_are_bounded() -> None:
    assert numbered("a\n" * 3, 2, 1) == ("     2  a\n(lines 2 to 2 of 3)", True)
    assert numbered("", 1, 5) == ("(an empty file)", False)
    assert numbered("a", 9, 5) == ("(the file has 1 lines)", False)
    wide, more = numbered("x" * 10_000, 1, 5)
    assert len(wide) < 600
    assert not more
    many, more = numbered(("x" * 400 + "\n") * 400, 1, 400)
    assert len(many) < 16_100
    assert more
    assert cut("x" * 12_000) == ("x" * 12_000, False)


def test_edits_keep_line_ends() -> None:
    assert edited("a\r\nb\r\nc\r\n", "a\nb", "x\ny") == ("x\r\ny\r\nc\r\n", "")
    assert edited("aaa", "aa", "b")[1].startswith("`old` must be there exactly once, and is 2 times, in lines 1, 1")
    assert region("a\nb\nc\nd\ne\nf\n", "a\nb\nc\nX\nY\ne\nf\n").splitlines()[0] == "     1  a"
    assert region("a\n" * 50, "a\n" * 25 + "b\n" + "a\n" * 25).count("\n") < 9


@pytest.mark.parametrize(("said", "value"), [
    ("Ran 4 tests in 0.1s\n\nFAILED (failures=1, errors=1)\n", 0.5),
    ("Ran 4 tests in 0.1s\n\nOK\n", 0.0),
    ("==== 1 failed, 3 passed in 0.10s ====", 0.75),
    ("==== 3 passed in 0.10s ====", 0.99),
    ("==== 1 failed, 1 error, 2 passed in 1s ====", 0.5),
    ("Ran 0 tests in 0s", 0.0),
    ("Ran 2 tests in 0s\nFAILED (failures=5)", 0.0),
    ("gibberish", 0.0),
])
def test_the_part_that_passed_is_read_from_what_was_written(said: str, value: float) -> None:
    assert part(said) == pytest.approx(value)
