"""Settlement of groups of episodes: when a group can be compared, and the advantages of its samples.

A group is open while its episodes go on. `settle` finds those that are whole, have not been heard of for
`group_timeout`, or would soon be stale, gives their samples an advantage and makes them ready. A group is closed when
none of its samples waits any more. One that timed out is open again when more comes of it before a step has begun on
it. Outcomes are taken from every new sample, whatever becomes of the sample itself.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from openclaw_rl.config import TrainerConfig
from openclaw_rl.delivery.validation import validate_id
from openclaw_rl.training.algorithms import advantages as grpo
from openclaw_rl.training.tables.counters import Counter, CounterTable
from openclaw_rl.training.tables.groups import Episode, Group, GroupState, GroupTable
from openclaw_rl.training.tables.reasons import Drop, DropReason, Fate, drop
from openclaw_rl.training.tables.samples import SampleTable
from openclaw_rl.training.tables.versions import VersionTable
from openclaw_rl.v1 import turn_pb2

#: Most episodes of a group.
MAX_SIZE = 1024
#: Judges that see only whether an action ran, not what the task asks for.
_BLIND_JUDGES = frozenset({"rules", "classifier"})
#: Seconds that a sample may be ahead of the clock before that means that the clock was set back.
_FUTURE = 1.0

LATE = drop(DropReason.INCOMPLETE_GROUP, "it came after the group was settled")
NOT_ENDED = drop(DropReason.INCOMPLETE_GROUP, "its episode had not ended when the group was settled")
ALIKE = drop(DropReason.NO_SIGNAL, "all episodes of the group went alike")


@dataclass(frozen=True, slots=True)
class WaitingGroups:
    """Groups that are not closed."""

    ready: int = 0  #: that a step can take
    oldest: float | None = None  #: when the first of those became ready, seconds since the epoch
    samples: int = 0  #: that wait in groups, ready or not
    samples_ready: int = 0  #: of the ready ones
    next: float | None = None  #: when the first of the open ones times out, seconds since the epoch
    text: str = ""  #: what the open ones wait for, for a person
    old: bool = False  #: one of the ready ones would soon be stale


class EpisodeGroups:
    """Decides about groups. All methods that take `db` are part of the caller's transaction.

    Attributes:
        blind_votes: judges that are not shown the task, and whose votes count in full all the same.
    """

    def __init__(self, config: TrainerConfig, groups: GroupTable, samples: SampleTable, versions: VersionTable,
                 counters: CounterTable) -> None:
        self._config, self._max_staleness = config.grpo, config.max_staleness
        self._groups, self._samples, self._versions, self._counters = groups, samples, versions, counters
        self._began = time.time()
        self.blind_votes: set[str] = set()

    # As samples come

    def validate(self, db: sqlite3.Connection, sample: turn_pb2.Sample) -> Drop | None:
        """Return why what a sample says of its episode can't be, or comes too late."""
        step, turn_id = sample.transition.turn.episode, sample.transition.turn.turn_id
        for name in ("episode_id", "group_id"):
            if rejection := validate_id(f"episode.{name}", getattr(step, name)):
                return _bad(rejection.message)
        if not 1 <= step.group_size <= MAX_SIZE:
            return _bad(f"group_size {step.group_size} is not from 1 to {MAX_SIZE}")
        if step.step < 1:
            return _bad(f"step {step.step} is not 1 or more")
        group = self._groups.get(db, step.group_id)
        if group is not None and (group.task, group.size) != (_task(step), step.group_size):
            return _bad(f"its group is of {group.size} episodes of {group.task}, not of {step.group_size} of "
                        f"{_task(step)}")
        episode = self._groups.episode(db, step.episode_id)
        if episode is None:
            if self._groups.count_episodes(db, step.group_id) >= step.group_size:
                return _bad(f"its group has all of its {step.group_size} episodes")
        elif episode.group_id != step.group_id:
            return _bad("it is one of another group")
        elif self._samples.is_taken(db, step.group_id, step.episode_id, step.step, turn_id):
            return _bad(f"another turn is its step {step.step}")
        if group is not None and not self._may_grow(db, group):
            return LATE
        return _broken_off(episode)

    def note(self, db: sqlite3.Connection, sample: turn_pb2.Sample, penalised: bool) -> Drop | None:
        """Note a new sample of an episode, and the episode's outcome where it has it.

        Args:
            sample: one that `validate` accepts, or finds late or of an episode that was broken off.
            penalised: its response was cut, which counts as -1 whatever the judge said.

        Returns:
            Why the episode's samples can't be trained on.
        """
        turn, transition, step = sample.transition.turn, sample.transition, sample.transition.turn.episode
        if self._config.step_rewards == "full":
            self.blind_votes |= _BLIND_JUDGES & {vote.judge for vote in sample.judgement.votes}
        votes = -1.0 if penalised else grpo.votes_mean(sample.judgement)
        reward = transition.step_reward if transition.HasField("step_reward") else math.nan
        self._samples.join_group(db, turn.turn_id, step.group_id, step.episode_id, step.step, votes,
                                 reward if math.isfinite(reward) else None)
        group = self._groups.get(db, step.group_id)
        if group is None:
            self._groups.add(db, step.group_id, _task(step), step.group_size, time.time())
        elif self._may_grow(db, group):
            self._groups.hear(db, step.group_id, time.time())
        self._groups.add_episode(db, step.episode_id, step.group_id)
        if transition.HasField("outcome"):
            outcome, error = _outcome(transition.outcome)
            self._groups.end_episode(db, step.episode_id, outcome, error, transition.outcome.steps)
        return _broken_off(self._groups.episode(db, step.episode_id))

    def _may_grow(self, db: sqlite3.Connection, group: Group) -> bool:
        """Whether a group is open, or timed out and waits for a step, with none done on a part of it."""
        if group.state is GroupState.READY:
            return not group.whole and not self._samples.any_in_group(db, group.group_id, Fate.TRAINED)
        return group.state is GroupState.OPEN

    # Before a step

    def settle(self, db: sqlite3.Connection, now: float) -> dict[Drop, list[str]]:
        """Make groups that are whole, or timed out, ready for a step; and those of which enough is there and a sample
        has half of `max_staleness` behind it, since all would be dropped when it is stale.

        Args:
            now: seconds since the epoch.

        Returns:
            Turns whose pending samples are to be dropped. Their group is closed with them, when there is nothing else
            in it.
        """
        dropped: dict[Drop, list[str]] = {}
        for group in self._groups.open(db):
            episodes = self._groups.episodes(db, group.group_id)
            whole = len(episodes) >= group.size and all(self._complete(db, episode) for episode in episodes)
            if whole or self._timed_out(group.heard_at, now) or (
                    sum(episode.outcome is not None for episode in episodes) >= self._config.min_episodes
                    and self._old(db, group.group_id)):
                self._groups.make_ready(db, group.group_id, whole, now)
                for turn_id, why in self._evaluate(db, group, episodes, whole).items():
                    dropped.setdefault(why, []).append(turn_id)
        return dropped

    def _evaluate(self, db: sqlite3.Connection, group: Group, episodes: list[Episode], whole: bool) -> dict[str, Drop]:
        """Give the group's samples their advantage, or close it; return turns that are to be dropped."""
        outcomes = {episode.episode_id: episode.outcome for episode in episodes if episode.outcome is not None}
        rows = self._samples.in_group(db, group.group_id)
        pending = [row for row in rows if row["fate"] == Fate.PENDING]
        if len(outcomes) < self._config.min_episodes:
            self._close(db, group.group_id, Counter.GROUPS_DROPPED)
            return _all(pending, drop(
                DropReason.INCOMPLETE_GROUP, f"{len(outcomes)} of {group.size} episodes have an outcome, min_episodes "
                                             f"is {self._config.min_episodes}"))
        rewards: dict[str, dict[int, float]] = {episode: {} for episode in outcomes}
        weight = grpo.votes_weight(outcomes.values())
        for row in rows:
            if row["episode_id"] in outcomes:
                value = grpo.reward(outcomes[row["episode_id"]], row["votes"], row["step_reward"],
                                    self._config.step_rewards, weight)
                if value is not None:
                    rewards[row["episode_id"]][row["step"]] = value
        advantages = dict(zip(rewards, grpo.advantages(list(rewards.values())), strict=True))
        ended = [row for row in pending if row["episode_id"] in outcomes]
        found = {row["turn_id"]: (advantages[row["episode_id"]].get(row["step"]) or 0.0,
                                  rewards[row["episode_id"]].get(row["step"])) for row in ended}
        dropped = _all([row for row in pending if row["turn_id"] not in found], NOT_ENDED)
        if not found:
            self._close(db, group.group_id, Counter.GROUPS_DROPPED)
        elif not any(advantage for advantage, _ in found.values()):
            self._counters.add(db, Counter.GROUPS_ALIKE)
            self._close(db, group.group_id, _how_trained(whole))
            dropped |= _all(ended, ALIKE)
        else:
            self._samples.set_advantages(db, found)
        return dropped

    def _complete(self, db: sqlite3.Connection, episode: Episode) -> bool:
        """Whether an episode has ended, and all of its steps came."""
        return episode.ended and (bool(episode.error) or self._samples.steps(
            db, episode.group_id, episode.episode_id) >= episode.steps)

    def _timed_out(self, heard_at: float, now: float) -> bool:
        # A sample of the future came before the clock was set back; waiting for its time could take days.
        return not now - self._config.group_timeout < self._since(heard_at, now) <= now + _FUTURE

    def _since(self, heard_at: float, now: float) -> float:
        """From when on a group waits: while no trainer ran, what the judge has for it could not come."""
        return max(heard_at, self._began) if self._began <= now else heard_at

    def _old(self, db: sqlite3.Connection, group_id: str) -> bool:
        """Whether more than half of `max_staleness` versions followed the one that a sample which waits is of."""
        version = self._samples.oldest_version(db, group_id)
        return version is not None and 2 * self._versions.age(db, version) > self._max_staleness

    # After samples got their fate

    def close_finished(self, db: sqlite3.Connection, trained: bool) -> None:
        """Close the ready groups of which no sample waits any more.

        Args:
            trained: because of a step on them; else because they were dropped.
        """
        for group in self._groups.ready(db):
            if not self._samples.any_in_group(db, group.group_id, Fate.PENDING):
                self._close(db, group.group_id, _how_trained(group.whole) if trained else self._how_ended(db, group))

    def close_stale(self, db: sqlite3.Connection, groups: Collection[str]) -> list[str]:
        """Close groups that have a stale sample; return the turns of their others that wait."""
        found: list[str] = []
        for group_id in groups:
            found += self._samples.pending_in_group(db, group_id)
            group = self._groups.get(db, group_id)
            if group is not None and group.state is not GroupState.CLOSED:
                self._close(db, group_id, self._how_ended(db, group))
        return found

    def leave(self, db: sqlite3.Connection, group_id: str, episode_id: str) -> None:
        """Forget an episode: its group is settled anew without it."""
        self._groups.forget_episode(db, episode_id)
        self._groups.settle_again(db, group_id)

    def reopen(self, db: sqlite3.Connection, versions: Collection[int]) -> None:
        """Let the groups that trained these versions be settled, and counted, anew: their samples will wait again."""
        for group_id in self._samples.groups_trained(db, versions):
            group = self._groups.get(db, group_id)
            if group is not None:
                self._groups.reopen(db, group_id)
                if group.state is GroupState.CLOSED:
                    self._counters.add(db, _how_trained(group.whole), -1)

    def _how_ended(self, db: sqlite3.Connection, group: Group) -> Counter:
        trained = self._samples.any_in_group(db, group.group_id, Fate.TRAINED)
        return _how_trained(group.whole) if trained else Counter.GROUPS_DROPPED

    def _close(self, db: sqlite3.Connection, group_id: str, counter: Counter) -> None:
        self._groups.close(db, group_id)
        self._counters.add(db, counter)

    # What waits

    def waiting(self, db: sqlite3.Connection) -> WaitingGroups:
        """Return what is known of groups that are not closed."""
        ready, going = self._groups.ready(db), self._groups.open(db)
        samples_ready = self._count(db, ready)
        next_timeout = (min(self._since(group.heard_at, time.time()) for group in going) + self._config.group_timeout
                        if going else None)
        return WaitingGroups(
            len(ready), min((group.ready_at for group in ready if group.ready_at is not None), default=None),
            samples_ready + self._count(db, going), samples_ready, next_timeout,
            self._missing(db, going) if going else "", any(self._old(db, group.group_id) for group in ready))

    def _count(self, db: sqlite3.Connection, groups: Iterable[Group]) -> int:
        return sum(len(self._samples.pending_in_group(db, group.group_id)) for group in groups)

    def _missing(self, db: sqlite3.Connection, going: list[Group]) -> str:
        first = going[0]
        missing = first.size - sum(episode.ended for episode in self._groups.episodes(db, first.group_id))
        what = f"{missing} of {first.size} episodes" if missing else "the last samples of its episodes"
        more = f", {len(going) - 1} more wait too" if len(going) > 1 else ""
        return f"group {first.group_id} waits for {what}{more}"


def _bad(why: str) -> Drop:
    return drop(DropReason.BAD_EPISODE, why)


def _broken_off(episode: Episode | None) -> Drop | None:
    return drop(DropReason.EPISODE_BROKEN_OFF, episode.error) if episode is not None and episode.error else None


def _all(rows: Iterable[sqlite3.Row], why: Drop) -> dict[str, Drop]:
    return {row["turn_id"]: why for row in rows}


def _how_trained(whole: bool) -> Counter:
    """What a group that a step was done on counts as."""
    return Counter.GROUPS_WHOLE if whole else Counter.GROUPS_INCOMPLETE


def _outcome(outcome: turn_pb2.EpisodeOutcome) -> tuple[float | None, str]:
    """What an episode ended with: its outcome, or why it has none."""
    if outcome.error:
        return None, " ".join(outcome.error.split())[:300]
    if not outcome.HasField("value"):
        return None, "it has no outcome"
    if not 0 <= outcome.value <= 1:
        return None, f"its outcome {outcome.value} is not from 0 to 1"
    return outcome.value, ""


def _task(step: turn_pb2.EpisodeStep) -> str:
    return f"{step.type}/{step.task_id}"
