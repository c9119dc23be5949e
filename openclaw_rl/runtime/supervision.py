"""Restart policy of component processes, the same for every supervisor."""

from __future__ import annotations

import os
from dataclasses import dataclass

#: Variable with the seconds of `RestartPolicy.start_seconds`, with which the pauses grow shorter too; for tests, which
#: can't wait as long.
START_VARIABLE = "OPENCLAW_RL_START_SECONDS"


@dataclass(frozen=True)
class RestartPolicy:
    """Restart without end, with pauses of 1, 2, 3, ... seconds: a mesh comes back by itself from a disk that was full
    over night.

    Attributes:
        start_seconds: a process that stays up for so long has started; its next pause is the first one again.
        longest_pause: between two starts, in seconds.
        stop_seconds: between SIGTERM and SIGKILL.
    """

    start_seconds: float = 5.0
    longest_pause: float = 60.0
    stop_seconds: float = 20.0

    @classmethod
    def of_environment(cls) -> RestartPolicy:
        """The policy with `start_seconds` from OPENCLAW_RL_START_SECONDS, if that is a number above 0."""
        try:
            seconds = float(os.environ.get(START_VARIABLE, ""))
        except ValueError:
            return cls()
        return cls(start_seconds=seconds) if seconds > 0 else cls()

    def pause(self, failures: int) -> float:
        """Seconds before the next start, after so many failures in a row."""
        return min(failures * min(1.0, self.start_seconds / 5), self.longest_pause)
