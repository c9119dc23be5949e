"""The trainer's side of the weight stream: one policy server, told of every new version."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable
from typing import Any

import grpc

from openclaw_rl.observability import version_spans as traces
from openclaw_rl.rpc.channel import connect, with_true_status
from openclaw_rl.rpc.membership import confirm, note
from openclaw_rl.rpc.reconnect import ReconnectingStream, TryAgain, error_text, together
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.policy_pb2 import PolicyState, SyncWeightsRequest, SyncWeightsResponse
from openclaw_rl.v1.policy_pb2_grpc import PolicyServiceStub
from openclaw_rl.weights.format.safetensors import CorruptFile
from openclaw_rl.weights.identity import TRAINER_KEY, identity
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.sender import CHUNK, Phase, Transfer, base_for

logger = logging.getLogger(__name__)

#: Chunks that are worth connecting again at once after a break.
_PROGRESS_CHUNKS = 8


class WeightPublisher:
    """Keeps a stream to one policy server open and brings it to the newest version offered.

    A version whose bytes have begun to flow is finished before a newer one is offered, so versions that come faster
    than the line carries them can't starve each other; those in between are skipped, since each version is whole. A
    broken stream is opened again with growing pauses (0.1 to 5 s), and the transfer goes on from the receiver's
    offset. While an operator has pinned the policy server's version nothing is offered; the newest version is, when
    the pin is lifted. Several policy servers take several publishers: see replicas.py.

    Args:
        resolve: address of the policy server, asked before each connection; None while it is not known.
        store: where the offered versions are; they must stay there until they are activated or rejected.
        on_state: what the policy server has: at each connection, and when an operator activated another version.
        on_activated: a version answers now. Also, without figures, for one that turns out to be active already.
        on_rejected: a version will never be taken.
        chunk: bytes of a chunk.
        full_every: each version that is a multiple of it goes whole; see transfer.base_for.
        name: of the policy server, for the log.

    Callbacks are called on the event loop, one at a time; they may be coroutine functions.

    Attributes:
        connections: streams that the policy server has answered, since the start.
    """

    def __init__(self, resolve: Callable[[], str | None], store: VersionStore,
                 on_state: Callable[[PolicyState], Any], on_activated: Callable[[int, pb.WeightActivated], Any],
                 on_rejected: Callable[[int, pb.WeightRejected], Any], chunk: int = CHUNK,
                 full_every: int = 10, name: str = "the policy server") -> None:
        self.connections = 0
        self._resolve = resolve
        self._store = store
        self._on_state = on_state
        self._on_activated = on_activated
        self._on_rejected = on_rejected
        self._chunk = chunk
        self._name = name
        self._full_every = full_every
        self._wanted: int | None = None  # newest version offered and not yet answered
        self._begun: int | None = None  # version of which bytes were sent; goes first
        self._dense: int | None = None  # version that goes whole, since its differences were not taken
        self._activated: int | None = None  # newest version that was activated
        self._taken_back: set[int] = set()  # not to be sent any more
        self._transfer: Transfer | None = None
        self._state: PolicyState | None = None  # None while there is no connection
        self._active: int | None = None  # version that the policy server said is active, at its last connection
        self._opened: int | None = None  # version that was last begun, and the most bytes of it that had arrived
        self._furthest = 0
        self._superseded = 0
        self._bytes_sent = 0
        self._wake = asyncio.Event()
        self._connection = ReconnectingStream(f"weight stream to {name}", self._stream)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to connect; returns at once."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._connection.run())

    async def stop(self, grace: float = 5.0) -> None:
        """Tell the policy server that a running transfer is given up (it keeps what it has), and close the stream. A
        commit under way is waited for, at most `grace` seconds."""
        self._connection.stopping.set()
        self._wake.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=grace)
            self._task.cancel()
            await asyncio.wait({self._task})

    def offer(self, version: int) -> None:
        """Bring the policy server to this version. An older one that was not begun is superseded. From any thread.

        Raises:
            KeyError: the version is not in the store.
        """
        self._store.manifest(version)
        if self._loop is None:
            self._want(version)
        else:
            self._loop.call_soon_threadsafe(self._want, version)

    def take_back(self, versions: set[int]) -> None:
        """Send none of these versions any more, unless they are offered again; one that is under way is given up."""
        self._taken_back |= versions
        if self._wanted in versions:
            self._wanted = None
        if self._begun in versions:
            self._begun = None
        self._wake.set()

    def needed(self) -> set[int]:
        """Versions of the store that this policy server needs: what is on its way or waits for it, what that builds
        on, and the active one, on which the next will build."""
        transfer = self._transfer
        versions = {self._wanted, self._begun, self._active, *((transfer.version, transfer.base) if transfer else ())}
        return {version for version in versions if version is not None}

    def down(self) -> float:
        """Seconds for which there has been no connection; 0 while there is one."""
        return self._connection.down()

    def status(self) -> dict[str, Any]:
        """`connected`; `active_version` of the policy server (None while it is not connected) and whether it is
        `pinned`; the version `sending` (also while its line is broken), with `received_bytes` of `total_bytes`;
        `waiting`, the version to come after it; `superseded` and `bytes_sent`, counted since the start; `error`, the
        last one ("" when all is well), and its `reason`, a key of mesh.errors.CATALOGUE, where it has one."""
        transfer = self._transfer
        sending = transfer.version if transfer else self._begun
        return {"connected": self._state is not None,
                "active_version": self._active if self._state else None,
                "pinned": self._state is not None and self._state.pinned,
                "sending": sending,
                "received_bytes": transfer.received if transfer else 0,
                "total_bytes": transfer.total if transfer else 0,
                "waiting": self._wanted if self._wanted != sending else None,
                "superseded": self._superseded,
                "bytes_sent": self._bytes_sent,
                "error": self._connection.error,
                "reason": self._connection.reason if self._connection.error else ""}

    def _want(self, version: int) -> None:
        self._taken_back.discard(version)  # an operator may have gone forward to it again
        before = self._wanted
        if before is not None and before != version and before != self._begun:
            if before > version:
                return
            self._superseded += 1
            logger.info("version %d is superseded by %d before it was sent", before, version)
        self._wanted = version
        self._wake.set()

    async def _stream(self) -> None:
        """One connection, until it breaks or the publisher stops. Raises what ended it."""
        ended = "the stream ended"
        try:
            address = self._resolve()
            if address is None:
                raise TryAgain("the policy server's address is not known yet")
            async with connect(address, "policy_server") as channel:
                who = ((TRAINER_KEY, identity(self._store.root)),)
                call = with_true_status(PolicyServiceStub(channel).SyncWeights(metadata=who))
                try:
                    await confirm(call, "policy_server", address)
                    await together([self._receive(call), self._send(call)], "the policy server cancelled the stream")
                finally:
                    call.cancel()
            if not self._connection.stopping.is_set():
                raise TryAgain("the policy server closed the stream")
        except Exception as error:
            ended = error_text(error)
            note(error, "policy_server")
            raise
        finally:
            if self._transfer is not None:
                traces.synced(self._transfer.span, self._transfer.received, error=ended)
            self._state = self._transfer = None

    async def _send(self, call: grpc.aio.StreamStreamCall) -> None:
        """Write what is due until the publisher stops or the stream has ended; `_receive` tells how it ended."""
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.InternalError):  # gRPC: the call is over
            while not self._connection.stopping.is_set():
                self._wake.clear()
                message = await self._next()
                if message is None:
                    await self._wake.wait()
                else:
                    await call.write(message)
            if self._transfer is not None and self._transfer.phase < Phase.COMMITTED:
                await call.write(SyncWeightsRequest(abort=pb.WeightAbort(
                    version=self._transfer.version, reason="the trainer is stopping")))
            await call.done_writing()

    async def _next(self) -> SyncWeightsRequest | None:
        """The next message to write; None when there is something to wait for."""
        if self._state is None:
            return None
        transfer = self._transfer
        if transfer is None:
            return await self._open()
        if transfer.version in self._taken_back and transfer.phase < Phase.COMMITTED:
            self._transfer = None
            self._wake.set()
            return SyncWeightsRequest(abort=pb.WeightAbort(version=transfer.version, reason="it was taken back"))
        if transfer.phase == Phase.STAGED:
            transfer.phase = Phase.COMMITTED
            return SyncWeightsRequest(commit=pb.WeightCommit(version=transfer.version))
        due = await transfer.next_request(self._chunk)
        if due is None:
            return None
        self._begun = transfer.version
        self._bytes_sent += due[1]
        return due[0]

    async def _open(self) -> SyncWeightsRequest | None:
        """Offer the version that was begun, else the newest."""
        state = self._state
        version = self._wanted if self._begun is None else self._begun
        if version is None or state is None or state.pinned:
            return None
        try:
            if version != self._opened:
                self._opened, self._furthest = version, 0
            ancestor = self._withdrawn_ancestor(version)
            if ancestor is None:
                self._transfer = await asyncio.to_thread(self._prepare, version, state)
                span = self._transfer.span = traces.sync(self._store.manifest(version), self._resolve() or "",
                                                         self._transfer.base)
                return SyncWeightsRequest(offer=self._transfer.offer(), trace=traces.trace_of(span))
            reason = pb.WEIGHT_REJECT_REASON_WRONG_BASE
            text = f"it was trained from version {ancestor}, which an operator took back"
        except (KeyError, CorruptFile, OSError) as error:
            reason, text = pb.WEIGHT_REJECT_REASON_STORAGE, f"it can't be read from the trainer's disk: {error}"
        await self._reject(pb.WeightRejected(version=version, reason=reason, message=text))
        return None

    def _prepare(self, version: int, state: PolicyState) -> Transfer:
        base = None if version == self._dense else base_for(self._store, version, state, self._full_every)
        try:
            return Transfer(self._store, version, base)
        except (KeyError, CorruptFile, OSError):
            if base is None:
                raise
            return Transfer(self._store, version)  # the base was deleted just now, or is damaged

    def _withdrawn_ancestor(self, version: int) -> int | None:
        """The first of the versions it was made from that was taken back. The policy server sees the parent only,
        and may never have heard of a parent that was skipped."""
        assert self._state is not None
        there = self._store.versions()
        while version in there and self._store.manifest(version).HasField("parent"):
            version = self._store.manifest(version).parent
            if version in self._state.withdrawn_versions:
                return version
        return None

    async def _receive(self, call: grpc.aio.StreamStreamCall) -> None:
        """Take in answers until the policy server ends the stream."""
        async for response in call:
            await self._take(response)
            self._wake.set()
        if not self._connection.stopping.is_set():
            raise TryAgain("the policy server closed the stream")

    async def _take(self, response: SyncWeightsResponse) -> None:
        kind = response.WhichOneof("message")
        if kind == "state":
            await self._take_state(response.state)
            return
        message = getattr(response, kind) if kind else None
        transfer = self._transfer
        if transfer is None or message is None or message.version != transfer.version:
            logger.debug("an answer that was not asked for: %s", response)
            return
        match kind:
            case "need":
                try:
                    transfer.need(message)
                except ValueError as error:
                    raise TryAgain(str(error)) from None
            case "progress":
                transfer.progress(message)
                if transfer.received > self._furthest:
                    self._connection.progressed((transfer.received - self._furthest) / (_PROGRESS_CHUNKS * self._chunk))
                    self._furthest = transfer.received
            case "staged":
                transfer.phase = Phase.STAGED
            case "activated":
                await self._done(message)
            case "rejected":
                await self._take_rejection(message)

    async def _take_state(self, state: PolicyState) -> None:
        self.connections += self._state is None
        self._state, self._active = state, state.active_version
        self._connection.answered()
        lost = self._activated
        if (lost is not None and state.active_version < lost and lost not in state.withdrawn_versions
                and lost not in self._taken_back and self._wanted is None and lost in self._store.versions()):
            self._wanted = lost  # the policy server lost it
        await _call(self._on_state, state)

    async def _take_rejection(self, rejected: pb.WeightRejected) -> None:
        if rejected.reason == pb.WEIGHT_REJECT_REASON_ALREADY_ACTIVE:  # its `activated` was lost on the way
            await self._done(pb.WeightActivated(version=rejected.version))
        elif rejected.reason == pb.WEIGHT_REJECT_REASON_PINNED and self._state is not None and self._state.pinned:
            self._transfer = self._begun = None  # `state` will say that the pin is lifted
        elif rejected.retryable:
            if self._transfer is not None and self._transfer.wants_dense(rejected):
                self._dense = rejected.version
            self._begun = None  # should there be a newer one, that goes first now
            raise TryAgain(f"version {rejected.version} was not taken: {rejected.message}",
                           stuck=rejected.reason == pb.WEIGHT_REJECT_REASON_STORAGE)
        else:
            await self._reject(rejected)

    async def _done(self, activated: pb.WeightActivated) -> None:
        self._connection.progressed()
        self._activated = activated.version
        self._active = activated.version
        if self._state is not None and activated.version in self._store.versions():  # the next update builds on it
            state = PolicyState()
            state.CopyFrom(self._state)
            state.active_version = activated.version
            state.active_digest = self._store.manifest(activated.version).digest
            state.kept_versions.append(activated.version)
            self._state = state
        if self._transfer is not None:
            traces.synced(self._transfer.span, self._transfer.total, activated)
        self._forget(activated.version)
        logger.info("version %d is active at %s; decoding paused for %.1f ms", activated.version, self._name,
                    activated.pause_ms)
        await _call(self._on_activated, activated.version, activated)

    async def _reject(self, rejected: pb.WeightRejected) -> None:
        if self._transfer is not None:
            traces.synced(self._transfer.span, self._transfer.received, error=rejected.message)
        self._forget(rejected.version)
        logger.warning("version %d was not taken by %s: %s", rejected.version, self._name, rejected.message)
        await _call(self._on_rejected, rejected.version, rejected)

    def _forget(self, version: int) -> None:
        self._transfer = self._begun = self._dense = None
        if self._wanted == version:
            self._wanted = None
        self._wake.set()


async def _call(callback: Callable[..., Any], *args: Any) -> None:
    result = callback(*args)
    if inspect.isawaitable(result):
        await result
