"""Decision when to train, and what is missing until then."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.training.buffer.groups import WaitingGroups
from openclaw_rl.training.tables.samples import PendingCount

#: Seconds that a sample may be ahead of the clock before that means that the clock was set back.
_FUTURE = 1.0


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision of the scheduler."""

    due: bool
    wait: float | None  #: seconds until the interval makes a step due; None when only an event can
    missing: str  #: what is missing, for a person; empty when `due`
    episodes: bool = False  #: the step is one on groups of episodes; else on turns of users


class Scheduler:
    """A step is due when `min_samples` with a signal wait, or when the oldest of them has waited `update_interval`.

    A sample has a signal when the algorithm can learn from it; of one session only those count that fit into a step.
    Neutral ones ride along and count for nothing: a step that one complaint makes alone is as long as one that four
    make, and goes where that one complaint points.

    A step on episodes is due when `groups` groups are ready, the first of them has been for `update_interval`, or one
    would soon be stale. When both kinds of steps are due they alternate, so that neither waits for more than one step
    of the other.

    Args:
        min_samples: samples that make a step due at once.
        update_interval: seconds.
        groups: ready groups that make a step due at once.
    """

    def __init__(self, min_samples: int, update_interval: float, groups: int = 4) -> None:
        self._min_samples, self._min_groups = min_samples, groups
        self._update_interval = update_interval
        self.last_on_episodes = True  #: of which kind the last step was; users' turns come first
        self.forced = False  #: the next step is due as soon as there is a signal
        self.paused: str | None = None  #: why no step is due; None when not paused

    def decide(self, pending: PendingCount, now: float, waiting: WaitingGroups | None = None) -> Decision:
        """Decide what to do.

        Args:
            pending: samples of users' turns.
            now: seconds since the epoch.
            waiting: groups of episodes; None: there are none.
        """
        if self.paused is not None:
            return Decision(False, None, f"paused{': ' + self.paused if self.paused else ''} (`openclaw-rl resume` "
                            "ends it)")
        users, groups = self._on_users(pending, now), self._on_groups(waiting or WaitingGroups(), now)
        if groups is None or (users.due and (self.last_on_episodes or not groups.due)):
            return users
        if groups.due:
            return groups
        waits = [wait for wait in (users.wait, groups.wait) if wait is not None]
        missing = f"{users.missing}; {groups.missing}" if pending.total else groups.missing
        return Decision(False, min(waits, default=None), missing)

    def _on_groups(self, waiting: WaitingGroups, now: float) -> Decision | None:
        """None when there is no group."""
        if not waiting.ready and not waiting.text:
            return None
        waits = [] if waiting.next is None else [max(waiting.next - now, 0.1)]
        text = f"has {waiting.ready} of {self._min_groups} groups"
        if waiting.ready and waiting.oldest is not None:
            left = waiting.oldest + self._update_interval - now
            waited = left <= 0 or left > self._update_interval + _FUTURE
            if self.forced or waiting.ready >= self._min_groups or waiting.old or waited:
                return Decision(True, None, "", episodes=True)
            waits.append(left)
            text += f", trains on what there is in {left:.0f} s"
        return Decision(False, min(waits, default=None), "; ".join(filter(None, (text, waiting.text))))

    def _on_users(self, pending: PendingCount, now: float) -> Decision:
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
