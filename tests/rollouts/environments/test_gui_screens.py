"""Screens in real sandboxes: typing, clicking and looking, and what dies."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.gui.environment import GuiEnvironment
from openclaw_rl.rollouts.environments.gui.plugin import GuiType, make
from openclaw_rl.rollouts.environments.gui.tree import OBSERVATION_SCHEMA
from openclaw_rl.rollouts.environments.interface import BadAction, BadTask, Context, Observation, StepResult
from openclaw_rl.rollouts.sandboxes.factory import backend
from openclaw_rl.rollouts.sandboxes.interface import WORK, Finished, SandboxError
from openclaw_rl.rollouts.tasks.task import Action, Task
from tests.support.required import left_out

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

XTERM = {"app": ["xterm", "-cr", "black"]}
#: Everything on an English keyboard, what is not on it, and what looks like options, commands and escapes.
AWKWARD = ("  --file /etc/passwd $(id) `id` %s \\n 'x' \"y\" !@#^&*()_+-=[]{}|;:<>,.?/~\n\n\tZoë é ñ ß 中文 €\n"
           "一丁七万丈三上下不与丐丑专且世丘丙业 ÀÁÂÃÄÅÆÇÈÉ 丁一\n"
           "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789 aa  bb")


@pytest.fixture
async def kind(tmp_path: Path) -> AsyncIterator[GuiType]:
    config = EnvironmentConfig(count=2, backend="bubblewrap")
    kind = make(config, Context("gui", tmp_path / "gui", backend(config, tmp_path)))
    if rejection := await kind.validate():
        left_out(rejection.message)
    yield kind


@pytest.fixture
async def gui(kind: GuiType) -> AsyncIterator[GuiEnvironment]:
    environment = await kind.make()
    yield environment
    await environment.close()


async def begin(gui: GuiEnvironment, setup: Mapping[str, Any], check: Mapping[str, Any] | None = None) -> str:
    opening = await gui.reset(Task("t", "gui", "g", setup=setup, check=check or {"run": "true"}), 1)
    good(opening.observation)
    return opening.observation.text


async def do(gui: GuiEnvironment, name: str, **arguments: Any) -> StepResult:
    result = await gui.step(Action(name, arguments), 60)
    good(result.observation)
    return result


async def text(gui: GuiEnvironment, name: str, **arguments: Any) -> str:
    return (await do(gui, name, **arguments)).observation.text


def good(observation: Observation) -> None:
    jsonschema.validate(observation.data, OBSERVATION_SCHEMA)
    screen = observation.data["screen"]
    assert struct.unpack(">II", observation.image_png[16:24]) == (screen["width"], screen["height"])


async def inside(gui: GuiEnvironment, command: str) -> Finished:
    assert gui._sandbox is not None
    return await gui._sandbox.run(["sh", "-c", command])


async def test_text_arrives_as_it_was_typed(gui: GuiEnvironment) -> None:
    await begin(gui, {"app": "editor", "args": ["a.txt"]}, {"file": {"path": "a.txt", "equals": AWKWARD}})
    assert (await gui.evaluate()).detail.startswith("a.txt can't be read: ")
    assert not (await do(gui, "type", text=AWKWARD)).error
    assert '"Saved a.txt."' in await text(gui, "keys", keys="ctrl+s")
    outcome = await gui.evaluate()
    assert outcome.value == 1, (await inside(gui, "cat a.txt")).output.decode()
    await do(gui, "type", text="more")
    await do(gui, "keys", keys="ctrl+s")
    assert (await gui.evaluate()).detail == "a.txt is not what it should be"


async def test_clicks_scrolls_and_what_is_told_of_them(gui: GuiEnvironment) -> None:
    files = {"t.txt": "".join(f"[ ] thing {i}\n" for i in range(40))}
    before = await begin(gui, {"app": "todo", "args": ["t.txt"], "files": files, "size": "640x600"})
    assert before.startswith("Screen 640x600.")
    assert '"[ ] thing 0"' in before
    after = await text(gui, "scroll", x=200, y=300, amount=5)
    assert '"[ ] thing 0"' not in after
    assert '"[ ] thing 39"' not in before
    double = await text(gui, "click", x=100, y=148, double=True)
    assert ", selected" in double
    with pytest.raises(BadAction, match="from 0 to 639"):
        await do(gui, "click", x=640, y=1)
    seen = await gui.view()
    good(seen)
    assert seen.text == double, "who watches changes nothing"
    assert (await do(gui, "submit")).done


async def test_checks_say_what_is_wrong(gui: GuiEnvironment) -> None:
    setup = {"files": {"a.txt": "one two\n", "deep/b.txt": "x"}, "run": "mkdir folder; mv deep/b.txt folder"}
    assert "There is no window." in await begin(gui, setup, {"file": {"path": "a.txt", "contains": "two"}})
    assert (await gui.evaluate()).value == 1
    await begin(gui, setup, {"file": [{"path": "a.txt", "contains": "three"}], "run": "true"})
    assert (await gui.evaluate()).detail == "a.txt does not contain what it should"
    await begin(gui, setup, {"run": "test -f folder/b.txt && echo so close && exit 3"})
    assert (await gui.evaluate()).detail == "the check ended with 3: so close"
    await begin(gui, setup, {"run": "there-is-no-such-program"})
    with pytest.raises(BadTask, match=r"`check\.run` can't be run: .*not found"):
        await gui.evaluate()
    await gui.reset(None, None)
    assert (await gui.evaluate()).value == 0


async def test_an_application_that_ends_is_seen_and_costs_nothing(gui: GuiEnvironment) -> None:
    assert 'Window "xterm"' in await begin(gui, XTERM, {"file": {"path": "a", "equals": "1"}})
    gone = await do(gui, "type", text="echo 1 >a; exit\n")
    assert gone.observation.data["application"] == "ended"
    assert "The application has ended.\nThere is no window." in gone.observation.text
    assert (await gui.evaluate()).value == 1
    assert not gui.problem


async def test_a_window_manager_that_ends_is_started_again(gui: GuiEnvironment) -> None:
    await begin(gui, {"app": "todo", "args": ["t.txt"]})
    assert (await inside(gui, "pkill jwm")).code == 0
    for _ in range(100):
        told = await text(gui, "windows")
        if "The window manager had ended; it was started again." in told:
            break
    else:
        pytest.fail(told)
    await do(gui, "click", x=315, y=92)
    assert '"[ ] tea"' in await text(gui, "type", text="tea\n")
    assert "window manager" not in await text(gui, "windows")


@pytest.mark.parametrize("command", ["pkill -9 Xvfb", "pkill -STOP Xvfb"])
async def test_a_dead_display_is_a_problem(gui: GuiEnvironment, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await begin(gui, XTERM)
    monkeypatch.setattr("openclaw_rl.rollouts.environments.gui.display._LOOK", 2.0)
    await inside(gui, command)
    with pytest.raises(SandboxError, match="display"):
        for _ in range(100):
            await gui.step(Action("screenshot", {}), 2)
    assert "display" in gui.problem
    with pytest.raises(SandboxError):
        await gui.view()
    await gui.reset(None, None)
    assert not gui.problem, "a reset makes it anew"


async def test_a_policy_that_kills_everything_ends_its_own_sandbox_only(kind: GuiType, gui: GuiEnvironment) -> None:
    other = await kind.make()
    await begin(gui, XTERM)
    with pytest.raises(SandboxError):
        await gui.step(Action("type", {"text": "kill -9 -1\n"}), 20)
        for _ in range(100):
            await gui.step(Action("screenshot", {}), 20)
    assert gui.problem
    assert "Screen" in (await other.reset(None, None)).observation.text
    await other.close()
    assert other.problem == "it was closed"


async def test_a_reset_leaves_nothing_of_before(gui: GuiEnvironment) -> None:
    await begin(gui, XTERM)
    await do(gui, "type", text="touch a /tmp/b; (setsid xterm &) ; setsid sleep 1000 & xset q\n")
    watching = asyncio.create_task(gui.view())
    again = await begin(gui, {"app": "todo", "args": ["t.txt"]})
    await asyncio.gather(watching, return_exceptions=True)
    assert "xterm" not in again
    left = (await inside(gui, f"ls -A {WORK}; ls -A /tmp; pgrep -a 'sleep|xterm'")).output.decode()
    assert left.split() == [".X11-unix", "desk"], left


@pytest.mark.parametrize(("setup", "words"), [
    ({"app": ["no-such-program"]}, ["`setup.app`, no-such-program", "ended at once", "not found"]),
    ({"app": ["sleep", "1000"], "wait": 1}, ["`setup.app`, sleep 1000", "no window in 1 s"]),
    ({"run": "echo no luck; exit 4"}, ["`setup.run` ended with 4: no luck"]),
    ({"files": {"/proc/x": "y"}}, ["`setup.files`: /proc/x"]),
    ({"app": "files", "args": ["missing"]}, ["`setup.app`, files missing", "ended at once", "No such file"]),
])
async def test_what_can_not_be_set_up_says_so(gui: GuiEnvironment, setup: Any, words: list[str]) -> None:
    with pytest.raises(BadTask) as caught:
        await begin(gui, setup)
    assert all(word in str(caught.value) for word in words), caught.value
    assert not gui.problem
    assert "There is no window" in (await gui.reset(None, None)).observation.text


async def test_a_long_text_in_a_short_time_is_ended(gui: GuiEnvironment) -> None:
    await begin(gui, {"app": "editor"})
    result = await gui.step(Action("type", {"text": "x" * 2000}), 0.3)
    assert result.error == "it was not done in 0.3 s, and was ended"
    assert result.error in result.observation.text


async def test_an_application_that_publishes_nonsense(gui: GuiEnvironment) -> None:
    await begin(gui, XTERM)
    await do(gui, "type", text="cd /tmp/desk/widgets; id=$(printf 0x%x $WINDOWID); echo $id; "
                               "echo junk >0x1; mkdir 0x2; ln -s /dev/zero 0x3; mkfifo 0x4; yes >0x5\n")
    assert 'Window "xterm"' in await text(gui, "windows")
    await do(gui, "keys", keys="ctrl+c")
    await do(gui, "type", text="echo '-' >$id; cat $id\n")
    assert 'Window "xterm"' in await text(gui, "windows")
