"""Names of the judges of the turns that a version was trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from openclaw_rl.v1 import turn_pb2


def votes_by_judge(samples: Iterable[turn_pb2.Sample]) -> dict[str, int]:
    """Count the votes by the name of the judge, failed ones left out."""
    return dict(sorted(Counter(vote.judge or "unnamed" for sample in samples for vote in sample.judgement.votes
                               if not vote.error).items()))


def panels(samples: Iterable[turn_pb2.Sample]) -> dict[str, str]:
    """Return a version's setting `judge_panel`: how the judges were made up, such as "rules"; several, when that was
    changed between the turns. Empty when they did not say."""
    found = "; ".join(sorted({sample.judgement.panel for sample in samples} - {""}))
    return {"judge_panel": found} if found else {}
