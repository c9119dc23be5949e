"""Judge labelled next states of tests/reward, and print what was right.

    python tools/judge/evaluate.py [unseen|unseen_last|unseen_second|development|held_out] [--judge rules] [--wrong]

Right is a score that equals the label, or a defensible one (`also`); "strict" counts the label alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from openclaw_rl.config import PrmJudgeConfig  # noqa: E402
from openclaw_rl.reward.interface import Judge  # noqa: E402
from openclaw_rl.reward.judges.plugins import load_judge  # noqa: E402
from openclaw_rl.v1 import turn_pb2  # noqa: E402
from tests.reward.factory import message, transition  # noqa: E402
from tests.reward.held_out import HELD_OUT  # noqa: E402
from tests.reward.labelled import State, load  # noqa: E402

SCORES = (-1, 0, 1)


@dataclass(frozen=True, slots=True)
class Judged:
    """A labelled state and the vote on it."""

    state: State
    vote: turn_pb2.Vote
    milliseconds: float


def states(name: str) -> list[State]:
    """The labelled states of a set."""
    if name == "held_out":
        return [State("any", request, answer, said, (score,)) for request, answer, said, score in HELD_OUT]
    return load(f"{name}.yaml")


async def judge_all(judge: Judge, labelled: Sequence[State]) -> list[Judged]:
    """Let a judge vote on states, one after the other."""
    found = []
    for state in labelled:
        role = "tool" if state.kind == "tool" else "user"
        seen = transition(request=state.request, answer=state.answer, messages=[message(role, state.said)])
        started = time.perf_counter()
        vote = await judge.vote(seen)
        found.append(Judged(state, vote, (time.perf_counter() - started) * 1000))
    return found


def figures(found: Sequence[Judged]) -> dict[str, float]:
    """Shares: right, strictly right, right of the -1 and +1 given, found of the -1 and +1 wanted; and, as numbers, the
    complaints taken for praise and the reverse."""
    pairs = [(row.vote.score, row.state.scores) for row in found]
    result = {"right": _share([given in wanted for given, wanted in pairs]),
              "strict": _share([given == wanted[0] for given, wanted in pairs])}
    for score, name in ((-1, "complaints"), (1, "praise")):
        result[f"precision of {name}"] = _share([score in wanted for given, wanted in pairs if given == score])
        result[f"found of {name}"] = _share([given == score for given, wanted in pairs if wanted[0] == score])
    result["complaints as praise"] = sum(given == 1 and wanted[0] == -1 for given, wanted in pairs)
    result["praise as complaints"] = sum(given == -1 and wanted[0] == 1 for given, wanted in pairs)
    return result


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 1.0


def report(found: Sequence[Judged], wrong: bool) -> str:
    """The figures, the confusion, a line for each kind; with `wrong` what was judged wrong."""
    lines = [f"{len(found)} states"]
    lines += [f"  {name:22}{value:6.2f}" for name, value in figures(found).items()]
    times = sorted(row.milliseconds for row in found)
    lines.append(
        f"  milliseconds a vote   {times[len(times) // 2]:6.1f} (median), {times[-len(times) // 20]:.1f} (p95)")
    confusion = Counter((row.state.scores[0], row.vote.score) for row in found)
    lines.append("label \\ given" + "".join(f"{score:+6d}" for score in SCORES))
    lines += [f"{label:+13d}" + "".join(f"{confusion[label, given]:6d}" for given in SCORES) for label in SCORES]
    for kind in dict.fromkeys(row.state.kind for row in found):
        rows = [row for row in found if row.state.kind == kind]
        lines.append(f"{kind:13}{sum(row.vote.score in row.state.scores for row in rows):4d} of {len(rows)}")
    if wrong:
        lines += [f"{row.state.scores[0]:+d} judged {row.vote.score:+d}: {row.state.said[:70]!r} after "
                  f"{row.state.answer[:50]!r}: {row.vote.rationale[:110]}" for row in found
                  if row.vote.score not in row.state.scores]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", nargs="?", default="unseen")
    parser.add_argument("--judge", default="classifier")
    parser.add_argument("--wrong", action="store_true", help="list what was judged wrong")
    arguments = parser.parse_args()
    print(report(asyncio.run(judge_all(load_judge(PrmJudgeConfig(judge=arguments.judge)), states(arguments.set))),
                 arguments.wrong))
