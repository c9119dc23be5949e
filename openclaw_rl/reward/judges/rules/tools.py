"""Evidence of tool results: errors and exit codes of every result in the next state.

A result that reports its own status (an exit code, `is_error`, `success`, an `error` field) is certain. Text that only
looks like an error message is not: it may be a log that the tool was asked to read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from openclaw_rl.reward.judges.rules import envelopes, tool_text
from openclaw_rl.reward.judges.rules.evidence import Evidence, quote
from openclaw_rl.reward.judges.rules.tool_text import ENDS
from openclaw_rl.reward.judges.text import text_of
from openclaw_rl.runtime.json import parse_json
from openclaw_rl.v1 import turn_pb2

_EXIT = re.compile(
    r"^\W{0,4}(?:[\w-]+ ){0,3}?(?:(?:exit|return|退出|返回)[ _-]?(?:code|status|值|码|状态码|状态)\W{0,3}(?:is "
    r"|was )?(-?\d{1,10})"
    r"|exitcode: (-?\d{1,10})|(?:command )?(?:completed|finished) with exit code (-?\d{1,10})"
    r"|exited with (?:exit )?(?:code |status )?(-?\d{1,10})|non-?zero exit (?:status|code) (-?\d{1,10}))\b"
    r"|<exit_?code>(-?\d{1,10})|\(exit (?:code|status):? (-?\d{1,10})\)", re.IGNORECASE | re.MULTILINE)
_NON_ZERO = re.compile(r"returned non-?zero exit (?:status|code) (-?\d{1,10})", re.IGNORECASE)
#: Commands for which exit code 1 only means "none" or "they differ".
_ONE_IS_NO_ERROR = re.compile(r"(?:^|[|;&]\s*)(?:sudo )?(?:[ef]?grep|rg|ag|diff|cmp|test|\[|pgrep|which|git (?:diff"
                              r"|grep))\s[^|;&]*$")
_TEXT_PROTOCOL = re.compile(r"\s*(?:<(?:tool_response|tool_result|function_results?|observation)\b|observation\s*:"
                            r"|\[?tool (?:result|output|response)s?\b\]?\s*:"
                            r"|\[tool\]|工具(?:结果|返回|输出)\s*[:：])", re.IGNORECASE)
#: What a text protocol puts around a result.
_WRAPPED = re.compile(r"\s*(?:<(?:tool_response|tool_result|function_results?|observation)\b[^<>\n]{0,200}>\s*"
                      r"|observation\s*:\s*|\[?tool (?:result|output|response)s?\b\]?\s*:\s*"
                      r"|\[tool\]\s*|工具(?:结果|返回|输出)\s*[:：]\s*)", re.IGNORECASE)


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
    if wrapped := _WRAPPED.match(stripped[:300]):
        stripped = stripped[wrapped.end():]
        if stripped.endswith(">") and (tag := stripped.rfind("</", -30)) >= 0:
            stripped = stripped[:tag].rstrip()
    data = envelopes.parse(stripped)
    if isinstance(data, list) and len(data) == 1 and isinstance(data[0], dict) and "text" not in data[0]:
        data = data[0]
    if isinstance(data, dict):
        for inside in (data, data.get("result"), data.get("details"), data.get("output"), data.get("data")):
            if isinstance(inside, dict):
                for key in envelopes.EXIT_CODES:
                    if isinstance(code := inside.get(key), int) and not isinstance(code, bool):
                        return _exit(code, _error_line(envelopes.message(inside)), name, call,
                                     said=str(inside.get("stderr") or ""))
        if found := envelopes.read(data):
            score, says, certain = found
            line = _error_line(envelopes.message(data)) if score < 0 else ""
            return Evidence(score, f"{name} {says}" + (f": {quote(line)}" if line else ""), _hint(line), certain)
    if data is not None:
        inner = envelopes.texts(data)
        return _plain(inner.strip(), name, call) if inner else Evidence(0, "")
    return _plain(stripped, name, call)


def _plain(text: str, name: str, call: turn_pb2.ToolCall | None) -> Evidence:
    ends = text if len(text) <= 2 * ENDS else f"{text[:ENDS]}\n{text[-ENDS:]}"
    codes = [next(group for group in match.groups() if group) for match in _EXIT.finditer(ends)]
    codes += _NON_ZERO.findall(ends)
    command = _command(call) if call is not None else ""
    if codes and (int(codes[-1]) or not tool_text.usage(text[:ENDS].lstrip("\n"), command)):
        return _exit(int(codes[-1]), _error_line(text), name, call, said="")
    if tool_text.failed(text, command):
        line = _error_line(text)
        return Evidence(-1, f"{name} seems to have failed: {quote(line)}", _hint(line))
    if tool_text.succeeded(text):
        return Evidence(1, f"{name} seems to have succeeded: {quote(text)}")
    return Evidence(0, "")


def _exit(code: int, line: str, name: str, call: turn_pb2.ToolCall | None, said: str) -> Evidence:
    if code == 0:
        return Evidence(1, f"{name} ended with exit code 0")
    if code == 1 and call is not None and not said.strip() and _ONE_IS_NO_ERROR.search(_command(call)):
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


def _error_line(text: str) -> str:
    """The line that names the error: the last of a Python traceback, else the first."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip() and not _EXIT.match(line)]
    if not lines:
        return ""
    if "Traceback (most recent call last)" in text:
        return next((line for line in reversed(lines) if tool_text.LAST.fullmatch(line)), lines[-1])
    return next((line for line in lines if tool_text.HEAD.match(line) or tool_text.SHELL.fullmatch(line)), lines[0])


def _hint(line: str) -> str:
    line = " ".join(line.split())
    return f"Avoid this error: {line if len(line) <= 200 else line[:199] + '…'}" if line else ""
