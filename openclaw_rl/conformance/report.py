"""Reports of a run: terminal output, JSON, Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from openclaw_rl.conformance.frame import Check, Level, Outcome
from openclaw_rl.conformance.runner import Report, Result

_MARK = {Outcome.PASSED: ("ok", "green"), Outcome.FAILED: ("FAILED", "bold red"), Outcome.SKIPPED: ("--", "dim"),
         Outcome.ERROR: ("ERROR", "bold magenta")}


class Printer:
    """Prints results as they arrive, grouped by the first word of their ids."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._group = ""

    def result(self, result: Result) -> None:
        """Print a result."""
        group = result.check.id.partition(".")[0]
        if group != self._group:
            self._group = group
            self._line(Text(group, style="bold"))
        warned = result.outcome is Outcome.FAILED and result.check.level is Level.SHOULD
        mark, style = ("warning", "yellow") if warned else _MARK[result.outcome]
        line = Text("  ").append(f"{mark:<8}", style=style).append(f"{result.check.id:<34}")
        line.append(f"{result.seconds:6.2f} s" if result.outcome is not Outcome.SKIPPED else " " * 8)
        if result.outcome is Outcome.SKIPPED:
            line.append(f"  {_harmless(result.seen)}", style="dim")
        self._line(line)
        if result.outcome in (Outcome.FAILED, Outcome.ERROR):
            self._line(Text(f"           {result.check.obligation}"))
            self._line(Text(f"           observed: {_harmless(result.seen)}", style="red"))
            self._line(Text(f"           contract: {result.check.where}", style="dim"))

    def summary(self, report: Report) -> None:
        """Print the summary."""
        if report.could_not:
            self._line(Text(f"could not check: {_harmless(report.could_not)}", style="bold red"))
            return
        counts = ", ".join(f"{len(found)} {outcome.value}" for outcome in Outcome if (found := report.of(outcome)))
        self._line(Text(f"\n{counts} in {report.seconds:.1f} s"))
        who = f"{report.address} ({_harmless(report.server)})" if report.server else report.address
        warned = len(report.of(Outcome.FAILED, Level.SHOULD))
        if report.exit_code == 0:
            self._line(Text(f"{who} conforms: {report.service}", style="bold green").append(
                f", {warned} warning{'s' * (warned != 1)}" if warned else ""))
        elif report.exit_code == 1:
            self._line(Text(f"{who} does not conform: {report.service}", style="bold red"))
        else:
            self._line(Text(f"{who} could not be checked completely: the kit failed", style="bold magenta"))

    def _line(self, text: Text) -> None:
        self._out.print(text, soft_wrap=True, highlight=False)


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON data."""
    return {"service": report.service, "address": report.address, "server": report.server,
            "conforms": report.conforms, "could_not_ask": report.could_not, "seconds": round(report.seconds, 3),
            "checks": [{**about(one.check), "outcome": one.outcome.value, "seen": one.seen,
                        "seconds": round(one.seconds, 3)} for one in report.results]}


def about(check: Check) -> dict[str, Any]:
    """Return a check's description as JSON data."""
    return {"id": check.id, "level": check.level.value, "obligation": check.obligation, "contract": check.where,
            "services": list(check.services), "needs": sorted(need.value for need in check.needs),
            "after": list(check.after)}


def table(checks: Sequence[Check]) -> str:
    """Return all checks as Markdown, one table per group."""
    parts = []
    for group, found in groupby(checks, key=lambda one: one.id.partition(".")[0]):
        rows = [f"| `{one.id}` | {one.obligation}{'' if one.level is Level.MUST else ' *(should)*'} "
                f"| {', '.join(one.services)} | {', '.join(sorted(f'`{need.value}`' for need in one.needs))} "
                f"| {one.where} |" for one in found]
        parts.append("\n".join((f"### {group}", "", "| check | a server's obligation | services | needs | contract |",
                                "|---|---|---|---|---|", *rows, "")))
    return "\n".join(parts)


def _harmless(text: str) -> str:
    """Return text as one line without control characters: a server may have written it."""
    return "".join(char if char.isprintable() else " " for char in text)
