"""Whether the policy gets better: how users' turns were judged, by version and over time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openclaw_rl.dashboard.data import versions
from openclaw_rl.dashboard.data.parts import FAILURES, WAIT
from openclaw_rl.v1 import turn_pb2

if TYPE_CHECKING:
    from openclaw_rl.monitoring.mesh import MeshData

#: Turns of a call, and the newest that are looked at.
_PAGE, _MOST = 1000, 5000
#: Periods that are shown.
_PERIODS = 14
_HOUR, _DAY = 3600, 86400
_Z = 1.96  #: of a confidence of 95 %


@dataclass(frozen=True)
class Judged:
    """A judged turn of a user."""

    version: int  #: that answered
    at: float  #: seconds since the epoch
    score: int  #: +1, 0 or -1


@dataclass(frozen=True)
class Share:
    """How some turns were judged."""

    judged: int = 0
    complaints: int = 0  #: with a score of -1
    praised: int = 0  #: with +1

    @classmethod
    def of(cls, turns: Iterable[Judged]) -> Share:
        scores = [turn.score for turn in turns]
        return cls(len(scores), scores.count(-1), scores.count(1))

    @property
    def rate(self) -> float:
        """Complaints of judged turns; 0 of none."""
        return self.complaints / self.judged if self.judged else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Where the rate is, with a confidence of 95 %: Wilson's score interval (JASA 22, 1927), which takes turns as
        independent."""
        n, p = self.judged, self.rate
        if not n:
            return 0.0, 1.0
        middle, half = p + _Z**2 / (2 * n), _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n * n))
        whole = 1 + _Z**2 / n
        return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)


@dataclass(frozen=True)
class OfVersion:
    """How the turns that a version answered were judged."""

    version: int
    share: Share
    active: bool
    learned: int | None  #: turns that its whole lineage was trained on; None: nobody who answers knows
    parent: int | None


@dataclass
class Learning:
    """What the page shows."""

    versions: list[OfVersion] = field(default_factory=list)  #: newest first
    periods: list[tuple[float, Share]] = field(default_factory=list)  #: begin and turns of each, newest first
    hourly: bool = False  #: the periods are hours, else days
    looked_at: int = 0  #: turns of users that were gone through
    judged: int = 0
    more: bool = False  #: there are older ones
    active: OfVersion | None = None  #: the version that answers, when it was judged


async def learning(mesh: MeshData) -> Learning:
    """Look at the newest turns.

    Raises:
        MeshError, ConfigError: environment server or judge don't answer.
    """
    result, judged = Learning(), []
    token = ""
    while result.looked_at < _MOST:
        answer = await mesh.environment().list_turns(page_size=_PAGE, page_token=token, timeout=WAIT,
                                                     turn_classes=[turn_pb2.TURN_CLASS_MAIN])
        of_users = {turn.turn_id: turn for turn in answer.turns if not turn.HasField("episode")}
        if of_users:
            found = await mesh.judge().list_judgements(turn_ids=list(of_users), timeout=WAIT)
            for one in found.judgements:
                turn = of_users[one.turn_id]
                if not one.failed:
                    judged.append(Judged(turn.policy_version, turn.finished_at.seconds, one.score))
        result.looked_at += len(of_users)
        token = answer.next_page_token
        if not token:
            break
    result.more, result.judged = bool(token), len(judged)
    result.hourly, result.periods = periods(judged)
    try:
        known = await versions.every(mesh)
    except FAILURES:
        known = versions.VersionList()
    made = {row.version.version: row.version for row in known.rows}
    for number in sorted({turn.version for turn in judged}, reverse=True):
        learned, parent, at = 0, made[number].parent if number in made else None, number
        while at in made:  # up to the base model
            learned += len(made[at].turns)
            above = made[at].parent
            if above is None:
                break
            at = above
        result.versions.append(OfVersion(number, Share.of(turn for turn in judged if turn.version == number),
                                         number == known.active, learned if number in made else None, parent))
    result.active = next((one for one in result.versions if one.active), None)
    return result


def periods(judged: list[Judged]) -> tuple[bool, list[tuple[float, Share]]]:
    """Turns by hour, or by day when they are of more than two, newest first; periods without any are left out.

    Returns:
        Whether by hour, and begin (seconds since the epoch, in this machine's time zone) and turns of each.
    """
    if not judged:
        return False, []
    hourly = max(turn.at for turn in judged) - min(turn.at for turn in judged) <= 2 * _DAY
    length = _HOUR if hourly else _DAY
    grouped: dict[float, list[Judged]] = {}
    for turn in judged:
        local = turn.at + time.localtime(turn.at).tm_gmtoff
        grouped.setdefault(local // length * length - time.localtime(turn.at).tm_gmtoff, []).append(turn)
    return hourly, [(begin, Share.of(grouped[begin])) for begin in sorted(grouped, reverse=True)[:_PERIODS]]


def better(old: Share, new: Share) -> bool | None:
    """Whether fewer complain than before, as far as the turns tell: True or False where the 95 % intervals don't
    overlap, None where that can't be told yet."""
    if not (old.judged and new.judged):
        return None
    (old_least, old_most), (new_least, new_most) = old.interval, new.interval
    return True if new_most < old_least else False if new_least > old_most else None
