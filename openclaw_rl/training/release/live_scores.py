"""How the live turns of each version were judged: three counts a version, whatever becomes of the samples."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from openclaw_rl.storage.database import Database
from openclaw_rl.v1 import turn_pb2

SCHEMA = """
CREATE TABLE IF NOT EXISTS live_scores (
    version INTEGER NOT NULL, score INTEGER NOT NULL, turns INTEGER NOT NULL, PRIMARY KEY (version, score));
"""


@dataclass(frozen=True, slots=True)
class Scores:
    """Turns by their score."""

    down: int = 0  #: judged -1
    neutral: int = 0  #: judged 0
    up: int = 0  #: judged +1

    @property
    def turns(self) -> int:
        """All of them."""
        return self.down + self.neutral + self.up

    @property
    def mean(self) -> float:
        """Mean score, from -1 to 1; 0 of no turns."""
        return (self.up - self.down) / (self.turns or 1)

    def __add__(self, other: Scores) -> Scores:
        return Scores(self.down + other.down, self.neutral + other.neutral, self.up + other.up)


def opinion(sample: turn_pb2.Sample) -> tuple[int, int] | None:
    """The version that a sample speaks for, and its score as it was judged. None of failed judgements, which are no
    opinion, of turns that several versions answered together, which speak for none of them, and of steps of episodes:
    they are no user's, and tasks differ more than versions do."""
    turn, judgement = sample.transition.turn, sample.judgement
    version = answered_by(turn)
    counts = (turn.turn_class == turn_pb2.TURN_CLASS_MAIN and not turn.HasField("episode") and not judgement.failed
              and judgement.score in (-1, 0, 1))
    return (version, judgement.score) if counts and version is not None else None


def note(db: sqlite3.Connection, said: tuple[int, int] | None) -> None:
    """Count the `opinion` of a sample that was not there before."""
    if said is not None:
        db.execute("INSERT INTO live_scores VALUES (?, ?, 1) ON CONFLICT (version, score) DO UPDATE SET"
                   " turns = turns + 1", said)


def answered_by(turn: turn_pb2.Turn) -> int | None:
    """The one version that sampled the whole response; None when there were several."""
    versions = {span.version for span in turn.tokens.spans} or {turn.policy_version}
    return versions.pop() if len(versions) == 1 else None


class LiveScores:
    """Reads the counts. Any thread.

    Raises (all methods):
        StorageError: the file can't be read.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    def all(self) -> dict[int, Scores]:
        """Of every version that a judged turn came from."""
        names = {-1: "down", 0: "neutral", 1: "up"}
        found: dict[int, dict[str, int]] = {}
        for row in self._db.query("SELECT version, score, turns FROM live_scores"):
            found.setdefault(row["version"], {})[names[row["score"]]] = row["turns"]
        return {version: Scores(**counts) for version, counts in found.items()}
