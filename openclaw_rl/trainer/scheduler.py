"""When to train, and what is missing until then."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.trainer.store import Pending

#: Seconds that a sample may be ahead of the clock before that means that the clock was set back.
_FUTURE = 1.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now."""

    due: bool
    wait: float | None  #: seconds until the interval makes a step due; None when only an event can
    missing: str  #: what is missing, for a person; empty when `due`


class Scheduler:
    """A step is due when `min_samples` with a signal wait, or when the oldest of them has waited `update_interval`.

    A sample has a signal when the algorithm can learn from it; of one session only those count that fit into a step.
    Neutral ones ride along and count for nothing: a step that one complaint makes alone is as long as one that four
    make, and goes where that one complaint points.

    Args:
        min_samples: samples that make a step due at once.
        update_interval: seconds.
    """

    def __init__(self, min_samples: int, update_interval: float) -> None:
        self._min_samples = min_samples
        self._update_interval = update_interval
        self.forced = False  #: the next step is due as soon as there is a signal
        self.paused: str | None = None  #: why no step is due; None when not paused

    def decide(self, pending: Pending, now: float) -> Decision:
        """`now` in seconds since the epoch."""
        if self.paused is not None:
            return Decision(False, None, f"paused{': ' + self.paused if self.paused else ''}")
        if not pending.total:
            return Decision(False, None, "waits for samples")
        if not pending.signal or pending.oldest_signal is None:
            return Decision(False, None, f"has {_samples(pending.total, 'neutral ')}; needs one with a score or a hint")
        left = pending.oldest_signal + self._update_interval - now
        # A sample of the future came before the clock was set back; waiting for its time could take days.
        waited = left <= 0 or left > self._update_interval + _FUTURE
        if self.forced or pending.signal >= self._min_samples or waited:
            return Decision(True, None, "")
        left = min(left, self._update_interval)
        held = f" ({_samples(pending.held)} of the same sessions must wait for later steps)" if pending.held else ""
        return Decision(False, left, f"needs {_samples(self._min_samples - pending.signal, 'more ')} or {left:.0f} s"
                        + held)


def _samples(count: int, what: str = "") -> str:
    return f"{count} {what}sample{'s' if count != 1 else ''}"
