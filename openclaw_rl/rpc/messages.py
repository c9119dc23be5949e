"""Times, ids, texts of whole characters, and lists in messages of bounded size."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

#: Characters after which a message of texts is full.
_MESSAGE = 256 * 2**10


def now() -> Timestamp:
    """The present time."""
    ns = time.time_ns()
    return Timestamp(seconds=ns // 1_000_000_000, nanos=ns % 1_000_000_000)


def to_timestamp(seconds: float) -> Timestamp:
    """The moment `seconds` after the epoch."""
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp


def to_duration(seconds: float) -> Duration:
    """So many seconds."""
    made = Duration()
    made.FromNanoseconds(int(seconds * 1e9))
    return made


def to_datetime(timestamp: Timestamp) -> datetime:
    """The same moment, with the time zone UTC."""
    moment: datetime = timestamp.ToDatetime(tzinfo=UTC)
    return moment


def in_messages(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts, in lists each of which fits into a message."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text) + 4  # what the message adds to each
        if size > _MESSAGE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def new_id(prefix: str = "") -> str:
    """A unique id whose text order is the order in which ids were made.

    The 32 hexadecimal digits are a UUID of version 7 (RFC 9562, method 3 of section 6.2: the 12 bits behind the
    milliseconds are their fraction, so ids of one process keep their order within a millisecond too).
    """
    ms, ns = divmod(time.time_ns(), 1_000_000)
    random = int.from_bytes(os.urandom(8), "big") >> 2
    return f"{prefix}{ms << 80 | 7 << 76 | (ns << 12) // 1_000_000 << 64 | 2 << 62 | random:032x}"


def well_formed(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair: JSON may have such, they are no characters, and protobuf
    and UTF-8 refuse them."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
