"""Text that agent frameworks write in the user's name: banners, reminders, notes, prompts of their own.

It says nothing about an answer, so it is removed from next states: a message that is nothing else is dropped, of others
the user's words stay.
"""

from __future__ import annotations

import re

from openclaw_rl.runtime.tagged import Tagged
from openclaw_rl.sessions.fingerprint import text_of
from openclaw_rl.v1 import turn_pb2

#: A longer message is not matched as a whole: frameworks' own are shorter.
_LONGEST = 8000

_TAGGED = Tagged(
    "system-reminder", "system_reminder", "system-notification", "system_notification", "environment_details",
    "environment_context", "user_instructions", "local-command-caveat", "local-command-stdout", "command-name",
    "command-message", "command-args", "ide_opened_file", "ide_selection", "ide_diagnostics", "additional_data",
    "open_and_recently_viewed_files", "task-notification", "session-memory", "relevant-memories",
    "relevant_memories", "user-prompt-submit-hook", "context_reminder", "teammate-message",
    attributes=r"[^>\n]{0,200}", line_end=True)
#: Other parts of a message.
_LINES = re.compile("|".join([
    # "Sender (untrusted metadata):" and a block of JSON behind it
    r"^[A-Z][^\n(]{0,60}\(untrusted[^)\n]{0,60}\):[ \t]*\n```(?:json)?\n.*?\n```[ \t]*\n?",
    r"^System: \[[^\]\n]{8,40}\] [^\n]*\n?",
    r"^\[message_id: [^\]\n]{1,80}\][ \t]*\n?",
    r"^Current time: [^\n]{5,120}\n?"]), re.DOTALL | re.MULTILINE)

_FAILED = r"[^\n]{0,160}(?:timed?[ -]?out|fail|reject|overload|unavailable|abort|error|limit|quota|too (?:large|long))"
_SUBJECT = r"(?:LLM|AI|API|model|agent|provider|upstream|completion|inference|context|assistant)"
#: Whole messages, from their beginning to their end.
_WHOLE = re.compile("|".join(f"(?:{pattern})" for pattern in (
    r"[\[(（](?:no|empty) (?:response|reply|output|content|answer)[\])）]",
    r"No response(?: was)? (?:generated|received|requested)[^\n]{0,80}",
    # OpenClaw's
    rf"(?-i:No response from) (?:the )?(?:OpenClaw|{_SUBJECT})\.?",
    r"(?:⚠️?\s*)?(?:Error: (?:the )?)?Agent couldn['’]t generate a response\b.{0,300}",
    # aider's, in front of an "Ok." of its own
    r"I committed the changes with git hash [0-9a-f]{4,40} & commit msg: .{0,2000}",
    r"I updated the files\.|I edited the files myself\.",
    r"I have \*added these files to the chat\* so you can go ahead and edit them\..*",
    r"[\[(（](?:无|没有|空)(?:回复|回应|响应|输出)[\])）]",
    r"\[Request interrupted by user[^\]\n]{0,40}\]",
    r"(?-i:NO_REPLY|HEARTBEAT_OK|NO_CONTEXT|ANNOUNCE_SKIP|REPLY_SKIP)",
    # Errors of the framework itself; one that the user's own program made does not speak of models.
    rf"(?:⚠️?|❌|🔴|\[error\]|(?:API |agent )?error ?[:：])\s*(?:the )?{_SUBJECT}\b{_FAILED}[^\n]{{0,300}}",
    rf"(?:⚠️?|❌)\s*[^\n]{{0,40}}\b{_SUBJECT}\b{_FAILED}[^\n]{{0,300}}",
    r"API Error[:：]? ?(?:\(|\d{3}|Connection|Request)[^\n]{0,300}",
    r"LLM (?:request|call|API call) (?:timed out|rejected|failed|was aborted)[^\n]{0,300}",
    r"(?:Agent|Model) failed before (?:reply|producing a reply)[^\n]{0,300}",
    r"Context overflow[:：][^\n]{0,300}",
    r"The AI service is (?:temporarily )?(?:overloaded|unavailable)[^\n]{0,200}",
    r"(?-i:Request timed out|Connection error|Request was aborted)\.",
    r"(?:⚠️?|❌)?\s*(?:错误|出错了?|请求失败|请求出错)\s*[:：][^\n]{0,20}(?:模型|LLM|API|接口)[^\n]{0,200}",
    r"(?:模型|大模型|LLM) ?(?:请求|调用)(?:超时|失败|出错)[^\n]{0,100}",
    # Prompts and notes of frameworks
    r"Continue where you left off\. The previous model attempt .{0,300}",
    r"\[Retry after the previous model attempt [^\]\n]{0,60}\].{0,8000}",
    r"A new session was started via /new or /reset\..{0,3000}",
    r"Read HEARTBEAT\.md if it exists.{0,2000}",
    r"\[?heartbeat\]?(?: check| poll)?[.:：\]].{0,400}(?-i:HEARTBEAT_OK|NO_REPLY).{0,200}",
    r"(?!.*(?:[?？]|\byou\b|你)).{0,400}(?:reply|respond|answer|回复|回答)[^.\n]{0,40}(?-i:HEARTBEAT_OK|NO_REPLY).{0,300}",
    r"Pre-compaction memory .{0,2000}",
    r"\[Post-compaction context refresh\].{0,8000}",
    r"This session is being continued from a previous conversation.{0,8000}",
    r"\[(?:conversation|context|session) summary\b[^\]\n]{0,80}\].{0,8000}",
    r"<(?:conversation_|context_)?summary>.{0,8000}</(?:conversation_|context_)?summary>",
    r"\[ERROR\] You did not use a tool in your previous response.{0,8000}",
    r"\[(?:cron:|system message\]|system notification\]|inter-session message)[^\n]{0,400}.{0,8000}",
    r"\[Old tool result content cleared\]",
    r"\[openclaw\] missing tool result in session history.{0,300}",
    r"\[Tool result missing[^\]\n]{0,80}\]",
)), re.IGNORECASE | re.DOTALL)


def is_framework_text(text: str) -> bool:
    """Whether a text is entirely a framework's, or empty."""
    left = _without_blocks(text).strip()
    return not left or (len(left) <= _LONGEST and bool(_WHOLE.fullmatch(left)))


def strip_framework_text(message: turn_pb2.ChatMessage) -> turn_pb2.ChatMessage | None:
    """Remove a framework's text from a user's or tool's message; None if nothing is left."""
    if message.role == "user" and is_framework_text(text_of(message)) and not _images(message):
        return None
    if message.role != "user":
        # A tool's result is its own, even an error; only a stand-in for a missing result is the framework's.
        text = text_of(message)
        return None if text.startswith("[") and _WHOLE.fullmatch(text.strip()[:_LONGEST]) else message
    if not any(_without_blocks(text) != text or _WHOLE.fullmatch(text.strip()[:_LONGEST]) for text in _texts(message)):
        return message
    left = turn_pb2.ChatMessage()
    left.CopyFrom(message)
    left.content = _clean(message.content)
    del left.parts[:]
    for part in message.parts:
        if not part.text:
            left.parts.append(part)
        elif text := _clean(part.text):
            left.parts.add(text=text)
    return left


def _without_blocks(text: str) -> str:
    return _LINES.sub("", _TAGGED.remove(text))


def _clean(text: str) -> str:
    left = _without_blocks(text).strip()
    return "" if is_framework_text(left) else left


def _texts(message: turn_pb2.ChatMessage) -> list[str]:
    return [text for text in (message.content, *(part.text for part in message.parts)) if text]


def _images(message: turn_pb2.ChatMessage) -> bool:
    return any(part.image_url for part in message.parts)
