"""Supply of a run's episodes, with more groups in place of those in which all attempts went alike.

Such a group has no advantages and teaches nothing: another one is run instead, as long as there are groups in reserve
(dynamic sampling of DAPO, arXiv:2503.14476, section 3.2).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from openclaw_rl.rollouts.episodes.task_draw import EpisodePlan

#: Outcomes that are no further apart are alike.
_ALIKE = 1e-6


class PlanSupply:
    """Hands out the episodes of a run. For one event loop.

    Args:
        plans: of the run, group by group.
        reserve: of further groups.
    """

    def __init__(self, plans: Sequence[EpisodePlan], reserve: Sequence[EpisodePlan]) -> None:
        self._left, self._reserve = deque(plans), deque(reserve)
        self._outcomes: dict[str, list[float | None]] = {}  # of the groups in progress
        self._running = 0
        self._changed = asyncio.Event()

    async def next(self) -> EpisodePlan | None:
        """Return the next episode; None when there is none and none can come of the reserve."""
        while not self._left:
            if not (self._running and self._reserve):
                return None
            self._changed.clear()
            await self._changed.wait()
        self._running += 1
        return self._left.popleft()

    def ended(self, plan: EpisodePlan, outcome: float | None) -> int:
        """Note the end of an episode that `next` gave.

        Args:
            outcome: None if it was broken off.

        Returns:
            The number of episodes that are to be run in addition.
        """
        self._running -= 1
        self._changed.set()
        found = self._outcomes.setdefault(plan.group, [])
        found.append(outcome)
        if len(found) < plan.group_size:
            return 0
        known = [value for value in self._outcomes.pop(plan.group) if value is not None]
        if not self._reserve or len(known) < 2 or max(known) - min(known) > _ALIKE:
            return 0
        more = [self._reserve.popleft() for _ in range(self._reserve[0].group_size)]
        self._left += more
        return len(more)
