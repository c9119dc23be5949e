"""The agents benchmark's table and curve. `python tools/bench/agents_report.py agents.json` prints those of a run that
was stopped, and writes curve.svg beside it."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_COLOURS = {"outcome": "#888888", "outcome+steps": "#0b6bcb"}
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 300, 50, 40


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Held-out success before and after by arm, means over the seeds and their range, in Markdown."""
    rows = ["| arm | kind | seeds | before | after | of each seed |", "|---|---|---|---|---|---|"]
    for arm in sorted({run["arm"] for run in runs}):
        done = [run for run in runs if run["arm"] == arm and "after" in run]
        for kind in sorted(set(done[0]["before"]) - {"tasks"}) if done else ():
            before, after = ([run[when][kind]["success"] for run in done] for when in ("before", "after"))
            each = ", ".join(f"{b:.2f} to {a:.2f}" for b, a in zip(before, after, strict=True))
            rows.append(f"| {arm} | {kind} | {len(done)} | {statistics.mean(before):.2f} | "
                        f"{statistics.mean(after):.2f} | {each} |")
    return "\n".join(rows)


def means(runs: Sequence[dict[str, Any]], arm: str) -> list[float]:
    """Success in training by step, the mean over the seeds that came so far."""
    by_step: dict[int, list[float]] = {}
    for run in runs:
        if run["arm"] == arm:
            for record in run["steps"]:
                by_step.setdefault(record["step"], []).append(record["success"])
    return [statistics.mean(by_step[step]) for step in sorted(by_step)]


def curve(runs: Sequence[dict[str, Any]]) -> str:
    """Success in training by step, as text."""
    lines = []
    for arm in sorted({run["arm"] for run in runs}):
        lines.append(f"{arm}: success of the episodes trained on, by step")
        lines += [f"  {step:3d} {value:.2f} {'#' * round(40 * value)}" for step, value in
                  enumerate(means(runs, arm), 1)]
    return "\n".join(lines)


def svg(runs: Sequence[dict[str, Any]]) -> str:
    """The same as a picture: each seed thin, their mean thick."""
    arms = sorted({run["arm"] for run in runs})
    most = max((len(run["steps"]) for run in runs), default=1)

    def line(values: Sequence[float], colour: str, width: float) -> str:
        points = " ".join(f"{_LEFT + (i + 0.5) * (_WIDTH - _LEFT) / most:.1f},"
                          f"{(_HEIGHT - _BOTTOM) * (1 - value) + 10:.1f}" for i, value in enumerate(values))
        return f'<polyline fill="none" stroke="{colour}" stroke-width="{width}" points="{points}"/>'

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT + 20}" font-family="sans-serif" '
             'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = (_HEIGHT - _BOTTOM) * (1 - tick) + 10
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>'
                     f'<text x="{_LEFT - 34}" y="{y + 4}">{tick:.2f}</text>')
    for number, arm in enumerate(arms):
        colour = _COLOURS.get(arm, "#333333")
        parts += [line([record["success"] for record in run["steps"]], colour, 0.6)
                  for run in runs if run["arm"] == arm]
        parts.append(line(means(runs, arm), colour, 2.5))
        parts.append(f'<text x="{_LEFT + 10 + 200 * number}" y="{_HEIGHT + 8}" fill="{colour}">{arm}</text>')
    parts.append(f'<text x="{_WIDTH - 60}" y="{_HEIGHT + 8}">step</text></svg>')
    return "\n".join(parts)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    found = json.loads(file.read_text())["runs"]
    file.with_name("curve.svg").write_text(svg(found))
    print(f"{table(found)}\n\n{curve(found)}")
