"""Leases environments: how many there are of each, who gets the next one, and for how long."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import grpc

from openclaw_rl.rollouts.environments.factory import Offer
from openclaw_rl.rollouts.environments.interface import BadTask, Environment, Opening, Outcome, StepResult
from openclaw_rl.rollouts.leases.lease import Lease, lease_ended
from openclaw_rl.rollouts.leases.queue import Ticket
from openclaw_rl.rollouts.leases.warm_pool import Supply
from openclaw_rl.rollouts.tasks.load import load
from openclaw_rl.rollouts.tasks.task import Action, Task
from openclaw_rl.rpc.errors import MeshError, exhausted, invalid, not_found, unavailable

log = logging.getLogger(__name__)

#: Leases that have ended, of which it is known why.
REMEMBERED = 10_000
#: Seconds between two tries that somebody is told to leave, at the least and at the most.
SHORTEST_RETRY, LONGEST_RETRY = 0.5, 60.0
#: Seconds that one may ask to wait, and that a lease may last.
LONGEST_WAIT = 3600.0
LONGEST_TTL = 24 * 3600.0
LONGEST_STEP = 3600.0
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(slots=True)
class _Pending:
    """A lease that is not there yet."""

    lease_id: str
    supply: Supply
    ticket: Ticket[Environment]
    task: asyncio.Task[Lease]
    callers: int = 0
    patient: int = 0  #: of them, those whose time to wait is not over


class Pool:
    """Environments to lease.

    Args:
        offers: what there is; see kinds.make.
        ttl: seconds after which a lease that nobody uses is taken back, unless it says otherwise.
        max_waiting: requests that may wait.
    """

    def __init__(self, offers: Sequence[Offer], *, ttl: float = 120.0, max_waiting: int = 1000) -> None:
        self._supplies = {offer.name: Supply(offer) for offer in offers}
        self._ttl, self._max_waiting = ttl, max_waiting
        self._leases: dict[str, Lease] = {}
        self._pending: dict[str, _Pending] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: dict[str, list[Task]] = {}
        self._counts: Counter[str] = Counter()
        self._lasted = 30.0  #: seconds that leases have lasted lately
        self._closed = False

    def start(self) -> None:
        """Begin to keep warm what shall be warm."""
        for supply in self._supplies.values():
            supply.start()

    async def close(self) -> None:
        """End all leases and all environments."""
        self._closed = True
        for lease in list(self._leases.values()):
            self._end(lease, "ended with the environment server")
        await asyncio.gather(*(supply.close() for supply in self._supplies.values()))

    @property
    def types(self) -> list[str]:
        """Names of the environments."""
        return list(self._supplies)

    def supply(self, type: str) -> Supply:
        """How much there is of an environment.

        Raises:
            MeshError: NOT_FOUND, there is none of that name; the text lists those there are.
        """
        if type not in self._supplies:
            raise not_found("environment", type, f"there are: {', '.join(self._supplies)}")
        return self._supplies[type]

    def tasks(self, type: str) -> list[Task]:
        """All tasks of an environment; those that can't be used have a `problem`. Read once.

        Raises:
            MeshError: NOT_FOUND, there is no such environment.
        """
        offer = self.supply(type).offer
        if type not in self._tasks:
            self._tasks[type] = [_checked(offer, task) for task in load(
                offer.kind_name, offer.config.tasks, bundled=offer.config.mcp is None)]
        return self._tasks[type]

    async def load_tasks(self, type: str) -> list[Task]:
        """The same, read while other work goes on."""
        self.supply(type)
        if type not in self._tasks:
            return await asyncio.to_thread(self.tasks, type)
        return self._tasks[type]

    def task(self, type: str, task_id: str) -> Task:
        """One of them.

        Raises:
            MeshError: NOT_FOUND; INVALID_ARGUMENT, it can't be used.
        """
        found = next((task for task in self.tasks(type) if task.id == task_id), None)
        if found is None:
            raise not_found("task", task_id, f"ListTasks tells those of {type!r}")
        if found.problem:
            raise invalid("task_id", task_id, f"a task that can be used: {found.problem}")
        return found

    def leases(self, type: str = "") -> list[Lease]:
        """Those that run, oldest first.

        Raises:
            MeshError: NOT_FOUND, there is no such environment.
        """
        if type:
            self.supply(type)
        return [lease for lease in self._leases.values() if not type or lease.type == type]

    def lease(self, lease_id: str) -> Lease:
        """One that runs.

        Raises:
            MeshError: FAILED_PRECONDITION, it has ended; NOT_FOUND, there is none.
        """
        if lease := self._leases.get(lease_id):
            return lease
        if why := self._ended.get(lease_id):
            raise lease_ended(lease_id, why)
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
        supply = self.supply(type)
        if lease := self._leases.get(lease_id):
            self._same_type(lease.id, lease.type, type)
            lease.renew()
            return lease
        if lease_id in self._ended:
            raise lease_ended(lease_id, self._ended[lease_id])
        if pending := self._pending.get(lease_id):
            self._same_type(lease_id, pending.supply.name, type)
        else:
            await supply.usable()
            pending = self._pending.get(lease_id) or self._ask(supply, lease_id, holder, wait, ttl)
        return await self._wait(pending, wait)

    def renew(self, lease_id: str) -> Lease:
        """Begin a lease's time anew.

        Raises:
            MeshError: see `lease`.
        """
        lease = self.lease(lease_id)
        lease.renew()
        return lease

    async def reset(self, lease_id: str, task_id: str = "", seed: int | None = None) -> Opening:
        """Begin a task in a leased environment; with an empty id, none.

        Raises:
            MeshError: see `lease`, `task` and Lease.reset.
        """
        lease = self.renew(lease_id)
        await self.load_tasks(lease.type)
        return await lease.reset(self.task(lease.type, task_id) if task_id else None, seed)

    async def step(self, lease_id: str, number: int, action: Action, seconds: float | None = None) -> StepResult:
        """Do an action in a leased environment.

        Args:
            number: 1 after a reset, then one more each time; a repeated one tells again what it did.
            seconds: longest time for it; None takes the configuration's.

        Raises:
            MeshError: see `lease` and Lease.step.
        """
        lease = self.renew(lease_id)
        offer = lease.supply.offer
        if offer.kind is not None:
            lease.supply.checker.check(action, offer.kind.action_schema)
        return await lease.step(number, action, offer.config.step_timeout if seconds is None else seconds)

    async def evaluate(self, lease_id: str) -> Outcome:
        """Run the check of a leased environment's task.

        Raises:
            MeshError: see `lease` and Lease.evaluate.
        """
        return await self.renew(lease_id).evaluate()

    async def release(self, lease_id: str) -> None:
        """Give a lease back; any number of times, also one that there never was. Its environment is closed in the
        background. A lease that is still waited for is not given."""
        if pending := self._pending.get(lease_id):
            self._withdraw(pending)
        if lease := self._leases.get(lease_id):
            self._end(lease, "was given back")

    def counts(self) -> dict[str, int]:
        """Leases given and taken back, steps done, sandboxes lost, since the pool was made."""
        supplies = self._supplies.values()
        return {"leases": self._counts["leases"], "leases_expired": self._counts["leases_expired"],
                "steps": sum(supply.steps for supply in supplies),
                "sandboxes_lost": sum(supply.lost for supply in supplies)}

    def _ask(self, supply: Supply, lease_id: str, holder: str, wait: float | None, ttl: float | None) -> _Pending:
        if self._closed:
            raise unavailable("the environment server is stopping")
        if supply.free <= 0:
            if wait is None or wait <= 0:
                raise self._full(supply)
            waiting = sum(other.waiting for other in self._supplies.values())
            if waiting >= self._max_waiting:
                raise exhausted(f"{waiting} requests wait for an environment, more may not "
                                "(components.env_server.max_waiting)", self._retry_in(supply))
        elif supply.pausing and not wait:
            raise supply.not_made()
        ticket: Ticket[Environment] = Ticket(holder, bool(wait))
        task = asyncio.get_running_loop().create_task(
            self._grant(supply, ticket, lease_id, holder, self._ttl if ttl is None else ttl), name=f"ask {lease_id}")
        pending = self._pending[lease_id] = _Pending(lease_id, supply, ticket, task)
        task.add_done_callback(lambda _: self._settled(pending))
        return pending

    def _settled(self, pending: _Pending) -> None:
        if self._pending.get(pending.lease_id) is pending:
            del self._pending[pending.lease_id]

    def _withdraw(self, pending: _Pending) -> None:
        """Nobody wants it any more."""
        pending.supply.queue.remove(pending.ticket)  # at once, so that it counts no more
        self._settled(pending)
        pending.task.cancel()

    async def _grant(self, supply: Supply, ticket: Ticket[Environment], lease_id: str, holder: str,
                     ttl: float) -> Lease:
        environment = await supply.take(ticket)
        lease = self._leases[lease_id] = Lease(lease_id, holder, ttl, supply, environment)
        self._counts["leases"] += 1
        self._watch_over(lease)
        return lease

    async def _wait(self, pending: _Pending, wait: float | None) -> Lease:
        """Wait for a lease, as one of perhaps several who ask for the same."""
        supply, task = pending.supply, pending.task
        pending.callers += 1
        self._be_patient(pending, 1 if wait else 0)
        try:
            try:
                if wait:
                    await asyncio.wait({task}, timeout=wait)
            finally:
                self._be_patient(pending, -1 if wait else 0)
            # With a slot of its own it only waits until its environment is made, which takes no longer than it may.
            if wait and not task.done() and (supply.failure or not supply.covered(pending.ticket)):
                raise supply.not_made() if supply.failure else self._full(supply)
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

    def _watch_over(self, lease: Lease) -> None:
        """Take the lease back when its time is over."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            left = lease.expires_in
            if left > 0:
                self._timers[lease.id] = loop.call_later(left, look)
                return
            self._counts["leases_expired"] += 1
            log.info("lease %r of %r was not renewed by %s for %g s: taken back", lease.id, lease.type,
                     lease.holder or "its holder", lease.ttl)
            self._end(lease, f"was taken back, since nobody used or renewed it for {lease.ttl:g} s")

        self._timers[lease.id] = loop.call_later(lease.ttl, look)

    def _end(self, lease: Lease, why: str) -> None:
        self._timers.pop(lease.id).cancel()
        del self._leases[lease.id]
        self._ended[lease.id] = why
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        self._lasted += 0.1 * (lease.age - self._lasted)
        work = lease.work
        lease.end(why)
        lease.supply.give_back(lease.environment, *work)

    def _full(self, supply: Supply) -> MeshError:
        return exhausted(f"all {supply.capacity} environments {supply.name!r} are leased"
                         + (f" and {supply.waiting} requests wait" if supply.waiting else ""), self._retry_in(supply))

    def _retry_in(self, supply: Supply) -> float:
        """Seconds after which a slot may be free, as leases have lasted lately."""
        estimate = self._lasted * (supply.waiting + 1) / supply.capacity
        return round(min(LONGEST_RETRY, max(SHORTEST_RETRY, estimate)), 1)

    @staticmethod
    def _same_type(lease_id: str, has: str, asked: str) -> None:
        if has != asked:
            raise invalid("type", asked, f"{has!r}, of which the lease {lease_id!r} is; another lease needs another id")


def _checked(offer: Offer, task: Task) -> Task:
    """The task, with what its kind says against it."""
    if task.problem or offer.kind is None:
        return task
    try:
        offer.kind.check_task(task)
    except BadTask as error:
        return replace(task, problem=f"{task.source}, task {task.id}: {error}")
    except Exception as error:
        log.exception("looking at the task %r of %r", task.id, offer.name)
        return replace(task, problem=f"{task.source}, task {task.id}: {type(error).__name__}: {error}")
    return task


def _lost(lease_id: str) -> MeshError:
    shown = lease_id if len(lease_id) <= 80 else lease_id[:77] + "..."
    return MeshError(grpc.StatusCode.NOT_FOUND, "LEASE_LOST",
                     f"there is no lease {shown!r}: it was never acquired, ended long ago, or the environment server "
                     "has been started anew since, which ends all leases; acquire another one",
                     metadata={"id": shown})
