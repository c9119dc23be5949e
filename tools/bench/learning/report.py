"""The table, and the figures over seeds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tools.bench.learning.evaluation import Row
from tools.bench.learning.scorers import Share
from tools.bench.learning.session import Run
from tools.bench.learning.users import User

_SCORES = ("style", "on_topic", "terms", "kept", "blind", "words")


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table: a line for each row and temperature, means with standard errors."""
    names = ("", "T", "style", "on topic", "terms", "**kept**", "blind", "words", "pairs", "margin", "neutral en / zh",
             "distance")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in rows:
        for index, (temperature, scores) in enumerate(row.texts.items()):
            shown = [_number(scores[name], 0 if name == "words" else 2) for name in _SCORES]
            likelihood = [""] * 4
            if row.figures is not None and index == 0:
                neutral = " / ".join(f"{value:.2f}" for value in row.figures.neutral.values())
                likelihood = [_number(row.figures.pairs, 2), _number(row.figures.margin, 2), neutral,
                              _number(row.figures.distance, 4)]
            lines.append(f"| {row.name if index == 0 else ''} | {float(temperature):g} | "
                         + " | ".join([*shown, *likelihood]) + " |")
    return "\n".join(lines)


def _number(share: Share, digits: int) -> str:
    return f"{share.mean:.{digits}f} ± {share.error:.{digits}f}"


def mean_rows(runs: Sequence[Run]) -> list[Row]:
    """Return the mean of the seeds' rows; errors are those of one seed's answers over the root of the seeds."""
    def mean(shares: Sequence[Share]) -> Share:
        n = len(shares)
        return Share(sum(s.mean for s in shares) / n, sum(s.error ** 2 for s in shares) ** 0.5 / n)

    found = []
    for same in zip(*(run.rows for run in runs), strict=True):
        first = same[0]
        texts = {temperature: {name: mean([row.texts[temperature][name] for row in same]) for name in scores}
                 for temperature, scores in first.texts.items()}
        kinds = {kind: sum(row.kinds[kind] for row in same) / len(same) for kind in first.kinds}
        figures = first.figures
        if figures is not None:
            all_figures = [row.figures for row in same if row.figures is not None]
            figures = type(figures)(
                mean([f.pairs for f in all_figures]), mean([f.margin for f in all_figures]),
                {name: sum(f.neutral[name] for f in all_figures) / len(all_figures) for name in figures.neutral},
                mean([f.distance for f in all_figures]))
        found.append(Row(first.name, texts, kinds, figures))
    return found


def summary(user: User, runs: Sequence[Run], base: Row) -> dict[str, Any]:
    """Return what the goals are about, of the serving temperature: of each seed the worst `kept` of its rows, and the
    mean change from row to row (`swing`); sessions to effect, also after the user changed his mind; and the change of
    the neutral perplexities against the base model's."""
    found: dict[str, Any] = {"worst": [], "swing": [], "sessions_to_effect": [], "refused": []}
    for run in runs:
        kept = [next(iter(row.texts.values()))["kept"].mean for row in run.rows]
        found["worst"].append(round(min(kept), 3))
        found["swing"].append(round(sum(abs(b - a) for a, b in itertools.pairwise(kept))
                                    / max(len(kept) - 1, 1), 3))
        found["sessions_to_effect"].append(run.sessions_to_effect())
        found["refused"].append(sum(bool(version["refused"]) for version in run.versions))
    for since, wish in user.wishes[1:]:
        found[f"sessions_to_{wish.name}"] = [run.sessions_to_effect(since) for run in runs]
        found["old_wish"] = [run.rows[-1].notes.get("old_wish") for run in runs]
    last = [run.rows[-1].figures for run in runs]
    if base.figures is not None and all(last):
        found["neutral"] = {
            name: round(sum(figures.neutral[name] for figures in last if figures) / len(last) / value - 1, 4)
            for name, value in base.figures.neutral.items()}
    return found
