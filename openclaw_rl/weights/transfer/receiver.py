"""The policy server's side of the weight stream."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import google_crc32c

from openclaw_rl.observability import version_spans as traces
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.common_pb2 import TraceContext
from openclaw_rl.v1.policy_pb2 import PolicyState, SyncWeightsRequest, SyncWeightsResponse
from openclaw_rl.v1.weights_pb2 import VersionManifest
from openclaw_rl.weights.format.safetensors import file_order
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer import offer_validation
from openclaw_rl.weights.transfer.buffers import keep_buffers
from openclaw_rl.weights.transfer.errors import SyncError
from openclaw_rl.weights.transfer.staging import StagingFile

logger = logging.getLogger(__name__)

#: Bytes that may be on their way at once.
WINDOW = 16 << 20

#: A version's number is at most so much higher than the highest that was ever active: a rollback takes back all those
#: between, one by one, and what was written down with an impossible number would count as damaged.
FARTHEST = 1 << 20

#: Refused versions that are remembered.
_REFUSED = 20

_T = TypeVar("_T")


class Pause(Protocol):
    """What an activation cost."""

    ms: float  #: milliseconds for which decoding paused
    steps: int  #: decode steps that running responses waited for


class WeightTarget(Protocol):
    """Where versions go; see openclaw_rl.serving.versions.registry.PolicyVersions."""

    @property
    def store(self) -> VersionStore: ...

    def state(self) -> PolicyState: ...

    async def stage(self, version: int) -> None: ...

    async def discard(self, version: int) -> None: ...

    async def commit(self, version: int, admit: Callable[[], None]) -> Pause: ...


class WeightReceiver:
    """Takes offers, chunks, commits and aborts, and says what to answer; knows nothing of gRPC.

    What has arrived is on disk and outlives streams and processes: an offer that comes again goes on where the file
    ends, and a version that was complete is staged at once. One stream at a time; see WeightsService. Disk work is
    done on a thread of its own, so the event loop is never held up.

    Args:
        target: the versions, started.
        window: bytes that may be on their way at once.
    """

    def __init__(self, target: WeightTarget, window: int = WINDOW) -> None:
        keep_buffers()
        self._target = target
        self._window = window
        self.refused: dict[int, str] = {}  #: versions refused for good since the last activation, and why
        self._thread = ThreadPoolExecutor(1, "weights")
        self._distrusted: set[bytes] = set()
        self._staging: StagingFile | None = None  # its file; kept open from stream to stream
        self._manifest: VersionManifest | None = None  # of the offer that is being worked on
        self._trace = TraceContext()  # that it came with
        self._offered = 0  # when it came, nanoseconds since the epoch
        self._active_then = 0  # the version that was active when it was offered
        self._staged = False
        self._rejected = -1  # version whose chunks may still be on their way
        self._credit = 0  # bytes that may still come
        self._unreported = 0  # bytes that came since the last progress

    def connected(self) -> None:
        """A new stream begins: nothing is offered."""
        self._manifest, self._staged, self._rejected = None, False, -1

    async def close(self) -> None:
        """Finish what the disk is at and close the file."""
        await asyncio.to_thread(self._thread.shutdown)
        self._close_staging()

    async def handle(self, request: SyncWeightsRequest) -> AsyncIterator[SyncWeightsResponse]:
        """The answers to a message. A version that can't be taken is answered `rejected`, nothing is raised."""
        kind = request.WhichOneof("message")
        version = 0
        try:
            match kind:
                case "offer":
                    version = request.offer.manifest.version
                    self._trace = request.trace if request.HasField("trace") else request.offer.manifest.trace
                    self._offered = time.time_ns()
                    async for response in self._offer(request.offer):
                        yield response
                case "chunk":
                    version = request.chunk.version
                    async for response in self._chunk(request.chunk):
                        yield response
                case "commit":
                    version = request.commit.version
                    if version != self._rejected:
                        yield await self._commit(version)
                case "abort":
                    await self._abort(request.abort)
                case _:
                    raise SyncError(pb.WEIGHT_REJECT_REASON_PROTOCOL, "the message is empty")
        except SyncError as rejection:
            staged = self._staged and self._manifest is not None and self._manifest.version == version
            if staged and rejection.reason != pb.WEIGHT_REJECT_REASON_STORAGE:  # else it is tried again soon
                await self._target.discard(version)
            yield self._reject(version, rejection)
        except OSError as error:
            yield self._reject(version, SyncError(pb.WEIGHT_REJECT_REASON_STORAGE,
                                                  f"the version can't be stored: {error}", retryable=True))

    async def _offer(self, offer: pb.WeightOffer) -> AsyncIterator[SyncWeightsResponse]:
        self._admit(offer.manifest)
        self._active_then = self._target.state().active_version
        if self._manifest is not None and self._manifest.version != offer.manifest.version:
            await self._target.discard(self._manifest.version)
        self._manifest, self._staged, self._rejected = None, False, -1
        staging = await self._on_thread(lambda: self._open(offer))
        self._manifest, self._credit, self._unreported = offer.manifest, self._window, 0
        need = pb.WeightNeed(version=offer.manifest.version)
        if staging is not None:
            need.tensors.extend(staging.needed)
            need.from_byte = staging.received
            need.credit_bytes = self._credit
        yield SyncWeightsResponse(need=need)
        if staging is None or staging.complete:
            yield await self._stage()

    async def _chunk(self, chunk: pb.WeightChunk) -> AsyncIterator[SyncWeightsResponse]:
        if chunk.version == self._rejected:
            return  # was on its way when the version was rejected
        staging = self._staging
        if self._manifest is None or staging is None or self._staged or chunk.version != self._manifest.version:
            raise SyncError(pb.WEIGHT_REJECT_REASON_PROTOCOL, f"a chunk of version {chunk.version}, which is not due")
        data = chunk.data  # once: each look at it is a copy
        size = len(data)
        if chunk.offset != staging.received or not size:
            raise SyncError(pb.WEIGHT_REJECT_REASON_BAD_CHUNK, f"{size} bytes at byte {chunk.offset}; due is byte "
                            f"{staging.received} of {staging.total}", retryable=True)
        if size > self._credit:
            raise SyncError(pb.WEIGHT_REJECT_REASON_PROTOCOL,
                            f"{size} bytes were sent where {self._credit} were granted")

        def append() -> None:
            if google_crc32c.value(data) != chunk.crc32c:
                raise SyncError(pb.WEIGHT_REJECT_REASON_BAD_CHUNK, f"the chunk at byte {chunk.offset} was damaged on "
                                "its way: its CRC-32C differs", retryable=True)
            staging.append(data)

        await self._on_thread(append)
        self._credit -= size
        self._unreported += size
        if self._unreported * 4 >= self._window or staging.complete:
            yield SyncWeightsResponse(progress=pb.WeightProgress(
                version=chunk.version, received_bytes=staging.received, total_bytes=staging.total,
                credit_bytes=self._unreported))
            self._credit += self._unreported
            self._unreported = 0
        if staging.complete:
            yield await self._stage()

    async def _stage(self) -> SyncWeightsResponse:
        """Make the complete file a version and load it beside the active one."""
        manifest = self._manifest
        assert manifest is not None
        if self._staging is not None:  # else it was on disk already
            await self._on_thread(self._adopt)
            await self._target.discard(manifest.version)  # another one of this number may be in the engine
        await self._engine(self._target.stage(manifest.version))
        self._staged = True
        traces.staged(self._trace, manifest.version, self._offered)
        return SyncWeightsResponse(staged=pb.WeightStaged(version=manifest.version))

    async def _commit(self, version: int) -> SyncWeightsResponse:
        manifest = self._manifest
        if manifest is None or not self._staged or version != manifest.version:
            raise SyncError(pb.WEIGHT_REJECT_REASON_PROTOCOL, f"version {version} is not staged")
        began = time.time_ns()
        pause = await self._engine(self._target.commit(version, lambda: self._admit_still(manifest)))
        self._manifest, self._staged, self.refused = None, False, {}
        return SyncWeightsResponse(activated=pb.WeightActivated(
            version=version, pause_ms=pause.ms, pause_steps=pause.steps,
            trace=traces.activated(self._trace, version, self._active_then, began, pause.ms, pause.steps)))

    async def _abort(self, abort: pb.WeightAbort) -> None:
        if self._manifest is not None and abort.version == self._manifest.version:
            logger.info("the trainer gave version %d up: %s", abort.version, abort.reason)
            self._manifest, self._staged = None, False
            await self._target.discard(abort.version)  # the file stays: the same offer goes on with it

    def _reject(self, version: int, rejection: SyncError) -> SyncWeightsResponse:
        logger.warning("version %d is not taken: %s", version, rejection)
        traces.refused(self._trace, version, str(rejection))
        if not rejection.retryable and rejection.reason != pb.WEIGHT_REJECT_REASON_ALREADY_ACTIVE:
            self.refused = dict([*self.refused.items(), (version, str(rejection))][-_REFUSED:])
        if self._manifest is None or version == self._manifest.version:
            self._manifest, self._staged, self._rejected = None, False, version
            self._close_staging()  # what the next offer finds on disk is checked again
        return SyncWeightsResponse(rejected=pb.WeightRejected(
            version=version, reason=rejection.reason, message=str(rejection), retryable=rejection.retryable))

    async def _engine(self, work: Any) -> Any:
        """Await the target; whatever the engine fails with, the old version goes on and the stream too."""
        try:
            return await work
        except (OSError, SyncError):
            raise
        except Exception as error:
            logger.exception("the engine did not take a version")
            raise SyncError(pb.WEIGHT_REJECT_REASON_STORAGE, f"the engine could not load it: {error}",
                            retryable=True) from error

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _admit(self, manifest: VersionManifest) -> None:
        """Whether the version may follow the active one."""
        state = self._target.state()
        version, active = manifest.version, state.active_version
        if not state.accepts_weights:
            raise SyncError(pb.WEIGHT_REJECT_REASON_UNSUPPORTED,
                            f"the engine of {state.model} takes no weights")
        if manifest.model_id != state.model_id:
            raise SyncError(pb.WEIGHT_REJECT_REASON_WRONG_MODEL, f"it belongs to the base model {manifest.model_id!r}; "
                            f"here is {state.model_id!r} ({state.model})")
        if version > state.highest_version + FARTHEST:
            raise SyncError(pb.WEIGHT_REJECT_REASON_PROTOCOL, f"its number is {version}, and the highest here was "
                            f"{state.highest_version}: versions are numbered one after the other")
        if version == active and manifest.digest == state.active_digest:
            raise SyncError(pb.WEIGHT_REJECT_REASON_ALREADY_ACTIVE, f"version {version} is active already")
        if version == active:
            raise SyncError(pb.WEIGHT_REJECT_REASON_DIGEST_MISMATCH, f"version {version} is active with another "
                            f"digest, {state.active_digest}; give the new one a new number")
        if state.pinned:
            raise SyncError(pb.WEIGHT_REJECT_REASON_PINNED, f"an operator pinned version {active}; the newest version "
                            "comes when the pin is lifted (`openclaw-rl unpin`)", retryable=True)
        if version < active:
            raise SyncError(pb.WEIGHT_REJECT_REASON_TOO_OLD, f"version {active} is active, which is newer")
        if version <= max(state.withdrawn_versions, default=0):
            raise SyncError(pb.WEIGHT_REJECT_REASON_TOO_OLD, f"an operator took versions up to "
                            f"{max(state.withdrawn_versions)} back; a new one needs a higher number")
        if manifest.HasField("parent") and manifest.parent in state.withdrawn_versions:
            raise SyncError(pb.WEIGHT_REJECT_REASON_WRONG_BASE, f"it was trained from version {manifest.parent}, which "
                            f"an operator took back; version {active} is active")

    def _admit_still(self, manifest: VersionManifest) -> None:
        """Whether an offered version may still become active: an operator may have gone back since it was offered."""
        self._admit(manifest)
        active = self._target.state().active_version
        if active != self._active_then:
            raise SyncError(pb.WEIGHT_REJECT_REASON_WRONG_BASE, f"an operator went from version {self._active_then} to "
                            f"{active} while it was on its way", retryable=True)

    def _open(self, offer: pb.WeightOffer) -> StagingFile | None:
        """Check the tensors and open the file for them; None when the version is on disk already."""
        manifest, store = offer.manifest, self._target.store
        state = self._target.state()
        specs = offer_validation.resolve(offer, store, state)
        if (manifest.version in store.versions() and store.manifest(manifest.version).digest == manifest.digest
                and store.verify(manifest.version)):
            return None
        staging = self._staging
        if (staging is not None and staging.manifest.digest == manifest.digest
                and staging.manifest.version == manifest.version and staging.specs == file_order(specs)):
            return staging
        self._close_staging()
        local = offer_validation.local_tensors(specs, store, state.active_version, self._distrusted)
        bases = offer_validation.base_tensors(
            [spec for spec in specs if spec.name not in local], store, state.kept_versions, self._distrusted)
        staging = StagingFile(store.root, manifest, specs, local, bases, self._distrusted)
        free = shutil.disk_usage(store.root).free
        if free < staging.missing:
            staging.close()
            raise OSError(f"{staging.missing} bytes are to be written, {free} are free on the disk")
        self._staging = staging
        return staging

    def _adopt(self) -> None:
        staging = self._staging
        assert staging is not None
        staging.clean()
        self._close_staging()
        self._target.store.adopt(staging.folder, staging.manifest, staging.dense_specs)

    def _close_staging(self) -> None:
        if self._staging is not None:
            self._staging.close()
            self._staging = None
