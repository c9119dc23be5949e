"""Data sets of prompts with verifiable answers, read as tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import Context
from openclaw_rl.rollouts.environments.plugins import load_type
from openclaw_rl.rollouts.sandboxes.factory import backend
from openclaw_rl.rollouts.tasks import dataset
from openclaw_rl.rollouts.tasks.answers import final, last_number, only_number, same_number
from openclaw_rl.rollouts.tasks.load import load
from openclaw_rl.rollouts.tasks.task import Task

GSM = {"question": "How many clips?", "answer": "48/2 = <<48/2=24>>24 clips.\n#### 72"}
MATH = {"problem": "Compute it.", "solution": r"So it is $\boxed{\frac{3}{4}}$.", "level": "Level 1"}
WORD = {"id": 7, "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital?"}],
        "answer": "Paris"}
MBPP = {"task_id": 2, "text": "Write double(n).", "code": "def double(n):\n    return 2 * n",
        "test_list": ["assert double(2) == 4", "assert double(-1) == -2"]}
HUMAN = {"task_id": "HumanEval/0", "prompt": "def double(n):\n    \"\"\"Twice n.\"\"\"\n", "entry_point": "double",
         "canonical_solution": "    return 2 * n\n",
         "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0) == 0\n"}


def loaded(folder: Path, kind: str, *rows: Any, name: str = "mine.jsonl") -> list[Task]:
    (folder / name).write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    config = EnvironmentConfig(count=1, backend="bubblewrap")
    made = load_type(kind, "")(config, Context(kind, folder, backend(config, folder)))
    tasks = load(kind, folder, bundled=False)
    for task in tasks:
        if not task.problem:
            made.check_task(task)
    return tasks


def test_mathematics_is_a_task_of_a_terminal(tmp_path: Path) -> None:
    gsm, math, word = loaded(tmp_path, "terminal", GSM, MATH, WORD)
    assert (gsm.id, gsm.goal, gsm.check) == ("mine.1", "How many clips?", {"number": 72.0})
    assert math.check == {"number": 0.75}
    assert (word.id, word.goal, word.check) == ("mine.7", "Be brief.\n\nCapital?", {"answer": "Paris"})
    assert word.solution[0].arguments == {"answer": "Paris"}


def test_code_is_a_task_of_a_repository(tmp_path: Path) -> None:
    mbpp, human = loaded(tmp_path, "swe", MBPP, HUMAN)
    assert mbpp.goal == "Write double(n).\n\nWrite it into answer.py: double."
    assert "from answer import double\n" in mbpp.check["hidden"]["test_answer.py"]
    assert mbpp.check["hidden"]["test_answer.py"].count("def test_") == 2
    assert (human.id, human.setup["files"]) == ("mine.HumanEval-0", {"answer.py": HUMAN["prompt"]})
    assert human.solution[0].arguments["content"].endswith("    return 2 * n\n")


@pytest.mark.parametrize(("kind", "row", "says"), [
    ("terminal", MBPP, "`test_list`, `test` or `tests` one of kind swe"),
    ("swe", GSM, "`answer` makes one of kind terminal"),
    ("terminal", {"prompt": "  ", "answer": 1}, "`prompt`: '  ' is not allowed: a text in one of the columns prompt"),
    ("terminal", {"answer": 1}, "a text in one of the columns"),
    ("terminal", "[1]", "line 1: [1] is no row: a JSON object"),
    ("terminal", "{", "line 1: no JSON"),
    ("terminal", '{"question": "\\ud800", "answer": 1}', "line 1: no JSON"),
    ("swe", MBPP | {"test_list": ["assert ("]}, "the tests are no Python"),
    ("swe", MBPP | {"test_list": ["assert 1"]}, "the tests call no function of the answer"),
    ("swe", HUMAN | {"entry_point": "a b"}, "`entry_point` may name it")])
def test_a_row_that_is_none_is_one_problem(tmp_path: Path, kind: str, row: Any, says: str) -> None:
    bad, good = loaded(tmp_path, kind, row, MBPP if kind == "swe" else {"id": "g", "goal": "x", "check": {
        "answer": "x"}, "setup": {} if kind == "terminal" else {"functions": []}})
    assert says in bad.problem and "mine.jsonl, line 1" in bad.problem
    assert not good.problem


def test_splits_follow_the_row_the_file_or_the_id(tmp_path: Path) -> None:
    rows = [GSM | {"id": f"r{i}"} for i in range(200)]
    first = {task.id: task.split for task in loaded(tmp_path, "terminal", *rows)}
    assert 20 <= sum(split == "held_out" for split in first.values()) <= 60
    fewer = {task.id: task.split for task in loaded(tmp_path, "terminal", *rows[50:])}
    assert fewer.items() <= first.items(), "a task stays where it is when others go"
    (tmp_path / "mine.jsonl").unlink()
    [held_out] = loaded(tmp_path, "terminal", GSM, name="gsm8k_test.jsonl")
    (tmp_path / "gsm8k_test.jsonl").unlink()
    [train] = loaded(tmp_path, "terminal", GSM | {"split": "train"}, name="latest.jsonl")
    assert (held_out.split, train.split) == ("held_out", "train")


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist([GSM, GSM | {"question": "And?"}]), tmp_path / "train.parquet")
    (tmp_path / "z.parquet").write_bytes(b"PAR1 none")
    first, second, bad = load("terminal", tmp_path, bundled=False)
    assert (first.check, second.goal, first.split) == ({"number": 72.0}, "And?", "train")
    assert "no Parquet, or a damaged one" in bad.problem


def test_a_line_without_an_end_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "MOST_LINE", 1000)
    good, bad = loaded(tmp_path, "terminal", GSM, "x" * 2000)
    assert not good.problem and "line 2: more than 1,000 bytes" in bad.problem


@pytest.mark.parametrize(("text", "number"), [
    ("The answer is 42.", 42), ("1,234.5", 1234.5), ("-3/4", -0.75), ("$5", 5), ("x\n#### 1,000", 1000), (".5", 0.5),
    (r"\boxed{\frac{1}{2}} of 7", 0.5), ("3 or 4", 4), ("none", None), ("1/0", None), ("", None), ("v2x", None)])
def test_the_last_number_counts(text: str, number: float | None) -> None:
    found = last_number(text)
    assert (None if found is None else float(found)) == number


def test_answers() -> None:
    assert only_number("72 apples") == 72 and only_number("3 or 4") is None and only_number("Paris") is None
    assert final("a #### b #### c") == "c" and final(r"\boxed{x^{2}}") == "x^{2}"
    assert same_number(0.333333333, "1/3") and not same_number(72, "73") and same_number(1e9, "1000000000")
