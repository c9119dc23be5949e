"""Requests of the ring's streams, made of messages as an outbox keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from google.protobuf.message import Message

Request = TypeVar("Request", bound=Message)


def make_request(kind: type[Request], field: str, payloads: Iterable[bytes]) -> Request:
    """Make a request whose repeated `field` has these messages, each parsed in its place: no copy is made of it.

    Raises:
        google.protobuf.message.DecodeError: a payload is no such message.
    """
    request = kind()
    messages = getattr(request, field)
    for payload in payloads:
        messages.add().ParseFromString(payload)
    return request
