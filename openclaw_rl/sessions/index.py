"""Which session a request without a session id belongs to."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from openclaw_rl.sessions.fingerprint import DIGEST_BYTES, Digests, both_digests, text_of
from openclaw_rl.v1 import turn_pb2

#: Entries that are kept; a turn makes one or two.
LIMIT = 20_000
#: Characters of an answer, and of what was said and answered together, from which on an exchange is no small talk that
#: two conversations may have in common.
LONG_ANSWER, LONG_EXCHANGE = 80, 160
#: Exchanges of a request that are looked for, the latest first.
_MOST_EXCHANGES = 16


class ConversationIndex:
    """Remembers the conversations that were answered, and finds the one that a request continues.

    A conversation is looked for among those of the same client only, and what two sessions share (two people who both
    began with "hi" and got the same answer) is never guessed: the request then starts a session of its own.

    A conversation whose beginning the client has dropped, summarised or edited is recognised by its long exchanges (a
    message and our answer to it), provided that all of them are of one session.

    Any thread; the least recently used entries go beyond `limit`.
    """

    def __init__(self, limit: int = LIMIT, entries: Iterable[tuple[bytes, str | None]] = ()) -> None:
        """Args: entries: those of an earlier run, the least recently used first; of a key the last one counts."""
        self._limit = limit
        self._sessions: OrderedDict[bytes, str | None] = OrderedDict()  # None: more than one session
        self._unsaved: dict[bytes, str | None] = {}
        self._lock = threading.Lock()
        for key, session in entries:
            self._sessions[key] = session
            self._sessions.move_to_end(key)
        self._shrink()

    def __len__(self) -> int:
        return len(self._sessions)

    def remember(
        self, client: str, session_id: str, messages: Sequence[turn_pb2.ChatMessage], response: turn_pb2.ChatMessage,
        digests: Digests | None = None
    ) -> None:
        """Note that `client`'s request `messages` of `session_id` was answered with `response`. `digests`: those of
        the messages, where they are known."""
        known_digests = (digests or both_digests(messages)).followed_by(response)
        keys = [_key(b"c", client, known_digests.prefixes[-1])]
        if messages and _long(messages[-1], response):
            keys.append(_exchange(client, *known_digests.messages[-2:]))
        with self._lock:
            for key in keys:
                known = self._sessions.get(key, session_id)
                self._sessions[key] = session_id if known == session_id else None
                self._sessions.move_to_end(key)
                self._unsaved[key] = self._sessions[key]
            self._shrink()

    def match(self, client: str, messages: Sequence[turn_pb2.ChatMessage],
              digests: Digests | None = None) -> str | None:
        """The session whose conversation `messages` continues: the one with the longest prefix that ends in a response
        of ours, else the one that all of its long exchanges are of. None when there is none, or more than one.
        `digests`: those of the messages, where they are known."""
        digests = digests or both_digests(messages)
        with self._lock:
            for message, digest in zip(reversed(messages), reversed(digests.prefixes), strict=True):
                if message.role == "assistant" and (key := _key(b"c", client, digest)) in self._sessions:
                    self._sessions.move_to_end(key)
                    return self._sessions[key]
            found = {self._sessions[key] for key in _exchanges(client, messages, digests) if key in self._sessions}
        return found.pop() if len(found) == 1 else None

    def forget(self, session_id: str) -> int:
        """Drop a session's entries; returns their number."""
        with self._lock:
            keys = [key for key, session in self._sessions.items() if session == session_id]
            for key in keys:
                del self._sessions[key]
                self._unsaved.pop(key, None)
        return len(keys)

    def unsaved(self) -> dict[bytes, str | None]:
        """Entries that `saved` was not told of yet."""
        with self._lock:
            return dict(self._unsaved)

    def saved(self, entries: dict[bytes, str | None]) -> None:
        """These entries are kept by now."""
        with self._lock:
            for key, session in entries.items():
                if self._unsaved.get(key, "") == session:
                    del self._unsaved[key]

    def _shrink(self) -> None:
        while len(self._sessions) > self._limit:
            key, _ = self._sessions.popitem(last=False)
            self._unsaved.pop(key, None)


def _exchanges(client: str, messages: Sequence[turn_pb2.ChatMessage], digests: Digests) -> Iterator[bytes]:
    """Keys of the long exchanges in a request, the latest first."""
    looked = 0
    for i in range(len(messages) - 1, 0, -1):
        before, message = messages[i - 1], messages[i]
        if message.role == "assistant" and before.role in ("user", "tool") and _long(before, message):
            yield _exchange(client, *digests.messages[i - 1:i + 1])
            looked += 1
            if looked == _MOST_EXCHANGES:
                return


def _long(message: turn_pb2.ChatMessage, response: turn_pb2.ChatMessage) -> bool:
    answer = len(text_of(response)) + sum(len(call.arguments_json) for call in response.tool_calls)
    return answer >= LONG_ANSWER and answer + len(text_of(message)) >= LONG_EXCHANGE


def _exchange(client: str, message: bytes, response: bytes) -> bytes:
    """The key of an exchange, from the digests of its messages."""
    return _key(b"x", client, message + response)


def _key(kind: bytes, client: str, digest: bytes) -> bytes:
    return blake2b(kind + client.encode() + b"\0" + digest, digest_size=DIGEST_BYTES).digest()
