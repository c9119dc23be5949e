"""Which session a request without a session id belongs to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from openclaw_rl.sessions.fingerprint import prefix_digests
from openclaw_rl.v1 import turn_pb2


class ConversationIndex:
    """Remembers the conversations that were answered, and finds the one that a request continues.

    A conversation is looked for among those of the same client only, and one that two sessions share (two people who
    both began with "hi" and got the same answer) is never guessed: the request then starts a session of its own.
    Not thread-safe; the least recently used entries go beyond `limit`.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._sessions: OrderedDict[tuple[str, bytes], str | None] = OrderedDict()  # None: more than one session

    def __len__(self) -> int:
        return len(self._sessions)

    def remember(
        self, client: str, session_id: str, messages: Sequence[turn_pb2.ChatMessage], response: turn_pb2.ChatMessage
    ) -> None:
        """Note that `client`'s request `messages` of `session_id` was answered with `response`."""
        key = (client, prefix_digests([*messages, response])[-1])
        known = self._sessions.get(key, session_id)
        self._sessions[key] = session_id if known == session_id else None
        self._sessions.move_to_end(key)
        while len(self._sessions) > self._limit:
            self._sessions.popitem(last=False)

    def match(self, client: str, messages: Sequence[turn_pb2.ChatMessage]) -> str | None:
        """The session whose conversation `messages` continues: the one with the longest prefix that ends in a
        response of ours. None when there is none, or more than one."""
        digests = prefix_digests(messages)
        for message, digest in zip(reversed(messages), reversed(digests), strict=True):
            key = (client, digest)
            if message.role == "assistant" and key in self._sessions:
                self._sessions.move_to_end(key)
                return self._sessions[key]
        return None
