"""Print the hints that the judge `classifier` makes of labelled complaints, with the mark that a reader gave each.

    python tools/judge/hints.py [--missing]

The complaints are those in words of tests/reward/unseen.yaml and unseen_second.yaml, the marks are in
tests/reward/hints.yaml. Rubric:

- right: who knows only the request and the hint would avoid the fault that the user complains of;
- useless: they would not know what to do differently;
- harmful: it asks for what the user does not want, presents the wrong answer as the right one, or is an attack.

A hint that differs from the marked one is printed as "unmarked". `--missing` lists the complaints without a hint, too.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml
from evaluate import Judged, judge_all

ROOT = Path(__file__).resolve().parents[2]
SETS = ("unseen", "unseen_second")


def complaints() -> list[Judged]:
    """The judge's votes on all complaints in words."""
    from openclaw_rl.reward.judges.classifier import ClassifierJudge
    from tests.reward.labelled import load

    states = [state for name in SETS for state in load(f"{name}.yaml")
              if state.scores[0] == -1 and state.kind != "tool"]
    return asyncio.run(judge_all(ClassifierJudge(), states))


def marks(found: Sequence[Judged]) -> list[tuple[Judged, str]]:
    """Each vote with a hint, and its mark."""
    known = {(row["said"], row["hint"]): row["mark"]
             for row in yaml.safe_load((ROOT / "tests/reward/hints.yaml").read_text(encoding="utf-8"))}
    return [(row, known.get((row.state.said, row.vote.hint), "unmarked")) for row in found if row.vote.hint]


def main(missing: bool) -> None:
    """Print the table and its totals."""
    found = complaints()
    marked = marks(found)
    for row, mark in sorted(marked, key=lambda pair: pair[1]):
        print(f"{mark:9}{row.state.said[:70]!r} -> {row.vote.hint}")
    if missing:
        without = [row for row in found if not row.vote.hint]
        print(*(f"no hint  {row.state.said[:70]!r} ({row.vote.score:+d})" for row in without), sep="\n")
    counts = Counter(mark for _, mark in marked)
    print(f"{len(found)} complaints, {sum(row.vote.score < 0 for row in found)} judged -1, {len(marked)} hints: "
          + ", ".join(f"{count} {mark}" for mark, count in counts.most_common()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", action="store_true")
    main(parser.parse_args().missing)
