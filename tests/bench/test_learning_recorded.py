"""What the embedded model learns from recorded samples: always the same ones, so that a worse update rule is found
without sampling anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.models import embedded_model
from tools.bench.learning import recorded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Two versions: one of four complaints, and one of nothing but praise, which once undid what the first had learned.
VERSIONS = 2


def test_complaints_are_followed_praise_does_not_undo_it_and_nothing_is_forgotten(tmp_path: Path) -> None:
    base = embedded_model()
    samples = recorded.read()[:recorded.BATCH * VERSIONS]
    assert [sample.judgement.score for sample in samples] == [-1] * 4 + [1] * 4
    likelihood = recorded.reader(base, 6, texts=2)
    before = likelihood.measure(base)
    versions = [likelihood.measure(weights) for _, weights in recorded.replay(samples, base, tmp_path)]
    print(before, *versions, sep="\n")
    assert len(versions) == VERSIONS
    for after in versions:
        assert after.distance.mean < 0.8 * before.distance.mean
        assert after.pairs.mean >= before.pairs.mean - 1 / 6 and after.margin.mean > 0.8 * before.margin.mean
        assert all(after.neutral[name] < 1.05 * value for name, value in before.neutral.items())
