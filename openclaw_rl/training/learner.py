"""Training steps: from pending samples to a version on disk. All of it runs on one thread, beside the event loop."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.config import TrainerConfig
from openclaw_rl.models.memory import free_memory
from openclaw_rl.observability import version_spans as traces
from openclaw_rl.rpc.messages import now
from openclaw_rl.storage.database import StorageError
from openclaw_rl.training.backends import interface as backends
from openclaw_rl.training.backends.data_adapter import Material, Tokens
from openclaw_rl.training.backends.interface import (
    AbnormalStep,
    Backend,
    BackendLost,
    BackendWaits,
    StartPoint,
    Stopped,
)
from openclaw_rl.training.buffer.batch_builder import Picked, Picker
from openclaw_rl.training.buffer.staleness import staleness
from openclaw_rl.training.checkpoint import Checkpoints, CorruptCheckpoint
from openclaw_rl.training.release.eval_gate import Gate, GateError
from openclaw_rl.training.release.foreign_versions import set_aside
from openclaw_rl.training.release.judge_names import panels, votes_by_judge
from openclaw_rl.training.release.version_table import DAMAGED
from openclaw_rl.training.store import HeadMoved, TrainerStore
from openclaw_rl.training.tensorboard import Board
from openclaw_rl.v1 import weights_pb2
from openclaw_rl.weights.store import VersionStore

logger = logging.getLogger(__name__)


class CannotTrain(Exception):
    """Training needs a person; the text says what to do. Samples wait meanwhile."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A step that made no version."""

    turn_ids: list[str]
    reason: str


class Learner:
    """Owns the backend, the versions and the checkpoints.

    Args:
        config: the trainer's.
        store: samples and versions.
        root: the trainer's folder.
        model: gives the base model's folder; may take long the first time.
        keep: versions kept on disk beside the head.
        create: makes a backend.
        material: what it is trained on; default token ids.
        prompts: held-out prompts that the gate asks at most; None: all.

    Attributes:
        problems: what an operator should know.
        gate: what versions must pass; there from `open` on.
        material: what it is trained on.
    """

    def __init__(self, config: TrainerConfig, store: TrainerStore, root: Path, model: Callable[[], Path], keep: int,
                 create: Callable[[Path, TrainerConfig, StartPoint], Backend] = backends.create,
                 material: Material | None = None, prompts: int | None = None) -> None:
        self.material: Material = material or Tokens(config)
        self._picker = Picker(config, store, self.material)
        self._board = Board(root / "tensorboard") if config.tensorboard else None
        self.problems: list[str] = []
        self.versions: VersionStore
        self.gate: Gate
        self._config, self._store, self._root, self._model, self._keep = config, store, root, model, keep
        self._create, self._prompts = create, prompts
        self._backend: Backend | None = None
        self._backend_version = -1
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
        self.versions = VersionStore(self._root / "versions", self._folder)
        self._checkpoints = Checkpoints(self._root / "checkpoints")
        base = self.versions.manifest(0)
        self._restore_records()
        known = {version.manifest.version: version for version in self._store.versions()}
        if 0 in known and known[0].manifest.model_id != base.model_id:
            raise CannotTrain(f"{self._root} belongs to another base model; set components.policy_server.model back, "
                              "or move that folder away to begin anew")
        self.gate = Gate(self._config.gate, self._root, base.model_id, self._prompts)
        self._add_base()
        with contextlib.suppress(GateError):  # told in `gate.problem`; what is there is served meanwhile
            self.gate.check_settings()
        on_disk = {*self.versions.versions(), *self._checkpoints.versions()}
        if self._store.problems:  # A new, empty store: numbers that were in use must not come again.
            self._store.raise_highest(max(on_disk, default=0))
        highest = self._store.highest
        for version in on_disk - known.keys() - {0}:
            if self._store.problems or version > highest + 1:  # a step's own, unfinished version is the next one
                self._set_aside(version, "it is not in this trainer's file")
                continue
            logger.info("version %d was not finished; its files are deleted", version)
            self._remove(version)
        for version in known.keys() & set(self.versions.versions()) - {0}:
            if self.versions.manifest(version).digest != known[version].manifest.digest:
                self._set_aside(version, "its digest is not that of the version that this trainer made")
        self.material.open(self._folder)

    def _restore_records(self) -> None:
        """Take records that are damaged in the trainer's file from the versions' folders, where these are."""
        for version in self._store.damaged_versions:
            there = version in self.versions.versions()
            self.problems.append(f"the record of version {version} in the trainer's state.db was damaged; " + (
                "it was restored from the version's folder" if there else "what it was made of is not known any more"))
            logger.error(self.problems[-1])
            if there:
                self._store.restore(self.versions.manifest(version))
            else:
                self._store.lose(version, DAMAGED)

    def _set_aside(self, version: int, why: str) -> None:
        place = set_aside(self._root, version)
        self.versions.remove(version)  # from what it remembers; the files have gone
        self.problems.append(f"version {version} in {self._root} was set aside as {place}: {why}")
        logger.error(self.problems[-1])

    def _add_base(self) -> None:
        """Let version 0 be known, with what the gate knows of it."""
        base, known = weights_pb2.VersionManifest(), self._store.version(0)
        base.CopyFrom(self.versions.manifest(0))
        if (report := self.gate.base()) is not None:
            base.gate.CopyFrom(report)
        if known is None or known.manifest != base:
            self._store.add_base(base)

    def prepare(self) -> None:
        """Have the backend ready, at the head.

        Raises:
            CannotTrain: the checkpoint doesn't fit the configuration.
            OSError, ValueError: the model can't be loaded.
        """
        if self._backend is not None and not self._backend.alive():
            logger.warning("the back end ended while it had nothing to do; it is started anew")  # no sample's fault
            self.release()
        while self._backend is None or self._backend_version != self._store.head:
            self.release()
            head = self._store.head
            try:
                start = self._start_point(head)
            except CorruptCheckpoint as error:
                self._fall_back(head, str(error))
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
        version = self._store.version(head)
        if version is None:
            raise CorruptCheckpoint(f"version {head} is not known")
        made = dict(version.manifest.settings)
        if (key := self.material.unlike(made)) is not None:
            raise CannotTrain(f"version {head} was made with {key} {made.get(key)}, the configuration says "
                              f"{self.material.settings()[key]}; set it back, or roll back to version 0 to begin anew")
        try:
            start = self._checkpoints.start_point(head, version.files)
            if not backends.reads(self._config, start):
                raise CorruptCheckpoint("another back end wrote it")
            return start
        except CorruptCheckpoint as error:
            # All weights are in the version itself too, as they were served.
            if made.get("method") == "full" and self.versions.verify(head):
                logger.warning("version %d: its weights are taken as they were served, with a fresh optimizer: %s",
                               head, error)
                return StartPoint(self.versions.folder(head) / "model.safetensors")
            raise

    def _fall_back(self, head: int, why: str) -> None:
        """Make the nearest ancestor that is kept the head."""
        version = self._store.version(head)
        parent = version.manifest.parent if version else 0
        problem = f"the checkpoint of version {head} is damaged ({why}); training goes on from version {parent}"
        logger.error(problem)
        self.problems.append(problem)
        self._store.lose(head, f"its checkpoint is damaged: {why}")
        self._store.move_head(parent)

    def train(self, episodes: bool = False) -> weights_pb2.VersionManifest | Skipped | None:
        """One step on what is pending.

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
                # Not forgiven: a batch that kills its ranks again and again must end, too; see TrainerStore.attempt.
                self.release()
                raise CannotTrain(f"{error}; its samples wait, training goes on from version {self._store.head}"
                                  ) from None
            if isinstance(result, Skipped):
                self._step.ended(result.reason)
            return result

    def _train(self, episodes: bool) -> weights_pb2.VersionManifest | Skipped | None:
        try:
            self.gate.check_settings()
        except GateError as error:
            raise CannotTrain(f"the gate can't run: {error}") from None
        self.prepare()
        assert self._backend is not None
        self._void = False
        parent = self._backend_version
        picked = self._picker.pick(episodes)
        if picked is None:
            return None
        turn_ids = picked.turn_ids
        self._step.on(turn_ids, parent)
        if worn := self._store.attempt(turn_ids):
            reason = "abnormal step: the trainer ended again and again while training on it"
            self._store.drop(worn, reason, skipped_step=True)
            self._store.forgive([turn_id for turn_id in turn_ids if turn_id not in worn])
            return Skipped(worn, reason)
        try:
            metrics = self._backend.step(picked.examples, parent, self._give_up)
        except Stopped:
            self.release()
            self._store.forgive(turn_ids)
            return None
        except BackendLost as error:
            if isinstance(error, BackendWaits):
                self._store.forgive(turn_ids)
            raise
        except Exception as error:
            self.release()
            text = str(error) if isinstance(error, AbnormalStep) else f"{type(error).__name__}: {error}"
            logger.warning("step on %d samples skipped: %s", len(turn_ids), text,
                           exc_info=not isinstance(error, AbnormalStep))
            self._store.drop(turn_ids, f"abnormal step: {text}", skipped_step=True)
            return Skipped(turn_ids, f"abnormal step: {text}")
        try:
            return self._save(parent, picked, metrics | picked.figures | {
                "staleness": staleness(picked.samples, parent)})
        except Stopped:
            self.release()
            self._store.forgive(turn_ids)
            return None
        except BackendLost as error:
            if isinstance(error, BackendWaits):
                self._store.forgive(turn_ids)
            raise
        except BaseException:
            # The backend is ahead of what is on disk.
            self.release()
            with contextlib.suppress(StorageError):
                self._store.forgive(turn_ids)
            raise

    def _save(self, parent: int, picked: Picked, metrics: dict[str, float]) -> weights_pb2.VersionManifest | None:
        assert self._backend is not None
        turn_ids = picked.turn_ids
        gate = self.gate.report(self._backend, self._give_up)
        self._add_base()
        version = self._store.highest + 1
        manifest = self.versions.write(weights_pb2.VersionManifest(
            version=version, parent=parent, model_id=self.versions.manifest(0).model_id,
            algorithm=picked.algorithm, settings=picked.settings | panels(picked.samples),
            turn_ids=turn_ids, metrics=metrics, created_at=now(), judges=votes_by_judge(picked.samples), gate=gate,
            trace=self._step.trace),
            self._backend.tensors(), base=0)
        try:
            files = self._checkpoints.write(version, self._backend.save)
            self._store.commit(manifest, files)
        except HeadMoved:
            logger.info(
                "rolled back, or forgotten, during a step; its result is void and its samples wait for the next")
            self._remove(version)
            self.release()
            self._store.forgive(turn_ids)
            return None
        except BaseException:
            self._remove(version)
            raise
        self._backend_version = version
        self._step.made(manifest)
        if self._board is not None:
            self._board.write(version, metrics, manifest.created_at.ToNanoseconds() / 1e9)
        return manifest

    def _give_up(self) -> bool:
        return self._stopping or self._void

    def _remove(self, version: int) -> None:
        self.versions.remove(version)
        self._checkpoints.remove(version)

    def tidy(self, needed: set[int]) -> None:
        """Delete what is neither the head nor among the newest versions nor `needed`, and give back the memory that a
        step leaves unused."""
        free_memory()
        head = self._store.head
        newest = sorted(v.manifest.version for v in self._store.versions())[-self._keep - 1:]
        keep = {head, *newest, *needed}
        self.versions.prune(keep)
        self._store.prune_content(self.versions.versions())
        for version in self._checkpoints.versions():
            if version not in keep:
                self._checkpoints.remove(version)
            elif version != head:
                self._checkpoints.forget_optimizer(version)

    def usable(self) -> set[int]:
        """Versions that training can go on from. From any thread."""
        return {0, *self.versions.versions()}.intersection({0, *self._checkpoints.versions()})

    def delete(self, versions: Iterable[int]) -> None:
        """Delete the files of versions that are void, and give up a step that builds on them or on samples that were
        forgotten. From any thread.

        Raises:
            OSError: a file can't be deleted.
        """
        self._void = True
        for version in versions:
            self.versions.erase(version)
            self._checkpoints.remove(version)

    def release(self) -> None:
        """Give the model's memory back."""
        if self._backend is None:
            return
        self._backend.close()
        self._backend = None
        self._backend_version = -1
        free_memory()

    def damaged(self) -> list[str]:
        """What was found damaged or foreign on disk, once `open` is done; for an operator."""
        return [*self.problems, *self.versions.problems]

    def stop(self) -> None:
        """Make a running step give up. From any thread."""
        self._stopping = True
