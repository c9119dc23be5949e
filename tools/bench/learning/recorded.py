"""Training on recorded samples: deterministic, without an engine, for comparing update rules.

    python -m tools.bench.learning.recorded [--samples FILE] [--versions 3] [--set KEY=VALUE]

Samples of `--record` are given to the real trainer, four at a time, and each version is measured by log-probability.
The default file holds what the base model answered to the user `plain`, in at most 96 tokens, and what he said: four
complaints, four times praise, four complaints.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format
from transformers.utils.logging import disable_progress_bar

from openclaw_rl.config import EMBEDDED_MODEL, TrainerConfig
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.training.learner import Learner
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import turn_pb2, weights_pb2
from tools.bench.learning import items
from tools.bench.learning.likelihood import Figures, Likelihood
from tools.bench.learning.users import PLAIN

SAMPLES = items.DATA / "samples.jsonl"
BATCH = 4


class Recorder:
    """Appends samples to a JSON Lines file, or forgets them."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def add(self, sample: turn_pb2.Sample) -> None:
        """Write one sample; log-probabilities are rounded to four digits."""
        if self._path is None:
            return
        data = json_format.MessageToDict(sample, preserving_proto_field_name=True)
        tokens = data["transition"]["turn"]["tokens"]
        for name in ("logprobs", "model_logprobs"):
            tokens[name] = [round(value, 4) for value in tokens[name]]
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")


def read(path: Path = SAMPLES) -> list[turn_pb2.Sample]:
    """Return the samples of a file."""
    return [json_format.Parse(line, turn_pb2.Sample()) for line in path.read_text(encoding="utf-8").splitlines()]


def replay(samples: Sequence[turn_pb2.Sample], base: Path, root: Path,
           **settings: Any) -> Iterator[tuple[weights_pb2.VersionManifest, Path]]:
    """Train on samples, BATCH at a time; yield each version and the folder of its weights, which the next one may
    delete.

    Args:
        root: of the trainer, made when it is missing.
        settings: of the trainer; the gate is off unless they say otherwise.
    """
    config = TrainerConfig(**{"min_samples": BATCH, "gate": {"enabled": False}, "tensorboard": False} | settings)
    store = TrainerStore(root / "state.db", "group", config)
    try:
        learner = Learner(config, store, root, lambda: base, keep=1)
        learner.open()
        for begin in range(0, len(samples), BATCH):
            store.intake.accept(list(samples[begin:begin + BATCH]))
            made = learner.train()
            if isinstance(made, weights_pb2.VersionManifest):
                yield made, learner.versions.folder(made.version)
            learner.tidy(set())
        learner.release()
    finally:
        store.close()


def reader(base: Path, prompts: int | None = None, texts: int | None = None) -> Likelihood:
    """Return what versions are measured with, on held-out questions whose answers by the teacher are recorded too.

    Args:
        prompts: so many of the questions at most.
        texts: prose of each language, at most.
    """
    taught = dict(list(items.read("taught").items())[:prompts])
    questions = {item.prompt: item for item in items.held_out()}
    return Likelihood(base, [questions[prompt] for prompt in taught], PLAIN.hint, list(taught.values()), texts=texts)


def _line(name: str, figures: Figures, made: weights_pb2.VersionManifest | None = None) -> str:
    neutral = " / ".join(f"{value:.3f}" for value in figures.neutral.values())
    step = f"{made.metrics['step_kl']:.4f} | {made.metrics['seconds']:.1f}" if made else " | "
    return (f"| {name} | {figures.distance.mean:.4f} ± {figures.distance.error:.4f} | {figures.pairs.mean:.2f} | "
            f"{figures.margin.mean:.3f} ± {figures.margin.error:.3f} | {neutral} | {step} |")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=Path, default=SAMPLES)
    parser.add_argument("--versions", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the trainer")
    args = parser.parse_args()
    settings = {key: yaml.safe_load(value) for key, _, value in (item.partition("=") for item in args.set)}
    disable_progress_bar()
    base = ensure_model(EMBEDDED_MODEL, Home.default())
    likelihood = reader(base)
    print("| version | distance | pairs | margin | neutral en / zh | step KL | seconds |", "|---" * 7 + "|", sep="\n")
    print(_line("0", likelihood.measure(base)), flush=True)
    with tempfile.TemporaryDirectory(prefix="openclaw-recorded-") as folder:
        for made, weights in replay(read(args.samples)[:BATCH * args.versions], base, Path(folder), **settings):
            print(_line(str(made.version), likelihood.measure(weights), made), flush=True)


if __name__ == "__main__":
    main()
