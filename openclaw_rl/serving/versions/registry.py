"""The versions of a policy server: staging, activation, rollback, pins and withdrawal."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from openclaw_rl.rpc.errors import failed_precondition
from openclaw_rl.rpc.messages import to_timestamp
from openclaw_rl.runtime.failpoint import failpoint
from openclaw_rl.serving.engines.interface import Engine, EngineError, Pause, WorkerInfo
from openclaw_rl.serving.versions.version_state import VersionState, VersionStateFile
from openclaw_rl.v1.policy_pb2 import (
    ENGINE_WORKER_STATE_OUT,
    ENGINE_WORKER_STATE_SERVING,
    ENGINE_WORKER_STATE_STARTING,
    EngineWorker,
    PolicyState,
)
from openclaw_rl.v1.weights_pb2 import VersionManifest
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.receiver import FARTHEST
from openclaw_rl.weights.transfer.staging import StagingFile

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NO_PAUSE = Pause(ms=0.0, steps=0)


class PolicyVersions:
    """The versions of a policy server, on disk below `folder`: policy.json, its copy, and versions/.

    A version is staged (its weights beside the active ones), then committed. The active version is written to disk
    before the engine switches, so a server killed at any moment restarts with the old version or the new one.
    Methods are called on the event loop; files are read and written on threads.

    Args:
        folder: the policy server's own folder.
        base: folder of the base model, version 0; None for an engine without weights.
        engine: started by the caller before `start`; without weights, only its `info` and `status` are used.
        keep: versions kept for rollback, besides the base model and the active one.
    """

    def __init__(self, folder: Path, base: Path | None, engine: Engine, keep: int = 3) -> None:
        self.problems: list[str] = []
        self._file = VersionStateFile(folder)
        self._root = folder / "versions"
        self._base = base
        self._engine = engine
        self._keep = keep
        self._state = VersionState(activated_at=time.time())
        self._store: VersionStore | None = None
        self._staged: int | None = None  # in the engine, beside the active one
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def store(self) -> VersionStore:
        """The versions on disk, after `start`; only for an engine with weights."""
        if self._store is None:
            raise RuntimeError("there are no versions on disk: not started, or an engine without weights")
        return self._store

    async def start(self) -> None:
        """Load the versions on disk and activate the one that was active last.

        When that one is missing or damaged, the newest intact version that was not withdrawn is activated, or the base
        model; `problems` says so.

        Raises:
            CorruptFile, OSError: the base model can't be read.
        """
        if not self._engine.info.accepts_weights:
            return
        self._state = wanted = await asyncio.to_thread(self._load)
        if not await asyncio.to_thread(self._file.whole):
            await self._write(wanted, required=False)
        rest = [v for v in reversed(wanted.kept) if v != wanted.active and v not in wanted.withdrawn]
        for version in [wanted.active, *rest, 0]:
            if await self._boot(version):
                break
        if version != wanted.active:
            self._problem(f"version {wanted.active} was active but can't be used; version {version} is active instead")
            self._state = replace(wanted, active=version, activated_at=time.time())
            await self._write(self._state, required=False)

    def state(self) -> PolicyState:
        """The current state."""
        info, state = self._engine.info, self._state
        return PolicyState(
            active_version=state.active, active_digest=self._manifest(state.active).digest,
            kept_versions=[0, *self._kept()], highest_version=state.highest, withdrawn_versions=state.withdrawn,
            model=info.model, model_id=info.model_id, engine=info.name, context_length=info.context_length,
            vocab_size=info.vocab_size, activated_at=to_timestamp(state.activated_at),
            accepts_weights=info.accepts_weights, pinned=state.pinned_at is not None,
            workers=[_worker(worker) for worker in self._engine.status().workers])

    @property
    def pin(self) -> str:
        """See VersionState.pin."""
        return self._state.pin

    def manifests(self) -> list[VersionManifest]:
        """Manifests of the versions that can be activated, ascending."""
        return [self._manifest(version) for version in (0, *self._kept())]

    async def subscribe(self) -> AsyncIterator[PolicyState]:
        """Yield the state now and after changes. A slow subscriber skips intermediate states."""
        while True:
            changed = self._changed
            yield self.state()
            await changed.wait()

    async def stage(self, version: int) -> None:
        """Load a version from disk beside the active one.

        Raises:
            KeyError: it is not on disk.
            EngineError: the engine can't load it.
        """
        async def work() -> None:
            async with self._lock:
                await self._stage(version)

        await self._uninterrupted(work())

    async def discard(self, version: int) -> None:
        """Free a staged version's memory; it stays on disk until another one is committed."""
        async with self._lock:
            if self._staged == version:
                self._engine.discard(version)
                self._staged = None

    async def commit(self, version: int, admit: Callable[[], None] = lambda: None) -> Pause:
        """Activate a new version. Cancelling the caller does not interrupt it.

        Args:
            admit: raises when the version must not follow the active one; called when no operator can intervene
                before the switch.

        Returns:
            Its cost to running responses.

        Raises:
            KeyError: it is not on disk.
            EngineError: the engine can't load it; the old version stays active.
            OSError: the state can't be written; the old version stays active.
        """
        async def work() -> Pause:
            async with self._lock:
                admit()
                await self._stage(version)
                state = self._state
                others = sorted({*state.kept, state.active} - {0, version},
                                key=lambda v: (v not in state.withdrawn, v))  # pruned first: withdrawn, then old
                kept = tuple(sorted([*others[-self._keep:], version]))
                pause = await self._switch(
                    replace(state, active=version, highest=max(version, state.highest), kept=kept), required=True)
                await asyncio.to_thread(self.store.prune, set(kept))
                return pause

        return await self._uninterrupted(work())

    async def activate(self, version: int | None, reason: str = "", pin: bool | None = None) -> Pause:
        """Activate a kept version: roll back, or forward again.

        A rollback withdraws all later versions: no new version may build on them. Going forward to a version reinstates
        it and its ancestors.

        Args:
            version: None: the active one.
            reason: why, for the log and the pin.
            pin: true: keep it active until unpinned; false: unpin; None: leave the pin as it is.

        Returns:
            Its cost to running responses; zero when it was active already.

        Raises:
            MeshError: VERSION_UNKNOWN, it is not kept or is damaged; PINNED, another one is pinned and `pin` is None.
                The active version stays.
            EngineError: the engine can't load it; the active version stays.
            OSError: the pin can't be written.
        """
        async def work() -> Pause:
            async with self._lock:
                before = self._state
                target = before.active if version is None else version
                state = before
                if pin is not None:
                    state = replace(before, pinned_at=time.time() if pin else None, pin_reason=reason if pin else "")
                elif target != before.active and before.pinned_at is not None:
                    raise failed_precondition(
                        "PINNED", f"{self.pin}: `openclaw-rl unpin` lifts the pin, `openclaw-rl pin {target}` moves it")
                if target == before.active:
                    if state != before:
                        await self._write(state, required=True)
                        self._adopt(state)
                        logger.warning("version %d was %s by an operator: %s", target, "pinned" if pin else "unpinned",
                                       reason or "no reason given")
                    return _NO_PAUSE
                return await self._go_to(target, state, reason)

        return await self._uninterrupted(work())

    async def _go_to(self, version: int, state: VersionState, reason: str) -> Pause:
        known = version in (0, *self._kept())
        if not known or not await asyncio.to_thread(self.store.verify, version):
            raise failed_precondition(
                "VERSION_UNKNOWN", f"version {version} can't be activated: it is not kept here; those that "
                f"are: {', '.join(map(str, (0, *self._kept())))}")
        await self._stage(version)
        failpoint("serving.rollback")
        withdrawn = {*state.withdrawn, *range(version + 1, state.highest + 1)} - self._lineage(version)
        # An operator rolls back because something is wrong: a full disk must not prevent that.
        pause = await self._switch(replace(state, active=version, withdrawn=tuple(sorted(withdrawn))),
                                   required=state.pinned_at is not None)
        logger.warning("version %d was activated in place of %d by an operator%s: %s", version, state.active,
                       ", and pinned" if state.pinned_at is not None else "", reason or "no reason given")
        return pause

    async def withdraw(self, versions: Collection[int]) -> list[int]:
        """Withdraw versions for good, also those never active, and delete their files; the active one stays.

        Returns:
            Those that had files, ascending.

        Raises:
            OSError: the state can't be written and nothing has changed; or a file can't be deleted, retry.
        """
        async def work() -> list[int]:
            async with self._lock:
                state = self._state
                gone = {version for version in versions
                        if 0 < version <= state.highest + FARTHEST and version != state.active}
                if not gone:
                    return []
                if self._staged in gone:
                    self._engine.discard(self._staged)
                    self._staged = None
                after = replace(state, kept=tuple(v for v in state.kept if v not in gone),
                                withdrawn=tuple(sorted({*state.withdrawn, *gone})),
                                highest=max(state.highest, *gone))
                await self._write(after, required=True)
                self._adopt(after)  # even if files can't be deleted
                there = gone.intersection(self.store.versions())
                await asyncio.to_thread(self._delete, gone)
                return sorted(there)

        return await self._uninterrupted(work())

    def _delete(self, versions: Collection[int]) -> None:
        StagingFile.discard(self._root, versions)  # the trainer gives it up too
        for version in versions:
            self.store.erase(version)

    async def _uninterrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that must not be interrupted: it continues when the caller is cancelled."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _stage(self, version: int) -> None:
        if self._staged == version:
            return
        if self._staged is not None:
            self._engine.discard(self._staged)
            self._staged = None
        await self._engine.stage(version, self.store.folder(version))
        self._staged = version

    async def _switch(self, after: VersionState, required: bool) -> Pause:
        """Write the new state, then activate the staged version."""
        before, after = self._state, replace(after, activated_at=time.time())
        await self._write(after, required)
        failpoint("serving.activation")
        try:
            pause = await self._engine.activate(after.active)
        except BaseException:
            await self._write(before, required=False)
            raise
        finally:
            self._staged = None
        failpoint("serving.activated")
        self._adopt(after)
        return pause

    def _adopt(self, state: VersionState) -> None:
        """Make a state the current one and notify subscribers."""
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()

    async def _boot(self, version: int) -> bool:
        """Activate a version at the start; returns whether it can be used."""
        if version == self._engine.active_version:
            return True
        if not await asyncio.to_thread(self.store.verify, version):
            return False
        try:
            await self._engine.stage(version, self.store.folder(version))
            await self._engine.activate(version)
        except EngineError as error:
            self._problem(f"version {version}: the engine can't load it: {error}")
            return False
        return True

    def _load(self) -> VersionState:
        self._store = VersionStore(self._root, self._base, self._engine.info.model_id)
        self._store.manifest(0)  # reads the base model, unless its digests are known
        self.problems = self._store.problems  # one list: what the store finds later is seen too
        there = tuple(version for version in self._store.versions() if version > 0)
        state, problem = self._file.read()
        if state is None and there:
            problem = (f"{problem or f'{self._file.path} is missing'}; the newest version on disk counts as the "
                       "active one, and which versions were withdrawn is unknown")
        if problem:
            self._problem(problem)
        if state is not None:
            return replace(state, kept=tuple(version for version in state.kept if version in there))
        newest = there[-1] if there else 0
        return VersionState(newest, newest, there, (), time.time())

    async def _write(self, state: VersionState, required: bool) -> None:
        try:
            await asyncio.to_thread(self._file.write, state)
        except OSError as error:
            if required:
                raise
            self._problem(f"{self._file.path}: can't be written ({error}); "
                          "after a restart another version may be active")

    def _lineage(self, version: int) -> set[int]:
        """A version and its ancestors, as far as they are kept."""
        lineage: set[int] = set()
        there = self.store.versions()
        while version not in lineage:
            lineage.add(version)
            if version not in there or not self.store.manifest(version).HasField("parent"):
                break
            version = self.store.manifest(version).parent
        return lineage

    def _kept(self) -> list[int]:
        """Versions that were active once and are intact, ascending."""
        there = self._store.versions() if self._store else []
        return [version for version in self._state.kept if version in there]

    def _manifest(self, version: int) -> VersionManifest:
        if self._store is None:
            return VersionManifest(version=0, model_id=self._engine.info.model_id, algorithm="base")
        return self._store.manifest(version)

    def _problem(self, text: str) -> None:
        logger.error("%s", text)
        self.problems.append(text)


_WORKER_STATES = {"starting": ENGINE_WORKER_STATE_STARTING, "serving": ENGINE_WORKER_STATE_SERVING,
                  "out": ENGINE_WORKER_STATE_OUT}


def _worker(worker: WorkerInfo) -> EngineWorker:
    return EngineWorker(index=worker.index, state=_WORKER_STATES[worker.state], version=worker.version,
                        running=worker.running, address=worker.address, detail=worker.detail)
