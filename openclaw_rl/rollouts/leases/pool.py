"""Pool of leases: who holds which environment, and for how long."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from openclaw_rl.rollouts.environments.factory import ConfiguredEnvironment
from openclaw_rl.rollouts.environments.interface import Environment, Opening, Outcome, StepResult
from openclaw_rl.rollouts.leases.lease import Lease, lease_ended
from openclaw_rl.rollouts.leases.queue import Ticket
from openclaw_rl.rollouts.leases.task_catalog import TaskCatalog
from openclaw_rl.rollouts.leases.warm_pool import WarmPool
from openclaw_rl.rollouts.tasks.task import Action
from openclaw_rl.rpc.errors import MeshError, exhausted, invalid, not_found, unavailable

logger = logging.getLogger(__name__)

#: Ended leases whose reason is remembered.
REMEMBERED = 10_000
#: Bounds of the seconds after which a rejected caller is told to retry.
SHORTEST_RETRY, LONGEST_RETRY = 0.5, 60.0
#: Longest wait, lease and step that a caller may ask for, in seconds.
LONGEST_WAIT = 3600.0
LONGEST_TTL = 24 * 3600.0
LONGEST_STEP = 3600.0
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(slots=True)
class _Pending:
    """A lease that is being waited for."""

    lease_id: str
    warm_pool: WarmPool
    ticket: Ticket[Environment]
    task: asyncio.Task[Lease]
    callers: int = 0
    patient: int = 0  #: of them, those still willing to wait


class LeasePool:
    """Environments to lease.

    Args:
        environments: those configured.
        ttl: seconds after which an unused lease expires, unless it says otherwise.
        max_waiting: requests that may wait.

    Attributes:
        catalog: the environments' tasks.
    """

    def __init__(self, environments: Sequence[ConfiguredEnvironment], *, ttl: float = 120.0,
                 max_waiting: int = 1000) -> None:
        self._warm_pools = {environment.name: WarmPool(environment) for environment in environments}
        self.catalog = TaskCatalog({environment.name: environment for environment in environments})
        self._ttl, self._max_waiting = ttl, max_waiting
        self._leases: dict[str, Lease] = {}
        self._pending: dict[str, _Pending] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._counts: Counter[str] = Counter()
        self._duration = 30.0  #: moving average of the leases' seconds
        self._closed = False

    def start(self) -> None:
        """Start to make environments."""
        for warm_pool in self._warm_pools.values():
            warm_pool.start()

    async def close(self) -> None:
        """End all leases and all environments."""
        self._closed = True
        for lease in list(self._leases.values()):
            self._end(lease, "ended with the environment server")
        await asyncio.gather(*(warm_pool.close() for warm_pool in self._warm_pools.values()))

    @property
    def types(self) -> list[str]:
        """Names of the environments."""
        return list(self._warm_pools)

    def warm_pool(self, type: str) -> WarmPool:
        """The environments of one name.

        Raises:
            MeshError: NOT_FOUND, there is none of that name; the text lists those there are.
        """
        if type not in self._warm_pools:
            raise not_found("environment", type, f"there are: {', '.join(self._warm_pools)}")
        return self._warm_pools[type]

    def leases(self, type: str = "") -> list[Lease]:
        """Running leases, oldest first.

        Raises:
            MeshError: NOT_FOUND, there is no such environment.
        """
        if type:
            self.warm_pool(type)
        return [lease for lease in self._leases.values() if not type or lease.type == type]

    def lease(self, lease_id: str) -> Lease:
        """A running lease.

        Raises:
            MeshError: FAILED_PRECONDITION, it has ended; NOT_FOUND, there is none.
        """
        if lease := self._leases.get(lease_id):
            return lease
        if reason := self._ended.get(lease_id):
            raise lease_ended(lease_id, reason)
        raise _lost(lease_id)

    async def acquire(self, type: str, lease_id: str, *, holder: str = "", wait: float | None = None,
                      ttl: float | None = None) -> Lease:
        """Lease an environment. A repeated call gives the same lease; a cancelled one leaves nothing behind.

        Args:
            lease_id: made by the caller.
            holder: who asks; the queue serves holders in turn.
            wait: seconds to wait for a free slot; None does not wait for one. The time that it takes to make an
                environment for a free slot is not counted.
            ttl: seconds after which the lease is taken back unless it is used; None takes the pool's.

        Raises:
            MeshError: RESOURCE_EXHAUSTED, there is no slot, or too many wait; FAILED_PRECONDITION, the environment
                can't be used; UNAVAILABLE, none can be made now; NOT_FOUND, there is none of that name;
                INVALID_ARGUMENT, the id is no id or that of a lease of another environment.
        """
        if not _ID.fullmatch(lease_id):
            raise invalid("lease_id", lease_id, "1 to 128 letters, digits, `-`, `_`, `.` and `:`, made by the client")
        warm_pool = self.warm_pool(type)
        if lease := self._leases.get(lease_id):
            self._check_type(lease.id, lease.type, type)
            lease.renew()
            return lease
        if lease_id in self._ended:
            raise lease_ended(lease_id, self._ended[lease_id])
        if pending := self._pending.get(lease_id):
            self._check_type(lease_id, pending.warm_pool.name, type)
        else:
            await warm_pool.availability.require()
            pending = self._pending.get(lease_id) or self._ask(warm_pool, lease_id, holder, wait, ttl)
        return await self._wait(pending, wait)

    def renew(self, lease_id: str) -> Lease:
        """Restart a lease's time to live.

        Raises:
            MeshError: see `lease`.
        """
        lease = self.lease(lease_id)
        lease.renew()
        return lease

    async def reset(self, lease_id: str, task_id: str = "", seed: int | None = None) -> Opening:
        """Begin a task in a leased environment; with an empty id, none.

        Raises:
            MeshError: see `lease`, TaskCatalog.get and Lease.reset.
        """
        lease = self.renew(lease_id)
        return await lease.reset(await self.catalog.get(lease.type, task_id) if task_id else None, seed)

    async def step(self, lease_id: str, number: int, action: Action, seconds: float | None = None) -> StepResult:
        """Perform an action in a leased environment.

        Args:
            number: 1 after a reset, then one more each time; a repeated number returns the same result.
            seconds: time limit; None takes the configuration's.

        Raises:
            MeshError: see `lease` and Lease.step.
        """
        lease = self.renew(lease_id)
        environment = lease.warm_pool.configured
        if environment.environment_type is not None:
            lease.warm_pool.checker.check(action, environment.environment_type.action_schema)
        return await lease.step(number, action, environment.config.step_timeout if seconds is None else seconds)

    async def evaluate(self, lease_id: str) -> Outcome:
        """Run the check of a leased environment's task.

        Raises:
            MeshError: see `lease` and Lease.evaluate.
        """
        return await self.renew(lease_id).evaluate()

    async def release(self, lease_id: str) -> None:
        """Release a lease; any number of times, even one that never existed. Its environment is closed in the
        background. A lease that is still being waited for is not granted."""
        if pending := self._pending.get(lease_id):
            self._withdraw(pending)
        if lease := self._leases.get(lease_id):
            self._end(lease, "was given back")

    def counts(self) -> dict[str, int]:
        """Leases granted and expired, steps done, sandboxes lost, since the pool was made."""
        warm_pools = self._warm_pools.values()
        return {"leases": self._counts["leases"], "leases_expired": self._counts["leases_expired"],
                "steps": sum(warm_pool.steps for warm_pool in warm_pools),
                "sandboxes_lost": sum(warm_pool.lost for warm_pool in warm_pools)}

    def _ask(self, warm_pool: WarmPool, lease_id: str, holder: str, wait: float | None, ttl: float | None) -> _Pending:
        if self._closed:
            raise unavailable("the environment server is stopping")
        if warm_pool.free <= 0:
            if wait is None or wait <= 0:
                raise self._full(warm_pool)
            waiting = sum(other.waiting for other in self._warm_pools.values())
            if waiting >= self._max_waiting:
                raise exhausted(f"{waiting} requests wait for an environment, more may not "
                                "(components.env_server.max_waiting)", self._retry_in(warm_pool))
        elif warm_pool.pausing and not wait:
            raise warm_pool.not_made()
        ticket: Ticket[Environment] = Ticket(holder, bool(wait))
        task = asyncio.get_running_loop().create_task(
            self._grant(warm_pool, ticket, lease_id, holder, self._ttl if ttl is None else ttl), name=f"ask {lease_id}")
        pending = self._pending[lease_id] = _Pending(lease_id, warm_pool, ticket, task)
        task.add_done_callback(lambda _: self._settle(pending))
        return pending

    def _settle(self, pending: _Pending) -> None:
        if self._pending.get(pending.lease_id) is pending:
            del self._pending[pending.lease_id]

    def _withdraw(self, pending: _Pending) -> None:
        """Give up a lease that nobody waits for any more."""
        pending.warm_pool.queue.remove(pending.ticket)  # at once, so that it counts no more
        self._settle(pending)
        pending.task.cancel()

    async def _grant(self, warm_pool: WarmPool, ticket: Ticket[Environment], lease_id: str, holder: str,
                     ttl: float) -> Lease:
        environment = await warm_pool.take(ticket)
        lease = self._leases[lease_id] = Lease(lease_id, holder, ttl, warm_pool, environment)
        self._counts["leases"] += 1
        self._schedule_expiry(lease)
        return lease

    async def _wait(self, pending: _Pending, wait: float | None) -> Lease:
        """Wait for a lease, as one of perhaps several callers that ask for the same one."""
        warm_pool, task = pending.warm_pool, pending.task
        pending.callers += 1
        self._be_patient(pending, 1 if wait else 0)
        try:
            try:
                if wait:
                    await asyncio.wait({task}, timeout=wait)
            finally:
                self._be_patient(pending, -1 if wait else 0)
            # With a slot of its own, only the making of its environment is left, which has its own time limit.
            if wait and not task.done() and (warm_pool.failure or not warm_pool.covered(pending.ticket)):
                raise warm_pool.not_made() if warm_pool.failure else self._full(warm_pool)
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise lease_ended(pending.lease_id, "was given back before it was there") from None
                raise
        except BaseException:
            if pending.callers == 1:  # nobody else wants it
                if task.done() and not task.cancelled() and task.exception() is None:
                    await self.release(pending.lease_id)
                self._withdraw(pending)
            raise
        finally:
            pending.callers -= 1

    @staticmethod
    def _be_patient(pending: _Pending, more: int) -> None:
        pending.patient += more
        pending.ticket.patient = pending.patient > 0

    def _schedule_expiry(self, lease: Lease) -> None:
        """Expire the lease when its time is over."""
        loop = asyncio.get_running_loop()

        def check() -> None:
            left = lease.expires_in
            if left > 0:
                self._timers[lease.id] = loop.call_later(left, check)
                return
            self._counts["leases_expired"] += 1
            logger.info("lease %r of %r expired: %s did not renew it for %g s", lease.id, lease.type,
                        lease.holder or "its holder", lease.ttl)
            self._end(lease, f"was taken back, since nobody used or renewed it for {lease.ttl:g} s")

        self._timers[lease.id] = loop.call_later(lease.ttl, check)

    def _end(self, lease: Lease, reason: str) -> None:
        self._timers.pop(lease.id).cancel()
        del self._leases[lease.id]
        self._ended[lease.id] = reason
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        self._duration += 0.1 * (lease.age - self._duration)
        work = lease.work
        lease.end(reason)
        lease.warm_pool.give_back(lease.environment, *work)

    def _full(self, warm_pool: WarmPool) -> MeshError:
        waiting = f" and {warm_pool.waiting} requests wait" if warm_pool.waiting else ""
        return exhausted(f"all {warm_pool.capacity} environments {warm_pool.name!r} are leased{waiting}",
                         self._retry_in(warm_pool))

    def _retry_in(self, warm_pool: WarmPool) -> float:
        """Seconds after which a slot may be free, judging by recent leases."""
        estimate = self._duration * (warm_pool.waiting + 1) / warm_pool.capacity
        return round(min(LONGEST_RETRY, max(SHORTEST_RETRY, estimate)), 1)

    @staticmethod
    def _check_type(lease_id: str, has: str, asked: str) -> None:
        if has != asked:
            raise invalid("type", asked, f"{has!r}, of which the lease {lease_id!r} is; another lease needs another id")


def _lost(lease_id: str) -> MeshError:
    shown = lease_id if len(lease_id) <= 80 else lease_id[:77] + "..."
    return MeshError(grpc.StatusCode.NOT_FOUND, "LEASE_LOST",
                     f"there is no lease {shown!r}: it was never acquired, ended long ago, or the environment server "
                     "has been started anew since, which ends all leases; acquire another one",
                     metadata={"id": shown})
