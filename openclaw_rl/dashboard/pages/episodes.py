"""Episodes page: runs, groups, outcomes, success by task."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from nicegui import ui

from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.data import environments as data
from openclaw_rl.dashboard.data import texts
from openclaw_rl.dashboard.data.parts import FAILURES, reason
from openclaw_rl.dashboard.data.turns import Filters
from openclaw_rl.dashboard.i18n import t
from openclaw_rl.dashboard.layout import Tag, clock, heading, tag
from openclaw_rl.dashboard.pages import Page
from openclaw_rl.dashboard.widgets import (
    RebuiltPart,
    assets,
    broken,
    cell,
    chip,
    choice,
    every,
    field,
    form,
    link,
    nothing,
    path,
    put,
    row,
    section,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openclaw_rl.v1.environment_pb2 import Episode

#: Episodes that the figures are of.
_RECENT = 500


async def build() -> None:
    """Make the page."""
    assets()
    query = ui.context.client.request.query_params
    run, kind, token = (query.get(name, "").strip()[:500] for name in ("run", "type", "from"))
    with tag("nav", "", "d-muted", aria_label=t("parts.place")):
        link(t("environments.title"), "/environments")
    heading(t("episodes.title"))
    with form("/episodes", t("episodes.title")):
        field(t("episodes.run"), "run", run, size="20")
        choice(t("environments.type"), "type", kind, [("", t("turns.any")), *(
            (name, name) for name in dict.fromkeys(["terminal", "gui", "swe", "tool_call", kind]) if name)])
        tag("button", t("turns.find"), "d-button", type="submit")
    state, tasks, groups = RebuiltPart(loading=True), RebuiltPart(), RebuiltPart()
    with section(t("episodes.title")) as card:
        _, body = table(t("episodes.title"), [
            (t("turns.time"), ""), (t("episodes.task"), ""), (t("turn.group"), ""), (t("lease.steps"), "num"),
            (t("turn.outcome"), ""), (t("turns.version"), "num"), (t("episodes.see"), "")])
    card.set_visibility(False)
    older = RebuiltPart()
    lines: dict[str, tuple[Tag, Tag, Episode]] = {}

    async def look() -> None:
        try:
            found = await data.episodes(dash().mesh, run=run, kind=kind, token=token, size=_RECENT)
        except FAILURES as error:
            why = reason(error)
            state.show(why, lambda: broken("env_server", why, t("environments.works")))
            return
        episodes = found.episodes
        state.show(bool(episodes), lambda: None if episodes
                   else nothing(t("episodes.none"), t("episodes.none_more")))
        card.set_visibility(bool(episodes))
        tasks.show(data.by_task(episodes), lambda: _tasks(episodes))
        groups.show(data.by_group(episodes), lambda: _groups(episodes) if episodes else None)
        _rows(body, lines, episodes[: data.SIZE])
        older.show(found.next_page_token, lambda: link(
            t("turns.older"), f"/episodes?{_query(run=run, type=kind, **{'from': found.next_page_token})}",
            "d-button p-plain") if found.next_page_token else None)

    every(3.0, look)


def _rows(body: Tag, lines: dict[str, tuple[Tag, Tag, Episode]], episodes: Sequence[Episode]) -> None:
    """Bring the table up to date; rows of episodes in which nothing happened stay as they are."""
    for gone in lines.keys() - {one.episode_id for one in episodes}:
        lines.pop(gone)[0].delete()
    with body:
        for place, one in enumerate(episodes):
            line, steps, was = lines.get(one.episode_id, (None, None, None))
            if line is not None and steps is not None and was is not None and not one.done and not was.done:
                put(steps, str(one.steps))
            elif was != one:
                if line is not None:
                    line.delete()
                line, steps = _row(one)
            assert line is not None and steps is not None
            if body.default_slot.children[place] is not line:
                line.move(target_index=place)
            lines[one.episode_id] = line, steps, one


def _tasks(episodes: Sequence[Episode]) -> None:
    figures = data.by_task(episodes)
    if not figures:
        return
    with section(t("episodes.by_task")):
        _, body = table(t("episodes.by_task"), [
            (t("episodes.task"), ""), (t("episodes.over"), "num"), (t("episodes.done"), ""),
            (t("episodes.mean"), "num"), (t("lease.steps"), "num"), (t("episodes.broken"), "num")])
        with body:
            for one in figures:
                counted = one.episodes - one.broken
                with row():
                    cell(t("episodes.task"), texts.line(f"{one.type}: {one.task}", 120), "d-wrap")
                    cell(t("episodes.over"), str(one.episodes), "num")
                    with cell(t("episodes.done")), tag("div", ""):
                        tag("span", f"{one.done}/{counted}")
                        with tag("span", "", "p-bar", aria_hidden="true"):
                            tag("span", "").style(f"width: {100 * one.done / counted if counted else 0:.1f}%")
                    cell(t("episodes.mean"), "–" if one.mean is None else f"{one.mean:.2f}", "num")
                    cell(t("lease.steps"), f"{one.steps:.1f}", "num")
                    cell(t("episodes.broken"), str(one.broken), "num")


def _groups(episodes: Sequence[Episode]) -> None:
    with section(t("episodes.groups")):
        _, body = table(t("episodes.groups"), [
            (t("episodes.run"), ""), (t("episodes.task"), ""), (t("episodes.outcomes"), ""),
            (t("episodes.mean"), "num"), (t("episodes.running"), "num")])
        with body:
            for one in data.by_group(episodes)[:100]:
                with row():
                    with cell(t("episodes.run")):
                        link(texts.line(one.run, 30), f"/episodes?{_query(run=one.run)}", "d-mono")
                    cell(t("episodes.task"), texts.line(f"{one.type}: {one.task}", 120), "d-wrap")
                    with cell(t("episodes.outcomes")), tag("div", "", "p-chips"):
                        for outcome in one.outcomes[:32]:
                            chip(f"{outcome:.2g}", "good" if outcome >= 1 else "bad" if outcome <= 0 else "warn")
                        if one.broken:
                            chip(t("episodes.broken_count", count=one.broken))
                    cell(t("episodes.mean"), "–" if one.mean is None else f"{one.mean:.2f}", "num")
                    cell(t("episodes.running"), str(one.running), "num")


def _row(one: Episode) -> tuple[Tag, Tag]:
    """Gives the row, and the cell with its steps."""
    with row() as line:
        with cell(t("turns.time"), "", "p-nowrap"):
            tag("time", clock(one.started_at.seconds), "d-muted")
        cell(t("episodes.task"), texts.line(f"{one.type}: {one.task_id}", 120), "d-wrap")
        cell(t("turn.group"), texts.line(one.group_id, 30), "d-mono")
        steps = cell(t("lease.steps"), str(one.steps), "num")
        with cell(t("turn.outcome")), tag("div", ""):
            if one.error:
                chip(t("episodes.broken"), "warn")
                tag("span", texts.line(one.error, 200), "d-muted d-wrap")
            elif one.HasField("outcome"):
                chip(f"{one.outcome:.2g}", "good" if one.outcome >= 1 else "bad" if one.outcome <= 0 else "warn")
                if one.detail:
                    tag("span", texts.line(one.detail, 120), "d-muted d-wrap")
            else:
                chip(t("episodes.running"))
            if one.no_train:
                tag("span", t("episodes.no_train"), "d-muted p-note")
        with cell(t("turns.version"), "", "num"):
            if one.HasField("policy_version"):
                link(str(one.policy_version), path("versions", one.policy_version))
        with cell(t("episodes.see")), tag("div", "", "p-chips"):
            link(t("sessions.turns"), f"/turns?{Filters(episode=one.episode_id).query()}")
            if one.session_id:
                link(t("turns.session"), path("sessions", one.session_id))
            if one.lease_id and not one.done:
                link(t("episodes.live"), path("leases", one.lease_id))
    return line, steps


def _query(**values: str) -> str:
    return urlencode({name: value for name, value in values.items() if value}, errors="replace")


PAGES = [Page("/episodes", "environments", build, nav=False, words=True)]
