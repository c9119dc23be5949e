"""Training steps, from pending samples to a version on disk. Runs on one thread, beside the event loop."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.config import TrainerConfig
from openclaw_rl.models.memory import free_memory, out_of_memory
from openclaw_rl.observability import version_spans as traces
from openclaw_rl.rpc.messages import now
from openclaw_rl.runtime.failpoint import failpoint
from openclaw_rl.storage.database import StorageError
from openclaw_rl.training.algorithms.example import AbnormalStep
from openclaw_rl.training.backends.data_adapter import DataAdapter, TokenAdapter
from openclaw_rl.training.backends.factory import create
from openclaw_rl.training.backends.interface import (
    Backend,
    BackendLost,
    BackendWaits,
    StartPoint,
    Stopped,
)
from openclaw_rl.training.backends.selection import reads
from openclaw_rl.training.batch_builder import Batch, BatchBuilder
from openclaw_rl.training.buffer.turns import staleness
from openclaw_rl.training.checkpoint import CorruptCheckpoint
from openclaw_rl.training.release.eval_gate import Gate, GateError
from openclaw_rl.training.release.judge_names import panels, votes_by_judge
from openclaw_rl.training.store import HeadMoved, TrainerStore
from openclaw_rl.training.tables.reasons import Drop, DropReason, drop
from openclaw_rl.training.tensorboard import Board
from openclaw_rl.training.version_files import VersionFiles
from openclaw_rl.v1 import weights_pb2
from openclaw_rl.weights.store import VersionStore

logger = logging.getLogger(__name__)


class CannotTrain(Exception):
    """Training needs a person; the text says what to do. Samples wait meanwhile."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A step that made no version."""

    turn_ids: list[str]
    why: Drop


class Learner:
    """Owns the back end and the files of the versions.

    Args:
        config: the trainer's.
        store: samples and versions.
        root: the trainer's folder.
        model: gives the base model's folder; may take long the first time.
        keep: versions kept on disk beside the head.
        create: makes a back end.
        adapter: makes examples of samples; default: of their token ids.
        prompts: held-out prompts that the gate asks at most; None: all.

    Attributes:
        files: of the versions; there from `open` on.
        gate: what versions must pass; there from `open` on.
        adapter: makes examples of samples.
        stage: what the running step is busy with, for people.
    """

    def __init__(self, config: TrainerConfig, store: TrainerStore, root: Path, model: Callable[[], Path], keep: int,
                 create: Callable[[Path, TrainerConfig, StartPoint], Backend] = create,
                 adapter: DataAdapter | None = None, prompts: int | None = None) -> None:
        self.adapter: DataAdapter = adapter or TokenAdapter(config)
        self._builder = BatchBuilder(config, store, self.adapter)
        self._board = Board(root / "tensorboard") if config.tensorboard else None
        self.files: VersionFiles
        self.gate: Gate
        self._config, self._store, self._root, self._model, self._keep = config, store, root, model, keep
        self._create, self._prompts = create, prompts
        self._backend: Backend | None = None
        self._backend_version = -1
        self.stage = ""
        self._stopping = self._void = False
        self._step = traces.Step()  # the running one, or the last one
        self._folder: Path

    def open(self) -> None:
        """Find the model and what is on disk; delete what a killed step left.

        Raises:
            CannotTrain: what is on disk belongs to another base model.
            ModelError, OSError: the model or the folder can't be used.
        """
        self._folder = self._model()
        self.files = VersionFiles(self._store, self._root, self._folder)
        base = self.versions.manifest(0)
        self.files.restore_records()
        known = {version.manifest.version: version for version in self._store.versions.all()}
        if 0 in known and known[0].manifest.model_id != base.model_id:
            raise CannotTrain(f"{self._root} belongs to another base model; set components.policy_server.model back, "
                              "or move that folder away to begin anew")
        self.gate = Gate(self._config.gate, self._root, base.model_id, self._prompts)
        self._add_base()
        with contextlib.suppress(GateError):  # told in `gate.problem`; what is there is served meanwhile
            self.gate.check_settings()
        self.files.reconcile(known)
        self.adapter.open(self._folder)

    @property
    def versions(self) -> VersionStore:
        """Weights of the versions; there from `open` on."""
        return self.files.weights

    def _add_base(self) -> None:
        """Keep the base model as version 0, with the figures that the gate has of it."""
        base, known = weights_pb2.VersionManifest(), self._store.versions.get(0)
        base.CopyFrom(self.versions.manifest(0))
        if (report := self.gate.base()) is not None:
            base.gate.CopyFrom(report)
        if known is None or known.manifest != base:
            self._store.versions.add_base(base)

    def prepare(self) -> None:
        """Load the back end at the head.

        Raises:
            CannotTrain: the checkpoint doesn't fit the configuration.
            OSError, ValueError: the model can't be loaded.
        """
        if self._backend is not None and not self._backend.alive():
            logger.warning("the back end ended while idle; starting it again")  # no sample's fault
            self.release()
        while self._backend is None or self._backend_version != self._store.versions.head:
            self.release()
            head = self._store.versions.head
            try:
                start = self._start_point(head)
            except CorruptCheckpoint as error:
                self.files.fall_back(head, str(error))
                continue
            logger.info("loading the model at version %d", head)
            try:
                self._backend = self._create(self._folder, self._config, start)
            except BackendLost as error:
                raise CannotTrain(str(error)) from None
            self._backend_version = head

    def _start_point(self, head: int) -> StartPoint:
        if head == 0:
            return StartPoint()
        version = self._store.versions.get(head)
        if version is None:
            raise CorruptCheckpoint(f"version {head} is not known")
        made = dict(version.manifest.settings)
        if (key := self.adapter.conflict(made)) is not None:
            raise CannotTrain(f"version {head} was made with {key} {made.get(key)}, the configuration says "
                              f"{self.adapter.settings()[key]}; set it back, or roll back to version 0 to begin anew")
        return self.files.start_point(version, lambda start: reads(self._config, start))

    def train(self, episodes: bool = False) -> weights_pb2.VersionManifest | Skipped | None:
        """Do one step on what is pending.

        Args:
            episodes: on groups of episodes; else on turns of users.

        Returns:
            The new version, which the gate may have refused; what was skipped; or None when nothing came of it and
            the samples wait on.

        Raises:
            CannotTrain, OSError, StorageError, ValueError: nothing was changed; it may be tried again.
        """
        with traces.step() as self._step:
            try:
                result = self._train(episodes)
            except BackendLost as error:
                # The attempt counts: a batch that kills its ranks again and again must end, too; see `attempt`.
                self.release()
                raise CannotTrain(f"{error}; its samples wait, training goes on from version "
                                  f"{self._store.versions.head}") from None
            if isinstance(result, Skipped):
                self._step.ended(str(result.why))
            return result

    def _train(self, episodes: bool) -> weights_pb2.VersionManifest | Skipped | None:
        try:
            self.gate.check_settings()
        except GateError as error:
            raise CannotTrain(f"the gate can't run: {error}") from None
        self.stage = "loading the model"
        self.prepare()
        assert self._backend is not None
        self._void = False
        parent = self._backend_version
        self.stage = "choosing samples"
        batch = self._builder.build(episodes)
        if batch is None:
            return None
        turn_ids = batch.turn_ids
        self._step.on(turn_ids, parent)
        if worn := self._store.samples.attempt(turn_ids):
            why = drop(DropReason.ABNORMAL_STEP, "the trainer ended again and again while training on it")
            self._store.samples.drop(worn, why, skipped_step=True)
            self._store.samples.undo_attempt([turn_id for turn_id in turn_ids if turn_id not in worn])
            return Skipped(worn, why)
        try:
            return self._attempt(batch, parent)
        except Stopped:
            self.release()
            self._store.samples.undo_attempt(turn_ids)
            return None
        except BackendWaits:
            self._store.samples.undo_attempt(turn_ids)
            raise

    def _attempt(self, batch: Batch, parent: int) -> weights_pb2.VersionManifest | Skipped | None:
        assert self._backend is not None
        self.stage = f"training on {len(batch.turn_ids)} samples"
        try:
            metrics = self._backend.step(batch.examples, parent, self._give_up)
        except (Stopped, BackendLost):
            raise
        except Exception as error:
            self.release()
            if out_of_memory(error):
                raise BackendLost(f"memory ran out in a step on {len(batch.turn_ids)} samples ({error})") from error
            text = str(error) if isinstance(error, AbnormalStep) else f"{type(error).__name__}: {error}"
            logger.warning("step on %d samples skipped: %s", len(batch.turn_ids), text,
                           exc_info=not isinstance(error, AbnormalStep))
            why = drop(DropReason.ABNORMAL_STEP, text)
            self._store.samples.drop(batch.turn_ids, why, skipped_step=True)
            return Skipped(batch.turn_ids, why)
        try:
            return self._save(parent, batch, metrics | batch.figures | {"staleness": staleness(batch.samples, parent)})
        except (Stopped, BackendLost):
            raise
        except BaseException:
            # The back end is ahead of what is on disk.
            self.release()
            with contextlib.suppress(StorageError):
                self._store.samples.undo_attempt(batch.turn_ids)
            raise

    def _save(self, parent: int, batch: Batch, metrics: dict[str, float]) -> weights_pb2.VersionManifest | None:
        assert self._backend is not None
        turn_ids = batch.turn_ids
        self.stage = "trying the result on held-out prompts"
        gate = self.gate.report(self._backend, self._give_up, self._reports(parent), metrics)
        self._add_base()
        version = self._store.versions.highest + 1
        self.stage = f"writing version {version}"
        manifest = self.versions.write(weights_pb2.VersionManifest(
            version=version, parent=parent, model_id=self.versions.manifest(0).model_id,
            algorithm=batch.algorithm, settings=batch.settings | panels(batch.samples),
            turn_ids=turn_ids, metrics=metrics, created_at=now(), judges=votes_by_judge(batch.samples), gate=gate,
            trace=self._step.trace),
            self._backend.tensors(), base=0)
        try:
            files = self.files.checkpoints.write(version, self._backend.save)
            failpoint("training.checkpoint")
            self._store.commit(manifest, files)
        except HeadMoved:
            logger.info("a rollback or deletion during the step made its result void; its samples wait for the next")
            self.files.remove(version)
            self.release()
            self._store.samples.undo_attempt(turn_ids)
            return None
        except BaseException:
            self.files.remove(version)
            raise
        self._backend_version = version
        self._step.made(manifest)
        if self._board is not None:
            self._board.write(version, metrics, manifest.created_at.ToNanoseconds() / 1e9)
        return manifest

    def _reports(self, version: int) -> Iterator[weights_pb2.GateReport]:
        """Yield the gate's reports of a version and of those that it was made from, as far as they are known."""
        while version and (known := self._store.versions.get(version)) is not None:
            yield known.manifest.gate
            version = known.manifest.parent

    def _give_up(self) -> bool:
        return self._stopping or self._void

    def tidy(self, needed: set[int]) -> None:
        """Delete what is neither the head nor among the newest versions nor `needed`, and give back the memory that a
        step leaves unused."""
        free_memory()
        head = self._store.versions.head
        newest = self._store.versions.newest_numbers(self._keep + 1)
        self.files.prune(head, {head, *newest, *needed})

    def usable(self) -> set[int]:
        """Return the versions that training can go on from. From any thread."""
        return self.files.usable()

    def delete(self, versions: Iterable[int]) -> None:
        """Delete the files of versions that are void, and give up a step that builds on them or on samples that were
        forgotten. From any thread.

        Raises:
            OSError: a file can't be deleted.
        """
        self._void = True
        self.files.erase(versions)

    def release(self) -> None:
        """Unload the model."""
        if self._backend is None:
            return
        self._backend.close()
        self._backend = None
        self._backend_version = -1
        free_memory()

    def damaged(self) -> list[str]:
        """Return what was found damaged or foreign on disk, once `open` is done; for an operator."""
        return [*self.files.problems, *self.versions.problems]

    def stop(self) -> None:
        """Make a running step give up. From any thread."""
        self._stopping = True
