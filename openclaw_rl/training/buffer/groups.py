"""Groups of episodes: what the trainer knows of each, kept beside the samples in state.db.

A group is `open` while its episodes go on; `settle` finds those that are whole, have not been heard of for
`group_timeout`, or would soon be stale, gives their samples an advantage and makes them `ready`; it is `closed` when
none of its samples waits any more. One that timed out is open again when more comes of it before a step has begun on
it. Outcomes are taken from every new sample, whatever becomes of the sample itself.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Collection
from dataclasses import dataclass

from openclaw_rl.config import TrainerConfig
from openclaw_rl.delivery.validation import validate_id
from openclaw_rl.training.algorithms import advantages as grpo
from openclaw_rl.training.tables import age_of, count
from openclaw_rl.v1 import turn_pb2

SCHEMA = """
CREATE TABLE IF NOT EXISTS episode_groups (
    group_id TEXT PRIMARY KEY, task TEXT NOT NULL, size INTEGER NOT NULL, heard_at REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'open', whole INTEGER NOT NULL DEFAULT 0, ready_at REAL);
CREATE INDEX IF NOT EXISTS unfinished_groups ON episode_groups (state) WHERE state <> 'closed';
CREATE TABLE IF NOT EXISTS episodes (
    episode_id TEXT PRIMARY KEY, group_id TEXT NOT NULL, ended INTEGER NOT NULL DEFAULT 0, outcome REAL,
    error TEXT NOT NULL DEFAULT '', steps INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS episodes_of_group ON episodes (group_id);
"""
#: On what the files of earlier releases get as `COLUMNS` only.
INDEX = ("CREATE INDEX IF NOT EXISTS samples_of_group ON samples (group_id, episode_id, step) WHERE group_id NOT NULL")

#: Columns of `samples`, NULL of turns of users.
COLUMNS = {"group_id": "TEXT", "episode_id": "TEXT", "step": "INTEGER", "votes": "REAL", "step_reward": "REAL",
           "reward": "REAL", "advantage": "REAL"}

#: Most episodes of a group.
MAX_SIZE = 1024
#: Closed groups that are remembered, to tell samples that come late.
KEEP_GROUPS = 20_000
#: Seconds that a word may be ahead of the clock before that means that the clock was set back.
_FUTURE = 1.0

BROKEN_OFF, INCOMPLETE = "episode broken off", "incomplete group"
LATE = f"{INCOMPLETE}: it came after the group was settled"
ALIKE = "no signal: all episodes of the group went alike"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Groups that are not closed."""

    ready: int = 0  #: that a step can take
    oldest: float | None = None  #: when the first of those became ready, seconds since the epoch
    samples: int = 0  #: that wait in groups, ready or not
    samples_ready: int = 0  #: of the ready ones
    next: float | None = None  #: when the first of the open ones times out
    text: str = ""  #: what the open ones wait for, for a person
    old: bool = False  #: one of the ready ones would soon be stale


class Groups:
    """The groups in the trainer's state.db. All methods that take `db` are part of the caller's transaction."""

    def __init__(self, config: TrainerConfig) -> None:
        self._config, self._max_staleness = config.grpo, config.max_staleness
        self._began = time.time()

    # As samples come

    def misfit(self, db: sqlite3.Connection, sample: turn_pb2.Sample) -> str | None:
        """Why what a sample says of its episode can't be, or comes too late; None when all is well."""
        step, turn_id = sample.transition.turn.episode, sample.transition.turn.turn_id
        for name in ("episode_id", "group_id"):
            if rejection := validate_id(f"episode.{name}", getattr(step, name)):
                return f"bad episode: {rejection}"
        if not 1 <= step.group_size <= MAX_SIZE:
            return f"bad episode: group_size {step.group_size} is not from 1 to {MAX_SIZE}"
        if step.step < 1:
            return f"bad episode: step {step.step} is not 1 or more"
        group = _one(db, "SELECT * FROM episode_groups WHERE group_id = ?", step.group_id)
        if group is not None and (group["task"], group["size"]) != (_task(step), step.group_size):
            return (f"bad episode: its group is of {group['size']} episodes of {group['task']}, not of "
                    f"{step.group_size} of {_task(step)}")
        episode = _one(db, "SELECT * FROM episodes WHERE episode_id = ?", step.episode_id)
        if episode is None:
            there = _number(db, "SELECT COUNT(*) FROM episodes WHERE group_id = ?", step.group_id)
            if there >= step.group_size:
                return f"bad episode: its group has all of its {step.group_size} episodes"
        elif episode["group_id"] != step.group_id:
            return "bad episode: it is one of another group"
        elif _number(db, "SELECT COUNT(*) FROM samples WHERE group_id = ? AND episode_id = ? AND step = ? AND turn_id"
                     " <> ?", step.group_id, step.episode_id, step.step, turn_id):
            return f"bad episode: another turn is its step {step.step}"
        if group is not None and group["state"] != "open" and not _untouched(db, group):
            return LATE
        if episode is not None and episode["error"]:
            return f"{BROKEN_OFF}: {episode['error']}"
        return None

    def heard(self, db: sqlite3.Connection, sample: turn_pb2.Sample, penalised: bool) -> str | None:
        """Note a new sample of an episode, and the episode's outcome where it has it.

        Args:
            sample: `misfit` must have found nothing, but that it is late or that its episode was broken off.
            penalised: its response was cut, which counts as -1 whatever the judge said.

        Returns:
            Why the episode's samples can't be trained on; None when they can.
        """
        turn, transition, step = sample.transition.turn, sample.transition, sample.transition.turn.episode
        votes = -1.0 if penalised else grpo.votes_mean(sample.judgement)
        own = transition.step_reward if transition.HasField("step_reward") else None
        db.execute("UPDATE samples SET group_id = ?, episode_id = ?, step = ?, votes = ?, step_reward = ? WHERE"
                   " turn_id = ?", (step.group_id, step.episode_id, step.step, votes,
                                    own if own is not None and math.isfinite(own) else None, turn.turn_id))
        group = _one(db, "SELECT * FROM episode_groups WHERE group_id = ?", step.group_id)
        if group is None:
            db.execute("INSERT INTO episode_groups (group_id, task, size, heard_at) VALUES (?, ?, ?, ?)",
                       (step.group_id, _task(step), step.group_size, time.time()))
        elif group["state"] == "open" or _untouched(db, group):
            db.execute("UPDATE episode_groups SET state = 'open', heard_at = ? WHERE group_id = ?",
                       (time.time(), step.group_id))
        db.execute("INSERT OR IGNORE INTO episodes (episode_id, group_id) VALUES (?, ?)",
                   (step.episode_id, step.group_id))
        if transition.HasField("outcome"):
            outcome, error = _outcome(transition.outcome)
            db.execute("UPDATE episodes SET ended = 1, outcome = ?, error = ?, steps = ? WHERE episode_id = ? AND NOT"
                       " ended", (outcome, error, transition.outcome.steps, step.episode_id))
        episode = _one(db, "SELECT error FROM episodes WHERE episode_id = ?", step.episode_id)
        return f"{BROKEN_OFF}: {episode['error']}" if episode is not None and episode["error"] else None

    # Before a step

    def settle(self, db: sqlite3.Connection, now: float) -> dict[str, list[str]]:
        """Make groups that are whole, or timed out, ready for a step; and those of which enough is there and a sample
        has half of `max_staleness` behind it, since all would be dropped when it is stale.

        Args:
            now: seconds since the epoch.

        Returns:
            Turns whose pending samples are to be dropped, by reason. Their group is closed with them, when there is
            nothing else in it.
        """
        dropped: dict[str, list[str]] = {}
        for group in db.execute("SELECT * FROM episode_groups WHERE state = 'open'").fetchall():
            episodes = db.execute("SELECT * FROM episodes WHERE group_id = ?", (group["group_id"],)).fetchall()
            whole = len(episodes) >= group["size"] and all(_all_there(db, episode) for episode in episodes)
            if whole or self._timed_out(group["heard_at"], now) or (
                    sum(episode["outcome"] is not None for episode in episodes) >= self._config.min_episodes
                    and self._old(db, group["group_id"])):
                for turn_id, reason in self._evaluate(db, group, episodes, whole, now).items():
                    dropped.setdefault(reason, []).append(turn_id)
        return dropped

    def _evaluate(self, db: sqlite3.Connection, group: sqlite3.Row, episodes: list[sqlite3.Row], whole: bool,
                  now: float) -> dict[str, str]:
        """Give the group's samples their advantage, and make it ready; or turns that are to be dropped, and why."""
        group_id = group["group_id"]
        outcomes = {row["episode_id"]: row["outcome"] for row in episodes if row["outcome"] is not None}
        rows = db.execute("SELECT * FROM samples WHERE group_id = ?", (group_id,)).fetchall()
        pending = [row for row in rows if row["fate"] == "pending"]
        # One that was ready before does not wait anew, or each late sample would put its step off.
        db.execute("UPDATE episode_groups SET state = 'ready', whole = ?, ready_at = IFNULL(ready_at, ?) WHERE group_id"
                   " = ?", (whole, now, group_id))
        if len(outcomes) < self._config.min_episodes:
            reason = (f"{INCOMPLETE}: {len(outcomes)} of {group['size']} episodes have an outcome, min_episodes is "
                      f"{self._config.min_episodes}")
            return self._close(db, group_id, "dropped", pending, reason)
        rewards: dict[str, dict[int, float]] = {episode: {} for episode in outcomes}
        for row in rows:
            if row["episode_id"] in outcomes:
                value = grpo.reward(outcomes[row["episode_id"]], row["votes"], row["step_reward"],
                                    self._config.step_rewards)
                if value is not None:
                    rewards[row["episode_id"]][row["step"]] = value
        advantages = dict(zip(rewards, grpo.advantages(list(rewards.values())), strict=True))
        found = {row["turn_id"]: (advantages[row["episode_id"]].get(row["step"]),
                                  rewards[row["episode_id"]].get(row["step"]))
                 for row in pending if row["episode_id"] in outcomes}
        unended = {row["turn_id"]: f"{INCOMPLETE}: its episode had not ended when the group was settled"
                   for row in pending if row["turn_id"] not in found}
        if not found:
            return unended | self._close(db, group_id, "dropped", [], "")
        if not any(advantage for advantage, _ in found.values()):
            count(db, "groups_alike", 1)
            return unended | self._close(db, group_id, "whole" if whole else "incomplete",
                                         [row for row in pending if row["turn_id"] in found], ALIKE)
        db.executemany("UPDATE samples SET advantage = ?, reward = ? WHERE turn_id = ?",
                       [(advantage or 0.0, value, turn_id) for turn_id, (advantage, value) in found.items()])
        return unended

    def _timed_out(self, heard_at: float, now: float) -> bool:
        # A word of the future came before the clock was set back; waiting for its time could take days.
        return not now - self._config.group_timeout < self._since(heard_at, now) <= now + _FUTURE

    def _old(self, db: sqlite3.Connection, group_id: str) -> bool:
        """Whether more than half of `max_staleness` versions followed the one that a sample which waits is of."""
        version = db.execute("SELECT MIN(sampled_from) FROM samples WHERE group_id = ? AND fate = 'pending'",
                             (group_id,)).fetchone()[0]
        return version is not None and 2 * age_of(db, version) > self._max_staleness

    def _since(self, heard_at: float, now: float) -> float:
        """From when on a group waits: while no trainer ran, what the judge has for it could not come."""
        return max(heard_at, self._began) if self._began <= now else heard_at

    def _close(self, db: sqlite3.Connection, group_id: str, how: str, pending: list[sqlite3.Row],
               reason: str) -> dict[str, str]:
        db.execute("UPDATE episode_groups SET state = 'closed' WHERE group_id = ?", (group_id,))
        count(db, f"groups_{how}", 1)
        return {row["turn_id"]: reason for row in pending}

    def ready(self, db: sqlite3.Connection) -> list[str]:
        """Groups that a step can take, those first that are ready for longest."""
        return [row["group_id"] for row in db.execute(
            "SELECT group_id FROM episode_groups WHERE state = 'ready' ORDER BY ready_at, rowid")]

    def outcomes(self, db: sqlite3.Connection, groups: Collection[str]) -> list[float]:
        """Of all ended episodes of these groups."""
        marks = ",".join("?" * len(groups))
        return [row["outcome"] for row in db.execute(f"SELECT outcome FROM episodes WHERE outcome NOT NULL AND group_id"
                                                     f" IN ({marks})", list(groups))]

    # After samples got their fate

    def close_finished(self, db: sqlite3.Connection, trained: bool) -> None:
        """Close the ready groups of which no sample waits any more.

        Args:
            trained: because of a step on them; else because they were dropped.
        """
        for row in db.execute(
                "SELECT * FROM episode_groups WHERE state = 'ready' AND NOT EXISTS (SELECT 1 FROM samples WHERE"
                " samples.group_id = episode_groups.group_id AND fate = 'pending')").fetchall():
            how = _how_trained(row) if trained or _trained(db, row["group_id"]) else "dropped"
            self._close(db, row["group_id"], how, [], "")

    def close_stale(self, db: sqlite3.Connection, groups: Collection[str]) -> list[str]:
        """Close groups that have a stale sample; gives the turns of their others that wait."""
        found: list[str] = []
        for group_id in groups:
            found += [row["turn_id"] for row in db.execute(
                "SELECT turn_id FROM samples WHERE group_id = ? AND fate = 'pending'", (group_id,))]
            row = _one(db, "SELECT * FROM episode_groups WHERE group_id = ? AND state <> 'closed'", group_id)
            if row is not None:
                self._close(db, group_id, _how_trained(row) if _trained(db, group_id) else "dropped", [], "")
        return found

    # What waits

    def waiting(self, db: sqlite3.Connection) -> Waiting:
        """Groups that are not closed."""
        rows = db.execute(
            "SELECT g.*, (SELECT COUNT(*) FROM samples s WHERE s.group_id = g.group_id AND fate = 'pending') AS"
            " samples, (SELECT COUNT(*) FROM episodes e WHERE e.group_id = g.group_id AND ended) AS ended FROM"
            " episode_groups g WHERE state <> 'closed' ORDER BY rowid").fetchall()
        ready = [row for row in rows if row["state"] == "ready"]
        going = [row for row in rows if row["state"] == "open"]
        text = ""
        if going:
            first = going[0]
            missing = first["size"] - first["ended"]
            what = f"{missing} of {first['size']} episodes" if missing else "the last samples of its episodes"
            text = f"group {first['group_id']} waits for {what}" + (
                f", {len(going) - 1} more wait too" if len(going) > 1 else "")
        return Waiting(
            len(ready), min((row["ready_at"] for row in ready), default=None), sum(row["samples"] for row in rows),
            sum(row["samples"] for row in ready),
            min(self._since(row["heard_at"], time.time()) for row in going) + self._config.group_timeout
            if going else None, text, any(self._old(db, row["group_id"]) for row in ready))


def leave(db: sqlite3.Connection, seq: int) -> None:
    """Take a sample that is forgotten out of its group: what is known of its episode goes with it, and the group is
    settled anew without it."""
    row = _one(db, "SELECT group_id, episode_id FROM samples WHERE seq = ?", seq)
    if row is None or row["group_id"] is None:
        return
    db.execute("UPDATE episodes SET ended = 1, outcome = NULL, error = 'forgotten', steps = 0 WHERE episode_id = ?",
               (row["episode_id"],))
    db.execute("UPDATE episode_groups SET state = 'open' WHERE group_id = ? AND state = 'ready'", (row["group_id"],))
    db.execute(f"UPDATE samples SET {', '.join(f'{name} = NULL' for name in COLUMNS)} WHERE seq = ?", (seq,))


def reopen(db: sqlite3.Connection, versions: Collection[int]) -> None:
    """Let the groups that trained these versions be settled, and counted, anew: their samples wait again."""
    marks = ",".join("?" * len(versions))
    for row in db.execute(f"SELECT * FROM episode_groups WHERE group_id IN (SELECT group_id FROM samples WHERE fate ="
                          f" 'trained' AND payload NOT NULL AND group_id NOT NULL AND version IN ({marks}))",
                          list(versions)).fetchall():
        db.execute("UPDATE episode_groups SET state = 'open', ready_at = NULL WHERE group_id = ?", (row["group_id"],))
        if row["state"] == "closed":
            count(db, f"groups_{_how_trained(row)}", -1)


def prune_groups(db: sqlite3.Connection, keep: int = KEEP_GROUPS) -> None:
    """Delete the oldest closed groups beyond `keep`, and their episodes."""
    last = _number(db, "SELECT IFNULL(MAX(rowid), 0) FROM episode_groups") - keep
    old = "SELECT group_id FROM episode_groups WHERE rowid <= ? AND state = 'closed'"
    db.execute(f"DELETE FROM episodes WHERE group_id IN ({old})", (last,))
    db.execute("DELETE FROM episode_groups WHERE rowid <= ? AND state = 'closed'", (last,))


def _untouched(db: sqlite3.Connection, group: sqlite3.Row) -> bool:
    """Whether a group that timed out waits for its step, and none was done on a part of it."""
    return group["state"] == "ready" and not group["whole"] and not _trained(db, group["group_id"])


def _trained(db: sqlite3.Connection, group_id: str) -> bool:
    """Whether a step was done on a part of a group."""
    return _number(db, "SELECT COUNT(*) FROM samples WHERE group_id = ? AND fate = 'trained'", group_id) > 0


def _how_trained(group: sqlite3.Row) -> str:
    """What a group that a step was done on counts as."""
    return "whole" if group["whole"] else "incomplete"


def _all_there(db: sqlite3.Connection, episode: sqlite3.Row) -> bool:
    """Whether an episode has ended, and all of its steps came."""
    return bool(episode["ended"]) and (bool(episode["error"]) or _number(
        db, "SELECT COUNT(*) FROM samples WHERE group_id = ? AND episode_id = ?", episode["group_id"],
        episode["episode_id"]) >= episode["steps"])


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


def _one(db: sqlite3.Connection, query: str, *values: object) -> sqlite3.Row | None:
    row: sqlite3.Row | None = db.execute(query, values).fetchone()
    return row


def _number(db: sqlite3.Connection, query: str, *values: object) -> int:
    return int(db.execute(query, values).fetchone()[0])
