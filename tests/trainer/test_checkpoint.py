"""A checkpoint appears whole, and is on the disk by then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openclaw_rl.trainer import checkpoint
from openclaw_rl.trainer.checkpoint import Checkpoints


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
