"""Live charts of the history, each with a text summary and a table on demand."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nicegui import ui
from nicegui.element import Element
from nicegui.elements import echart

from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.i18n import t
from openclaw_rl.dashboard.layout import clock, tag
from openclaw_rl.monitoring.series import POINTS, Curves

#: Spans of time that a reader can choose, seconds, by the key of their name in locale/.
SPANS = {"15m": 900, "1h": 3600, "24h": 86400, "7d": 7 * 86400}

_DIST = Path(echart.__file__).parent / "dist"
#: Rows of a chart's table.
_ROWS = 60


@dataclass(frozen=True)
class Line:
    """One line of a chart: figure of the history, label, and a colour of dash.css."""

    figure: str
    label: str
    colour: str
    dashed: bool = False


class _LiveChart(Element, component="static/live_chart.js", esm={"nicegui-echart": str(_DIST)}):
    """Drawing component; see live_chart.js."""


class Chart:
    """A card with a chart.

    Args:
        title: its heading.
        lines: what it shows.
        unit: "ms", "count", or a word that stands behind each value.
        stacked: the lines add up.
        steps: values hold until the next one.
        whole: the values are whole numbers.
        free: the axis needn't begin at 0.
        part: what it belongs to, told over the heading.
        group: a name by which the page finds it again.
    """

    def __init__(self, title: str, lines: Sequence[Line], span: int, *, unit: str = "", stacked: bool = False,
                 steps: bool = False, whole: bool = False, free: bool = False, part: str = "", group: str = "") -> None:
        self.group = group
        self._title, self._lines, self._unit = title, list(lines), unit
        self._shape = {"unit": unit, "stacked": stacked, "steps": steps, "whole": whole, "free": free}
        self._curves = Curves([], 1, {})
        self._span = span
        with tag("section", "", "d-card d-chart-card", aria_label=f"{part}: {title}" if part else title):
            if part:
                tag("p", part, "d-part")
            with tag("div", "", "d-bar"):
                tag("h2", title, "d-h2")
                tag("button", t("chart.table"), "d-link", type="button",
                    aria_label=t("chart.table_of", title=title)).on("click", self._show_table)
            self._now = tag("p", "", "d-now")
            self._drawing = _LiveChart()
            self._between = tag("p", "", "d-sr")
        self._load()
        self._drawing.props.update({
            "spec": self._spec(), "times": self._curves.times, "values": self._rows(), "aria-label": title,
            "aria-describedby": f"c{self._now.id} c{self._between.id}"})
        self._tell()

    def show(self, span: int, lines: Sequence[Line] | None = None) -> None:
        """Change the time span or the figures."""
        self._span = span
        if lines is not None:
            self._lines = list(lines)
        self._load()
        self._drawing.run_method("whole", self._spec(), self._curves.times, self._rows())
        self._tell()

    def advance(self) -> None:
        """Advance to the present; call it every second."""
        newest = dash().history.series.newest(self._span)
        at, curves = newest.times[0], self._curves
        values = [newest.values.get(line.figure, [None])[0] for line in self._lines]
        while curves.times and curves.times[-1] < at:
            curves.times.append(curves.times[-1] + curves.step)
            for row in curves.values.values():
                row.append(None)
        for line, value in zip(self._lines, values, strict=True):
            curves.values[line.figure][-1] = value
        while len(curves.times) > POINTS:
            del curves.times[0]
            for row in curves.values.values():
                del row[0]
        self._drawing.run_method("point", at, [None if v is None else float(f"{v:.5g}") for v in values])
        self._tell()

    def _load(self) -> None:
        self._curves = dash().history.series.curves([line.figure for line in self._lines], self._span)

    def _spec(self) -> dict[str, Any]:
        offset = time.localtime().tm_gmtoff  # times are the server's everywhere
        return {**self._shape, "step": self._curves.step, "offset": offset, "points": POINTS,
                "series": [{"label": line.label, "colour": line.colour, "dashed": line.dashed}
                           for line in self._lines]}

    def _rows(self) -> list[list[float | None]]:
        return [[None if v is None else float(f"{v:.5g}") for v in self._curves.values[line.figure]]
                for line in self._lines]

    def _tell(self) -> None:
        """Describe the chart in text: current values, and ranges for screen readers."""
        now, between, live = [], [], dash().collector.latest
        for line in self._lines:
            row = self._curves.values[line.figure]
            known = [value for value in row if value is not None]
            if known:
                last = number(live.get(line.figure), self._unit)
                now.append(last if len(self._lines) == 1 else f"{line.label} {last}")
                between.append(t("chart.between", label=line.label, least=number(min(known), self._unit),
                                 most=number(max(known), self._unit)))
        self._now.text = " · ".join(now) or t("chart.nothing")
        self._between.text = "; ".join(between)

    def _show_table(self) -> None:
        with ui.dialog().props(f'aria-label="{_attribute(self._title)}"') as dialog, tag("div", "", "d-dialog"):
            with tag("div", "", "d-bar"):
                tag("h2", self._title, "d-h2")
                tag("button", t("chart.close"), "d-button", type="button").on("click", dialog.close)
            with tag("div", "", "d-scroll"):
                table([t("chart.time"), *(line.label for line in self._lines)], self._table())
        dialog.on("hide", dialog.delete)
        dialog.open()

    def _table(self) -> Iterable[list[str]]:
        """Yield the latest values, newest first, without empty rows."""
        times, rows = self._curves.times, [self._curves.values[line.figure] for line in self._lines]
        told = 0
        for i in reversed(range(len(times))):
            if told < _ROWS and any(row[i] is not None for row in rows):
                told += 1
                yield [clock(times[i]), *(number(row[i], self._unit) for row in rows)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Add a table of text with right-aligned numbers."""
    with tag("table", "", "d-table"):
        with tag("thead"), tag("tr"):
            for i, name in enumerate(head):
                tag("th", name, "num" if i else "", scope="col")
        with tag("tbody"):
            for row in rows:
                with tag("tr"):
                    for i, cell in enumerate(row):
                        tag("td", cell, "num" if i else "")


def number(value: float | None, unit: str = "") -> str:
    """Format a figure with its unit; a dash if unknown."""
    if value is None:
        return "–"
    if unit == "ms":
        return f"{value / 1000:.1f} s" if value >= 10_000 else f"{value / 1000:.2f} s" if value >= 999.5 \
            else f"{value:.0f} ms" if value >= 1 else f"{value:.2f} ms"
    if unit == "count":
        return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
    if value == 0:
        text = "0"
    elif abs(value) < 0.001 or abs(value) >= 100_000:
        text = f"{value:.2e}"
    else:
        text = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{text} {unit}".strip()


def _attribute(text: str) -> str:
    return text.replace("\\", "").replace('"', "")
