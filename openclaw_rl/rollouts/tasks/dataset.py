"""Data sets of prompts with verifiable answers as tasks, in the columns that Hugging Face's data sets use.

A row of a JSON Lines or Parquet file is a task file's entry, or becomes one:

    prompt | question | problem | text | instruction
        the goal; a list of chat messages works too
    answer | solution
        a number or a text (GSM8K's `#### 72` and MATH's `\\boxed{72}` are found): a task of a terminal
    test_list, or test or tests (with entry_point)
        Python (MBPP, HumanEval): a task of a repository (swe)
"""

from __future__ import annotations

import ast
import builtins
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.rollouts.tasks.answers import final, only_number
from openclaw_rl.rollouts.tasks.text import BadText
from openclaw_rl.runtime.json import parse_json

SUFFIXES = (".jsonl", ".parquet")
#: Bytes of a file, and of a line.
MOST_BYTES, MOST_LINE = 256 << 20, 1 << 20
_PROMPTS = ("prompt", "question", "problem", "text", "instruction")
_ANSWERS = ("answer", "solution")
_CODES = ("canonical_solution", "code", "solution")
_FILE = "answer.py"


def rows(file: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Iterate over the rows of a file with their numbers, from 1; one that can't be read is a text that says why.

    Raises:
        BadText: the file can't be read.
        OSError: likewise.
    """
    if file.suffix.lower() == ".parquet":
        yield from _parquet(file)
        return
    with file.open("rb") as opened:
        number = 0
        while line := opened.readline(MOST_LINE + 1):
            number += 1
            if len(line) > MOST_LINE:
                raise BadText(f"line {number}: more than {MOST_LINE:,} bytes are no row; the others are left out")
            if line.strip():
                yield number, _row(line)


def entry(type_name: str, row: Mapping[str, Any], number: int, stem: str) -> dict[str, Any]:
    """Make a row the entry of a task file.

    Args:
        stem: of the file's name; `test` or `validation` in it holds its rows out.

    Raises:
        BadText: names the columns, and what is allowed.
    """
    if "goal" in row:
        return dict(row)
    key, prompt = _first(row, _PROMPTS)
    if isinstance(prompt, list):
        prompt = "\n\n".join(str(message.get("content", "")) for message in prompt if isinstance(message, Mapping)
                             and message.get("role") != "assistant")
    if not isinstance(prompt, str) or not prompt.strip():
        raise BadText(f"`{key or 'prompt'}`: {str(prompt)[:80]!r} is not allowed: a text in one of the columns "
                      f"{', '.join(_PROMPTS)}")
    name = next((str(row[column]) for column in ("id", "task_id") if row.get(column) not in (None, "")), "")
    made: dict[str, Any] = {
        "id": re.sub(r"[^A-Za-z0-9._-]+", "-", f"{stem}.{name or number}")[:128], "split": _split(row, stem)}
    has_tests = any(row.get(column) for column in ("test_list", "test", "tests"))
    if type_name == "swe" and has_tests:
        return made | _code(row, prompt)
    _, answer = _first(row, _ANSWERS)
    if type_name == "terminal" and answer is not None and not has_tests:
        return made | _answered(prompt, answer)
    raise BadText(f"the columns {', '.join(map(str, row))[:200]} are no task of kind {type_name}: `answer` makes "
                  "one of kind terminal; `test_list`, `test` or `tests` one of kind swe")


def _answered(prompt: str, answer: Any) -> dict[str, Any]:
    text = final(str(answer))
    number = only_number(text)
    check: dict[str, Any] = {"answer": text} if number is None else {"number": float(number)}
    return {"goal": prompt, "check": check, "solution": [{"name": "submit", "arguments": {"answer": text}}]}


def _code(row: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    body, names = _tests(row)
    _, code = _first(row, _CODES)
    # HumanEval's prompt is the beginning of the file that its solution continues.
    begun = prompt if row.get("entry_point") and "def " in prompt else ""
    solution = [{"name": "write", "arguments": {"path": _FILE, "content": f"{begun}{code}"}}, {"name": "submit"}]
    begin = f"import unittest\n\nfrom answer import {', '.join(names)}\n\n\n"
    return {
        "goal": f"{prompt.strip()}\n\nWrite it into {_FILE}: {', '.join(names)}.",
        "setup": {"files": {_FILE: begun or "# Write it here.\n"}},
        "check": {"hidden": {"test_answer.py": begin + body}},
        "solution": solution if isinstance(code, str) and code.strip() else []}


def _tests(row: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return a test case, and the names that it needs of the answer."""
    setup = str(row.get("test_setup_code") or row.get("test_imports") or "")
    listed = row.get("test_list") or row.get("tests") or row.get("test")
    point = row.get("entry_point")
    if isinstance(listed, list):
        bodies = [str(test) for test in listed]
    elif point:  # HumanEval: check(candidate)
        setup, bodies = f"{setup}\n{listed}", [f"check({point})"]
    else:
        bodies = [str(listed)]
    try:
        names = [str(point)] if point else _free("\n".join([setup, *bodies]))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise BadText(f"the tests are no Python: {error}") from None
    if not names or not all(name.isidentifier() for name in names):
        raise BadText("the tests call no function of the answer; `entry_point` may name it")
    cases = [f"    def test_{number}(self):\n{textwrap.indent(body.strip(), ' ' * 8)}"
             for number, body in enumerate(bodies, 1)]
    return "\n\n".join([*filter(None, [setup.strip()]), "class Answer(unittest.TestCase):\n" + "\n\n".join(cases)
                        ]) + "\n", names


def _free(code: str) -> list[str]:
    """Return the names that code takes from elsewhere."""
    tree = ast.parse(code)
    bound = {name.id for name in ast.walk(tree) if isinstance(name, ast.Name) and not isinstance(name.ctx, ast.Load)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    return [name for name in dict.fromkeys(used) if name not in bound and not hasattr(builtins, name)]


def _split(row: Mapping[str, Any], stem: str) -> str:
    told = str(row.get("split") or "")
    for word in (told, stem):
        if re.search(r"(?:^|[^a-z])(?:test|valid|validation|dev|held_out)(?:$|[^a-z])", word.lower()):
            return "held_out"
        if re.search(r"(?:^|[^a-z])train(?:$|[^a-z])", word.lower()):
            return "train"
    return "auto"


def _first(row: Mapping[str, Any], columns: tuple[str, ...]) -> tuple[str, Any]:
    return next(((column, row[column]) for column in columns if row.get(column) not in (None, "", [])), ("", None))


def _row(line: bytes) -> dict[str, Any] | str:
    try:
        row = parse_json(line.decode())
        json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is no character
    except ValueError as error:
        return f"no JSON: {error}"
    return row if isinstance(row, dict) else f"{json.dumps(row)[:80]} is no row: a JSON object"


def _parquet(file: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise BadText("Parquet needs a package that is not installed: pip install pyarrow") from None
    import pyarrow as arrow

    number = 0
    try:
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(batch_size=500):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except arrow.ArrowException as error:
        raise BadText(f"no Parquet, or a damaged one: {str(error)[:200]}") from None
