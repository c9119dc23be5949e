"""Times and ids."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp


def now() -> Timestamp:
    """The present time."""
    ns = time.time_ns()
    return Timestamp(seconds=ns // 1_000_000_000, nanos=ns % 1_000_000_000)


def to_timestamp(seconds: float) -> Timestamp:
    """The moment `seconds` after the epoch."""
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp


def to_datetime(timestamp: Timestamp) -> datetime:
    """The same moment, with the time zone UTC."""
    return timestamp.ToDatetime(tzinfo=UTC)


def new_id(prefix: str = "") -> str:
    """A unique id whose text order is the order in which ids were made.

    The 32 hexadecimal digits are a UUID of version 7 (RFC 9562, method 3 of section 6.2: the 12 bits behind the
    milliseconds are their fraction, so ids of one process keep their order within a millisecond too).
    """
    ms, ns = divmod(time.time_ns(), 1_000_000)
    random = int.from_bytes(os.urandom(8), "big") >> 2
    return f"{prefix}{ms << 80 | 7 << 76 | (ns << 12) // 1_000_000 << 64 | 2 << 62 | random:032x}"
