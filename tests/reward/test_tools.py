"""Tool results: which are errors, which are certain, which only look like errors."""

from __future__ import annotations

import pytest

from openclaw_rl.reward.judges.rules.tools import read
from openclaw_rl.v1 import turn_pb2
from tests.reward.factory import message

#: (the result, score, certain)
RESULTS: list[tuple[str, int, bool]] = [
    ('{"exit_code": 1, "stdout": "", "stderr": "no such table"}', -1, True),
    ('{"exit_code": 0, "stdout": "error: 3 found in log"}', 1, False),
    ('{"exitCode": 127}', -1, True),
    ('{"returncode": -9}', -1, True),
    ('{"is_error": true, "content": "boom"}', -1, True),
    ('{"isError": false, "content": "Error: in the text"}', 1, False),
    ('{"success": false, "message": "quota"}', -1, True),
    ('{"success": true}', 1, False),
    ('{"ok": false}', -1, True),
    ('{"error": "file not found"}', -1, True),
    ('{"error": {"code": 404, "message": "not found"}}', -1, True),
    ('{"error": null, "value": 3}', 0, False),
    ('{"error": 0.03, "accuracy": 0.97}', 0, False),
    ('{"errors": []}', 0, False),
    ('{"errors": ["a"]}', -1, True),
    ('{"status": "failed", "order": 7}', -1, False),
    ('{"status": "success"}', 1, False),
    ('{"status_code": 500}', -1, True),
    ('{"status_code": 200, "body": "error"}', 1, False),
    ('{"result": {"exit_code": 3}}', -1, True),
    ('{"temperature": 21}', 0, False),
    ("Exit code: 1\nfoo", -1, True),
    ("exit code 0", 1, False),
    ("make: *** [all] Error 2\nProcess exited with code 2", -1, True),
    ("hello\n(exit code: 3)", -1, True),
    ("退出码：1", -1, True),
    ("Command '['ls']' returned non-zero exit status 2.", -1, True),
    ("Error: no such file", -1, False),
    ("Error reading file: permission denied", -1, False),
    ("bash: foo: command not found", -1, False),
    ("cat: /etc/x: No such file or directory", -1, False),
    ("Traceback (most recent call last):\n  File \"a.py\", line 1\nValueError: bad", -1, False),
    ("starting\nTraceback (most recent call last):\n  File \"a.py\"\nKeyError: 'a'", -1, False),
    ("ModuleNotFoundError: No module named 'x'", -1, False),
    ("HTTP 404", -1, False),
    ("404 Not Found", -1, False),
    ("Tool execution failed: bad argument", -1, False),
    ("<tool_use_error>No file</tool_use_error>", -1, False),
    ("错误：文件不存在", -1, False),
    ("执行失败", -1, False),
    ("no errors found", 0, False),
    ("0 errors, 0 warnings", 0, False),
    ("Error rate: 0.1 %", 0, False),
    ("The article on errors in medicine", 0, False),
    ("total 4\n-rw-r--r-- 1 me me 3 error.log", 0, False),
    ("2026-01-01 12:00 request served\n2026-01-01 12:01 ERROR: lost", 0, False),
    ("def f():\n    raise ValueError('exit code: 3')", 0, False),
    ("Sunny, 21 °C", 0, False),
    ("", 0, False),
    ("[1, 2]", 0, False),
    ("{broken json", 0, False),
]


@pytest.mark.parametrize(("text", "score", "certain"), RESULTS, ids=[text[:40] for text, *_ in RESULTS])
def test_results(text: str, score: int, certain: bool) -> None:
    found = read([message("tool", text)], message("assistant", ""))
    assert found is not None
    assert (found.score, found.certain) == (score, certain), found


def test_no_results() -> None:
    assert read([], message("assistant", "")) is None


def test_all_results_are_read() -> None:
    good, bad = message("tool", '{"exit_code": 0}'), message("tool", '{"exit_code": 1, "stderr": "disk full"}')
    for results in ([good, bad, good], [bad, good], [good, message("tool", "x"), bad]):
        found = read(results, message("assistant", ""))
        assert found is not None
        assert (found.score, found.certain, found.hint) == (-1, True, "Avoid this error: disk full")


def test_the_failed_call_is_named() -> None:
    calls = [turn_pb2.ToolCall(id="a", name="read", arguments_json="{}"),
             turn_pb2.ToolCall(id="b", name="exec", arguments_json="{}")]
    results = [message("tool", "fine", tool_call_id="a"), message("tool", "exit code 2", tool_call_id="b")]
    found = read(results, message("assistant", "", tool_calls=calls))
    assert found is not None
    assert found.rationale.startswith("tool exec ended with exit code 2")


@pytest.mark.parametrize(("command", "score"), [
    ("grep -r foo .", 0), ("cat a | grep foo", 0), ("diff a b", 0), ("make", -1), ("grep foo a | sort && make", -1)])
def test_exit_code_1_of_a_search_is_no_error(command: str, score: int) -> None:
    import json
    call = turn_pb2.ToolCall(id="a", name="exec", arguments_json=json.dumps({"command": command}))
    found = read([message("tool", '{"exit_code": 1, "stdout": ""}', tool_call_id="a")],
                 message("assistant", "", tool_calls=[call]))
    assert found is not None
    assert found.score == score


def test_a_hint_names_the_error_and_is_bounded() -> None:
    found = read([message("tool", "Traceback (most recent call last):\n  File \"a\"\nValueError: " + "x" * 500)],
                 message("assistant", ""))
    assert found is not None
    assert found.hint.startswith("Avoid this error: ValueError: xxx") and len(found.hint) < 230
