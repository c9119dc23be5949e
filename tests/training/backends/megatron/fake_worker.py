"""A rank whose policy counts instead of training; what it does next is said in the turn ids of a step's examples."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.algorithms.example import AbnormalStep, Example
from openclaw_rl.training.backends.interface import (
    OPTIMIZER_FOLDER,
    WEIGHTS_FOLDER,
    Answer,
    Evaluation,
    HeldOut,
    StartPoint,
    Stopped,
)
from openclaw_rl.training.backends.megatron import worker
from openclaw_rl.training.backends.megatron.layout import Layout


class FakePolicy:
    def __init__(self, folder: Path, config: TrainerConfig, layout: Layout, start: StartPoint) -> None:
        self.rank = int(os.environ["RANK"])
        self.layout = layout
        if config.algorithm == "opd" and self.rank == 1:
            raise ValueError("this start point can't be read")
        self.steps = int((start.weights / "steps").read_text()) if start.weights else 0
        print(f"a policy of {layout}", flush=True)

    def step(self, examples: Sequence[Example], version: int, stop: Callable[[], bool]) -> dict[str, float]:
        for example in examples:
            do, _, ranks = example.turn_id.partition("@")  # "kill@1": rank 1 does it, the others wait for it
            if do == "once":  # the first time only
                first, do = Path(os.environ["FAKE_WORKER_ONCE"]), "kill"
                if first.exists():
                    continue
                if str(self.rank) in ranks:
                    first.touch()
            if do in ("kill", "hang", "garbage", "raise"):
                if str(self.rank) not in ranks.split(","):
                    time.sleep(3600)
                self.misbehave(do)
            if do == "abnormal":
                raise AbnormalStep("the loss is nan")
            if do == "slow":
                while not stop():
                    time.sleep(0.01)
                raise Stopped
            if do == "deaf":
                time.sleep(3600)
        self.steps += 1
        return {"loss": 0.25, "seconds": 0.0, "version": float(version), "samples": float(len(examples))}

    def misbehave(self, do: str) -> None:
        if do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "raise":
            raise RuntimeError("shapes differ")
        if do == "garbage":
            channel: Any = running._channel
            channel._socket.sendall(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n")
        time.sleep(3600)

    def evaluate(self, prompts: Sequence[HeldOut], max_new_tokens: int, stop: Callable[[], bool], *,
                 base: bool = False) -> Evaluation | None:
        if max_new_tokens == 1:
            raise ValueError("the template can't write it")
        return Evaluation([Answer(prompt.prompt.upper(), [self.steps]) for prompt in prompts],
                          10.0 if base else 12.0) if self.rank == 0 else None

    def tensors(self) -> Iterator[tuple[str, str, list[int], bytes]]:
        if self.rank == 0:
            yield "model.norm.weight", "BF16", [32], bytes([self.steps, 63]) * 32
            yield "model.layers.0.input_layernorm.weight", "BF16", [32], bytes([self.steps, 64]) * 32

    def save(self, folder: Path) -> None:
        if self.rank == 0:
            for name in (WEIGHTS_FOLDER, OPTIMIZER_FOLDER):
                (folder / name).mkdir()
                (folder / name / "steps").write_text(str(self.steps))


class Worker(worker.Worker):
    def __init__(self, *args: Any) -> None:
        global running
        super().__init__(*args)
        running = self

    def _join(self, device: str, config: TrainerConfig) -> None:
        pass  # no PyTorch: it takes seconds


running: Worker

if __name__ == "__main__":
    if os.environ.get("FAKE_WORKER") == "mute":
        time.sleep(3600)
    if os.environ.get("FAKE_WORKER") == "broken":
        sys.exit(3)
    worker.Worker = Worker  # type: ignore[misc]
    worker.main(FakePolicy)
