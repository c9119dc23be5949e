"""Digests by which a conversation is recognised when the client sends it back.

Clients re-format what they got: they strip white space, turn a string into a list of parts, drop reasoning blocks,
rename tool-call ids, print arguments anew, close a tag that a stop sequence left open, and put the time into the system
message. None of that changes a digest; another word, picture, tool call or order does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import orjson

from openclaw_rl.sessions.dialects import own_words, restore
from openclaw_rl.v1 import turn_pb2

DIGEST_BYTES = 16
_START = b"\0" * DIGEST_BYTES
_INSTRUCTION_ROLES = frozenset({"system", "developer"})
#: Reasoning that chat templates, and so many clients, leave out of the history.
_REASONING = re.compile(r"\s*<(think|thinking|reasoning)>")
_NUMBER = re.compile(r"\d+")
#: What `str.isspace` calls white space, in UTF-8.
_ASCII_SPACES = b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f "
_OTHER_SPACES = [char.encode() for char in "\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
                 "\u200a\u2028\u2029\u202f\u205f\u3000"]
_PIECE = 2**16
#: What agents append to an answer that ended at a stop sequence: smolagents `</code>`, OpenHands `</function>`.
_CLOSERS = re.compile(rb"(?:</[\w:.-]{0,40}>|```)+\Z")
_LONGEST_CLOSERS = 200
#: Messages whose canonical form is remembered, since each comes again with every later request of its conversation,
#: and the bytes up to which one is: some 10 MB in all.
_REMEMBERED, _LONGEST_REMEMBERED = 2048, 4096


class Digests(NamedTuple):
    """Digests of a conversation's messages."""

    prefixes: list[bytes]  #: see `prefix_digests`
    singles: list[bytes]  #: of each message by itself, wherever it stands
    messages: Sequence[turn_pb2.ChatMessage]  #: what they are of: the request's messages, restored (dialects.py)
    instructions: bytes  #: of the instructions that the conversation begins with, numbers aside; empty without any

    def followed_by(self, response: turn_pb2.ChatMessage, owner: bytes = b"") -> Digests:
        """The digests of the conversation with an assistant's message more; costs no more than that message."""
        canonical = _canonical(response)
        before = self.prefixes[-1] if self.prefixes else _START
        return Digests([*self.prefixes, blake2b(before + canonical, digest_size=DIGEST_BYTES, key=owner).digest()],
                       [*self.singles, blake2b(canonical, digest_size=DIGEST_BYTES, key=owner).digest()],
                       [*self.messages, response], self.instructions)


def is_instruction(message: turn_pb2.ChatMessage) -> bool:
    """Whether the message is a system or developer message, which digests of prefixes leave out."""
    return message.role in _INSTRUCTION_ROLES


def text_of(message: turn_pb2.ChatMessage) -> str:
    """The message's text: its content, and the text parts in order, one a line."""
    if not message.parts:
        return message.content
    texts = [message.content] if message.content else []
    texts.extend(part.text for part in message.parts if part.text)
    return "\n".join(texts)


def prefix_digests(messages: Sequence[turn_pb2.ChatMessage]) -> list[bytes]:
    """Digest of each prefix: entry i covers messages 0 to i.

    The list is as long as `messages`; a system or developer message repeats the entry before it. Each digest is
    BLAKE2b (16 bytes) over the one before it and the canonical message. Tool results that follow one another count in
    any order: parallel calls end when they end, and clients sort their results anew. Messages that a framework has
    rewritten are not restored.
    """
    return _digests(messages, b"").prefixes


def both_digests(messages: Sequence[turn_pb2.ChatMessage], owner: bytes = b"") -> Digests:
    """`prefix_digests` of the restored messages, and the digest of each by itself, for the price of the former.

    With an `owner` (at most 64 bytes) they are other ones than with another owner or none.
    """
    return _digests(restore(messages), owner)


def _digests(messages: Sequence[turn_pb2.ChatMessage], owner: bytes) -> Digests:
    digests, singles = [], []
    digest = before_results = _START
    results: list[bytes] = []
    for message in messages:
        data = message.SerializeToString()
        canonical = _remembered(data) if len(data) <= _LONGEST_REMEMBERED else _canonical(message)
        single = blake2b(canonical, digest_size=DIGEST_BYTES, key=owner).digest()
        if message.role == "tool":
            if not results:
                before_results = digest
            results.append(single)
            digest = blake2b(before_results + b"".join(sorted(results)), digest_size=DIGEST_BYTES, key=owner).digest()
        elif not is_instruction(message):
            results.clear()
            digest = blake2b(digest + canonical, digest_size=DIGEST_BYTES, key=owner).digest()
        digests.append(digest)
        singles.append(single)
    first = _instruction(text_of(messages[0])) if messages and is_instruction(messages[0]) else b""
    return Digests(digests, singles, messages, blake2b(first, digest_size=8).digest() if first else b"")


def request_digest(
    messages: Sequence[turn_pb2.ChatMessage], tools: Iterable[turn_pb2.ToolDefinition] = (),
    digests: Sequence[bytes] | None = None,
) -> bytes:
    """Digest of a whole request: equal for a request and its retry.

    Instructions count here (a request for a title may differ from the conversation in nothing else), numbers in them
    aside, since a retry may be a second later. So do the ids of tool calls: a retry has the same, another agent that
    called the same tools has not. Of the tools only the names count. `digests`: the messages' `prefix_digests`, when
    the caller has them.
    """
    digests = prefix_digests(messages) if digests is None else digests
    digest = blake2b(digests[-1] if digests else _START, digest_size=DIGEST_BYTES)
    for i, message in enumerate(messages):
        if is_instruction(message):
            digest.update(b"%d,%b" % (i, _instruction(text_of(message))))
        elif message.tool_calls:
            digest.update(call_ids(message))
    for tool in tools:
        digest.update(_field(tool.name.encode()))
    return digest.digest()


def call_ids(message: turn_pb2.ChatMessage) -> bytes:
    """Digest (8 bytes) of the ids of a message's tool calls in any order; empty if it has none. Models draw the ids at
    random, so that equal calls of two agents differ in them."""
    ids = sorted(call.id.encode() for call in message.tool_calls if call.id)
    return blake2b(b"\0".join(ids), digest_size=8).digest() if ids else b""


@lru_cache(maxsize=256)
def _instruction(text: str) -> bytes:
    """An instruction without its numbers. They are long, and the same ones come again and again."""
    return _field(_NUMBER.sub("0", _squeeze(text).decode()).encode())


def own_text(message: turn_pb2.ChatMessage) -> bytes:
    """An assistant's text in UTF-8 without white space, reasoning, and what frameworks put around it."""
    text = text_of(message)
    if begin := _REASONING.match(text):
        # Not a single expression over all of it, which would hold the interpreter's lock meanwhile.
        end = text.find(f"</{begin[1]}>", begin.end())
        text = text if end < 0 else text[end + len(begin[1]) + 3:]
    squeezed = _squeeze(own_words(text))
    if squeezed.endswith((b">", b"`")):
        tail = squeezed[-_LONGEST_CLOSERS:]
        squeezed = squeezed[:len(squeezed) - len(tail)] + _CLOSERS.sub(b"", tail)
    return squeezed


@lru_cache(maxsize=_REMEMBERED)
def _remembered(data: bytes) -> bytes:
    return _canonical(turn_pb2.ChatMessage.FromString(data))


def _canonical(message: turn_pb2.ChatMessage) -> bytes:
    role = message.role or "assistant"  # a response may leave it out
    text = own_text(message) if role == "assistant" else _squeeze(text_of(message))
    fields = [_field(role.encode()), _field(text)]
    fields += [_field(part.image_url.encode()) for part in message.parts if part.image_url]
    for call in message.tool_calls:
        fields += [_field(call.name.encode()), _canonical_json(call.arguments_json)]
    return b"".join(fields)


def _squeeze(text: str) -> bytes:
    """A text without any white space: then it does not matter how text parts are joined or lines are ended. That of
    `"".join(text.split())`, in a tenth of the time, which is most of what a digest of a long text takes. In pieces,
    since one call holds the interpreter's lock to its end."""
    if len(text) > _PIECE:
        return b"".join(_squeeze(text[at:at + _PIECE]) for at in range(0, len(text), _PIECE))
    data = text.encode().translate(None, _ASCII_SPACES)
    if not text.isascii():
        for space in _OTHER_SPACES:
            data = data.replace(space, b"")
    return data


def _field(data: bytes) -> bytes:
    return b"%d:%b" % (len(data), data)


def _canonical_json(text: str) -> bytes:
    try:
        return b"j%b" % orjson.dumps(orjson.loads(text or "{}"), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return _field(_squeeze(text))
