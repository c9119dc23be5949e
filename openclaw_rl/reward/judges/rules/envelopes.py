"""Signs of failure and success in JSON that tools return: envelopes of APIs, of MCP, of agents' tools."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from openclaw_rl.runtime.json import parse_json

#: Longest JSON and longest repr of a Python dict that are parsed, in characters.
_JSON_LIMIT, _REPR_LIMIT = 200_000, 4000

EXIT_CODES = ("exit_code", "exitCode", "exitcode", "returncode", "return_code", "exit_status")
_FLAGS = (("is_error", True), ("isError", True), ("success", False), ("ok", False), ("succeeded", False))
_HTTP = ("status_code", "statusCode", "http_status", "httpStatus")
#: Beside one of these an integer `status` is one of HTTP.
_OF_HTTP = {"statusText", "status_text", "headers", "body", "url", "error", "message", "title", "detail", "path", "msg"}
#: Codes of an envelope, with a message beside them: {"code": 500, "msg": "..."}.
_ENVELOPE = ("code", "errcode", "errCode", "error_code", "errno", "retcode", "ret")
_SAID = ("msg", "message", "errmsg", "errMsg", "error_msg", "info", "desc")
_GOOD_CODES = {"0", "00000", "ok", "success"}
_BAD_CODE = re.compile(r"ERR|INVALID|NOT_?FOUND|DENIED|FAIL|EXCEPTION|UNAUTH|FORBIDDEN|TIMEOUT|UNAVAILABLE|EXCEEDED"
                       r"|-?\d{3,7}$", re.IGNORECASE)
_BAD_MESSAGE = re.compile(r"\W{0,3}(?:not found|not authenticated|unauthorized|forbidden|bad (?:request|credentials)"
                          r"|invalid |method not allowed|internal server error|access denied|too many requests)",
                          re.IGNORECASE)
_FAILED_WORDS = {"error", "failed", "failure", "fail", "timeout", "timed_out", "denied", "rejected", "crashed"}
_DONE_WORDS = {"ok", "success", "succeeded", "successful", "completed", "done", "passed"}
_INNER = ("result", "details", "output", "data", "structuredContent", "tool_result", "response")
_TEXT = ("stderr", *_SAID, "detail", "error_message", "content", "text", "stdout", "output")

#: (score, what the envelope says, whether that is certain); None: it says nothing.
Finding = tuple[int, str, bool] | None


def parse(text: str) -> Any:
    """Parse a result that is JSON, or the repr of a Python dict; None if it is neither."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return parse_json(text) if len(text) <= _JSON_LIMIT else None
    except ValueError:
        pass
    if text[:2] in ("{'", "[{") and len(text) <= _REPR_LIMIT:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return None
    return None


def texts(data: Any) -> str | None:
    """The text of a list of content parts, as MCP, Anthropic and OpenAI have them; None if it is none."""
    if isinstance(data, dict) and isinstance(data.get("content"), list):
        data = data["content"]
    if not isinstance(data, list) or not data:
        return None
    parts = [part.get("text", part.get("content")) for part in data
             if isinstance(part, dict) and part.get("type") in ("text", "tool_result", "output_text")]
    return "\n".join(part for part in parts if isinstance(part, str)) if len(parts) == len(data) else None


def read(data: Mapping[str, Any], deep: bool = True) -> Finding:
    """Find what an envelope says of itself, apart from an exit code."""
    for key, bad in _FLAGS:
        value = data.get(key)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        if isinstance(value, bool):
            return (-1, f"reported an error ({key}: {json.dumps(value)})", True) if value is bad else (
                1, f"reported success ({key}: {json.dumps(value)})", False)
    error = data.get("error") or data.get("errors")
    if error is True or (error and not isinstance(error, (int, float))):
        return -1, "reported an error", True
    for key in (*_HTTP, "status"):
        code = _integer(data.get(key))
        if code is None or not 100 <= code <= 599 or (key == "status" and len(data) > 1 and not _OF_HTTP & data.keys()):
            continue
        return (-1, f"reported {key} {code}", True) if code >= 400 else (1, f"reported {key} {code}", False)
    if (found := _code(data)) is not None:
        return found
    if isinstance(status := data.get("status"), str):
        # Not certain: it may be the status of something that the tool was asked about.
        if status.lower() in _FAILED_WORDS:
            return -1, f"reported the status {status!r}", False
        if status.lower() in _DONE_WORDS:
            return 1, f"reported the status {status!r}", False
    if deep:
        for key in _INNER:
            if isinstance(inner := data.get(key), dict) and (found := read(inner, deep=False)):
                return found
    said = data.get("detail") or data.get("message")
    if len(data) <= 3 and isinstance(said, str) and _BAD_MESSAGE.match(said):
        return -1, "reported an error", False
    return None


def _code(data: Mapping[str, Any]) -> Finding:
    """Read an envelope of a code and a message."""
    key = next((key for key in _ENVELOPE if key in data), None)
    if key is None or not any(said in data for said in _SAID):
        return None
    value = data[key]
    number = _integer(value)
    if str(value).lower() in _GOOD_CODES or (number is not None and 200 <= number < 300):
        return 1, f"reported {key} {value}", False
    if number is not None:
        # A product or a phone may have a code, too; one that errors use is certain.
        return -1, f"reported {key} {value}", key != "code" or number >= 400 or number < 0
    return (-1, f"reported {key} {value}", False) if isinstance(value, str) and _BAD_CODE.search(value) else None


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def message(data: Mapping[str, Any], deep: bool = True) -> str:
    """The envelope's own words about an error; empty if it has none."""
    error = data.get("error") or data.get("errors")
    if isinstance(error, list) and error:
        error = error[0]
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or json.dumps(error, ensure_ascii=False)
    if isinstance(error, str) and error:
        return error
    found = next((data[key] for key in _TEXT if isinstance(data.get(key), str) and data[key].strip()), "")
    if not found and (parts := texts(data)):
        return parts
    if not found and deep:
        return next((text for key in _INNER if isinstance(inner := data.get(key), dict)
                     and (text := message(inner, deep=False))), "")
    return found
