"""Requests of the ring's streams, made of messages as an outbox keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from google.protobuf.message import Message

from openclaw_rl.rpc.field_count import MOST_STREAMED_FIELDS, has_more_fields

Request = TypeVar("Request", bound=Message)


def make_request(kind: type[Request], field: str, payloads: Iterable[bytes]) -> Request:
    """Make a request whose repeated `field` has these messages, each parsed in its place: no copy is made of it.

    Raises:
        google.protobuf.message.DecodeError: a payload is no such message.
        ValueError: a payload has more fields than a receiver takes.
    """
    request = kind()
    messages = getattr(request, field)
    for payload in payloads:
        if has_more_fields(payload, kind.DESCRIPTOR.fields_by_name[field].message_type, MOST_STREAMED_FIELDS - 1):
            raise ValueError(f"it has more than {MOST_STREAMED_FIELDS - 1} fields, with those of all messages within")
        messages.add().ParseFromString(payload)
    return request
