"""A playbook: what an API model learned, as the tensor that it travels in and as the words that its prompt gets."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from typing_extensions import Buffer

from openclaw_rl.runtime.json import parse_json
from openclaw_rl.v1 import turn_pb2
from openclaw_rl.v1.playbook_pb2 import Playbook
from openclaw_rl.v1.weights_pb2 import TensorSpec
from openclaw_rl.weights.format.safetensors import read_folder

#: Name and type of the one tensor of an API model's version.
TENSOR, DTYPE = "playbook", "U8"
#: Bytes of it at most.
MAX_BYTES = 1 << 20
#: Characters of all instructions together at most, whatever a trainer is configured to: they are in every request.
MAX_CHARACTERS = 64_000

_HEAD = ("Follow these instructions, which users of earlier conversations asked for, unless they contradict what is "
         "said above or what the user asks for:")


class PlaybookError(ValueError):
    """Bytes that are no playbook; the text says why."""


def is_playbook(spec: TensorSpec) -> bool:
    """Whether a tensor is a playbook, whose length is that of its text."""
    return (spec.name, spec.dtype) == (TENSOR, DTYPE)


def dump(playbook: Playbook) -> bytes:
    """The tensor's bytes: proto3's JSON form, the same for equal playbooks."""
    return json.dumps(MessageToDict(playbook), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def parse(data: Buffer) -> Playbook:
    """The playbook of a tensor's bytes.

    Raises:
        PlaybookError: they are none: too large, not JSON of this form, an instruction without id or text or with the id
            of another one, or figures that can't be.
    """
    data = bytes(data)
    if len(data) > MAX_BYTES:
        raise PlaybookError(f"it has {len(data)} bytes; at most {MAX_BYTES} are allowed")
    try:
        content = parse_json(data)
        if not isinstance(content, dict):
            raise ValueError(f"an object is needed, not a {type(content).__name__}")
        playbook = ParseDict(content, Playbook())
    except (ValueError, TypeError, AttributeError, ParseError) as error:
        raise PlaybookError(f"it is not JSON of the message Playbook: {error}") from None
    ids = [entry.id for entry in playbook.entries]
    if not all(ids) or len({*ids}) < len(ids):
        raise PlaybookError("each instruction needs an id of its own")
    for entry in playbook.entries:
        if not entry.text.strip():
            raise PlaybookError(f"instruction {entry.id} has no text")
        if not (math.isfinite(entry.score_sum) and abs(entry.score_sum) <= entry.uses):
            raise PlaybookError(f"instruction {entry.id}: {entry.uses} uses with scores from -1 to 1 do not add up to "
                                f"{entry.score_sum}")
    if (size := sum(len(entry.text) for entry in playbook.entries)) > MAX_CHARACTERS:
        raise PlaybookError(f"its instructions have {size} characters; at most {MAX_CHARACTERS} are allowed")
    return playbook


def read(folder: Path) -> Playbook:
    """The playbook of a version's folder.

    Raises:
        PlaybookError: there is none in it.
        CorruptFile, OSError: its file can't be read.
    """
    place = read_folder(folder).get(TENSOR)
    if place is None or place.dtype != DTYPE:
        raise PlaybookError(f"{folder} has no tensor {TENSOR!r} of type {DTYPE}")
    with place.path.open("rb") as file:
        file.seek(place.start)
        return parse(file.read(min(place.stop - place.start, MAX_BYTES + 1)))


def tensor(playbook: Playbook) -> tuple[str, str, Sequence[int], Buffer]:
    """The tensor as VersionStore.write takes it."""
    data = dump(playbook)
    return TENSOR, DTYPE, [len(data)], data


def render(playbook: Playbook) -> str:
    """What stands in the system prompt; empty without instructions."""
    if not playbook.entries:
        return ""
    return "\n".join([_HEAD, *(f"- {' '.join(entry.text.split())}" for entry in playbook.entries)])


def with_playbook(messages: Sequence[turn_pb2.ChatMessage], text: str) -> list[turn_pb2.ChatMessage]:
    """The conversation with a rendered playbook behind the client's first system message, else in one of its own
    before the others. The messages that are given stay as they are."""
    if not text:
        return list(messages)
    first = messages[0] if messages else None
    if first is None or first.role not in ("system", "developer"):
        return [turn_pb2.ChatMessage(role="system", content=text), *messages]
    changed = turn_pb2.ChatMessage()
    changed.CopyFrom(first)
    if changed.parts:
        changed.parts.add(text=text)
    else:
        changed.content = f"{changed.content}\n\n{text}" if changed.content else text
    return [changed, *messages[1:]]


def differences(old: Playbook, new: Playbook) -> Iterator[tuple[str, str]]:
    """What lies between two playbooks, a line each: a sign ("-", "+" or " " of what stays) and an instruction."""
    before = {entry.id: entry.text for entry in old.entries}
    after = {entry.id: entry.text for entry in new.entries}
    for entry in old.entries:
        if after.get(entry.id) != entry.text:
            yield "-", entry.text
    for entry in new.entries:
        yield (" " if before.get(entry.id) == entry.text else "+"), entry.text
