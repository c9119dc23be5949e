from __future__ import annotations

from openclaw_rl.trainer.scheduler import Scheduler
from openclaw_rl.trainer.store import Pending


def test_min_samples_are_due_at_once() -> None:
    scheduler = Scheduler(4, 60)
    assert scheduler.decide(Pending(4, 4, 100.0), 100.0).due
    assert not scheduler.decide(Pending(3, 3, 100.0), 159.0).due
    assert not scheduler.decide(Pending(9, 3, 100.0), 159.0).due


def test_the_interval_makes_fewer_due() -> None:
    scheduler = Scheduler(4, 60)
    decision = scheduler.decide(Pending(3, 2, 100.0), 119.0)
    assert (decision.due, decision.wait, decision.missing) == (False, 41.0, "needs 2 more samples or 41 s")
    assert scheduler.decide(Pending(2, 1, 100.0), 160.0).due


def test_without_a_signal_nothing_is_ever_due() -> None:
    scheduler = Scheduler(2, 1)
    scheduler.forced = True
    assert scheduler.decide(Pending(0, 0, None), 1e9).missing == "waits for samples"
    decision = scheduler.decide(Pending(9, 0, None), 1e9)
    assert (decision.due, decision.wait) == (False, None)
    assert decision.missing == "has 9 neutral samples; needs one with a score or a hint"


def test_a_pause_outranks_everything() -> None:
    scheduler = Scheduler(1, 1)
    scheduler.forced, scheduler.paused = True, "an experiment"
    assert scheduler.decide(Pending(9, 9, 0.0), 1e9).missing == "paused: an experiment"
    scheduler.paused = None
    assert scheduler.decide(Pending(9, 9, 0.0), 1e9).due


def test_those_that_a_step_cannot_take_are_told() -> None:
    assert Scheduler(4, 60).decide(Pending(4, 1, 100.0, 3), 119.0).missing == (
        "needs 3 more samples or 41 s (3 samples of the same sessions must wait for later steps)")


def test_forced_needs_no_number() -> None:
    scheduler = Scheduler(10, 60)
    scheduler.forced = True
    assert scheduler.decide(Pending(1, 1, 100.0), 100.0).due


def test_a_clock_set_back_does_not_make_samples_wait_for_its_old_time() -> None:
    assert Scheduler(4, 60).decide(Pending(1, 1, 5000.0), 100.0).due
    slightly_ahead = Scheduler(4, 60).decide(Pending(1, 1, 100.5), 100.0)  # as clocks are when they are adjusted
    assert (slightly_ahead.due, slightly_ahead.wait) == (False, 60)
