"""A leased sandbox that is kept while it is used, and given back when it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypedDict

import grpc

from openclaw_rl.client.options import check
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.rpc.messages import new_id, to_duration
from openclaw_rl.v1 import environment_pb2 as pb

if TYPE_CHECKING:
    from openclaw_rl.client.environment import AsyncEnvironmentServiceClient, EnvironmentServiceClient

#: Seconds between two renewals, at least and at most. It is a third of the lease's time.
_SHORTEST, _LONGEST = 0.2, 20.0
#: Seconds that a call may take beyond what it waits for, or what its action may take.
_MARGIN = 15.0


class LeaseOptions(TypedDict, total=False):
    """What may be said about a lease; what is left out takes the server's default."""

    lease_id: str  #: an id of your own: asked for again, it gives the same lease
    wait: float  #: longest wait for a free sandbox, in seconds; without it there is none
    ttl: float  #: seconds after which the server takes an unrenewed lease back
    holder: str  #: who asks, for people


class _Leased:
    """What both kinds share: the lease, the number of the next step, and what became of it.

    Attributes:
        acquired: the answer of Acquire: the schemas of actions and observations.
        opening: the answer of the last Reset: the goal, the first observation, the actions as tools.
        steps: those done since.
        lost: why it can't be kept any more; None while it can.
    """

    def __init__(self, type: str, options: LeaseOptions) -> None:
        check("lease()", options, LeaseOptions)
        self.id = options.get("lease_id") or new_id("lease_")
        self.type = type
        self.acquired = pb.AcquireResponse()
        self.opening = pb.ResetResponse()
        self.steps = 0
        self.lost: MeshError | None = None
        self._options = options
        self._closed = False

    def _acquire(self) -> tuple[pb.AcquireRequest, float]:
        """The request, and the seconds for its call."""
        made = pb.AcquireRequest(lease_id=self.id, type=self.type, holder=self._options.get("holder", ""))
        for name in ("wait", "ttl"):
            if (seconds := self._options.get(name)) is not None:
                getattr(made, name).CopyFrom(to_duration(float(str(seconds))))
        return made, self._options.get("wait", 0.0) + 2 * _MARGIN

    def _pause(self) -> float:
        """Seconds until the next renewal."""
        ttl = self._options.get("ttl") or self.acquired.expires_at.ToNanoseconds() / 1e9 - time.time()
        return min(max(ttl / 3, _SHORTEST), _LONGEST)

    def _usable(self) -> None:
        if self._closed:
            raise MeshError(grpc.StatusCode.FAILED_PRECONDITION, "LEASE_CLOSED", f"lease {self.id} was given back")
        if self.lost is not None:
            raise self.lost

    def _reset(self, task_id: str, seed: int | None) -> pb.ResetRequest:
        self._usable()
        return pb.ResetRequest(lease_id=self.id, task_id=task_id, seed=seed)

    def _opened(self, opening: pb.ResetResponse) -> pb.ResetResponse:
        self.opening, self.steps = opening, 0
        return opening

    def _step(self, name: str, arguments: Mapping[str, Any] | str, timeout: float | None) -> pb.StepRequest:
        self._usable()
        action = (f'{{"name": {json.dumps(name)}, "arguments": {arguments or "{}"}}}' if isinstance(arguments, str)
                  else json.dumps({"name": name, "arguments": dict(arguments)}))
        return pb.StepRequest(lease_id=self.id, step=self.steps + 1, action_json=action,
                              timeout=None if timeout is None else to_duration(timeout))

    def _given_up(self, error: MeshError) -> bool:
        """Whether a failed renewal is the end of the lease."""
        if error.reason in ("LEASE_LOST", "LEASE_ENDED") or not error.retryable:
            self.lost = error
        return self.lost is not None


class Lease(_Leased):
    """A lease; leaving its `with` gives it back. Made by `EnvironmentServiceClient.lease`."""

    def __init__(self, client: EnvironmentServiceClient, type: str, options: LeaseOptions) -> None:
        super().__init__(type, options)
        self._client = client
        request, seconds = self._acquire()
        self.acquired = client.acquire(request, timeout=seconds)
        self._stop = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name=f"renew {self.id}", daemon=True)
        self._renewer.start()

    def _renew(self) -> None:
        while not self._stop.wait(self._pause()):
            try:
                self._client.renew(lease_id=self.id)
            except MeshError as error:
                if self._given_up(error):
                    return

    def reset(self, task_id: str = "", seed: int | None = None, *, timeout: float = 120) -> pb.ResetResponse:
        """Begin a task: its goal and first observation."""
        return self._opened(self._client.reset(self._reset(task_id, seed), timeout=timeout))

    def step(self, name: str, arguments: Mapping[str, Any] | str = "", *, timeout: float | None = None
             ) -> pb.StepResponse:
        """Do one action. What failed with a retryable error may be called again: it is done once.

        Args:
            name: of the action, one of `opening.tools`.
            arguments: its arguments; a text is their JSON, as in a ToolCall.
            timeout: seconds that the action may take.
        """
        done = self._client.step(self._step(name, arguments, timeout), timeout=_for_call(timeout))
        self.steps += 1
        return done

    def evaluate(self, *, timeout: float = 120) -> pb.EvaluateResponse:
        """Run the task's check."""
        self._usable()
        return self._client.evaluate(lease_id=self.id, timeout=timeout)

    def close(self) -> None:
        """Give it back; any number of times."""
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        self._renewer.join()
        self._client.release(lease_id=self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with contextlib.suppress(*((MeshError,) if error is not None else ())):  # the first error is the one to tell
            self.close()


class AsyncLease(_Leased):
    """As `Lease`. Made by `AsyncEnvironmentServiceClient.lease`; acquired as its `async with` is entered."""

    def __init__(self, client: AsyncEnvironmentServiceClient, type: str, options: LeaseOptions) -> None:
        super().__init__(type, options)
        self._client = client
        self._renewer: asyncio.Task[None] | None = None

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._pause())
            try:
                await self._client.renew(lease_id=self.id)
            except MeshError as error:
                if self._given_up(error):
                    return

    async def reset(self, task_id: str = "", seed: int | None = None, *,
                    timeout: float = 120) -> pb.ResetResponse:  # noqa: ASYNC109
        """As `Lease.reset`."""
        return self._opened(await self._client.reset(self._reset(task_id, seed), timeout=timeout))

    async def step(self, name: str, arguments: Mapping[str, Any] | str = "", *,
                   timeout: float | None = None) -> pb.StepResponse:  # noqa: ASYNC109
        """As `Lease.step`."""
        done = await self._client.step(self._step(name, arguments, timeout), timeout=_for_call(timeout))
        self.steps += 1
        return done

    async def evaluate(self, *, timeout: float = 120) -> pb.EvaluateResponse:  # noqa: ASYNC109
        """As `Lease.evaluate`."""
        self._usable()
        return await self._client.evaluate(lease_id=self.id, timeout=timeout)

    async def aclose(self) -> None:
        """Give it back; any number of times."""
        if self._closed:
            return
        self._closed = True
        if self._renewer is not None:
            self._renewer.cancel()
            await asyncio.gather(self._renewer, return_exceptions=True)
        await self._client.release(lease_id=self.id)

    async def __aenter__(self) -> Self:
        request, seconds = self._acquire()
        try:
            self.acquired = await self._client.acquire(request, timeout=seconds)
        except asyncio.CancelledError:  # it may be ours already
            with contextlib.suppress(MeshError):
                await self._client.release(lease_id=self.id)
            raise
        self._renewer = asyncio.create_task(self._renew(), name=f"renew {self.id}")
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        with contextlib.suppress(*((MeshError,) if error is not None else ())):
            await self.aclose()


def _for_call(timeout: float | None) -> float:
    """Seconds for the call of an action that may take so long; the server's own limit of an action is below that."""
    return (600.0 if timeout is None else timeout) + _MARGIN
