"""The classifier: a few small networks on an embedding and features; their mean probability decides.

Each is wide and deep (Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, arXiv:1606.07792):
p = softmax(tanh(x W1 + b1) W2 + b2 + sum(V[g] for g in grams) / sqrt(len(grams))), x of SIZE + COUNT numbers, V of
GRAMS rows, p of the scores -1, 0 and +1. `weights.npz` is made by tools/judge/train.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from openclaw_rl.reward.judges.classifier.embedding import SIZE
from openclaw_rl.reward.judges.classifier.features import COUNT, GRAMS

WEIGHTS = Path(__file__).with_name("weights.npz")
#: Factor of the embedding, whose numbers are about 0.05, to be as large as the features.
EMBEDDING_SCALE = 8.0


class Network:
    """The trained networks.

    Attributes:
        negative, positive: probability from which a message is a complaint, or praise; below both it is neutral.
        sure: probability from which a complaint is good for a hint.
    """

    def __init__(self, path: Path = WEIGHTS) -> None:
        """Load the weights.

        Raises:
            OSError: there is no such file.
            ValueError: it was made for other features.
        """
        with np.load(path, allow_pickle=False) as data:
            self._layers = [data[name].astype(np.float32) for name in ("w1", "b1", "w2", "b2", "grams")]
            self.negative, self.positive, self.sure = (float(value) for value in data["thresholds"])
        made_for = (self._layers[0].shape[1], self._layers[4].shape[1])
        if made_for != (SIZE + COUNT, GRAMS):
            raise ValueError(f"{path} was made for {made_for} features, there are {(SIZE + COUNT, GRAMS)}: run "
                             "tools/judge/train.py")

    def __call__(self, embedding: Any, features: list[float], grams: list[int]) -> tuple[float, float, float]:
        """Return the probabilities of -1, 0 and +1.

        Args:
            embedding: array of SIZE numbers.
            features: COUNT numbers.
            grams: classes below GRAMS.
        """
        w1, b1, w2, b2, wide = self._layers
        x = np.concatenate([embedding * EMBEDDING_SCALE, np.asarray(features, np.float32)])
        logits = np.einsum("nhs,nh->ns", w2, np.tanh(np.einsum("nfh,f->nh", w1, x) + b1)) + b2
        logits += wide[:, grams].sum(1) / max(1, len(grams)) ** 0.5
        odds = np.exp(logits - logits.max(1, keepdims=True))
        minus, zero, plus = (odds / odds.sum(1, keepdims=True)).mean(0)
        return float(minus), float(zero), float(plus)
