"""Evidence of tool results: errors and exit codes of every result in the next state.

A result that reports its own status (an exit code, `is_error`, `success`, an `error` field) is certain. Text that only
starts like an error message is not: it may be a log that the tool was asked to read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.reward.judges.rules.evidence import Evidence, quote
from openclaw_rl.reward.judges.text import text_of
from openclaw_rl.runtime.json import parse_json
from openclaw_rl.v1 import turn_pb2

#: Characters of a result read at its start and its end.
_ENDS = 600
_JSON_LIMIT = 200_000

_EXIT = re.compile(
    r"^\W{0,4}(?:[\w-]+ ){0,3}?(?:(?:exit|return|退出|返回)[ _-]?(?:code|status|值|码|状态码|状态)\W{0,3}(?:is "
    r"|was )?(-?\d{1,10})"
    r"|exited with (?:exit )?(?:code |status )?(-?\d{1,10})|non-?zero exit (?:status|code) (-?\d{1,10}))\b"
    r"|<exit_?code>(-?\d{1,10})|\(exit (?:code|status):? (-?\d{1,10})\)", re.IGNORECASE | re.MULTILINE)
_NON_ZERO = re.compile(r"returned non-?zero exit (?:status|code) (-?\d{1,10})", re.IGNORECASE)
_HEAD = re.compile(
    r"\W{0,4}(?:(?:error|fatal|exception|panic|failure|错误|失败|出错|报错|异常|err)(?:\s*(?:\[\w+\]|\(\w+\)))?\s*[:：!！]"
    r"|error (?:while|occurred|executing|running|in|at|reading|opening|calling|parsing|invoking|from)\b"
    r"|an error occurred|failed (?:to|with)\b"
    r"|failed[:!]|traceback \(most recent call last\)|(?:[\w.]+\.)?\w*(?:Error|Exception)\s*[:(]|segmentation fault"
    r"|permission denied"
    r"|access denied|unauthorized\b|forbidden\b|command not found|no such (?:file|tool|function)|invalid (?:argument"
    r"|parameter|json|tool|input)s?\b"
    r"|unknown (?:tool|function|command|option)\b|tool (?:execution |call )?(?:failed|error|not found)|(?:operation "
    r"|request |command |connection )?timed out"
    r"|(?:http(?:/[\d.]+)? )?(?:4\d\d|5\d\d) (?:not found|forbidden|unauthorized|bad request|internal server error"
    r"|bad gateway|service unavailable|too many requests)"
    r"|http (?:error )?(?:4|5)\d\d\b|<(?:tool_use_)?error>|(?:执行|调用|工具调用|操作|请求|连接)(?:失败|出错|超时"
    r"|异常)|无法(?:找到|连接|打开|读取|执行)|未找到|找不到|权限不足|没有权限)",
    re.IGNORECASE)
_SHELL = re.compile(
    r"(?:[\w./-]{1,60}: ){1,3}.{0,160}(?:command not found|no such file or directory|permission denied"
    r"|not a directory|is a directory"
    r"|connection refused|cannot .{1,80}|not found|unrecognized option .{1,40}|invalid option .{1,40}"
    r"|syntax error.{0,80})$", re.IGNORECASE)
_LAST = re.compile(r"(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)(?::.*)?$")
#: Commands for which exit code 1 only means "none" or "they differ".
_ONE_IS_NO_ERROR = re.compile(r"(?:^|[|;&]\s*)(?:sudo )?(?:[ef]?grep|rg|ag|diff|cmp|test|\[|pgrep|which|git (?:diff"
                              r"|grep))\s[^|;&]*$")
_TEXT_PROTOCOL = re.compile(r"\s*(?:<(?:tool_response|tool_result|function_results?|observation)\b|observation\s*:"
                            r"|\[?tool (?:result|output|response)s?\b\]?\s*:"
                            r"|\[tool\]|工具(?:结果|返回|输出)\s*[:：])", re.IGNORECASE)

_CODES = ("exit_code", "exitCode", "exitcode", "returncode", "return_code", "exit_status")
_HTTP = ("status_code", "statusCode", "http_status")
_TEXT = ("stderr", "message", "detail", "error_message", "content", "stdout", "output")
_FAILED_WORDS = {"error", "failed", "failure", "fail", "timeout", "timed_out", "denied", "rejected", "crashed"}
_DONE_WORDS = {"ok", "success", "succeeded", "successful", "completed", "done", "passed"}


def is_result(message: turn_pb2.ChatMessage) -> bool:
    """Whether the message is a tool's result, even in the role of the user."""
    if message.role in ("tool", "function"):
        return True
    return message.role == "user" and bool(_TEXT_PROTOCOL.match(text_of(message)[:200]))


def read(results: Sequence[turn_pb2.ChatMessage], response: turn_pb2.ChatMessage) -> Evidence | None:
    """Evaluate all results of the calls in `response`; None if there are none.

    One failed call is -1. If none failed it is +1 if at least one result reports success itself, else 0.
    """
    if not results:
        return None
    calls = {call.id: call for call in response.tool_calls}
    only_call = response.tool_calls[0] if len(response.tool_calls) == 1 else None
    found = [_one(text_of(message), calls.get(message.tool_call_id, only_call)) for message in results]
    worst = min(found, key=lambda evidence: (evidence.score, not evidence.certain))
    if worst.score < 0:
        return worst
    best = max(found, key=lambda evidence: evidence.score)
    if best.score > 0:
        return Evidence(1, best.rationale)
    return Evidence(0, f"no sign of success or failure in {len(results)} tool result{'s' if len(results) > 1 else ''}")


def _one(text: str, call: turn_pb2.ToolCall | None) -> Evidence:
    name = f"tool {call.name}" if call is not None and call.name else "a tool"
    stripped = text.strip()
    if stripped.startswith("{") and len(stripped) <= _JSON_LIMIT:
        try:
            data = parse_json(stripped)
        except ValueError:
            data = None
        if isinstance(data, dict):
            return _structured(data, name, call)
    ends = stripped if len(stripped) <= 2 * _ENDS else f"{stripped[:_ENDS]}\n{stripped[-_ENDS:]}"
    codes = [next(group for group in match.groups() if group) for match in _EXIT.finditer(ends)]
    codes += _NON_ZERO.findall(ends)
    if codes:
        return _exit(int(codes[-1]), _error_line(stripped), name, call, message="")
    head = next((line for line in stripped[:_ENDS].splitlines() if line.strip()), "")
    last = next((line for line in reversed(stripped[-_ENDS:].splitlines()) if line.strip()), "")
    if _HEAD.match(head) or _SHELL.fullmatch(head.strip()) or (
            "Traceback (most recent call last)" in stripped and _LAST.fullmatch(last.strip())):
        line = _error_line(stripped)
        return Evidence(-1, f"{name} seems to have failed: {quote(line)}", _hint(line))
    return Evidence(0, "")


def _structured(data: Mapping[str, Any], name: str, call: turn_pb2.ToolCall | None, deep: bool = True) -> Evidence:
    message = _message(data)
    for key in _CODES:
        if isinstance(code := data.get(key), int) and not isinstance(code, bool):
            return _exit(code, message, name, call, message=str(data.get("stderr") or ""))
    for key, bad in (("is_error", True), ("isError", True), ("success", False), ("ok", False), ("succeeded", False)):
        if isinstance(value := data.get(key), bool):
            if value is bad:
                return Evidence(-1, f"{name} reported an error ({key}: {json.dumps(value)}): {quote(message)}",
                                _hint(message), certain=True)
            return Evidence(1, f"{name} reported success ({key}: {json.dumps(value)})")
    error = data.get("error") or data.get("errors")
    if error is True or (error and not isinstance(error, (int, float))):
        return Evidence(-1, f"{name} reported an error: {quote(message)}", _hint(message), certain=True)
    for key in _HTTP:
        if isinstance(code := data.get(key), int) and 100 <= code <= 599:
            if code >= 400:
                return Evidence(-1, f"{name} reported {key} {code}: {quote(message)}", _hint(message), certain=True)
            return Evidence(1, f"{name} reported {key} {code}")
    if isinstance(status := data.get("status"), str):
        # Not certain: it may be the status of something that the tool was asked about.
        if status.lower() in _FAILED_WORDS:
            return Evidence(-1, f"{name} reported the status {status!r}", _hint(message))
        if status.lower() in _DONE_WORDS:
            return Evidence(1, f"{name} reported the status {status!r}")
    if deep:
        for key in ("result", "details", "output", "data", "structuredContent"):
            if isinstance(inner := data.get(key), dict):
                return _structured(inner, name, call, deep=False)
    return Evidence(0, "")


def _exit(code: int, line: str, name: str, call: turn_pb2.ToolCall | None, message: str) -> Evidence:
    if code == 0:
        return Evidence(1, f"{name} ended with exit code 0")
    if code == 1 and call is not None and not message.strip() and _ONE_IS_NO_ERROR.search(_command(call)):
        return Evidence(0, "")
    return Evidence(-1, f"{name} ended with exit code {code}: {quote(line)}", _hint(line), certain=True)


def _command(call: turn_pb2.ToolCall) -> str:
    try:
        arguments = parse_json(call.arguments_json or "{}")
    except ValueError:
        return ""
    if not isinstance(arguments, dict):
        return ""
    command = next((arguments[key] for key in ("command", "cmd", "script") if key in arguments), "")
    return " ".join(map(str, command)) if isinstance(command, list) else str(command)


def _message(data: Mapping[str, Any]) -> str:
    error = data.get("error")
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or json.dumps(error, ensure_ascii=False)
    if not isinstance(error, str) or not error:
        error = next((data[key] for key in _TEXT if isinstance(data.get(key), str) and data[key].strip()), "")
    return _error_line(error)


def _error_line(text: str) -> str:
    """The line that names the error: the last of a Python traceback, else the first."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip() and not _EXIT.match(line)]
    if not lines:
        return ""
    if "Traceback (most recent call last)" in text:
        return next((line for line in reversed(lines) if _LAST.fullmatch(line)), lines[-1])
    return next((line for line in lines if _HEAD.match(line) or _SHELL.fullmatch(line)), lines[0])


def _hint(line: str) -> str:
    line = " ".join(line.split())
    return f"Avoid this error: {line if len(line) <= 200 else line[:199] + '…'}" if line else ""
