"""What responses of the Responses API are continued by: their conversations, by `previous_response_id`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.rpc import errors
from openclaw_rl.v1 import turn_pb2

#: Bytes of conversations that are kept; the oldest go first.
MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation up to a response."""

    client: str  #: whose it is
    session_id: str
    messages: Sequence[turn_pb2.ChatMessage]  #: without instructions, which are not inherited


class ResponseHistory:
    """Conversations by the turn id of their last response. In memory: a restart forgets them, and clients are told so.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._kept: OrderedDict[str, tuple[int, Conversation]] = OrderedDict()
        self._bytes, self._most = 0, most_bytes

    def keep(self, turn_id: str, conversation: Conversation) -> None:
        """Keep a conversation, and drop the oldest ones for which there is no room any more."""
        size = sum(message.ByteSize() for message in conversation.messages)
        self._kept[turn_id] = size, conversation
        self._bytes += size
        while self._bytes > self._most:
            self._bytes -= self._kept.popitem(last=False)[1][0]

    def find(self, response_id: str, client: str) -> Conversation:
        """The conversation that a client's response ended.

        Raises:
            MeshError: INVALID_ARGUMENT, there is none.
        """
        _, found = self._kept.get(response_id.removeprefix("resp_"), (0, None))
        if found is None or found.client != client:
            raise errors.invalid(
                "previous_response_id", response_id, "a response that this server has stored: it is of another client, "
                "had store: false, is among the oldest, or came before a restart. The whole conversation may be sent "
                "as 'input' instead")
        return found

    def forget(self, session_id: str) -> int:
        """Drop a session's conversations; returns their number."""
        found = [turn_id for turn_id, (_, kept) in self._kept.items() if kept.session_id == session_id]
        for turn_id in found:
            self._bytes -= self._kept.pop(turn_id)[0]
        return len(found)
