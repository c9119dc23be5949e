"""Next states: what came between a response and the next one, read from the request that continues it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from openclaw_rl.rollouts.classification.framework_text import strip_framework_text
from openclaw_rl.rpc.auth.callers import key_of
from openclaw_rl.sessions.fingerprint import both_digests, call_ids, is_instruction, request_digest, text_of
from openclaw_rl.v1 import turn_pb2

#: Bytes of a message's own digest.
SINGLE = 8


@dataclass(frozen=True, slots=True)
class Outline:
    """Digests of a turn, by which it finds what it continues and is found by what continues it.

    They include the client's API key: users whose agents happen to choose the same session names never continue one
    another.
    """

    messages: Sequence[turn_pb2.ChatMessage]  #: of the request, restored (sessions/dialects.py)
    digests: list[bytes]  #: of each prefix of `messages`
    responses: list[int]  #: positions of the assistant messages, the last one first
    request: bytes  #: of the whole request: a retry has the same
    response: bytes  #: of the conversation up to and with the response
    singles: list[bytes]  #: of each message by itself, instructions left out
    places: list[int]  #: their positions in `messages`
    trail: bytes  #: `singles` and that of the response, joined
    instructions: bytes  #: of the system messages, numbers aside
    calls: bytes  #: of the ids of the response's tool calls; empty without any

    @classmethod
    def of(cls, turn: turn_pb2.Turn) -> Outline:
        """Compute the outline of `turn`."""
        owner = key_of(turn.client).encode()[:64]
        request = both_digests(list(turn.messages), owner)
        whole = request.followed_by(turn.response, owner)
        messages, (*digests, response), singles = request.messages, whole.prefixes, whole.singles
        responses = [i for i, message in enumerate(messages) if message.role == "assistant"][::-1]
        places = [i for i, message in enumerate(messages) if not is_instruction(message)]
        instructions = [message for message in messages if is_instruction(message)]
        own = [singles[i][:SINGLE] for i in places]
        trail = b"".join(own) + singles[-1][:SINGLE]
        return cls(messages, digests, responses, request_digest(messages, turn.tools, digests), response, own, places,
                   trail, request_digest(instructions, digests=()), call_ids(turn.response))

    @property
    def conversation(self) -> bytes:
        """Digest of the request's messages without instructions, shared by attempts with other settings."""
        return self.digests[-1] if self.digests else b""


def messages_behind(
    outline: Outline, position: int, side_responses: Collection[bytes] = ()
) -> list[turn_pb2.ChatMessage]:
    """Collect the tool results and user messages after the response at `position`, up to the next response.

    Left out are instructions, assistant messages right after it (a banner of the framework), exchanges of side turns
    (which do not answer the response at `position`), and text that the framework wrote in the user's name. Empty if
    nobody said anything.
    """
    found: list[turn_pb2.ChatMessage] = []
    for i in range(position + 1, len(outline.messages)):
        message = outline.messages[i]
        if message.role == "assistant":
            if outline.digests[i] in side_responses:
                found.clear()
            elif found:
                break
        elif not is_instruction(message) and (own := strip_framework_text(message)) is not None:
            found.append(own)
    return found


def as_text(messages: Sequence[turn_pb2.ChatMessage]) -> str:
    """Render messages for people; tool calls as name(arguments)."""
    lines = []
    for message in messages:
        text = text_of(message)
        if text:
            lines.append(text)
        lines.extend(f"{call.name}({call.arguments_json})" for call in message.tool_calls)
        lines.extend(f"[image {part.image_url[:80]}]" for part in message.parts if part.image_url)
    return "\n".join(lines)
