"""Train the judge `classifier`, and write its weights.

    python tools/judge/train.py [--cache FILE]

Trains five small networks (AdamW, cross-entropy with smoothed labels) on the examples of `examples.py` and on the next
states that the rules were tuned on (tests/reward/next_states.py). The thresholds come from the development set
(tests/reward/development.yaml and held_out.py), on which nothing is trained: the smallest from which at least 90 % of
the complaints, and of the praise, are right. Takes a minute and a half of one core, half of it for the embeddings.
The same seed makes the same weights on the same machine; the digest of the examples is kept in the file.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from examples import SEED, examples  # noqa: E402
from grammar import Example  # noqa: E402

from openclaw_rl.reward.judges.classifier.embedding import E5, SIZE, cut  # noqa: E402
from openclaw_rl.reward.judges.classifier.features import COUNT, GRAMS, features, grams  # noqa: E402
from openclaw_rl.reward.judges.classifier.network import EMBEDDING_SCALE, WEIGHTS  # noqa: E402
from openclaw_rl.reward.judges.rules.words import asks_back  # noqa: E402
from tests.reward.held_out import HELD_OUT  # noqa: E402
from tests.reward.labelled import load  # noqa: E402
from tests.reward.next_states import CASES  # noqa: E402

NETWORKS, HIDDEN = 5, 96
EPOCHS, BATCH, RATE, DECAY, DROPOUT, SMOOTHING = 10, 128, 4e-3, 1e-3, 0.25, 0.05
WIDE_RATE, WIDE_DECAY, GRAM_DROPOUT = 3e-2, 3e-2, 0.3
#: Share of the given scores that has to be right on the development set, and the smallest thresholds of -1 and +1.
#: More precise ones leave so much at 0 that less is right on the whole.
PRECISION, LEAST = 0.9, (0.55, 0.6)
#: Probability from which a complaint gives a hint.
SURE = 0.8


class Embeddings:
    """Embeddings of texts, kept in a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._kept: dict[str, np.ndarray] = {}
        if path and path.exists():
            with np.load(path, allow_pickle=False) as data:
                self._kept = dict(zip(map(str, data["texts"]), data["vectors"], strict=True))

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Embed texts, those that are not kept in batches."""
        cuts = [cut(text) for text in texts]
        new = sorted(set(cuts) - self._kept.keys(), key=len)
        model = E5() if new else None
        for at in range(0, len(new), 64):
            assert model is not None
            batch = new[at:at + 64]
            self._kept.update(zip(batch, np.array(model(batch)), strict=True))
        if new and self._path:
            np.savez(self._path, texts=np.array(list(self._kept)), vectors=np.stack(list(self._kept.values())))
        return np.stack([self._kept[text] for text in cuts])


def inputs(rows: Sequence[Example], embed: Embeddings) -> torch.Tensor:
    """The networks' inputs, shape (rows, SIZE + COUNT)."""
    own = np.array([features(row.said, row.request, row.answer) for row in rows], np.float32)
    return torch.tensor(np.concatenate([embed([row.said for row in rows]) * EMBEDDING_SCALE, own], 1))


class Trained(torch.nn.Module):
    """One network, see openclaw_rl/reward/judges/classifier/network.py."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = torch.nn.Sequential(
            torch.nn.Dropout(DROPOUT / 2), torch.nn.Linear(SIZE + COUNT, HIDDEN), torch.nn.Tanh(),
            torch.nn.Dropout(DROPOUT), torch.nn.Linear(HIDDEN, 3))
        self.wide = torch.nn.EmbeddingBag(GRAMS, 3, mode="sum")
        torch.nn.init.zeros_(self.wide.weight)

    def forward(self, x: torch.Tensor, found: Sequence[list[int]]) -> torch.Tensor:
        """Logits, shape (rows, 3), of inputs (rows, SIZE + COUNT) and grams."""
        flat = torch.tensor([gram for row in found for gram in row])
        counts = torch.tensor([len(row) for row in found])
        kept = torch.ones(len(flat))
        if self.training:
            kept = (torch.rand(len(flat)) > GRAM_DROPOUT).float() / (1 - GRAM_DROPOUT)
        wide = self.wide(flat, counts.cumsum(0) - counts, per_sample_weights=kept)
        return self.deep(x) + wide / counts.clamp(min=1).sqrt().unsqueeze(1)


def train(x: torch.Tensor, found: Sequence[list[int]], y: torch.Tensor, seed: int) -> Trained:
    """Train one network on inputs (rows, features), grams, and classes (rows)."""
    torch.manual_seed(seed)
    network = Trained()
    optimizer = torch.optim.AdamW([
        {"params": network.deep.parameters(), "lr": RATE, "weight_decay": DECAY},
        {"params": network.wide.parameters(), "lr": WIDE_RATE, "weight_decay": WIDE_DECAY}])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [RATE, WIDE_RATE],
                                                   total_steps=EPOCHS * -(-len(y) // BATCH))
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(y)).split(BATCH):
            logits = network(x[batch], [found[row] for row in batch.tolist()])
            loss = torch.nn.functional.cross_entropy(logits, y[batch], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def threshold(probability: np.ndarray, right: np.ndarray, least: float) -> float:
    """The smallest probability, `least` or above, from which PRECISION of the rows are right."""
    for candidate in np.arange(least, 0.96, 0.01):
        given = probability >= candidate
        if given.any() and right[given].mean() >= PRECISION:
            return float(round(candidate, 2))
    return 0.96


def _stacked(networks: Sequence[Trained], name: str) -> np.ndarray:
    """One parameter of all networks."""
    return np.stack([network.state_dict()[name].numpy() for network in networks]).astype(np.float16)


def training_rows() -> list[Example]:
    """The examples, and the next states that the rules were tuned on."""
    return examples() + [Example(request, answer, said, score, "rules") for request, answer, said, score in CASES]


def digest(rows: Sequence[Example]) -> str:
    """SHA-256 of all rows."""
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def main(cache: Path | None, say: Callable[[str], object] = print) -> None:
    """Train, choose the thresholds, and write the weights."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rows = training_rows()
    embed = Embeddings(cache)
    x, y = inputs(rows, embed), torch.tensor([row.score + 1 for row in rows])
    found = [grams(row.said) for row in rows]
    networks = [train(x, found, y, SEED + index) for index in range(NETWORKS)]
    states = [state for state in load("development.yaml") if state.kind != "tool"]
    development = [Example(request, answer, said, score, "") for request, answer, said, score in HELD_OUT]
    development += [Example(state.request, state.answer, state.said, state.scores[0], "") for state in states]
    allowed = [{score} for *_, score in HELD_OUT] + [set(state.scores) for state in states]
    z = inputs(development, embed)
    with torch.no_grad():
        heard = [grams(row.said) for row in development]
        p = torch.stack([torch.softmax(network(z, heard), 1) for network in networks]).mean(0).numpy()
    p[[asks_back(row.answer) for row in development], 0] = 0  # there the judge has a threshold of its own
    negative = threshold(p[:, 0], np.array([-1 in scores for scores in allowed]), LEAST[0])
    positive = threshold(p[:, 2], np.array([1 in scores for scores in allowed]), LEAST[1])
    np.savez_compressed(WEIGHTS, thresholds=np.array([negative, positive, SURE], np.float32), seed=np.array(SEED),
                        examples=np.array(digest(rows)), w1=_stacked(networks, "deep.1.weight").transpose(0, 2, 1),
                        b1=_stacked(networks, "deep.1.bias"), b2=_stacked(networks, "deep.4.bias"),
                        w2=_stacked(networks, "deep.4.weight").transpose(0, 2, 1),
                        grams=_stacked(networks, "wide.weight"))
    say(f"{len(rows)} examples, digest {digest(rows)[:16]}; thresholds {negative} and {positive}; "
        f"{WEIGHTS.stat().st_size / 1e3:.0f} kB in {WEIGHTS}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, help=".npz file that keeps the embeddings for the next time")
    main(parser.parse_args().cache)
