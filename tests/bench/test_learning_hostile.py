"""Judges that lie and users who want harm: the recorded samples as they would have them judged."""

from __future__ import annotations

import pytest

from tools.bench.learning import recorded
from tools.bench.learning.hostile import CASES, samples


@pytest.mark.parametrize("case", CASES)
def test_only_the_judgement_is_replaced(case: str) -> None:
    made, count = samples(case, 3), len(recorded.read())
    assert len(made) == 3 * recorded.BATCH == count
    assert len({sample.judgement.turn_id for sample in made}) == count
    for was, now in zip(recorded.read(), made, strict=True):
        assert now.judgement.turn_id == now.transition.turn.turn_id
        assert now.transition.turn.tokens == was.transition.turn.tokens
        assert now.judgement.score in (-1, 1)
        assert not (now.judgement.score == 1 and now.judgement.hint)


def test_attackers_are_three_in_ten_and_the_others_say_what_they_said() -> None:
    recorded_hints = {sample.judgement.hint for sample in recorded.read()}
    attacks = [sample.judgement.hint not in recorded_hints for sample in samples("three attackers in ten", 3)]
    assert attacks == [number % 10 < 3 for number in range(12)]
    assert {sample.judgement.score for sample in samples("random", 3)} == {-1, 1}
