"""Growing pauses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tenacity import Retrying, stop_after_attempt

from openclaw_rl.runtime.backoff import Backoff


def near(pause: float, wanted: float) -> bool:
    return wanted <= pause <= 1.2 * wanted


def test_pauses_double_up_to_the_longest_and_begin_anew() -> None:
    backoff = Backoff(0.1, 1.0)
    assert all(near(backoff.next(), wanted) for wanted in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0)) and backoff.failures == 6
    backoff.reset()
    assert backoff.failures == 0 and near(backoff.next(), 0.1)
    assert near(backoff.next(at_least=0.5), 0.5)
    assert near(backoff.next(at_least=60), 1.0), "no more than the longest"
    for _ in range(5000):
        assert backoff.next() <= 1.2


def test_it_is_a_waiting_strategy_of_tenacity() -> None:
    class Busy(Exception):
        retry_after = 0.6

    slept: list[float] = []
    errors: list[Any] = [Busy(), OSError(), SimpleNamespace()]

    def work() -> str:
        error = errors.pop(0)
        if isinstance(error, Exception):
            raise error
        return "done"

    assert Retrying(wait=Backoff(0.1, 1.0), sleep=slept.append, stop=stop_after_attempt(5))(work) == "done"
    assert near(slept[0], 0.6) and near(slept[1], 0.2)
