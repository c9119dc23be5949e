"""Views of a lease for onlookers."""

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
class LeaseView:
    """A lease at a moment."""

    lease: Lease
    action: Action | None  #: the last one
    observation: Observation | None  #: None: there is nothing to see
    at: float  #: seconds since the epoch


async def watch_lease(lease: Lease, interval: float) -> AsyncIterator[LeaseView]:
    """Iterate over views: the newest at once, then one per change, at most every `interval` seconds, until the lease
    ends; the last one says so (`lease.ended`).

    Views are taken as the reader wants them, so a slow reader gets fewer and delays nobody. Watching does not renew the
    lease.
    """
    last: object = None
    while True:
        view = await lease.view(interval)
        # A terminal changes while its program runs, so the view counts and not only the steps.
        now = (lease.steps, lease.task_id, lease.problem, lease.ended, view)
        if now != last:
            last = now
            yield LeaseView(lease, lease.last_action, view, time.time())
        if lease.ended:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(lease.over.wait(), interval)
