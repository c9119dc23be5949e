"""What agent frameworks say of themselves in a system message: session and type of the turn.

OpenClaw can send no headers of its own, so its plug-in for training appends a line to the system prompt:
`[RL-TRAINING-META] session_id=... turn_type=side`. Without the plug-in its line `Runtime: agent=main | ... |
session=agent:main:telegram:42` names the conversation. Only system and developer messages are read: a user or a tool
says nothing about sessions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from openclaw_rl.sessions.fingerprint import is_instruction, text_of
from openclaw_rl.v1 import turn_pb2

_META, _RUNTIME = "[RL-TRAINING-META]", "Runtime:"
_VALUE = re.compile(r"\b(session_id|turn_type)=([\w.:@/-]{1,128})(?=[\s,;\]]|$)")
_SESSION = re.compile(r"^Runtime:[^\n]{0,2000}?[\s|]session=(agent:[\w.:@/+-]{1,96})(?=[\s|,]|$)", re.MULTILINE)


class Declared(NamedTuple):
    """Empty where nothing is said."""

    session_id: str = ""
    turn_type: str = ""


def declared(messages: Sequence[turn_pb2.ChatMessage], client: str) -> Declared:
    """What the system messages of `client`'s request say. Names of agents are the same in each installation, so a
    session that only the agent's name stands for is the client's alone."""
    result = Declared()
    for message in messages:
        if not is_instruction(message):
            continue
        text = text_of(message)
        at = text.rfind(_META)
        if at >= 0:
            line = text[at:at + 1_000].partition("\n")[0]
            return Declared(**dict(_VALUE.findall(line)))
        if not result.session_id and _RUNTIME in text and (found := _SESSION.search(text)):
            own = blake2b(client.encode(), digest_size=4).hexdigest()
            result = Declared(session_id=f"{found[1]}@{own}")
    return result
