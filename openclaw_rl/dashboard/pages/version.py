"""Version page: origin, gate results, comparison, activation and rollback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nicegui import ui

from openclaw_rl.dashboard.access import visitor
from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.data import texts
from openclaw_rl.dashboard.data import versions as data
from openclaw_rl.dashboard.data.parts import FAILURES, part, reason
from openclaw_rl.dashboard.i18n import t
from openclaw_rl.dashboard.layout import heading, tag
from openclaw_rl.dashboard.pages import Page
from openclaw_rl.dashboard.pages.versions import STATES, live
from openclaw_rl.dashboard.widgets import (
    ActionButton,
    RebuiltPart,
    assets,
    broken,
    cell,
    chip,
    choice,
    every,
    facts,
    form,
    link,
    nothing,
    path,
    row,
    section,
    table,
    text_block,
    when,
)

if TYPE_CHECKING:
    from openclaw_rl.client.facts import Version
    from openclaw_rl.client.versions import VersionDiff, VersionStory
    from openclaw_rl.dashboard.data.versions import VersionList

#: Turns that a page shows of those that a version was trained on, and answers to held-out prompts.
_TURNS, _ANSWERS = 200, 40
#: Versions that it can be compared with, the newest.
_OTHERS = 200
_SCORES = {1: ("+1", "good"), 0: ("0", ""), -1: ("−1", "bad"), None: ("–", "")}


async def build(number: str) -> None:
    """Make the page."""
    assets()
    ui.page_title(f"{t('turns.version')} {texts.line(number, 20)} · OpenClaw-RL")
    with tag("nav", "", "d-muted", aria_label=t("parts.place")):
        link(t("versions.title"), "/versions")
    heading(f"{t('turns.version')} {texts.line(number, 20)}")
    if not (number.isascii() and number.isdecimal() and len(number) <= 18):
        nothing(t("version.no_number"))
        return
    other = ui.context.client.request.query_params.get("other", "")
    compared = int(other) if other.isascii() and other.isdecimal() and len(other) <= 18 else None
    problem, head = RebuiltPart(loading=True), RebuiltPart("p-story")
    buttons, rest = RebuiltPart("p-buttons"), RebuiltPart("p-story")
    last: list[Any] = [None, None, None]  # what the story was made of, it, and what there is to compare

    async def look() -> None:
        try:
            found = await data.every(dash().mesh)
            own = next((one.version for one in found.rows if one.version.version == int(number)), None)
            made_of = (None if own is None else replace(own, live=None), found.active, found.pinned, found.down)
            if own is None or last[0] != made_of:
                story = await data.story(dash().mesh, int(number))
                against = compared if compared is not None else story.facts.parent
                diff = await part(lambda: data.diff(dash().mesh, against, int(number))) \
                    if against is not None and against != story.facts.version else (None, "")
                last[:] = made_of, story, diff
        except FAILURES as error:
            why, unknown = reason(error), getattr(getattr(error, "code", None), "name", "") == "NOT_FOUND"
            problem.show(why, lambda: nothing(texts.inert(why, 1000)) if unknown
                         else broken("trainer", why, t("versions.works")))
            for gone in (head, buttons, rest):
                gone.show(None, lambda: None)
            last[0] = None
            return
        _, story, (diff, no_diff) = last
        lives = None if own is None else own.live
        problem.show("", lambda: None)
        head.show((made_of, story.json(), lives, int(number) in found.kept), lambda: _head(story, found, lives))
        buttons.show((story.facts.active, found.active, found.pinned, int(number) in found.kept, found.down),
                     lambda: _acts(story, found, look))
        others = [one.version.version for one in found.rows[:_OTHERS]]
        rest.show((made_of, story.json(), others, no_diff, visitor().words),
                  lambda: _show(story, others, diff, no_diff))

    every(5.0, look, words=False)


def _head(story: VersionStory, found: VersionList, lives: dict[str, float] | None) -> None:
    version = story.facts
    with section(t("turn.about")):
        with tag("div", "", "p-chips"):
            if version.state:
                chip(t(f"versions.state.{version.state}"), STATES.get(version.state, ""))
            if where := _kept(version, found):
                chip(t(f"version.{where}"))
        facts([
            (t("versions.parent"), (lambda: link(str(version.parent), path("versions", version.parent)))
             if version.parent is not None else ""),
            (t("versions.algorithm"), texts.line(version.algorithm)),
            (t("versions.made"), _time(version.created_at)), (t("version.activated"), _time(story.activated_at)),
            (t("versions.pause"), f"{story.pause_ms:.1f} ms" if story.pause_ms is not None else ""),
            (t("versions.turns"), str(len(version.turns))), (t("versions.live"), live(lives)),
            (t("version.judges"), ", ".join(f"{texts.line(name, 60)}: {count}"
                                            for name, count in story.judges.items())),
            (t("version.detail"), texts.line(story.detail, 400)),
            (t("version.digest"), texts.line(version.digest, 80))])


def _kept(version: Version, found: VersionList) -> str:
    """Whether the policy server has its weights: "kept", "sending" or "not_kept"; empty when that isn't known."""
    if "policy_server" in found.down:
        return ""
    if version.version in found.kept:
        return "kept"
    newer = found.active is None or version.version > max({found.active, *found.kept})
    return "sending" if newer and not version.state else "not_kept"


def _show(story: VersionStory, others: list[int], diff: VersionDiff | None, problem: str) -> None:
    version, words = story.facts, visitor().words
    with tag("div", "", "p-two"):
        _figures(t("version.metrics"), [(name, f"{value:.4g}") for name, value in version.metrics.items()])
        _figures(t("version.settings"), [(name, value) for name, value in story.settings.items()])
        _gate(story.gate)
        if version.deliveries:
            with section(t("versions.servers")):
                for one in version.deliveries:
                    with tag("div", "", "p-chips"):
                        chip(texts.line(one["address"], 80), "good" if one["active"] else "")
                        tag("span", "; ".join(filter(None, [
                            t("version.answering") if one["active"] else "", texts.line(one["detail"], 300)])),
                            "d-muted d-wrap")
    if not words:
        tag("p", t("frame.words_need_admin"), "d-muted")
    if story.playbook is not None and words:
        with section(t("version.playbook")), tag("ul", ""):
            for entry in story.playbook:
                tag("li", texts.inert(entry["text"], 2000), "d-wrap")
    _diff(story, others, diff, problem, words)
    if words:
        _turns(story)


def _acts(story: VersionStory, found: VersionList, look: Callable[[], Awaitable[None]]) -> None:
    mesh, number = dash().mesh, story.facts.version
    where = _kept(story.facts, found)
    kept = t(f"version.{where}_why") if where in ("not_kept", "sending") else ""
    down = t("versions.policy_down") if "policy_server" in found.down else ""

    async def activate(why: str) -> str:
        active, pause = await data.activate(mesh, number, why)
        return t("version.did_activate", number=active, pause=f"{pause:.0f}")

    async def pin(why: str) -> str:
        return t("version.did_pin", number=await data.pin(mesh, number, why, True))

    async def unpin(why: str) -> str:
        return t("versions.did_unpin", number=await data.pin(mesh, None, why, False))

    if not story.facts.active:
        back = found.active is not None and number < found.active
        ActionButton(t("version.roll_back") if back else t("version.activate"),
            t("version.roll_back_says" if back else "version.activate_says", number=number,
              active="?" if found.active is None else found.active),
            activate, why=True, blocked=down or kept or (t("version.pinned_why") if found.pinned else ""), done=look)
    if story.facts.active and found.pinned:
        ActionButton(t("versions.unpin"), t("versions.unpin_says"), unpin, why=True, blocked=down, done=look)
    else:
        ActionButton(t("version.pin"), t("version.pin_says", number=number), pin, why=True, blocked=down or kept,
                     done=look)


def _figures(title: str, rows: Sequence[tuple[str, str]]) -> None:
    with section(title):
        if not rows:
            tag("p", "–", "d-muted")
        facts([(texts.line(name, 60), texts.line(value, 200)) for name, value in rows])


def _gate(gate: dict[str, Any] | None) -> None:
    with section(t("versions.gate")):
        if gate is None:
            nothing(t("version.no_gate"))
            return
        if gate["verdict"]:
            chip(t(f"versions.gate.{gate['verdict']}"), "good" if gate["verdict"] == "passed" else "bad")
        for failure in gate["failures"]:
            tag("p", texts.inert(failure, 1000), "d-problem d-wrap")
        _, body = table(t("versions.gate"), [("", ""), (t("version.before"), "num"), (t("version.after"), "num")])
        with body:
            for name in sorted({*gate["metrics"], *gate["before"]}):
                with row():
                    cell("", texts.line(name, 60))
                    for title, values in ((t("version.before"), gate["before"]), (t("version.after"), gate["metrics"])):
                        cell(title, f"{values[name]:.4g}" if name in values else "–", "num")


def _diff(story: VersionStory, known: list[int], diff: VersionDiff | None, problem: str, words: bool) -> None:
    number = story.facts.version
    with section(t("version.compare")):
        others = [("", t("version.parent_choice")), *((str(one), str(one)) for one in known if one != number)]
        with form(path("versions", number), t("version.compare")):
            choice(t("version.other"), "other", str(diff.old) if diff is not None else "", others)
            tag("button", t("version.show"), "d-button", type="submit")
        if problem:
            tag("p", texts.inert(problem, 1000), "d-problem", role="alert")
        if diff is None:
            tag("p", t("version.no_other"), "d-muted")
            return
        _, body = table(t("version.compare"), [("", ""), (f"{t('turns.version')} {diff.old}", ""),
                                               (f"{t('turns.version')} {diff.new}", "")])
        with body:
            rows: list[tuple[str, Any]] = [*diff.settings.items(), *diff.metrics.items(), *diff.gate.items()]
            for name, values in rows:
                with row():
                    cell("", texts.line(name, 60))
                    for which, value in zip((diff.old, diff.new), values, strict=True):
                        cell(str(which), "–" if value is None else f"{value:.4g}" if isinstance(value, float)
                             else texts.line(value, 200))
        tag("p", t("version.steps", steps=", ".join(f"{'+' if step.change == 'added' else '−'}"
                                                    f"{step.story.facts.version}" for step in diff.steps) or "–"),
            "d-muted")
        if words:
            _answers(diff)


def _answers(diff: VersionDiff) -> None:
    """The same held-out prompts, answered by both."""
    if not diff.answers:
        tag("p", t("version.no_answers"), "d-muted")
        return
    tag("h3", t("version.answers"), "d-h2")
    for answer in diff.answers[:_ANSWERS]:
        with tag("div", "", "p-columns"):
            text_block(answer["prompt"] or "", t("version.prompt"), 2000)
            for which, text in ((diff.old, answer["old"]), (diff.new, answer["new"])):
                with tag("div", ""):
                    tag("p", f"{t('turns.version')} {which}", "d-muted")
                    if text is None:
                        tag("p", t("version.not_asked"), "d-muted")
                    else:
                        text_block(text, f"{t('turns.version')} {which}", 4000)


def _turns(story: VersionStory) -> None:
    with section(t("version.trained_on")):
        if not story.turns:
            nothing(t("version.no_turns"))
            return
        _, body = table(t("version.trained_on"), [(t("turns.what"), "p-what"), (t("turns.session"), ""),
                                                  (t("turns.score"), "")])
        with body:
            for turn in story.turns[:_TURNS]:
                with row():
                    with cell(t("turns.what"), "", "p-what"):
                        link(texts.line(turn.request or "") or turn.turn, path("turns", turn.turn), "p-line p-plain")
                        tag("span", texts.line(turn.response or t("turns.no_text")), "p-line", dir="auto")
                    with cell(t("turns.session")):
                        if turn.session:
                            link(texts.line(turn.session, 24), path("sessions", turn.session), "d-mono")
                    with cell(t("turns.score")):
                        chip(*_SCORES.get(turn.score, ("–", "")))
        if len(story.turns) > _TURNS:
            tag("p", t("version.more_turns", count=len(story.turns) - _TURNS), "d-muted")


def _time(at: str | None) -> Any:
    return "" if at is None else lambda: when(datetime.fromisoformat(at).timestamp(), "")


PAGES = [Page("/versions/{number}", "versions", build, nav=False)]
