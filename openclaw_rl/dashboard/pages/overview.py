"""Overview page: the four components, their current figures, and charts of the history."""

from __future__ import annotations

import time
from collections.abc import Callable

from nicegui import ui

from openclaw_rl.dashboard.access import visitor
from openclaw_rl.dashboard.charts import SPANS, Chart, Line, number
from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.i18n import t
from openclaw_rl.dashboard.layout import Tag, clock, heading, tag
from openclaw_rl.dashboard.pages import Page
from openclaw_rl.monitoring.figures import waits_for
from openclaw_rl.monitoring.history_file import Event

_CHIPS = {"RUNNING": "good", "STARTING": "warn", "DEGRADED": "warn", "DRAINING": "warn", "DOWN": "bad", "ABSENT": ""}
#: Colours of environments, in the order of their names.
_COLOURS = ("--c1", "--c2", "--c4", "--c3", "--c5", "--c6")
#: Events shown.
_EVENTS = 12


async def build() -> None:
    """Make the page."""
    wanted = ui.context.client.request.query_params.get("range", "")
    state = {"span": SPANS.get(wanted, SPANS["15m"])}
    charts: list[Chart] = []

    def choose(span: int) -> None:
        state["span"] = span
        for chart in charts:
            chart.show(span)

    with tag("div", "", "d-bar"):
        heading(t("nav.overview"))
        _ranges(state["span"], choose)
    tag("p", t("overview.zone", zone=time.strftime("%Z (UTC%z)")), "d-muted")
    updates: list[Callable[[], None]] = [_components(), _tiles()]
    with tag("div", "", "d-grid"):
        charts += _policy_charts(state["span"])
        updates.append(_environments(charts, lambda: state["span"]))
        charts += _judge_charts(state["span"])
        charts += _trainer_charts(state["span"])
    updates.append(_journal())
    seen = {"ticks": dash().collector.ticks}

    def advance() -> None:
        if dash().collector.ticks == seen["ticks"] or not visitor().reads:
            return
        seen["ticks"] = dash().collector.ticks
        for update in updates:
            update()
        for chart in charts:
            chart.advance()

    ui.timer(1.0, advance, immediate=False)


def _ranges(chosen: int, choose: Callable[[int], None]) -> None:
    """Buttons for the span of time."""
    buttons: dict[int, Tag] = {}

    def press(span: int) -> None:
        for other, button in buttons.items():
            button.put(aria_pressed="true" if other == span else "false")
        choose(span)

    with tag("div", "", "d-group", role="group", aria_label=t("overview.range")):
        for key, span in SPANS.items():
            buttons[span] = tag("button", t(f"overview.range.{key}"), "d-button", type="button",
                                aria_pressed="true" if span == chosen else "false")
            buttons[span].on("click", lambda _, span=span: press(span))


def _components() -> Callable[[], None]:
    """A line for each component; gives what brings it up to date."""
    cells: dict[str, dict[str, Tag]] = {}
    with tag("section", "", "d-card d-components", aria_label=t("overview.components")), tag("ul", "", "d-list"):
        for seen in dash().mesh.all():
            with tag("li", "", "d-component"):
                cells[seen.name] = {
                    "name": tag("strong", t(f"component.{seen.name}")), "state": tag("span", "", "d-chip"),
                    "since": tag("span", "", "d-muted d-nowrap"), "host": tag("span", "", "d-muted d-nowrap"),
                    "waits": tag("span", "", "d-waits")}

    def show() -> None:
        for seen in dash().mesh.all():
            cell = cells[seen.name]
            cell["state"].text = t(f"state.{seen.state}")
            cell["state"].classes(replace=f"d-chip {_CHIPS[seen.state]}")
            cell["since"].text = t("overview.since", since=clock(seen.since))
            cell["host"].text = " ".join(part for part in (seen.host, seen.address) if part)
            cell["waits"].text = waits_for(seen.status) if seen.live else seen.problem

    show()
    return show


def _tiles() -> Callable[[], None]:
    """The figures of now."""
    tiles: dict[str, tuple[Tag, Tag]] = {}
    with tag("section", "", "d-tiles", aria_label=t("overview.figures")), tag("dl", "", "d-tiles-list"):
        for key in ("version", "qps", "p50", "first", "running", "environments", "queue", "updates"):
            with tag("div", "", "d-tile"):
                tag("dt", t(f"tile.{key}"), "d-muted")
                with tag("dd"):
                    tiles[key] = tag("span", "", "d-figure"), tag("span", "", "d-note")

    def show() -> None:
        now = dash().collector.latest
        get = now.get

        def put(key: str, value: str, note: str = "") -> None:
            tiles[key][0].text, tiles[key][1].text = value, note

        put("version", number(get("version"), "count"),
            t("tile.training") if get("trainer.training") else t("tile.paused") if get("trainer.paused") else "")
        put("qps", number(get("policy.qps")), t("tile.tokens", n=number(get("policy.tokens_per_s"), "count")))
        put("p50", number(get("policy.p50"), "ms"),
            t("tile.tail", p95=number(get("policy.p95"), "ms"), p99=number(get("policy.p99"), "ms")))
        cached = get("policy.cached")
        put("first", number(get("policy.first50"), "ms"),
            t("tile.tail", p95=number(get("policy.first95"), "ms"), p99=number(get("policy.first99"), "ms"))
            + ("" if cached is None else " · " + t("tile.cached", share=f"{cached:.0%}")))
        put("running", number(get("policy.running"), "count"),
            t("tile.waiting", n=number(get("policy.waiting"), "count")))
        leased = [value for name, value in now.items() if name.startswith("env.") and name.endswith(".leased")]
        capacity = [value for name, value in now.items() if name.startswith("env.") and name.endswith(".capacity")]
        put("environments", number(sum(leased), "count") if capacity else "–",
            t("tile.of", n=number(sum(capacity), "count")) if capacity else "")
        put("queue", number(get("judge.queue"), "count"),
            t("tile.votes", n=number(get("judge.votes"), "count"), failed=number(get("judge.votes_failed"), "count")))
        put("updates", number(get("trainer.updates_h"), "count"),
            t("tile.pending", n=number(get("trainer.pending"), "count")))

    show()
    return show


def _policy_charts(span: int) -> list[Chart]:
    part = t("overview.policy")
    shares = ((50, "--c1"), (95, "--c2"), (99, "--c3"))
    return [
        Chart(t("overview.qps"), [Line("policy.qps", t("overview.qps"), "--c1")], span, unit=t("overview.qps_unit"),
              part=part),
        Chart(t("overview.latency"), [Line(f"policy.p{share}", f"p{share}", colour) for share, colour in shares],
              span, unit="ms", part=part),
        Chart(t("overview.first"), [Line(f"policy.first{share}", f"p{share}", colour) for share, colour in shares],
              span, unit="ms", part=part),
        Chart(t("overview.streams"), [Line("policy.running", t("overview.running"), "--c1"),
                                      Line("policy.waiting", t("overview.waiting"), "--c2")], span, unit="count",
              part=part),
    ]


def _judge_charts(span: int) -> list[Chart]:
    part = t("overview.judge")
    scores = [("positive", "--score-good"), ("neutral", "--score-zero"), ("negative", "--score-bad"),
              ("failed", "--score-failed")]
    return [
        Chart(t("overview.scores"), [Line(f"judge.{name}", t(f"overview.{name}"), colour) for name, colour in scores],
              span, unit="count", stacked=True, part=part),
        Chart(t("overview.votes"), [Line("judge.votes", t("overview.votes_made"), "--c1"),
                                    Line("judge.votes_failed", t("overview.votes_failed"), "--score-failed")],
              span, unit="count", part=part),
        Chart(t("overview.queue"), [Line("judge.queue", t("overview.queue"), "--c4")], span, unit="count", part=part),
    ]


def _trainer_charts(span: int) -> list[Chart]:
    last, part = t("overview.last_step"), t("overview.trainer")

    def one(figure: str, colour: str, of: str, unit: str = "", free: bool = False) -> Chart:
        key = f"overview.{figure.removeprefix('trainer.').removesuffix('_h')}"
        return Chart(t(key), [Line(figure, t(key), colour)], span, unit=unit, steps=True, free=free,
                     whole=unit == "count", part=of)

    return [one("trainer.loss", "--c1", last, free=True), one("trainer.kl", "--c3", last),
            one("trainer.grad_norm", "--c4", last), one("trainer.updates_h", "--c2", part, "count"),
            one("trainer.staleness", "--c5", last), one("version", "--c1", part, "count", free=True)]


def _environments(charts: list[Chart], span: Callable[[], int]) -> Callable[[], None]:
    """What is in use of each type, and how that was."""
    with tag("section", "", "d-card", aria_label=t("overview.environments")):
        tag("h2", t("overview.environments"), "d-h2")
        box = tag("div", "", "d-envs")
    with tag("div", "", "d-place") as place:
        pass
    shown: dict[str, tuple[Tag, Tag, Tag]] = {}
    known: list[tuple[str, ...] | None] = [None]

    def rebuild(types: tuple[str, ...]) -> None:
        known[0] = types
        shown.clear()
        box.clear()
        with box:
            for name in types:
                with tag("div", "", "d-env"):
                    with tag("div", "", "d-bar"):
                        tag("strong", name, "d-wrap")
                        told = tag("span", "", "d-muted")
                    with tag("div", "", "d-meter", aria_hidden="true"):
                        bar = tag("div", "", "d-meter-bar")
                    shown[name] = told, bar, tag("p", "", "d-note d-wrap")
            if not types:
                shown[""] = (tag("p", "", "d-muted d-wrap"),) * 3
        lines = [Line(f"env.{name}.leased", name, _COLOURS[i % len(_COLOURS)]) for i, name in enumerate(types)]
        place.clear()
        for chart in [chart for chart in charts if chart.group == "environments"]:
            charts.remove(chart)
        if lines:
            with place:
                charts.append(Chart(t("overview.env_use"), lines, span(), unit="count", group="environments",
                                    part=t("overview.environments")))

    def show() -> None:
        collector = dash().collector
        types = tuple(one.type for one in collector.environments)
        if types != known[0]:
            rebuild(types)
        if not types:
            problem = collector.environments_problem
            shown[""][0].text = t("overview.environments_problem", why=problem) if problem \
                else t("overview.environments_none")
        for one in collector.environments:
            told, bar, note = shown[one.type]
            told.text = " · ".join(part for part in (
                t("overview.leased", n=one.leased, of=one.capacity), t("overview.warm", n=one.warm) if one.warm else "",
                t("tile.waiting", n=one.waiting) if one.waiting else "") if part)
            bar.style(f"width: {100 * min(1.0, one.leased / max(1, one.capacity)):.0f}%")
            note.text = one.problem or " · ".join(part for part in (one.kind, one.backend, one.image) if part)

    show()
    return show


def _journal() -> Callable[[], None]:
    """The newest events."""
    with tag("section", "", "d-card", aria_label=t("overview.journal")):
        tag("h2", t("overview.journal"), "d-h2")
        box = tag("ul", "", "d-list d-journal")
    shown: list[list[Event] | None] = [None]

    def show() -> None:
        events = dash().history.events(_EVENTS)
        if events == shown[0]:
            return
        shown[0] = events
        box.clear()
        with box:
            if not events:
                tag("li", t("overview.journal_none"), "d-muted")
            for event in events:
                with tag("li", "", "d-event"):
                    tag("time", clock(event.t), "d-muted d-mono")
                    tag("span", _sentence(event), "d-wrap")
                    if event.text and event.kind in ("state", "step_skipped", "version_rejected", "version_refused",
                                                     "watch_went_back", "rolled_back"):
                        tag("span", event.text, "d-muted d-wrap")

    show()
    return show


def _sentence(event: Event) -> str:
    values = dict(event.data)
    for name in ("before", "state"):
        if name in values:
            values[name] = t(f"state.{values[name]}")
    return t(f"event.{event.kind}", **{"component": t(f"component.{event.component}"), "version": "?", "turns": "?",
                                       **values})


PAGES = [Page("/", "overview", build, "dashboard")]
