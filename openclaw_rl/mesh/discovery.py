"""Where a component listens."""

from __future__ import annotations

from openclaw_rl.config import Config
from openclaw_rl.home import Home, read_record


def resolve(home: Home, config: Config, name: str) -> str | None:
    """The gRPC address of component `name`, HOST:PORT: the configured one, else what the component recorded.

    None when there is neither: it hasn't started. A recorded address may be out of date (its process was killed), so
    callers ask anew for every attempt.
    """
    section = getattr(config.components, name)
    if section.address:
        return section.address
    record = read_record(home, name)
    return record.address if record else None
