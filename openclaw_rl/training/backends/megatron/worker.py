"""One rank: `python -m openclaw_rl.training.backends.megatron.worker`, started by torchrun.

It connects to the trainer's process before it imports anything large, and ends, with all processes that it started,
as soon as that connection does. Every rank gets every command itself and answers for itself, so no rank waits in a
collective while there is nothing to do. What it prints goes to the trainer's log over a second connection.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from openclaw_rl.config import TrainerConfig
from openclaw_rl.runtime.process import end_with_parent
from openclaw_rl.training.algorithms.example import AbnormalStep, Example
from openclaw_rl.training.backends.interface import HeldOut, StartPoint, Stopped
from openclaw_rl.training.backends.megatron.frames import (
    FOLDER_VARIABLE,
    SOCKET_FILE,
    STORE_FILE,
    TOKEN_VARIABLE,
    BadFrame,
    Channel,
    Closed,
)
from openclaw_rl.training.backends.megatron.layout import Layout

logger = logging.getLogger(__name__)

#: Makes a rank's policy; see MegatronPolicy.
Factory = Callable[[Path, TrainerConfig, Layout, StartPoint], Any]

#: Short of memory, the kernel ends a rank before it ends who serves.
_OOM_SCORE = 500


class Worker:
    """A rank's side of the connection, and its policy once it has begun."""

    def __init__(self, rank: int, world: int, folder: Path, channel: Channel, factory: Factory) -> None:
        self._rank, self._world, self._folder, self._channel = rank, world, folder, channel
        self._factory = factory
        self._policy: Any = None
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stopped = -1  # the command that is to be given up

    def run(self) -> None:
        """Execute the commands of the trainer's process, until `close`."""
        threading.Thread(target=self._listen, daemon=True).start()
        while (command := self._commands.get())["do"] != "close":
            self._channel.send({"id": command["id"], **self._answer(command)})

    def _listen(self) -> None:
        try:
            while True:
                command, _ = self._channel.receive()
                if command["do"] == "stop":
                    self._stopped = command["id"]
                else:
                    self._commands.put(command)
                    if command["do"] == "close":
                        return
        except Closed:
            pass
        except (BadFrame, KeyError) as error:
            logger.error("the trainer's process sent something that is no command: %s", error)
        end_all()

    def _answer(self, command: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"done": "ok", "result": getattr(self, f"_{command['do']}")(command)}
        except Stopped:
            return {"done": "stopped"}
        except AbnormalStep as error:
            return {"done": "abnormal", "text": str(error)}
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if _is_network(error):
                return {"done": "lost", "text": text}
            if isinstance(error, OSError | ValueError):
                return {"done": "invalid", "text": text}
            traceback.print_exc()
            return {"done": "error", "text": text}

    def _begin(self, command: dict[str, Any]) -> None:
        config = TrainerConfig.model_validate(command["config"]).model_copy(update={"device": command["device"]})
        self._join(command["device"], config)
        start = StartPoint(*(Path(path) if path else None for path in command["start"]))
        self._policy = self._factory(Path(command["model"]), config, Layout(**command["layout"]), start)

    def _join(self, device: str, config: TrainerConfig) -> None:
        import torch
        from torch import distributed

        torch.set_num_threads(config.threads)
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        # A store in a file that is this user's alone: no port that a stranger could talk to.
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", rank=self._rank, world_size=self._world,
            store=distributed.FileStore(  # type: ignore[attr-defined]
                str(self._folder / STORE_FILE), self._world),
            timeout=timedelta(seconds=config.megatron.step_timeout))

    def _step(self, command: dict[str, Any]) -> dict[str, float]:
        figures: dict[str, float] = self._policy.step([Example(**example) for example in command["examples"]],
                                                      command["version"], self._asked_to_stop(command))
        return figures

    def _evaluate(self, command: dict[str, Any]) -> dict[str, Any] | None:
        evaluation = self._policy.evaluate([HeldOut(**prompt) for prompt in command["prompts"]],
                                           command["max_new_tokens"], self._asked_to_stop(command),
                                           base=command["base"])
        return asdict(evaluation) if self._rank == 0 else None

    def _tensors(self, command: dict[str, Any]) -> None:
        for name, dtype, shape, content in self._policy.tensors():
            self._channel.send({"id": command["id"], "tensor": name, "dtype": dtype, "shape": list(shape)}, content)

    def _save(self, command: dict[str, Any]) -> None:
        self._policy.save(Path(command["folder"]))

    def _asked_to_stop(self, command: dict[str, Any]) -> Callable[[], bool]:
        return lambda: self._stopped == command["id"]


def _is_network(error: Exception) -> bool:
    """Return whether an error says that another rank has ended, not that something is wrong with the command."""
    if (distributed := sys.modules.get("torch.distributed")) is None:
        return False
    text = str(error)
    return isinstance(error, distributed.DistError) or "/gloo/" in text or "Connection closed by peer" in text


def end_all() -> None:
    """End this process and those that it started at once, whatever its other threads do."""
    if os.getpgrp() == os.getpid():  # torchrun gives each rank a session of its own
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def connect(folder: Path, token: str, rank: int, use: str) -> socket.socket:
    """Connect to the trainer's process, which knows who calls."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(folder / SOCKET_FILE))
    Channel(connection).send({"token": token, "rank": rank, "use": use})
    return connection


def _log_to(connection: socket.socket) -> None:
    """Send the output of this process and its libraries to the trainer's log."""
    for stream in (1, 2):
        os.dup2(connection.fileno(), stream)
    connection.close()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True,
                        format="%(levelname)s %(name)s: %(message)s")
    for library in ("megatron", "torch"):  # they tell of every parameter, and of what they will do another day
        logging.getLogger(library).setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", module=library)


def main(factory: Factory | None = None) -> None:
    """Run a rank.

    Args:
        factory: makes the policy; default MegatronPolicy.
    """
    end_with_parent(number=signal.SIGKILL)
    try:
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    except OSError:
        pass
    rank, folder = int(os.environ["RANK"]), Path(os.environ[FOLDER_VARIABLE])
    token = os.environ[TOKEN_VARIABLE]
    channel = Channel(connect(folder, token, rank, "control"))
    _log_to(connect(folder, token, rank, "log"))
    Worker(rank, int(os.environ["WORLD_SIZE"]), folder, channel, factory or _policy).run()
    if (distributed := sys.modules.get("torch.distributed")) is not None and distributed.is_initialized():
        distributed.destroy_process_group()


def _policy(folder: Path, config: TrainerConfig, layout: Layout, start: StartPoint) -> Any:
    from openclaw_rl.training.backends.megatron.policy import MegatronPolicy

    return MegatronPolicy(folder, config, layout, start)


if __name__ == "__main__":
    main()
