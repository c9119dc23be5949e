"""Files of the versions on disk: weights and checkpoints, and their agreement with the trainer's store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from openclaw_rl.training.backends.interface import StartPoint
from openclaw_rl.training.checkpoint import Checkpoints, CorruptCheckpoint
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.reasons import VersionState, VersionStatus
from openclaw_rl.training.tables.versions import Version
from openclaw_rl.training.version_quarantine import quarantine_version
from openclaw_rl.weights.store import VersionStore

logger = logging.getLogger(__name__)


class VersionFiles:
    """Weights in versions/ and checkpoints in checkpoints/ below the trainer's folder.

    Args:
        store: says which versions there are.
        root: the trainer's folder.
        base: the base model's folder.

    Attributes:
        weights: of all versions, as policy servers get them.
        checkpoints: to go on from.
        problems: what was found damaged or foreign, for an operator.
    """

    def __init__(self, store: TrainerStore, root: Path, base: Path) -> None:
        self._store, self._root = store, root
        self.weights = VersionStore(root / "versions", base)
        self.checkpoints = Checkpoints(root / "checkpoints")
        self.problems: list[str] = []

    def restore_records(self) -> None:
        """Take records that are damaged in the trainer's store from the versions' folders, where these are."""
        for version in self._store.versions.damaged:
            there = version in self.weights.versions()
            self._report(f"the record of version {version} in the trainer's state.db was damaged; " + (
                "it was restored from the version's folder" if there else "what it was made of is not known any more"))
            if there:
                self._store.versions.restore(self.weights.manifest(version))
            else:
                self._store.versions.lose(version, VersionStatus(VersionState.RECORD_DAMAGED))

    def reconcile(self, known: dict[int, Version]) -> None:
        """Delete the files of an unfinished step, and quarantine those that the trainer did not make.

        Args:
            known: versions in the store.
        """
        on_disk = {*self.weights.versions(), *self.checkpoints.versions()}
        if self._store.problems:  # A new, empty store: numbers that were in use must not come again.
            self._store.versions.raise_highest(max(on_disk, default=0))
        highest = self._store.versions.highest
        for version in on_disk - known.keys() - {0}:
            if self._store.problems or version > highest + 1:  # a step's own, unfinished version is the next one
                self._quarantine(version, "it is not in this trainer's file")
                continue
            logger.info("version %d was not finished; its files are deleted", version)
            self.remove(version)
        for version in known.keys() & set(self.weights.versions()) - {0}:
            if self.weights.manifest(version).digest != known[version].manifest.digest:
                self._quarantine(version, "its digest is not that of the version that this trainer made")

    def start_point(self, version: Version, readable: Callable[[StartPoint], bool]) -> StartPoint:
        """Return where to go on from.

        Args:
            readable: whether the configured back end can read what a checkpoint holds.

        Raises:
            CorruptCheckpoint: it is damaged, and can't be replaced by the weights as they were served.
        """
        number = version.manifest.version
        try:
            start = self.checkpoints.start_point(number, version.files)
            if not readable(start):
                raise CorruptCheckpoint("another back end wrote it")
            return start
        except CorruptCheckpoint as error:
            # All weights are in the version itself too, as they were served.
            if version.manifest.settings.get("method") == "full" and self.weights.verify(number):
                logger.warning("version %d: its weights are taken as they were served, with a fresh optimizer: %s",
                               number, error)
                return StartPoint(self.weights.folder(number) / "model.safetensors")
            raise

    def fall_back(self, head: int, why: str) -> None:
        """Make the parent of a head whose checkpoint is damaged the head."""
        version = self._store.versions.get(head)
        parent = version.manifest.parent if version else 0
        self._report(f"the checkpoint of version {head} is damaged ({why}); training goes on from version {parent}")
        self._store.versions.lose(head, VersionStatus(VersionState.CHECKPOINT_DAMAGED, why))
        self._store.versions.move_head(parent)

    def remove(self, version: int) -> None:
        """Delete the files of a version."""
        self.weights.remove(version)
        self.checkpoints.remove(version)

    def erase(self, versions: Iterable[int]) -> None:
        """Delete the files of versions that are void. From any thread.

        Raises:
            OSError: a file can't be deleted.
        """
        for version in versions:
            self.weights.erase(version)
            self.checkpoints.remove(version)

    def prune(self, head: int, keep: Collection[int]) -> None:
        """Delete the files of all versions but some, and the optimizer's state of all but the head."""
        self.weights.prune(set(keep))
        self._store.samples.prune_content(self.weights.versions())
        for version in self.checkpoints.versions():
            if version not in keep:
                self.checkpoints.remove(version)
            elif version != head:
                self.checkpoints.forget_optimizer(version)

    def usable(self) -> set[int]:
        """Return the versions that training can go on from. From any thread."""
        return {0, *self.weights.versions()}.intersection({0, *self.checkpoints.versions()})

    def _quarantine(self, version: int, why: str) -> None:
        place = quarantine_version(self._root, version)
        self.weights.remove(version)  # from what it remembers; the files have gone
        self._report(f"version {version} in {self._root} was set aside as {place}: {why}")

    def _report(self, problem: str) -> None:
        self.problems.append(problem)
        logger.error(problem)
