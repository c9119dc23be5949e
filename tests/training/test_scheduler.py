from __future__ import annotations

from openclaw_rl.training.buffer.groups import WaitingGroups
from openclaw_rl.training.scheduler import Scheduler
from openclaw_rl.training.tables.samples import PendingCount


def test_min_samples_are_due_at_once() -> None:
    scheduler = Scheduler(4, 60)
    assert scheduler.decide(PendingCount(4, 4, 100.0), 100.0).due
    assert not scheduler.decide(PendingCount(3, 3, 100.0), 159.0).due
    assert not scheduler.decide(PendingCount(9, 3, 100.0), 159.0).due


def test_the_interval_makes_fewer_due() -> None:
    scheduler = Scheduler(4, 60)
    decision = scheduler.decide(PendingCount(3, 2, 100.0), 119.0)
    assert (decision.due, decision.wait, decision.missing) == (False, 41.0, "needs 2 more samples or 41 s")
    assert scheduler.decide(PendingCount(2, 1, 100.0), 160.0).due


def test_without_a_signal_nothing_is_ever_due() -> None:
    scheduler = Scheduler(2, 1)
    scheduler.forced = True
    assert scheduler.decide(PendingCount(0, 0, None), 1e9).missing == "waits for samples"
    decision = scheduler.decide(PendingCount(9, 0, None), 1e9)
    assert (decision.due, decision.wait) == (False, None)
    assert decision.missing == "has 9 neutral samples; needs one with a score or a hint"


def test_a_pause_outranks_everything() -> None:
    scheduler = Scheduler(1, 1)
    scheduler.forced, scheduler.paused = True, "an experiment"
    assert scheduler.decide(PendingCount(9, 9, 0.0), 1e9).missing == (
        "paused: an experiment (`openclaw-rl resume` ends it)")
    scheduler.paused = None
    assert scheduler.decide(PendingCount(9, 9, 0.0), 1e9).due


def test_those_that_a_step_cannot_take_are_told() -> None:
    assert Scheduler(4, 60).decide(PendingCount(4, 1, 100.0, 3), 119.0).missing == (
        "needs 3 more samples or 41 s (3 samples of the same sessions must wait for later steps)")


def test_forced_needs_no_number() -> None:
    scheduler = Scheduler(10, 60)
    scheduler.forced = True
    assert scheduler.decide(PendingCount(1, 1, 100.0), 100.0).due


def test_a_clock_set_back_does_not_make_samples_wait_for_its_old_time() -> None:
    assert Scheduler(4, 60).decide(PendingCount(1, 1, 5000.0), 100.0).due
    slightly_ahead = Scheduler(4, 60).decide(PendingCount(1, 1, 100.5), 100.0)  # as clocks are when they are adjusted
    assert (slightly_ahead.due, slightly_ahead.wait) == (False, 60)


def test_enough_groups_or_the_interval_make_a_step_on_episodes_due() -> None:
    scheduler = Scheduler(4, 60, groups=2)
    none = PendingCount(0, 0, None)
    assert scheduler.decide(none, 100.0, WaitingGroups(2, 100.0, 9, 9)).episodes
    decision = scheduler.decide(none, 119.0, WaitingGroups(1, 100.0, 9, 4, 700.0, "group X waits for 3 of 8 episodes"))
    assert (decision.due, decision.wait) == (False, 41.0)
    assert decision.missing == ("has 1 of 2 groups, trains on what there is in 41 s; group X waits for 3 of 8 "
                                "episodes")
    assert scheduler.decide(none, 160.0, WaitingGroups(1, 100.0, 9, 4)).episodes
    assert scheduler.decide(none, 100.0, WaitingGroups(1, 5000.0, 9, 4)).episodes  # the clock was set back
    assert scheduler.decide(none, 100.0, WaitingGroups(1, 100.0, 9, 4, old=True)).episodes
    scheduler.forced = True
    assert scheduler.decide(none, 100.0, WaitingGroups(1, 100.0, 9, 4)).episodes


def test_a_group_that_may_time_out_is_waited_for() -> None:
    decision = Scheduler(4, 60, groups=2).decide(PendingCount(0, 0, None), 100.0,
                                                 WaitingGroups(0, None, 3, 0, 650.0, "group X waits"))
    assert (decision.due, decision.wait, decision.missing) == (False, 550.0, "has 0 of 2 groups; group X waits")
    both = Scheduler(4, 60).decide(PendingCount(1, 1, 100.0), 100.0,
                                   WaitingGroups(0, None, 3, 0, 110.0, "group X waits"))
    assert (both.due, both.wait) == (False, 10.0)
    assert both.missing == "needs 3 more samples or 60 s; has 0 of 4 groups; group X waits"


def test_users_and_episodes_take_turns_when_both_are_due() -> None:
    scheduler, pending, waiting = Scheduler(1, 60, groups=1), PendingCount(1, 1, 100.0), WaitingGroups(1, 100.0, 4, 4)
    kinds = []
    for _ in range(4):
        decision = scheduler.decide(pending, 100.0, waiting)
        assert decision.due
        kinds.append(decision.episodes)
        scheduler.last_on_episodes = decision.episodes
    assert kinds == [False, True, False, True]
    scheduler.last_on_episodes = False
    assert not scheduler.decide(pending, 100.0, WaitingGroups()).episodes
