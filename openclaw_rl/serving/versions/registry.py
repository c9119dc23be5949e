"""Which versions a policy server has, which one answers, and what an operator took back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from openclaw_rl.rpc.errors import failed_precondition
from openclaw_rl.rpc.messages import to_timestamp
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
from openclaw_rl.weights.transfer.staging import Part

logger = logging.getLogger(__name__)

_NO_PAUSE = Pause(ms=0.0, steps=0)


class PolicyVersions:
    """The versions of a policy server, on disk below `folder`: policy.json, its copy, and versions/.

    A version is staged (its weights beside the active ones), then committed. What is active is written down before
    the engine switches, so a server that is killed at any moment comes back with the old version or with the new one.
    All methods are for the event loop; files are read and written on threads.

    Args:
        folder: the policy server's own folder.
        base: folder of the base model, which is version 0; None of an engine that takes no weights.
        engine: started by the caller before `start` is awaited; of one that takes no weights only `info` is used.
        keep: versions kept for a way back, beside the base model and the active one.
    """

    def __init__(self, folder: Path, base: Path | None, engine: Engine, keep: int = 3) -> None:
        self.problems: list[str] = []
        self._file = VersionStateFile(folder)
        self._root = folder / "versions"
        self._base = base
        self._engine = engine
        self._keep = keep
        self._record = VersionState(activated_at=time.time())
        self._store: VersionStore | None = None
        self._staged: int | None = None  # in the engine, beside the active one
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def store(self) -> VersionStore:
        """The versions on disk, once `start` is done. Only an engine that takes weights has it."""
        if self._store is None:
            raise RuntimeError("there are no versions on disk: not started, or an engine without weights")
        return self._store

    async def start(self) -> None:
        """Find out what is there and activate the version that was active last.

        When that one is gone or damaged, the newest good one that was not taken back answers, at last the base
        model; `problems` says so.

        Raises:
            CorruptFile, OSError: the base model can't be read.
        """
        if not self._engine.info.accepts_weights:
            return
        self._record = wanted = await asyncio.to_thread(self._load)
        if not await asyncio.to_thread(self._file.whole):
            await self._write(wanted, required=False)
        rest = [v for v in reversed(wanted.kept) if v != wanted.active and v not in wanted.withdrawn]
        for version in [wanted.active, *rest, 0]:
            if await self._boot(version):
                break
        if version != wanted.active:
            self._problem(f"version {wanted.active} was active but can't be used; version {version} answers instead")
            self._record = replace(wanted, active=version, activated_at=time.time())
            await self._write(self._record, required=False)

    def state(self) -> PolicyState:
        """What there is now."""
        info, record = self._engine.info, self._record
        return PolicyState(
            active_version=record.active, active_digest=self._manifest(record.active).digest,
            kept_versions=[0, *self._kept()], highest_version=record.highest, withdrawn_versions=record.withdrawn,
            model=info.model, model_id=info.model_id, engine=info.name, context_length=info.context_length,
            vocab_size=info.vocab_size, activated_at=to_timestamp(record.activated_at),
            accepts_weights=info.accepts_weights, pinned=record.pinned_at is not None,
            workers=[_worker(worker) for worker in self._engine.status().workers])

    @property
    def pin(self) -> str:
        """See VersionState.pin."""
        return self._record.pin

    def manifests(self) -> list[VersionManifest]:
        """Manifests of the versions that can be activated, ascending."""
        return [self._manifest(version) for version in (0, *self._kept())]

    async def subscribe(self) -> AsyncIterator[PolicyState]:
        """The state now, and again after each change. One who is slow gets the newest, not each one."""
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
        """Free a staged version's memory; on disk it stays until another one is committed."""
        async with self._lock:
            if self._staged == version:
                self._engine.discard(version)
                self._staged = None

    async def commit(self, version: int, admit: Callable[[], None] = lambda: None) -> Pause:
        """Make a version the active one that was not active before. Cancelling the caller does not stop it halfway.

        Args:
            admit: raises when the version must not follow the one that is active. It is asked when no operator can
                come between it and the switch.

        Returns:
            What it cost the running responses.

        Raises:
            KeyError: it is not on disk.
            EngineError: the engine can't load it; the old version goes on.
            OSError: it can't be written down; the old version goes on.
        """
        async def work() -> Pause:
            async with self._lock:
                admit()
                await self._stage(version)
                record = self._record
                others = sorted({*record.kept, record.active} - {0, version},
                                key=lambda v: (v not in record.withdrawn, v))  # first to go: taken back, then old
                kept = tuple(sorted([*others[-self._keep:], version]))
                pause = await self._switch(
                    replace(record, active=version, highest=max(version, record.highest), kept=kept), required=True)
                await asyncio.to_thread(self.store.prune, set(kept))
                return pause

        return await self._uninterrupted(work())

    async def activate(self, version: int | None, reason: str = "", pin: bool | None = None) -> Pause:
        """Make a kept version the active one: back, or forward again.

        Going back takes back all versions after it: no new version may build on them. Going forward to a version
        puts it and those that it was made from in their rights again.

        Args:
            version: None means the active one.
            reason: why, for the log and the pin.
            pin: true: stay with it until the pin is lifted; false: lift the pin; None: leave that as it is.

        Returns:
            What it cost the running responses; nothing when it was active already.

        Raises:
            MeshError: VERSION_UNKNOWN, it is not kept or is damaged; PINNED, another one is pinned and `pin` does not
                say what to do about it. The active one goes on.
            EngineError: the engine can't load it; the active one goes on.
            OSError: the pin can't be written down.
        """
        async def work() -> Pause:
            async with self._lock:
                before = self._record
                target = before.active if version is None else version
                record = before
                if pin is not None:
                    record = replace(before, pinned_at=time.time() if pin else None, pin_reason=reason if pin else "")
                elif target != before.active and before.pinned_at is not None:
                    raise failed_precondition(
                        "PINNED", f"{self.pin}: `openclaw-rl unpin` lifts the pin, `openclaw-rl pin {target}` moves it")
                if target == before.active:
                    if record != before:
                        await self._write(record, required=True)
                        self._take(record)
                        logger.warning("version %d was %s by an operator: %s", target, "pinned" if pin else "unpinned",
                                       reason or "no reason given")
                    return _NO_PAUSE
                return await self._go_to(target, record, reason)

        return await self._uninterrupted(work())

    async def _go_to(self, version: int, record: VersionState, reason: str) -> Pause:
        known = version in (0, *self._kept())
        if not known or not await asyncio.to_thread(self.store.verify, version):
            raise failed_precondition(
                "VERSION_UNKNOWN", f"version {version} can't be activated: it is not kept here; those that "
                f"are: {', '.join(map(str, (0, *self._kept())))}")
        await self._stage(version)
        withdrawn = {*record.withdrawn, *range(version + 1, record.highest + 1)} - self._lineage(version)
        # An operator goes back because something is wrong: a full disk must not stop that.
        pause = await self._switch(replace(record, active=version, withdrawn=tuple(sorted(withdrawn))),
                                   required=record.pinned_at is not None)
        logger.warning("version %d was activated in place of %d by an operator%s: %s", version, record.active,
                       ", and pinned" if record.pinned_at is not None else "", reason or "no reason given")
        return pause

    async def withdraw(self, versions: Collection[int]) -> list[int]:
        """Take versions back for good, those too that were never active, and delete their files; the active one stays.

        Returns:
            Those that had files here, ascending.

        Raises:
            OSError: it can't be written down, nothing was changed; or a file can't be deleted, ask again.
        """
        async def work() -> list[int]:
            async with self._lock:
                record = self._record
                gone = {version for version in versions
                        if 0 < version <= record.highest + FARTHEST and version != record.active}
                if not gone:
                    return []
                if self._staged in gone:
                    self._engine.discard(self._staged)
                    self._staged = None
                after = replace(record, kept=tuple(v for v in record.kept if v not in gone),
                                withdrawn=tuple(sorted({*record.withdrawn, *gone})),
                                highest=max(record.highest, *gone))
                await self._write(after, required=True)
                self._take(after)  # whether or not the files can be deleted
                there = gone.intersection(self.store.versions())
                await asyncio.to_thread(self._delete, gone)
                return sorted(there)

        return await self._uninterrupted(work())

    def _delete(self, versions: Collection[int]) -> None:
        Part.discard(self._root, versions)  # the trainer gives it up too; else it stayed until the next one comes
        for version in versions:
            self.store.erase(version)

    async def _uninterrupted(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await to the end what must not stop halfway; a cancelled caller goes, the work goes on."""
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
        """Write down, then activate what is staged."""
        before, after = self._record, replace(after, activated_at=time.time())
        await self._write(after, required)
        try:
            pause = await self._engine.activate(after.active)
        except BaseException:
            await self._write(before, required=False)
            raise
        finally:
            self._staged = None
        self._take(after)
        return pause

    def _take(self, record: VersionState) -> None:
        """The record holds now; tell those who watch."""
        self._record = record
        self._changed.set()
        self._changed = asyncio.Event()

    async def _boot(self, version: int) -> bool:
        """Activate a version at the start; False when it can't be used."""
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
        record, problem = self._file.read()
        if record is None and there:
            problem = (f"{problem or f'{self._file.path} is missing'}; the newest version on disk is taken as the "
                       "active one, and what was taken back is not known any more")
        if problem:
            self._problem(problem)
        if record is not None:
            return replace(record, kept=tuple(version for version in record.kept if version in there))
        newest = there[-1] if there else 0
        return VersionState(newest, newest, there, (), time.time())

    async def _write(self, record: VersionState, required: bool) -> None:
        try:
            await asyncio.to_thread(self._file.write, record)
        except OSError as error:
            if required:
                raise
            self._problem(f"{self._file.path}: can't be written ({error}); after a restart another version may answer")

    def _lineage(self, version: int) -> set[int]:
        """A version and those that it was made from, as far back as they are kept."""
        lineage: set[int] = set()
        there = self.store.versions()
        while version not in lineage:
            lineage.add(version)
            if version not in there or not self.store.manifest(version).HasField("parent"):
                break
            version = self.store.manifest(version).parent
        return lineage

    def _kept(self) -> list[int]:
        """What was active once and is still whole, ascending."""
        there = self._store.versions() if self._store else []
        return [version for version in self._record.kept if version in there]

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
