"""Commands to a group of ranks, and their common answer."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from openclaw_rl.training.algorithms.example import AbnormalStep
from openclaw_rl.training.backends.interface import BackendLost, Stopped
from openclaw_rl.training.backends.megatron.frames import BadFrame, Closed
from openclaw_rl.training.backends.megatron.processes import WORKER, Processes

#: Seconds between two looks at torchrun and at `stop`.
_POLL = 0.2
#: Seconds for a frame whose beginning has come, and for one to be taken.
_FRAME = 120.0
#: Seconds that the other ranks have to answer after one has failed, and after they were told to stop.
_FAILED, _STOPPED = 10.0, 5.0

#: A frame: its JSON, its raw bytes.
Frame = tuple[dict[str, Any], bytearray]


class Group:
    """Ranks that wait for commands. Used by one thread.

    Whatever breaks (a rank ends, says nothing for too long, or says nonsense), all ranks are ended.

    Args:
        world: ranks.
        threads: of each rank.
        seconds: for their start.
        gpu: each has one; else none sees any.
        worker: the module that is a rank; see worker.main.

    Raises:
        BackendLost: they did not come up.
    """

    def __init__(self, world: int, threads: int, seconds: float, *, gpu: bool = False,
                 worker: str = WORKER) -> None:
        self._processes = Processes(world, threads, seconds, gpu=gpu, worker=worker)
        self._world = world
        self._id = 0  # of the last command
        self._busy = False  # the ranks are in the midst of one
        self._selector = selectors.DefaultSelector()
        for rank, channel in self._processes.channels.items():
            self._selector.register(channel, selectors.EVENT_READ, rank)

    @property
    def pids(self) -> dict[int, int]:
        """Return the process id of each rank."""
        return dict(self._processes.pids)

    def call(self, do: str, arguments: dict[str, Any], seconds: float, stop: Callable[[], bool] | None = None) -> Any:
        """Run a command on all ranks; return rank 0's result.

        Args:
            do: what.
            arguments: with what.
            seconds: after which it has hung.
            stop: asked meanwhile; true gives it up.

        Raises:
            BackendLost: a rank has ended or hangs; so has the group now.
            AbnormalStep, Stopped: the ranks say so.
            ValueError: what was given can't be used.
            RuntimeError: it failed otherwise.
        """
        frames = self._command({"do": do, **arguments}, seconds, stop)
        try:
            next(frames)
        except StopIteration as end:
            return end.value
        frames.close()
        raise BackendLost(f"rank 0 of the Megatron group sent tensors when asked to {do}")

    def stream(self, do: str, arguments: dict[str, Any], seconds: float) -> Iterator[Frame]:
        """Run a command to which rank 0 answers with many frames; yield them as they come, one at a time."""
        return self._command({"do": do, **arguments}, seconds, None)

    def alive(self) -> bool:
        """Whether all ranks run."""
        return self._processes.run()

    def close(self) -> None:
        """End all ranks and what they started. May be called again."""
        self._processes.end(orderly=not self._busy)
        self._selector.close()

    def _command(self, command: dict[str, Any], seconds: float,
                 stop: Callable[[], bool] | None) -> Generator[Frame, None, Any]:
        if not self._processes.channels:
            raise BackendLost("the Megatron group has ended")
        if stop is not None and stop():
            raise Stopped
        self._busy = True
        try:
            self._id += 1
            self._send(command)
            done: dict[int, dict[str, Any]] = {}
            yield from self._frames(done, command["do"], seconds, stop)
            result = _result(done)
            self._busy = False
            return result
        except (AbnormalStep, ValueError, RuntimeError):
            self._busy = len(done) < self._world
            raise
        finally:
            if self._busy:  # what the ranks do now nobody knows
                self.close()

    def _frames(self, done: dict[int, dict[str, Any]], do: str, seconds: float,
                stop: Callable[[], bool] | None) -> Iterator[Frame]:
        """Yield frames of rank 0 until every rank is in `done` with its answer, or time is up."""
        until, stopped = time.monotonic() + seconds, False
        while len(done) < self._world:
            for rank, data, raw in self._receive():
                if "done" not in data:
                    yield data, raw
                    until = time.monotonic() + seconds  # it goes on
                    continue
                done[rank] = data
                if data["done"] != "ok":
                    until = min(until, time.monotonic() + _FAILED)
            if not stopped and stop is not None and stop():
                stopped = True
                self._send({"do": "stop"})
                until = min(until, time.monotonic() + _STOPPED)
            if time.monotonic() > until and len(done) < self._world:
                if stopped:
                    raise Stopped
                _result(done)
                silent = ", ".join(str(rank) for rank in range(self._world) if rank not in done)
                raise BackendLost(f"rank {silent} of the Megatron group did not answer {do} within {seconds:g} s "
                                  "(components.trainer.megatron.step_timeout)")

    def _send(self, command: dict[str, Any]) -> None:
        for rank, channel in self._processes.channels.items():
            try:
                channel.send(command | {"id": self._id}, seconds=_FRAME)
            except (Closed, TimeoutError) as error:
                raise self._processes.gone(rank, str(error)) from None

    def _receive(self) -> Iterator[tuple[int, dict[str, Any], bytearray]]:
        """Yield the frames that come within a moment."""
        for key, _ in self._selector.select(_POLL):
            rank: int = key.data
            try:
                data, raw = self._processes.channels[rank].receive(_FRAME)
                if data.get("id") != self._id or ("done" not in data and rank):
                    raise BadFrame(f"no answer to the command: {str(data)[:100]}")
            except Closed as error:
                raise self._processes.gone(rank, str(error)) from None
            except (BadFrame, TimeoutError) as error:
                raise BackendLost(f"rank {rank} of the Megatron group sent something that can't be read: {error}"
                                  ) from None
            yield rank, data, raw
        self._processes.check()


def _result(done: dict[int, dict[str, Any]]) -> Any:
    """Return rank 0's result, or raise the failure of a rank; that another rank was lost to it says least."""
    for rank, data in sorted(done.items(), key=lambda item: item[1]["done"] == "lost"):
        text = str(data.get("text", ""))
        match data["done"]:
            case "ok":
                continue
            case "stopped":
                raise Stopped
            case "abnormal":
                raise AbnormalStep(text)
            case "invalid":
                raise ValueError(f"rank {rank}: {text}")
            case "lost":
                raise BackendLost(f"rank {rank} of the Megatron group lost another one: {text}")
            case _:
                raise RuntimeError(f"rank {rank}: {text}")
    return done[0].get("result") if 0 in done else None
