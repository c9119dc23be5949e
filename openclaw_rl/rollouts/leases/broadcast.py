"""What somebody sees who watches a lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from openclaw_rl.rollouts.environments.interface import Observation
from openclaw_rl.rollouts.leases.lease import Lease
from openclaw_rl.rollouts.tasks.task import Action


@dataclass(frozen=True, slots=True)
class Seen:
    """A lease at a moment."""

    lease: Lease
    action: Action | None  #: the last one
    view: Observation | None  #: None: nothing is to be seen
    at: float  #: seconds since the epoch


async def watch(lease: Lease, interval: float) -> AsyncIterator[Seen]:
    """The newest view at once, then whenever something has changed, at most every `interval` seconds, until the lease
    has ended; the last one says so (`lease.ended`).

    A view is asked for when the reader wants one, so one that reads slowly gets fewer, and nobody waits for it. It does
    not renew the lease: what is watched may still be given up.
    """
    last: object = None
    while True:
        view = await lease.view(interval)
        # Also a terminal whose program goes on by itself changes, so the view counts and not only the steps.
        now = (lease.steps, lease.task_id, lease.problem, lease.ended, view)
        if now != last:
            last = now
            yield Seen(lease, lease.last_action, view, time.time())
        if lease.ended:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(lease.over.wait(), interval)
