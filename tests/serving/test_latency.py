"""Percentiles of the last minute."""

from __future__ import annotations

import random

import pytest

from openclaw_rl.serving.latency import Latency, Percentiles


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_percentiles_are_at_most_two_percent_off() -> None:
    noted = Percentiles(Clock())
    times = sorted(random.Random(1).lognormvariate(-1, 1.2) for _ in range(5000))
    for seconds in times:
        noted.record(seconds)
    found = noted.at(.5, .95, .99)
    assert found is not None
    for share, seconds in zip((.5, .95, .99), found, strict=True):
        assert seconds == pytest.approx(times[int(share * len(times)) - 1], rel=0.02)


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    clock = Clock()
    noted = Percentiles(clock)
    noted.record(9.0)
    clock.now += 50
    noted.record(1.0)
    assert noted.at(1.0) == [pytest.approx(9.0, rel=0.02)]
    clock.now += 12
    assert noted.at(1.0) == [pytest.approx(1.0, rel=0.02)]
    clock.now += 3600
    assert noted.at(1.0) is None


def test_times_out_of_range_are_kept_at_its_ends() -> None:
    noted = Percentiles(Clock())
    for seconds in (-1.0, 0.0, 1e9):
        noted.record(seconds)
    found = noted.at(0.0, 1.0)
    assert found is not None and found[0] < 0.0011 and 1100 < found[1] < 1300


def test_gauges_in_milliseconds_and_none_when_nothing_was_asked() -> None:
    latency = Latency(Clock())
    assert latency.gauges() == {}
    latency.ended(2.0, None)
    assert set(latency.gauges()) == {"latency_p50_ms", "latency_p95_ms", "latency_p99_ms"}
    latency.ended(2.0, 0.25)
    assert latency.gauges()["first_token_p99_ms"] == pytest.approx(250, rel=0.02)
    assert latency.gauges()["latency_p50_ms"] == pytest.approx(2000, rel=0.02)
