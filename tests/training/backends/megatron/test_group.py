"""A group's commands, and every way in which a rank can let it down."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.algorithms.example import AbnormalStep, Example
from openclaw_rl.training.backends.interface import BackendLost, Stopped
from openclaw_rl.training.backends.megatron import group as groups
from openclaw_rl.training.backends.megatron.frames import BadFrame, Channel, Closed
from openclaw_rl.training.backends.megatron.group import Group
from tests.support.waiting import until

WORKER = "tests.training.backends.megatron.fake_worker"


def begun(world: int = 2, **config: Any) -> Group:
    group = Group(world, 1, 60, worker=WORKER)
    try:
        group.call("begin", {"model": "/model", "config": TrainerConfig(**config).model_dump(mode="json"),
                             "layout": {"tensor": world, "pipeline": 1, "data": 1}, "device": "cpu",
                             "start": [None, None]}, 60)
    except BaseException:
        group.close()
        raise
    return group


def examples(*turn_ids: str) -> list[dict[str, Any]]:
    return [asdict(Example(turn_id, [1], [2], [-0.1], [0], 1, "", None)) for turn_id in turn_ids]


def step(group: Group, *turn_ids: str, seconds: float = 60, stop: Callable[[], bool] | None = None) -> Any:
    return group.call("step", {"examples": examples(*turn_ids), "version": 3}, seconds, stop)


@pytest.fixture
def group(quick: Any) -> Iterator[Group]:
    group = begun()
    yield group
    group.close()


def test_all_ranks_work_and_rank_0_answers(quick: Any, caplog: pytest.LogCaptureFixture) -> None:
    # Begun here: what is written between a fixture's end and the test's beginning is captured by neither.
    with contextlib.closing(begun()) as group:
        assert step(group, "a", "b") == {"loss": 0.25, "seconds": 0.0, "version": 3.0, "samples": 2.0}
        frames = list(group.stream("tensors", {}, 60))
        assert [(data["tensor"], data["shape"], bytes(raw[:2])) for data, raw in frames] == [
            ("model.norm.weight", [32], bytes([1, 63])),
            ("model.layers.0.input_layernorm.weight", [32], bytes([1, 64]))]
        with pytest.raises(AbnormalStep, match=r"^the loss is nan$"):
            step(group, "abnormal")
        with pytest.raises(ValueError, match="template"):
            group.call("evaluate", {"prompts": [], "max_new_tokens": 1, "base": False}, 60)
        assert step(group, "c")["samples"] == 1, "what was only wrong with the samples leaves the group alive"
        wanted = {f"rank {rank} a policy of tensor 2 x pipeline 1 x data 1" for rank in (0, 1)}
        end = time.monotonic() + 30
        while not wanted <= {record.getMessage() for record in caplog.records}:
            assert time.monotonic() < end, "what ranks write is in the log"
            time.sleep(0.05)


def test_a_rank_that_dies_while_idle_is_seen(group: Group) -> None:
    assert group.alive()
    rank = psutil.Process(group.pids[1])
    rank.kill()
    psutil.wait_procs([rank], 20)
    assert not group.alive()
    group.close()
    assert not group.alive()


@pytest.mark.parametrize(("turn", "says"), [
    ("kill@0", r"rank 0 \(pid \d+\) of the Megatron group was ended by SIGKILL; when nobody sent it, .* out of memory"),
    ("kill@1", r"rank 1 \(pid \d+\) of the Megatron group was ended by SIGKILL"),
    ("garbage@0", "rank 0 of the Megatron group sent something that can't be read"),
    ("garbage@1", "rank 1 of the Megatron group sent something that can't be read"),
])
def test_a_rank_that_dies_or_talks_nonsense_ends_the_group(group: Group, quick: Any, turn: str, says: str) -> None:
    with pytest.raises(BackendLost, match=says):
        step(group, turn)
    assert not quick(), "all ranks have ended"
    with pytest.raises(BackendLost, match="has ended"):
        step(group, "a")


def test_ranks_that_hang_are_ended(group: Group, quick: Any) -> None:
    with pytest.raises(BackendLost, match=r"rank 0, 1 .* did not answer step within 0\.5 s \(components"):
        step(group, "hang@0", seconds=0.5)
    assert not quick()


def test_an_error_of_one_rank_is_told_though_the_others_wait_for_it(
        group: Group, quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_FAILED", 0.3)
    with pytest.raises(RuntimeError, match=r"^rank 1: RuntimeError: shapes differ$"):
        step(group, "raise@1")
    assert not quick(), "rank 0 would wait for ever"


def test_a_step_is_given_up(group: Group, quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> Callable[[], bool]:
        """False at first: it is asked once before anything begins."""
        answers = iter([False])
        return lambda: next(answers, True)

    with pytest.raises(Stopped):
        step(group, "a", stop=lambda: True)
    assert step(group, "a")["samples"] == 1, "what has not begun costs nothing"
    with pytest.raises(Stopped):
        step(group, "slow", stop=asked())
    assert not quick()
    monkeypatch.setattr(groups, "_STOPPED", 0.3)
    deaf = begun()
    with pytest.raises(Stopped):
        step(deaf, "deaf", stop=asked())
    assert not quick(), "one that does not listen is ended"


def test_tensors_that_nobody_takes_end_the_group(group: Group, quick: Any) -> None:
    stream = group.stream("tensors", {}, 60)
    next(stream)
    del stream
    gc.collect()
    assert not quick()


def test_a_start_that_fails(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_FAILED", 0.3)
    with pytest.raises(ValueError, match=r"^rank 1: ValueError: this start point can't be read$"):
        begun(algorithm="opd")
    monkeypatch.setenv("FAKE_WORKER", "broken")
    with pytest.raises(BackendLost, match=r"rank [01] of the Megatron group ended with 3; its last words"):
        begun()
    monkeypatch.setenv("FAKE_WORKER", "mute")
    with pytest.raises(BackendLost, match=r"2 of the 2 ranks .* within 1 s \(components.*start_timeout\)"):
        Group(2, 1, 1, worker=WORKER)


def test_ranks_end_with_a_trainer_that_is_killed(quick: Any) -> None:
    kill_a_trainer("processes._AGENT = 'tests.training.backends.megatron.fake_agent'")


@pytest.mark.slow
def test_torchrun_and_its_ranks_end_with_a_trainer_that_is_killed() -> None:
    kill_a_trainer("")


def kill_a_trainer(prepare: str) -> None:
    """Kill a process whose ranks are busy; nothing is left of them, nor of their folder."""
    code = ("from openclaw_rl.training.backends.megatron import processes\n"
            f"{prepare}\n"
            "from tests.training.backends.megatron.test_group import begun, step\n"
            "group = begun()\n"
            "print(group._processes._folder, *group.pids.values(), flush=True)\n"
            "step(group, 'deaf')\n")
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    with trainer.stdout:
        folder, *pids = trainer.stdout.readline().split()
    assert len(pids) == 2 and all(psutil.pid_exists(int(pid)) for pid in pids)
    children = psutil.Process(trainer.pid).children(recursive=True)
    assert len(children) == 3
    os.kill(trainer.pid, signal.SIGKILL)
    trainer.wait()
    _, left = psutil.wait_procs(children, 20)
    assert not left
    until(lambda: not Path(folder).exists(), 60, "the folder of the ranks is removed")


def test_what_torchrun_started_that_never_connected_is_ended_too(
        quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_WORKER", "mute")
    with pytest.raises(BackendLost):
        Group(1, 1, 0.5, worker=WORKER)


# Frames

@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    left, right = socket.socketpair()
    yield Channel(left), Channel(right), right
    left.close()
    right.close()


def test_a_frame_comes_as_it_was_sent(ends: tuple[Channel, Channel, socket.socket]) -> None:
    left, right, _ = ends
    content = bytes(range(256)) * 40_000  # more than fits into a socket: the sender waits for the receiver
    sender = threading.Thread(target=left.send, args=({"loss": 0.1 + 0.2, "text": "ünï"}, content))
    sender.start()
    assert right.receive(10) == ({"loss": 0.1 + 0.2, "text": "ünï"}, content)
    sender.join()


def test_a_receiver_that_takes_nothing_is_not_waited_for_for_ever(
        ends: tuple[Channel, Channel, socket.socket]) -> None:
    with pytest.raises(TimeoutError):
        ends[0].send({}, bytes(10_000_000), seconds=0.1)
    with pytest.raises(TimeoutError):
        ends[0].receive(0.1)


@pytest.mark.parametrize("content", [
    b"\x80\x04\x95\x0b" + bytes(12),  # the beginning of a pickle
    b"ORL1" + (2**31).to_bytes(4, "big") + bytes(8),
    b"ORL1" + (2).to_bytes(4, "big") + (2**60).to_bytes(8, "big") + b"{}",
    b"ORL1" + (3).to_bytes(4, "big") + bytes(8) + b"nul",
    b"ORL1" + (2).to_bytes(4, "big") + bytes(8) + b"[]",
])
def test_what_is_no_frame_is_refused(ends: tuple[Channel, Channel, socket.socket], content: bytes) -> None:
    ends[2].sendall(content)
    with pytest.raises(BadFrame):
        ends[0].receive(10)


def test_an_end_within_a_frame(ends: tuple[Channel, Channel, socket.socket]) -> None:
    ends[2].sendall(b"ORL1" + (20).to_bytes(4, "big"))
    ends[1].close()
    with pytest.raises(Closed, match="within a frame"):
        ends[0].receive(10)


def test_a_stranger_is_refused(quick: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever finds the socket before the ranks do, and does not know the token."""
    from openclaw_rl.training.backends.megatron.processes import Processes

    accept = Processes._accept
    strangers = []

    def first(self: Processes, listener: socket.socket, until: float, seconds: float) -> None:
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(listener.getsockname())
        Channel(stranger).send({"token": "guessed", "rank": 0, "use": "control"})
        strangers.append(stranger)
        accept(self, listener, until, seconds)

    monkeypatch.setattr(Processes, "_accept", first)
    group = begun()
    assert step(group, "a")["samples"] == 1
    assert "its token is wrong" in caplog.text and "guessed" not in caplog.text
    group.close()
    for stranger in strangers:
        stranger.close()
