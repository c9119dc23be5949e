"""Counts the fields of a serialized message before it is parsed, which holds the interpreter till its end."""

from __future__ import annotations

from functools import cache

from google.protobuf.descriptor import Descriptor

#: Fields of a request, with those of all messages within. Ten thousand messages of a conversation have a third of it;
#: to count so many takes some 50 ms, in which nothing else runs.
MOST_FIELDS = 2**17
#: Fields of one message of a stream of requests: what was let in as a request grows on its way around the ring.
MOST_STREAMED_FIELDS = 2 * MOST_FIELDS


def has_more_fields(data: bytes, kind: Descriptor, most: int) -> bool:
    """Whether a message of `kind`, with all messages within, has more than `most` fields. Takes time for so many at
    most. Bytes that are no message have no more: who parses them tells.

    Encoding: https://protobuf.dev/programming-guides/encoding/#structure
    """
    if len(data) <= 2 * most:  # a field has two bytes at least
        return False
    count, left = 0, [(0, len(data), kind)]
    try:
        while left:
            at, end, kind = left.pop()
            within = _messages(kind)
            while at < end:
                count += 1
                if count > most:
                    return True
                tag = data[at]
                at += 1
                if tag > 0x7F:
                    tag, at = _varint(data, at - 1)
                match tag & 7:  # wire type
                    case 2:  # bytes, text or a message
                        size = data[at]
                        at += 1
                        if size > 0x7F:
                            size, at = _varint(data, at - 1)
                        if (inner := within.get(tag >> 3)) is not None:
                            left.append((at, min(at + size, end), inner))
                        at += size
                    case 0:  # varint
                        at = _varint(data, at)[1]
                    case 1:
                        at += 8
                    case 5:
                        at += 4
                    case _:  # a group, which the contract has none of
                        return False
    except IndexError:
        pass
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return value, at
        shift += 7


@cache
def _messages(kind: Descriptor) -> dict[int, Descriptor]:
    """Fields of a message that are messages, by number."""
    return {field.number: field.message_type for field in kind.fields if field.message_type is not None}
