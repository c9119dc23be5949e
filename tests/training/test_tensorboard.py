"""Event files, read back by TensorBoard itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openclaw_rl.training.tensorboard import Board


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(event.step, round(event.value, 4)) for event in found.Scalars(tag)]
            for tag in found.Tags()["scalars"]}


def test_figures_are_read_back_over_restarts(tmp_path: Path) -> None:
    board = Board(tmp_path / "tensorboard")
    board.write(1, {"loss": 0.5, "kl": 0.125}, 1e9)
    board.write(2, {"loss": 0.25}, 1e9 + 1)
    again = Board(tmp_path / "tensorboard")  # the first one was killed: nothing is closed
    again.write(3, {"loss": 0.125, "reward_mean": 1.5}, 1e9 + 2)
    again.close()
    assert read(tmp_path / "tensorboard") == {
        "step/loss": [(1, 0.5), (2, 0.25), (3, 0.125)], "step/kl": [(1, 0.125)], "step/reward_mean": [(3, 1.5)]}
    assert board.problem == again.problem == ""


def test_a_full_disk_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(tmp_path / "tensorboard")
    board.write(1, {"loss": 0.5}, 1e9)
    monkeypatch.setattr(board, "_writer", open("/dev/full", "wb", buffering=0))  # noqa: SIM115
    monkeypatch.setattr(type(board), "_open", lambda self: Full())
    board.write(2, {"loss": 0.5}, 1e9)
    board.write(3, {"loss": 0.5}, 1e9)
    assert "No space left" in board.problem
    monkeypatch.undo()
    board.write(4, {"loss": 0.25}, 1e9)
    assert board.problem == ""
    assert read(tmp_path / "tensorboard")["step/loss"] == [(1, 0.5), (4, 0.25)]


class Full:
    """A file on a full disk."""

    def write_event(self, event: object) -> None:
        os.write(os.open("/dev/full", os.O_WRONLY), b"event")

    def close(self) -> None:
        raise OSError("No space left on device")


def test_a_folder_that_cannot_be_made_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    board = Board(tmp_path / "file" / "tensorboard")
    board.write(1, {"loss": 0.5}, 1e9)
    assert "tensorboard" in board.problem
