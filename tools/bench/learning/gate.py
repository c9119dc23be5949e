"""What the gate refuses: good versions, which it should not, and cheats, which it should.

    python -m tools.bench.learning.gate [--seeds 5] [--versions 6] [--set KEY=VALUE]

Good versions are trained on the recorded samples, in another order for each seed, those of later rounds shuffled again.
A cheat is the base model fine-tuned until it answers everything in one way that says nothing, or something false.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import yaml
from transformers.utils.logging import disable_progress_bar

from openclaw_rl.config import EMBEDDED_MODEL, GateConfig, TrainerConfig
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.training.algorithms import losses
from openclaw_rl.training.backends.interface import StartPoint
from openclaw_rl.training.backends.torch import TorchBackend
from openclaw_rl.training.release.eval_gate import Gate
from openclaw_rl.v1 import turn_pb2, weights_pb2
from tools.bench.learning import items
from tools.bench.learning.cheats import CHEATS
from tools.bench.learning.items import Item
from tools.bench.learning.recorded import BATCH, read, replay

_EXAMPLES, _STEPS, _TEXTS, _RATE = 24, 15, 4, 1e-3
WAYS: dict[str, Callable[[Item], str]] = {
    "nothing": lambda item: "", "one phrase": lambda item: "Okay. " * 8, **CHEATS}


def shuffled(seed: int, versions: int) -> Iterator[turn_pb2.Sample]:
    """Yield the recorded samples, as many as the versions take, again and again in other orders; turns that come again
    are new ones."""
    recorded, dice = read(), random.Random(seed)
    for number in range(versions * BATCH):
        if number % len(recorded) == 0 and (seed or number):
            dice.shuffle(recorded)
        sample = turn_pb2.Sample()
        sample.CopyFrom(recorded[number % len(recorded)])
        turn = sample.transition.turn
        for part in (turn, sample.judgement):
            part.turn_id += f"-{number}"
        turn.session_id += f"-{number}"
        yield sample


def cheat(base: Path, say: Callable[[Item], str]) -> TorchBackend:
    """Return the base model, fine-tuned to give such answers."""
    template, dice = ChatTemplate(base), random.Random(0)
    backend = TorchBackend(base, TrainerConfig(), StartPoint())
    model, optimizer = backend._model, backend._optimizer  # the back end's own: what is tried is what it would serve
    end = template.encode("<|im_end|>")
    texts = [(template.chat([turn_pb2.ChatMessage(role="user", content=item.prompt)]).ids,
              template.encode(say(item)) + end) for item in items.held_out(_EXAMPLES)]
    for group in optimizer.param_groups:
        group["lr"] = _RATE
    model.train()  # type: ignore[no-untyped-call]
    for _ in range(_STEPS):
        for prompt, answer in dice.sample(texts, _TEXTS):
            logits = model(input_ids=torch.tensor([prompt + answer]), use_cache=False).logits[0]
            values = losses.token_logprobs(logits[len(prompt) - 1:-1], torch.tensor(answer))
            (-values.mean() / _TEXTS).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return backend


HEADER = ("| version | perplexity | margin | tokens | degenerate | alike | refusing | relevant | hint distance | "
          "step KL | |\n" + "|---" * 11 + "|")


def figures(name: str, report: weights_pb2.GateReport, hints: str = "", moved: str = "") -> str:
    """Return a line of the table."""
    values = " | ".join(f"{report.metrics[key]:.3g}" for key in (
        "perplexity", "margin", "mean_tokens", "degenerate", "alike", "refusing", "relevant"))
    return f"| {name} | {values} | {hints} | {moved} | {'; '.join(report.failures) or 'passed'} |"


def row(name: str, made: weights_pb2.VersionManifest) -> str:
    """Return the line of a version."""
    hints = ", ".join(f"{made.metrics[key]:.4f}" for key in ("hint_distance_before", "hint_distance_after")
                      if key in made.metrics)
    return figures(name, made.gate, hints, f"{made.metrics['step_kl']:.4f}")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="0: the order in which the samples were recorded")
    parser.add_argument("--versions", type=int, default=6)
    parser.add_argument("--no-cheats", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the gate")
    args = parser.parse_args()
    settings = {key: yaml.safe_load(value) for key, _, value in (item.partition("=") for item in args.set)}
    disable_progress_bar()
    base = ensure_model(EMBEDDED_MODEL, Home.default())
    print(HEADER)
    with tempfile.TemporaryDirectory(prefix="openclaw-gate-") as folder:
        gate = Gate(GateConfig(**settings), Path(folder), "base")
        backend = TorchBackend(base, TrainerConfig(), StartPoint())
        gate.report(backend)
        began = time.process_time()
        report = gate.report(backend)
        print(figures(f"base model ({time.process_time() - began:.1f} CPU s)", report), flush=True)
        del backend
        for name, say in ({} if args.no_cheats else WAYS).items():
            print(figures(f"cheat: {name}", gate.report(cheat(base, say))), flush=True)
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        with tempfile.TemporaryDirectory(prefix="openclaw-gate-") as folder:
            for made, _ in replay(list(shuffled(seed, args.versions)), base, Path(folder), gate=settings):
                print(row(f"seed {seed}, version {made.version}", made), flush=True)


if __name__ == "__main__":
    main()
