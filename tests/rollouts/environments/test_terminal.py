from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import BadAction, BadTask, Context, Outcome, StepResult
from openclaw_rl.rollouts.environments.terminal.plugin import TerminalEnvironment, TerminalType, make
from openclaw_rl.rollouts.sandboxes.interface import WORK, SandboxError
from openclaw_rl.rollouts.tasks.task import Action, Task
from tests.rollouts.sandboxes import escapes
from tests.support.required import left_out


@pytest.fixture
def kind(tmp_path: Path) -> TerminalType:
    if shutil.which("bwrap") is None:
        left_out("bubblewrap is missing")
    config = EnvironmentConfig(count=1, backend="bubblewrap", memory=96 * 2**20, disk=8 * 2**20, processes=32)
    return make(config, Context("terminal", tmp_path, escapes.backend()))


@pytest.fixture
async def terminal(kind: TerminalType) -> AsyncIterator[TerminalEnvironment]:
    terminal = await kind.make()
    await terminal.reset(None, None)
    yield terminal
    await terminal.close()


async def run(terminal: TerminalEnvironment, command: str, seconds: float | None = None) -> StepResult:
    result = await terminal.step(Action("run", {"command": command, "timeout": seconds}), 20)
    jsonschema.validate(result.observation.data, TerminalType.observation_schema)
    json.dumps(result.observation.data)
    return result


async def text(terminal: TerminalEnvironment, command: str, seconds: float | None = None) -> str:
    return (await run(terminal, command, seconds)).observation.text


async def test_the_shell_lives_on_between_commands(terminal: TerminalEnvironment) -> None:
    data = (await run(terminal, "mkdir a; cd a; x=4; f() { echo f$1; }; alias e=echo; sleep 600 &")).observation.data
    assert data["exit_code"] == 0 and data["folder"] == f"{WORK}/a"
    data = (await run(terminal, "e $x; f 1; jobs | grep -c sleep; pwd; false")).observation.data
    assert data == {"text": f"4\nf1\n1\n{WORK}/a\n[exit code: 1, in {WORK}/a]", "output": f"4\nf1\n1\n{WORK}/a\n",
                    "exit_code": 1, "timed_out": False, "truncated": False, "folder": f"{WORK}/a"}


@pytest.mark.parametrize(("command", "expected"), [
    ("cat; read x; echo \"<$x>\"", "<>\n[exit code: 0]"),
    ("printf a; printf b >&2", "ab\n[exit code: 0]"),
    ("echo \"it's\n\\$two\"\n# comment\necho three", "it's\n$two\nthree\n[exit code: 0]"),
    ("if", "bash: syntax error: unexpected end of file\n[exit code: 2]"),
    ("echo 'a", "bash: unexpected EOF while looking for matching `''\n[exit code: 2]"),
    ("no-such-thing", "bash: no-such-thing: command not found\n[exit code: 127]"),
    ("# nothing", "[exit code: 0]"),
    ("(exit 3)", "[exit code: 3]"),
    ("echo !!", "!!\n[exit code: 0]"),
    ("printf 'a\\0b\\xff\\e[31mc'", "a\\x00b\\xffc\n[exit code: 0]"),
    ("exec >/dev/null; echo gone", "[exit code: 0]"),
    ("printf '\\n\\036%s 0 / %s\\n' 0123456789abcdef0123456789abcdef 0123456789abcdef0123456789abcdef",
     "\\x1e0123456789abcdef0123456789abcdef 0 / 0123456789abcdef0123456789abcdef\n[exit code: 0]"),
    ("cat <<E\nhere\nE\ncd /tmp", "here\n[exit code: 0, in /tmp]"),
])
async def test_commands(terminal: TerminalEnvironment, command: str, expected: str) -> None:
    assert (await text(terminal, command)).lstrip("\n") == expected
    assert await text(terminal, f"cd {WORK}; true") == "[exit code: 0]"


async def test_a_command_that_hangs_is_interrupted_and_the_shell_lives_on(terminal: TerminalEnvironment) -> None:
    await run(terminal, "x=4; sleep 600 &")
    for command in ("sleep 600", "while :; do sleep 0.1; done", "python3 -c 'import time; time.sleep(600)'"):
        result = await run(terminal, command, 0.7)
        assert result.observation.data["timed_out"] and result.observation.data["exit_code"] is None
        assert "[interrupted: it was not done in 0.7 s]" in result.observation.text and "0.7 s" in result.error
    assert await text(terminal, "echo $x; jobs | grep -c sleep") == "4\n1\n[exit code: 0]"


async def test_a_command_that_can_not_be_interrupted_costs_the_shell(terminal: TerminalEnvironment) -> None:
    said = await text(terminal, "x=4; cd /tmp; trap '' INT; bash -c 'sleep 600; sleep 600'", 0.5)
    assert f"a new shell was started in {WORK}" in said
    assert await text(terminal, "echo $x; cat /proc/[0-9]*/comm | grep -c sleep; pwd") == f"\n0\n{WORK}\n[exit code: 0]"


@pytest.mark.parametrize(("command", "code"), [("exit 4", 4), ("exec true", 0), ("kill -9 $$", 137),
                                               ("sleep 600 & exit 5", 5), ("set -e; false", 1)])
async def test_a_shell_that_ends_is_followed_by_another(terminal: TerminalEnvironment, command: str, code: int) -> None:
    data = (await run(terminal, command)).observation.data
    assert data["exit_code"] == code and data["folder"] == WORK
    assert f"the shell ended with exit code {code}; a new shell was started in {WORK}" in data["text"]
    assert await text(terminal, "echo on") == "on\n[exit code: 0]"


async def test_long_output_is_cut_in_the_middle(terminal: TerminalEnvironment) -> None:
    data = (await run(terminal, "seq 100000")).observation.data
    assert data["truncated"] and len(data["text"]) < 17_000 and "bytes are left out ...]" in data["text"]
    assert data["text"].startswith("1\n2\n") and data["text"].endswith("100000\n[exit code: 0]")
    assert not (await run(terminal, "seq 1000")).observation.data["truncated"]


async def test_endless_output_is_ended(terminal: TerminalEnvironment) -> None:
    began = time.monotonic()
    result = await run(terminal, "x=4; yes")
    assert "[interrupted: it wrote too much]" in result.observation.text and time.monotonic() - began < 60
    assert result.observation.data["truncated"] and len(result.observation.text) < 17_000
    # On a machine that is too busy for the shell to answer in time another takes its place, and that is said.
    kept = "" if "a new shell was started" in result.observation.text else "4\n"
    assert await text(terminal, "echo $x") == f"{kept}[exit code: 0]"


async def test_memory_disk_and_processes_run_out_and_the_terminal_lives_on(terminal: TerminalEnvironment) -> None:
    said = await text(terminal, "python3 -c 'bytearray(400 << 20)'")
    assert "out of memory]" in said or "MemoryError" in said
    assert "No space left" in await text(terminal, "head -c 99M /dev/zero >big; rm big")
    await text(terminal, "b() { b | b & }; b; sleep 60", 1)
    for _ in range(4):  # the shell itself may need a new beginning first
        if "on\n" in (said := await text(terminal, "echo $(echo on)", 2)):
            break
    assert "on\n" in said


async def test_what_a_trace_shows_is_no_sign_of_the_terminals_own(terminal: TerminalEnvironment) -> None:
    said = await text(terminal, "set -x; echo hi")
    assert "hi\n" in said and "printf" not in said


@pytest.mark.parametrize(("action", "message"), [
    (Action("fly", {}), "`run`, `submit`"),
    (Action("run", {}), "`command` of `run` is missing"),
    (Action("run", {"command": 5}), "`command` of `run`: 5"),
    (Action("run", {"command": "ls", "timeout": "soon"}), "`timeout` of `run`: 'soon'"),
    (Action("run", {"command": "ls", "timeout": -1}), "from 0.1 to 3600"),
    (Action("run", {"command": "a\0b"}), "NUL"),
    (Action("run", {"command": "x" * 70_000}), "65,536"),
    (Action("submit", {"answer": ["x"]}), "`answer` of `submit`"),
])
async def test_bad_actions_are_refused(terminal: TerminalEnvironment, action: Action, message: str) -> None:
    with pytest.raises(BadAction, match=message):
        await terminal.step(action, 10)
    assert await text(terminal, "echo on") == "on\n[exit code: 0]"


async def test_a_task(kind: TerminalType, terminal: TerminalEnvironment) -> None:
    task = Task("t", "terminal", "Add the numbers.",
                setup={"files": {"in/numbers": "3\n4\n"}, "run": "echo $SEED >seed"},
                check={"run": 'echo sum is $(cat out); test "$(cat out)" = 7 && test "$ANSWER" = " 7 "', "answer": "7"})
    kind.check_task(task)
    opening = await terminal.reset(task, 5)
    assert opening.goal == "Add the numbers." and [tool.name for tool in opening.tools] == ["run", "submit"]
    assert (await terminal.evaluate()).detail == "no answer was submitted"
    assert await text(terminal, "cat seed in/numbers") == "5\n3\n4\n[exit code: 0]"
    result = await terminal.step(Action("submit", {"answer": " 7 "}), 10)
    assert result.done
    outcome = await terminal.evaluate()
    assert outcome.value == 0 and "sum is" in outcome.detail and "exit code 1" in outcome.detail
    # The check is not fooled by what the policy does to its own shell.
    await run(terminal, "test() { return 0; }; export -f test; alias cat='echo 7'; PATH=$HOME; export BASH_ENV=$HOME/x")
    assert (await terminal.evaluate()).value == 0
    await terminal.step(Action("run", {"command": "PATH=/usr/bin; unset -f test; unalias cat; echo 7 >out"}), 10)
    assert (await terminal.evaluate()) == (await terminal.evaluate())
    assert (await terminal.evaluate()).value == 1
    # Another episode begins with nothing of this one.
    await terminal.reset(task, None)
    assert await text(terminal, "ls; cat seed; ls /tmp") == "in\nseed\n[exit code: 0]"
    assert (await terminal.evaluate()).value == 0
    await terminal.step(Action("submit", {"answer": "8"}), 10)
    assert "'8'" in (await terminal.evaluate()).detail


async def test_parts_give_their_share(kind: TerminalType, terminal: TerminalEnvironment) -> None:
    task = Task("t", "terminal", "Do both.", check={"parts": [
        {"run": "test -e a"}, {"run": "test -e b", "weight": 2}, {"number": 7}]})
    kind.check_task(task)
    await terminal.reset(task, None)
    assert (await terminal.evaluate()).value == 0
    await run(terminal, "touch b")
    outcome = await terminal.evaluate()
    assert outcome.value == 0.5 and outcome.detail.startswith("1 of 3 parts; part 1: the check says no")
    await terminal.step(Action("submit", {"answer": "It is 7."}), 10)
    assert (await terminal.evaluate()).value == 0.75
    await run(terminal, "touch a")
    assert (await terminal.evaluate()) == Outcome(1.0, "3 of 3 parts")


async def test_what_the_policy_left_running_is_stopped_while_it_is_checked(kind: TerminalType,
                                                                           terminal: TerminalEnvironment) -> None:
    run_check = "a=$(ls -l --full-time x); sleep 0.05; test \"$a\" = \"$(ls -l --full-time x)\""
    for processes, value in ((False, 1.0), (True, 0.0)):
        task = Task("t", "terminal", "Wait.", check={"run": run_check, "processes": processes})
        kind.check_task(task)
        await terminal.reset(task, None)
        await run(terminal, "y=still; while :; do echo >x; done & until [ -e x ]; do :; done")
        assert (await terminal.evaluate()).value == value
        # The shell lives on, and so does its job.
        assert await text(terminal, "echo $y; jobs -rp | wc -l") == "still\n1\n[exit code: 0]"


@pytest.mark.parametrize(("setup", "check", "message"), [
    ({}, {"run": "true", "processes": "no"}, "`check.processes`: 'no' is not allowed: true or false"),
    ({"file": {}}, {"answer": "1"}, "`setup.file` is no key.*allowed: files, run"),
    ({"files": ["a"]}, {"answer": "1"}, "`setup.files`.*path: text"),
    ({"files": {"a": 5}}, {"answer": "1"}, "`setup.files`.*path: text"),
    ({"files": {"a/": ""}}, {"answer": "1"}, "not the path of a file"),
    ({"run": 5}, {"answer": "1"}, "`setup.run`: 5"),
    ({}, {}, "`check` needs `run`"),
    ({}, {"number": "4"}, "`check.number`: '4' is not allowed: a number"),
    ({}, {"number": float("nan")}, "`check.number`: nan"),
    ({}, {"parts": []}, "`check.parts`: \\[\\] is not allowed: a list of 1 to 50"),
    ({}, {"parts": [{"run": "x"}], "answer": "1"}, "`check.answer` is not allowed beside `check.parts`"),
    ({}, {"parts": [{"run": "x"}, {}]}, "`check.parts, part 2` needs `run`"),
    ({}, {"parts": [{"run": "x", "wieght": 2}]}, "`check.parts, part 1`: .*wieght"),
    ({}, {"parts": [{"run": "x", "weight": 0}]}, "`weight`: 0 is not allowed: a number above 0"),
    ({}, {"answer": 5}, "`check.answer`: 5"),
    ({}, {"run": " "}, "`check.run`"),
    ({}, {"python": "x"}, "`check.python` is no key"),
    ({}, "true", "`check`: 'true'"),
])
def test_bad_tasks_are_told(kind: TerminalType, setup: Any, check: Any, message: str) -> None:
    with pytest.raises(BadTask, match=message):
        kind.check_task(Task("t", "terminal", "g", setup=setup, check=check))


def test_a_bad_solution_is_told(kind: TerminalType) -> None:
    with pytest.raises(BadTask, match="`solution`, action 2: `command`"):
        kind.check_task(Task("t", "terminal", "g", check={"answer": "1"},
                             solution=[Action("run", {"command": "ls"}), Action("run", {})]))


@pytest.mark.parametrize(("setup", "check", "message"), [
    ({"files": {"/etc/passwd": "x"}}, {"answer": "1"}, "`setup.files`: /etc/passwd can't be written"),
    ({"run": "echo why; exit 3"}, {"answer": "1"}, "`setup.run` doesn't work: exit code 3: why"),
    ({"run": "if"}, {"answer": "1"}, "`setup.run` can't be read by bash: .*syntax error"),
    ({}, {"run": "test $(cat x"}, "`check.run` can't be read by bash"),
])
async def test_tasks_that_do_not_work_are_told(terminal: TerminalEnvironment, setup: Any, check: Any,
                                               message: str) -> None:
    with pytest.raises(BadTask, match=message):
        await terminal.reset(Task("t", "terminal", "g", setup=setup, check=check), None)
    await terminal.reset(None, None)
    assert await text(terminal, "echo on") == "on\n[exit code: 0]"


async def test_a_check_that_hangs_says_no(terminal: TerminalEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_rl.rollouts.environments.terminal.plugin._CHECK_SECONDS", 0.5)
    await terminal.reset(Task("t", "terminal", "g", check={"run": "cat fifo"}), None)
    await run(terminal, "mkfifo fifo")
    outcome = await terminal.evaluate()
    assert outcome.value == 0 and "not done in 0.5 s" in outcome.detail


async def test_who_watches_sees_the_last_lines(terminal: TerminalEnvironment) -> None:
    await run(terminal, "seq 100; printf '\\e]0;x\\a<b>'")
    shown = (await terminal.view()).text.splitlines()
    assert len(shown) == 40 and shown[-2:] == ["<b>", "[exit code: 0]"]
    running = asyncio.ensure_future(run(terminal, "echo begun; sleep 20", 3))
    deadline = time.monotonic() + 10
    while not (await terminal.view()).text.endswith("$ echo begun; sleep 20\nbegun"):
        assert time.monotonic() < deadline and not running.done()
        await asyncio.sleep(0.02)
    await running


async def test_a_lost_sandbox_is_told(terminal: TerminalEnvironment) -> None:
    running = asyncio.ensure_future(run(terminal, "sleep 60", 20))
    await asyncio.sleep(0.2)
    await terminal._sandbox.close()
    with pytest.raises(SandboxError):
        await asyncio.wait_for(running, 10)
    assert terminal.problem
    with pytest.raises(SandboxError):
        await run(terminal, "ls")
    await terminal.close()


async def test_a_step_that_nobody_waits_for_leaves_a_usable_terminal(terminal: TerminalEnvironment) -> None:
    for pause in (0.0, 0.01, 0.3):
        running = asyncio.ensure_future(run(terminal, "sleep 60"))
        await asyncio.sleep(pause)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert await text(terminal, "echo on") == "on\n[exit code: 0]"
