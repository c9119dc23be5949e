"""Detection of a regression: live turns of a new version that are judged significantly worse than those before it.

Scores are -1, 0 and +1, so the test can be exact. Under the hypothesis that the version makes no difference, each
split of the n + m scores into n of the new version and m of those before is equally likely; `fall_probability` is the
share of splits with a mean as low as the one seen (Pitman's permutation test: E. J. G. Pitman, "Significance tests
which may be applied to samples from any populations", 1937). With three values the splits are counted by a
multivariate hypergeometric distribution.

Looking again and again finds a fall by chance in the end. So a version is looked at when it has min_turns, twice,
four times, ... as many turns, and the k-th look (from 1) may only spend significance / 2^k. These add up to at most
`significance`, whatever happens: the chance that a version which is no worse is ever taken back (alpha spending:
K. K. G. Lan and D. L. DeMets, "Discrete sequential boundaries for clinical trials", 1983).

Versions may come faster than turns. Then the newest versions of the lineage are taken together until they have
min_turns, and what is compared with them are those before, taken together in the same way; a fall takes all of the
newer group back. Assumed is that users and judge stay the same meanwhile: what makes all users unhappier on one day is
not told from a worse version. `min_drop` keeps small differences out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from openclaw_rl.config import WatchConfig
from openclaw_rl.training.tables.reasons import VersionState, VersionStatus
from openclaw_rl.training.tables.scores import Scores, ScoreTable
from openclaw_rl.training.tables.state import Key, StateTable
from openclaw_rl.training.tables.versions import VersionTable

#: Looks at one version: the last one at 2^5 times min_turns.
LOOKS = 6
#: Begins the reasons that policy servers are given.
_PREFIX = "watch: "


@dataclass(frozen=True, slots=True)
class Fall:
    """A regression: live turns were judged worse."""

    versions: list[int]  #: taken together, newest first
    after: Scores  #: theirs
    earlier: list[int]  #: those that they were compared with, newest first
    before: Scores  #: theirs
    probability: float  #: of a fall like this by chance
    target: int  #: the version to go back to

    @property
    def reason(self) -> str:
        """Sentence for a person."""
        return (f"{_PREFIX}mean score of live turns fell from {self.before.mean:.2f} "
                f"({_of(self.before, self.earlier)}) to {self.after.mean:.2f} ({_of(self.after, self.versions)}) "
                f"(p={self.probability:.2g})")


@dataclass(slots=True)
class _State:
    """Decisions, as they are kept in the store."""

    looks: dict[str, int]  #: by version (the oldest of those taken together): looks that were had
    taken_back: list[int]  #: versions that were taken back, each once and for all
    going: dict[str, Any] | None  #: a rollback that no policy server has confirmed yet: target, reason
    went: dict[str, Any] | None  #: the last rollback, until it is cleared: target, highest, reason


@dataclass(frozen=True, slots=True)
class _Compared:
    """Two groups of versions to compare; see Fall."""

    group: list[int]
    after: Scores
    earlier: list[int]
    before: Scores
    look: int  #: which one this is, from 1


class RegressionDetector:
    """Compares live turns and remembers what it decided. One thread at a time.

    Args:
        config: its settings.
        versions: the trainer's.
        scores: of live turns.
        state: keeps what it decided.
    """

    def __init__(self, config: WatchConfig, versions: VersionTable, scores: ScoreTable, state: StateTable) -> None:
        self._config, self._versions, self._scores, self._table = config, versions, scores, state
        kept = state.get(Key.WATCH)
        self._state = _State(**json.loads(kept)) if kept else _State({}, [], None, None)

    @property
    def going(self) -> tuple[int, str] | None:
        """Version and reason of a rollback that is decided and that no policy server has confirmed."""
        going = self._state.going
        return (going["target"], going["reason"]) if going else None

    @property
    def alarm(self) -> str:
        """Text for an operator; empty when there is nothing to say."""
        if not self._config.enabled:
            return ""
        if self._state.going:
            return f"the watch is going back to version {self._state.going['target']}: {self._state.going['reason']}"
        if self._state.went:
            went = self._state.went
            return (f"the watch went back to version {went['target']} ({went['reason']}); look at what came after it "
                    f"with `openclaw-rl versions diff {went['target']} {went['highest']}`, then `openclaw-rl pin "
                    f"{went['target']}` or `rollback N` to another; this ends, too, when a newer version has "
                    f"{self._config.min_turns} turns that are no worse")
        return ""

    def due(self, active: int) -> bool:
        """Return whether there are enough new turns for another look at the active version."""
        found = self._compared(active)
        return found is not None and found.look > self._looks(found)

    def look(self, active: int, kept: Collection[int]) -> Fall | None:
        """Compare the active version with those before it, and decide: a rollback is in `going` then.

        Args:
            active: the version that answers.
            kept: versions that the policy server can go back to.
        """
        found = self._compared(active)
        if found is None or found.look <= self._looks(found):
            return None
        self._state.looks[str(found.group[-1])] = found.look
        fall = found.before.mean - found.after.mean
        self._end_alarm(found, fall)
        target = self._target(found.group[-1], kept)
        probability = fall_probability(found.after, found.before)
        if (target is None or fall < self._config.min_drop
                or probability > self._config.significance / 2**found.look):
            self._keep()
            return None
        result = Fall(found.group, found.after, found.earlier, found.before, probability, target)
        self._note(result, self._versions.made_from(found.group[-1]))
        return result

    def answers(self, active: int, pinned: bool) -> None:
        """Note which version answers now: a rollback is done, or an operator acted, which ends the alarm."""
        going, went = self._state.going, self._state.went
        if not went:
            return
        manual = active not in (went["target"], *self._state.taken_back) and active <= went["highest"]
        again = going is None and active in self._state.taken_back
        if pinned or manual or again:
            self._state.going = self._state.went = None
        elif going and not self._fallen(active, going["target"]):
            self._state.going = None
        else:
            return
        self._keep()

    def _fallen(self, active: int, target: int) -> bool:
        """Whether a version was taken back with what came after `target`, or was made from one of these meanwhile."""
        return any(version > target and version in self._state.taken_back for version in self._versions.lineage(active))

    def took_back(self, version: int) -> VersionStatus | None:
        """Return the status of a version that was taken back here; None for any other."""
        if version not in self._state.taken_back or not self._state.went:
            return None
        return VersionStatus(VersionState.TAKEN_BACK, self._state.went["reason"].removeprefix(_PREFIX))

    def _compared(self, active: int) -> _Compared | None:
        """The newest versions that have min_turns together, and those before them; None when there is nothing to
        compare, or nothing to be done about it."""
        if not self._config.enabled or self._state.going:
            return None
        live, ancestors = self._scores.all(), self._versions.lineage(active)
        # Not past one that was taken back once and that an operator activated again.
        stop = next((at for at, version in enumerate(ancestors) if version == 0 or version in self._state.taken_back),
                    len(ancestors))
        group, after = self._pool(ancestors[:stop], live)
        if not group or after.turns < self._config.min_turns:
            return None
        earlier, before = self._pool(ancestors[ancestors.index(group[-1]) + 1:], live)
        look = 1 + int(math.log2(after.turns / self._config.min_turns))
        if before.turns < self._config.min_turns or look > LOOKS:
            return None
        return _Compared(group, after, earlier, before, look)

    def _looks(self, found: _Compared) -> int:
        return self._state.looks.get(str(found.group[-1]), 0)

    def _pool(self, versions: list[int], live: dict[int, Scores]) -> tuple[list[int], Scores]:
        """As many of the versions with live turns as have min_turns together, and their scores."""
        pooled: list[int] = []
        total = Scores()
        for version in versions:
            if version in live and total.turns < self._config.min_turns:
                pooled.append(version)
                total += live[version]
        return pooled, total

    def _target(self, oldest: int, kept: Collection[int]) -> int | None:
        """The nearest version before `oldest` that served, can be trained on and that the policy server has."""
        for version in self._versions.lineage(oldest)[1:]:
            if version not in kept or version in self._state.taken_back:
                continue
            known = self._versions.get(version)
            if known is not None and not known.lost and (version == 0 or known.activated_at is not None):
                return version
        return None

    def _note(self, fall: Fall, taken: list[int]) -> None:
        highest = max(taken)
        self._state.taken_back = sorted({*self._state.taken_back, *taken})
        self._state.going = {"target": fall.target, "reason": fall.reason}
        self._state.went = {"target": fall.target, "highest": highest, "reason": fall.reason}
        self._keep()

    def _end_alarm(self, found: _Compared, fall: float) -> None:
        """Clear the last rollback when newer versions with enough turns are no worse."""
        if self._state.went and found.group[-1] > self._state.went["highest"] and fall < self._config.min_drop:
            self._state.went = None

    def _keep(self) -> None:
        self._table.set(Key.WATCH, json.dumps(asdict(self._state)))


def fall_probability(after: Scores, before: Scores) -> float:
    """Return the one-sided probability of a mean as low as `after`'s, were its turns drawn from all of them by chance.

    Args:
        after: scores of the turns that are asked about.
        before: scores of those that they are compared with.
    """
    n, low, middle, high = after.turns, after.down + before.down, after.neutral + before.neutral, after.up + before.up
    observed = after.up - after.down
    total = 0.0
    everything = _log_binomial(low + middle + high, n)
    for downs in range(max(0, n - middle - high), min(low, n) + 1):
        for ups in range(max(0, n - downs - middle), min(high, n - downs, observed + downs) + 1):
            ways = (_log_binomial(low, downs) + _log_binomial(high, ups) + _log_binomial(middle, n - downs - ups))
            total += math.exp(ways - everything)
    return min(1.0, total)


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _of(scores: Scores, versions: list[int]) -> str:
    numbers = f"versions {versions[-1]} to {versions[0]}" if len(versions) > 1 else f"version {versions[0]}"
    return f"{scores.turns} turns of {numbers}"
