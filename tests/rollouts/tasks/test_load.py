"""Task files, good and bad."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import Context
from openclaw_rl.rollouts.environments.plugins import load_type
from openclaw_rl.rollouts.sandboxes.factory import backend
from openclaw_rl.rollouts.tasks import load as module
from openclaw_rl.rollouts.tasks.load import load
from openclaw_rl.rollouts.tasks.task import Action, Task

GOOD = """
- id: one
  goal: Do it.
  split: held_out
  tags: [easy, files]
  max_steps: 3
  setup: {files: {a.txt: "no"}}
  check: {answer: no, when: 12:30, day: 2026-01-01, 7: 1.5}
  solution:
    - {name: run, arguments: {command: ls}}
    - {name: submit}
- {id: two, goal: Do that.}
"""


def loaded(folder: Path, **files: str | bytes) -> list[Task]:
    for name, content in files.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load("terminal", folder, bundled=False)


def test_a_list_and_a_single_task_in_folders_below(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "x.YML").write_text("id: three\ngoal: And this.")
    (tmp_path / "notes.txt").write_text("no task")
    one, two, three = loaded(tmp_path, b=GOOD, empty="# nothing yet\n")
    assert (one.id, one.type_name, one.goal, one.split, one.tags, one.max_steps) == \
        ("one", "terminal", "Do it.", "held_out", ("easy", "files"), 3)
    assert one.setup == {"files": {"a.txt": "no"}}
    assert one.solution == (Action("run", {"command": "ls"}), Action("submit", {}))
    assert (two.split, two.max_steps, two.problem) == ("train", None, "")
    assert (three.id, three.source) == ("three", f"{tmp_path / 'deep/er/x.YML'}, line 1")


def test_a_problem_names_the_line(tmp_path: Path) -> None:
    assert f"{tmp_path / 'b.yaml'}, line 3, task a: `split`" in loaded(
        tmp_path, b="\n- {id: x, goal: x}\n- {id: a, goal: x, split: 1}\n")[1].problem


def test_words_that_only_look_like_something_else_stay_text(tmp_path: Path) -> None:
    assert loaded(tmp_path, b=GOOD)[0].check == {"answer": "no", "when": "12:30", "day": "2026-01-01", "7": 1.5}


def test_a_users_tasks_come_beside_those_of_the_package(tmp_path: Path) -> None:
    bundled = load("terminal")
    assert len(load("terminal", tmp_path)) == len(bundled)
    (tmp_path / "mine.yaml").write_text(GOOD)
    assert [task.id for task in load("terminal", tmp_path)] == [task.id for task in bundled] + ["one", "two"]
    assert load("no_such_kind") == [] and load("../terminal") == []


@pytest.mark.parametrize(("entry", "says"), [
    ("goal: x", "`id` is missing"),
    ("{id: 'a b', goal: x}", "`id`: 'a b' is not allowed: 1 to 128 letters"),
    ("{id: a}", "task a: `goal` is missing"),
    ("{id: a, goal: ' '}", "`goal`: ' ' is not allowed"),
    ("{id: a, goal: 7}", "`goal`: 7 is not allowed"),
    ("{id: a, goal: '" + "x" * 20_001 + "'}", "`goal`: 'xxx"),
    ("{id: a, goal: x, goals: y}", "`goals` is no key of a task; there are `id`, `goal`"),
    ("{id: a, goal: x, split: test}", "`split`: 'test' is not allowed: `train`, `held_out` or `auto`"),
    ("{id: a, goal: x, tags: easy}", "`tags`: 'easy' is not allowed"),
    ("{id: a, goal: x, max_steps: 0}", "`max_steps`: 0 is not allowed: a whole number from 1 to 1000"),
    ("{id: a, goal: x, max_steps: 10000000}", "`max_steps`: 10000000"),
    ("{id: a, goal: x, max_steps: true}", "`max_steps`: True"),
    ("{id: a, goal: x, setup: [1]}", "`setup`: [1] is not allowed: a mapping"),
    ("{id: a, goal: x, check: 'exit 0'}", "`check`: 'exit 0' is not allowed: a mapping"),
    ("{id: a, goal: x, solution: {name: run}}", "`solution`: "),
    ("{id: a, goal: x, solution: [{name: run, args: {}}]}", "`solution`, action 1: "),
    ("just words", "'just words' is no task"),
])
def test_a_mistake_is_named_and_the_others_stay_usable(tmp_path: Path, entry: str, says: str) -> None:
    bad, good = loaded(tmp_path, a=f"- {entry}\n- {{id: good, goal: x}}")
    assert says in bad.problem and str(tmp_path / "a.yaml") in bad.problem and len(bad.problem) < 600
    assert re.fullmatch(r"[\w.-]+", bad.id)
    assert (good.id, good.problem) == ("good", "")


@pytest.mark.parametrize(("content", "says"), [
    (b"- {id: a, goal: x\n", "line 2, column 1: no YAML"),
    (b"\x89PNG\r\n\x1a\n\x00\xff", "byte 1 (0x89) is no UTF-8"),
    (b"id: a\0b", "no YAML"),
    (b"{id: a, id: b, goal: x}", "line 1: the key id is there twice"),
    (b"{id: a, goal: !!python/object/apply:os.system [ls]}", "the tag 'tag:yaml.org,2002:python"),
    (b"{id: a, goal: !mine x}", "the tag '!mine' is not allowed"),
    (b"{id: a, goal: &x y, setup: *x}", "anchors and aliases"),
    (b"&a [*a]", "anchors and aliases"),
    (b"id: a\n---\nid: b\n", "several documents"),
    (b"{[a]: b}", "a key must be a plain word"),
    (b'{id: a, goal: "\\ud800"}', "line 1"),
    (b"[" * 50, "more than 40 lists"),
    (b"[" * 200_000, "bad.yaml: line 1"),
    (b"a" * (1 << 20) + b"a", "1,048,577 bytes are too many: at most 1,048,576"),
])
def test_a_file_that_cant_be_read_is_one_problem(tmp_path: Path, content: bytes, says: str) -> None:
    bad, good = loaded(tmp_path, bad=content, good="{id: good, goal: x}")
    assert says in bad.problem and "bad.yaml" in bad.problem
    assert (bad.id, good.id, good.problem) == ("bad.yaml", "good", "")


def test_a_huge_file_is_never_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(100 << 20)
    huge, = loaded(tmp_path)
    assert "104,857,600 bytes are too many" in huge.problem


def test_links_that_lead_nowhere_or_back_and_things_that_are_no_files(tmp_path: Path) -> None:
    os.symlink(tmp_path, tmp_path / "again")
    os.symlink("itself.yaml", tmp_path / "itself.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    os.mkdir(tmp_path / "folder.yaml")
    good, itself, pipe = loaded(tmp_path, good="{id: good, goal: x}")
    assert good.problem == ""
    assert "symbolic links" in itself.problem and "no plain file" in pipe.problem


def test_a_folder_that_is_not_there_or_none(tmp_path: Path) -> None:
    missing, = load("terminal", tmp_path / "none", bundled=False)
    assert "no such folder" in missing.problem
    (tmp_path / "file").write_text("")
    assert "no folder" in load("terminal", tmp_path / "file", bundled=False)[0].problem


def test_an_id_that_is_taken(tmp_path: Path) -> None:
    first, second, third = loaded(tmp_path, a="[{id: x, goal: g}, {id: x, goal: h}]", b="{id: x, goal: i}")
    assert (first.id, first.problem, second.id, third.id) == ("x", "", "x-2", "x-3")
    assert "`id`: 'x' is taken by a task in" in second.problem and str(tmp_path / "a.yaml") in third.problem


def test_too_many_files_and_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 2)
    assert "more than 2 files" in loaded(tmp_path, **{n: f"{{id: {n}, goal: x}}" for n in "abc"})[2].problem
    monkeypatch.setattr(module, "MOST_FILES", 10)
    monkeypatch.setattr(module, "MOST_TASKS", 2)
    a, b, problem = loaded(tmp_path)
    assert (a.problem, b.problem) == ("", "") and "more than 2 tasks" in problem.problem


def test_folders_too_deep(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 20)
    deep.mkdir(parents=True)
    (deep / "x.yaml").write_text("{id: x, goal: x}")
    assert "more than 16 folders" in loaded(tmp_path)[0].problem


def test_the_examples_of_the_page_are_tasks(tmp_path: Path) -> None:
    page = Path(module.__file__).with_name("README.md").read_text()
    examples = re.findall(r"```yaml\n(- id: my-first-(\w+?)-.*?)```", page.replace("tool-call", "tool_call"), re.DOTALL)
    assert [kind for _, kind in examples] == ["terminal", "tool_call", "gui", "swe", "openenv"]
    config = EnvironmentConfig(count=1, url="http://127.0.0.1:9", backend="bubblewrap")
    for text, kind in examples:
        (tmp_path / "x.yaml").write_text(text)
        task, = load(kind, tmp_path, bundled=False)
        assert task.problem == ""
        load_type(kind, "")(config, Context(kind, tmp_path, backend(config, tmp_path))).check_task(task)
