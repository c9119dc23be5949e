"""A checkpoint appears whole, and is on the disk by then."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.training import checkpoint
from openclaw_rl.training.backends.interface import StartPoint
from openclaw_rl.training.checkpoint import Checkpoints, CorruptCheckpoint


def test_files_and_their_names_are_on_the_disk_before_the_folder_appears(tmp_path: Path,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    rename = os.rename

    def save(folder: Path) -> None:
        (folder / "weights.safetensors").write_bytes(b"w")

    def renamed(source: Path, target: Path) -> None:
        done.append("rename")
        rename(source, target)

    def fsync(path: Path) -> None:
        done.append("temporary folder" if path.name.startswith(".tmp-") else path.name)

    monkeypatch.setattr(checkpoint, "fsync", fsync)
    monkeypatch.setattr(checkpoint.os, "rename", renamed)
    root = tmp_path / "checkpoints"
    digests = Checkpoints(root).write(1, save)
    assert done == ["weights.safetensors", "temporary folder", "rename", "checkpoints"]
    assert list(digests) == ["weights.safetensors"] and (root / "1" / "weights.safetensors").read_bytes() == b"w"


def shards(folder: Path) -> None:
    for part in ("weights", "optimizer"):
        (folder / part).mkdir()
        for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
            (folder / part / name).write_text(f"{part} {name}")


@pytest.fixture
def sharded(tmp_path: Path) -> tuple[Checkpoints, Path, dict[str, str]]:
    """A checkpoint of folders, and its digests."""
    checkpoints = Checkpoints(tmp_path)
    return checkpoints, tmp_path / "1", checkpoints.write(1, shards)


def test_folders_of_shards(sharded: tuple[Checkpoints, Path, dict[str, str]]) -> None:
    checkpoints, folder, digests = sharded
    assert sorted(digests) == [f"{part}/{name}" for part in ("optimizer", "weights")
                               for name in (".metadata", "__0_0.distcp", "__1_0.distcp")]
    assert folder.stat().st_mode & 0o777 == 0o700, "nobody else can write what is unpickled from it"
    assert checkpoints.start_point(1, digests) == StartPoint(folder / "weights", folder / "optimizer")
    checkpoints.forget_optimizer(1)
    assert not (folder / "optimizer").exists()
    assert checkpoints.start_point(1, digests) == StartPoint(folder / "weights", None)
    checkpoints.remove(1)
    assert checkpoints.versions() == [] and list(folder.parent.iterdir()) == []


@pytest.mark.parametrize(("damage", "says"), [
    (lambda folder: (folder / "weights" / ".metadata").write_text("other"), "weights/.metadata is not what was"),
    (lambda folder: (folder / "optimizer" / "__1_0.distcp").unlink(), "optimizer/__1_0.distcp is missing"),
    (lambda folder: (folder / "weights" / "common.pt").write_text("x"), "common.pt was not written by this trainer"),
    (lambda folder: (folder / "weights").rename(folder / "moved"), "weights/.metadata is missing"),
])
def test_shards_that_are_not_what_was_written_are_not_read(
        sharded: tuple[Checkpoints, Path, dict[str, str]], damage: Callable[[Path], object], says: str) -> None:
    checkpoints, folder, digests = sharded
    damage(folder)
    with pytest.raises(CorruptCheckpoint, match=says):
        checkpoints.start_point(1, digests)


def test_every_shard_and_folder_is_on_the_disk_before_the_checkpoint_appears(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(checkpoint, "fsync", lambda path: done.append(path.name))
    Checkpoints(tmp_path).write(1, shards)
    assert sorted(done[:-2]) == sorted([".metadata", "__0_0.distcp", "__1_0.distcp"] * 2 + ["weights", "optimizer"])
