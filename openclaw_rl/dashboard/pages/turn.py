"""Turn page: full history of a turn, and its trace as a waterfall."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from nicegui import ui

from openclaw_rl.client.span_facts import duration
from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.data import story as data
from openclaw_rl.dashboard.data import texts, trace
from openclaw_rl.dashboard.data.parts import FAILURES, reason
from openclaw_rl.dashboard.data.turns import Filters, TurnRow
from openclaw_rl.dashboard.i18n import t
from openclaw_rl.dashboard.layout import Tag, clock, heading, tag
from openclaw_rl.dashboard.pages import Page
from openclaw_rl.dashboard.widgets import (
    RebuiltPart,
    assets,
    broken,
    chip,
    every,
    facts,
    link,
    nothing,
    path,
    put,
    script,
    section,
    text_block,
    when,
)
from openclaw_rl.v1 import environment_pb2

if TYPE_CHECKING:
    from openclaw_rl.dashboard.data.story import Story
    from openclaw_rl.dashboard.data.trace import Waterfall
    from openclaw_rl.v1.turn_pb2 import Feedback, Vote

_TONES = {1: "good", 0: "", -1: "bad"}
_SIGNED = {1: "+1", 0: "0", -1: "−1"}
_FATES = {"trained": "good", "dropped": "warn", "pending": "", "not_trainable": ""}
_STATES = {environment_pb2.TURN_STATE_OPEN: "open", environment_pb2.TURN_STATE_SENT: "sent",
           environment_pb2.TURN_STATE_NOT_TRAINABLE: "not_trainable",
           environment_pb2.TURN_STATE_SUPERSEDED: "superseded", environment_pb2.TURN_STATE_REJECTED: "rejected"}


async def build(turn_id: str) -> None:
    """Make the page."""
    assets()
    ui.page_title(f"{t('turn.title')} {texts.line(turn_id, 40)} · OpenClaw-RL")
    with tag("nav", "", "d-muted", aria_label=t("parts.place")):
        link(t("turns.title"), "/turns")
    heading(t("turn.title"))
    tag("p", texts.line(turn_id), "d-mono d-wrap")
    box, falls = RebuiltPart("p-story", loading=True), RebuiltPart()
    known: list[Story | None] = [None]
    waits: list[Tag] = []  # what a pending turn waits for, which changes all the time

    async def look() -> float | None:
        try:
            story = known[0] = await data.turn(dash().mesh, turn_id, known[0])
        except FAILURES as error:
            why, unknown = reason(error), getattr(getattr(error, "code", None), "name", "") == "NOT_FOUND"
            known[0] = None
            box.show(why, lambda: nothing(texts.inert(why, 1000)) if unknown
                     else broken("env_server", why, t("turns.works")))
            return None

        def make() -> None:
            waits[:] = [_show(story)]

        if box.show(_signature(story), make):  # else what the reader has opened, marked or scrolled stays
            put(waits[0], texts.inert(story.row.fate.reason, 1000))
        return data.FINAL if story.final else None

    async def look_at_trace() -> float | None:
        found = await trace.of_turn(dash().mesh, turn_id)
        falls.show((len(found.bars), found.problems, found.jaeger), lambda: _trace(found))
        return data.FINAL if known[0] is not None and known[0].final else None

    every(3.0, look)
    every(5.0, look_at_trace)


def _signature(story: Story) -> object:
    row = story.row
    return (replace(row.fate, reason=""),
            None if row.judgement is None else row.judgement.SerializeToString(deterministic=True),
            None if row.sample is None else (row.sample.fate, row.sample.advantage),
            row.summary.state, len(story.feedback), [turn.id for turn in story.after],
            None if story.episode is None else (story.episode.done, story.episode.steps), story.response,
            story.next_state, story.down)


def _show(story: Story) -> Tag:
    """Gives the element that has the reason of its fate."""
    _facts(story)
    with tag("div", "", "p-two"):
        with section(t("turn.exchange")):
            tag("h3", t("turn.request"), "d-muted")
            text_block(story.row.summary.request_text or t("turns.no_text"), t("turn.request"))
            tag("h3", t("turn.response"), "d-muted")
            text_block(story.response or story.row.summary.response_text or t("turns.no_text"), t("turn.response"))
            if not story.response and len(story.row.summary.response_text) >= data.CUT:
                tag("p", t("turn.cut"), "d-muted")
        _next_state(story)
        _judgement(story)
        return _fate(story)


def _facts(story: Story) -> None:
    row, summary = story.row, story.row.summary
    with section(t("turn.about")):
        with tag("div", "", "p-chips"):
            chip(t(f"turns.class.{row.fate.turn_class}"))
            chip(t(f"turn.state.{_STATES.get(summary.state, 'open')}"))
            if row.fate.score is not None:
                chip(f"{t('turns.score')} {_SIGNED.get(row.fate.score, row.fate.score)}",
                     _TONES.get(row.fate.score, ""))
            chip(t(f"turns.fate.{row.fate.fate}"), _FATES[row.fate.fate])
        facts([
            (t("turns.time"), lambda: when(row.at, "")),
            (t("turns.session"), lambda: link(texts.line(summary.session_id, 80),
                                              path("sessions", summary.session_id))),
            (t("turns.version"), lambda: link(str(summary.policy_version), path("versions", summary.policy_version))),
            (t("turn.why_class"), texts.line(summary.class_reason, 400)),
            (t("turn.why_state"), texts.line(summary.reason, 400)),
            (t("turn.flaw"), texts.line(summary.flaw, 400)),
            (t("turn.context"), texts.line(summary.context_change, 400)),
            (t("turn.before"), _turn_link(story.before)),
            (t("turn.branch"), "" if summary.branch_id in ("", row.id) else _id_link(summary.branch_id)),
            *_episode(story)])
        for component in story.down:
            tag("p", t("turn.partly", name=t(f"parts.{component}")), "d-problem", role="status")


def _episode(story: Story) -> list[tuple[str, str | Callable[[], object]]]:
    if not story.row.summary.HasField("episode"):
        return []
    step, episode = story.row.summary.episode, story.episode
    rows: list[tuple[str, str | Callable[[], object]]] = [
        (t("turns.episode"), lambda: link(texts.line(step.episode_id, 60),
                                          f"/turns?{Filters(episode=step.episode_id).query()}")),
        (t("turn.step"), t("turn.step_of", number=step.step, steps=episode.steps) if episode is not None
         else str(step.step)),
        (t("episodes.task"), texts.line(f"{step.type}: {step.task_id}")),
        (t("turn.group"), texts.line(f"{step.group_id} ({step.group_size})"))]
    if episode is not None and episode.done:
        rows.append((t("turn.outcome"), f"{episode.outcome:.2f}" if episode.HasField("outcome")
                     else texts.line(episode.error, 400)))
        rows.append((t("turn.check"), texts.line(episode.detail, 400)))
    return rows


def _next_state(story: Story) -> None:
    with section(t("turn.next_state")):
        for text in story.next_state:
            text_block(text, t("turn.next_state"))
        if not story.next_state:
            for turn in story.after:
                text_block(turn.summary.request_text, t("turn.next_state"))
        if not story.next_state and not story.after:
            open_ = story.row.summary.state == environment_pb2.TURN_STATE_OPEN
            nothing(t("turn.no_next_open") if open_ else t("turn.no_next"))
        for turn in story.after:
            with tag("p", t("turn.continued") + " "):
                _turn_link_in(turn)
        if story.feedback:
            tag("h3", t("turn.feedback"), "d-muted")
            for given in story.feedback:
                _feedback(given)


def _feedback(given: Feedback) -> None:
    with tag("div", "", "p-vote"):
        with tag("div", "", "p-chips"):
            if given.HasField("score"):
                chip(f"{given.score:+.2g}", "good" if given.score > 0 else "bad" if given.score < 0 else "")
            tag("span", clock(given.given_at.seconds), "d-muted")
        if given.comment:
            text_block(given.comment, t("turn.feedback"))


def _judgement(story: Story) -> None:
    judgement = story.row.judgement
    with section(t("turn.judgement")):
        if judgement is None:
            nothing(t("turn.not_judged"))
            return
        with tag("div", "", "p-chips"):
            if judgement.failed:
                chip(t("turn.failed"), "bad")
            else:
                chip(_SIGNED.get(judgement.score, str(judgement.score)), _TONES.get(judgement.score, ""))
            tag("span", texts.line(judgement.panel), "d-muted")
            when(judgement.judged_at.seconds)
        if judgement.hint:
            tag("h3", t("turn.hint"), "d-muted")
            text_block(judgement.hint, t("turn.hint"))
        for vote in judgement.votes:
            _vote(vote)


def _vote(vote: Vote) -> None:
    tone = "" if vote.error else _TONES.get(vote.score, "")
    with tag("div", "", f"p-vote {tone}".rstrip()):
        with tag("div", "", "p-chips"):
            chip(t("turn.vote_failed") if vote.error else _SIGNED.get(vote.score, str(vote.score)),
                 "bad" if vote.error else tone)
            tag("b", texts.line(vote.judge, 80))
            tag("span", f"{vote.duration_ms:.0f} ms", "d-muted")
            if vote.certain:
                chip(t("turn.certain"))
        for name, text in (("", vote.error), ("", vote.rationale), (t("turn.hint"), vote.hint)):
            if text:
                tag("p", (f"{name}: " if name else "") + texts.inert(text, 4000), "d-wrap", dir="auto")


def _fate(story: Story) -> Tag:
    fate, sample = story.row.fate, story.row.sample
    with section(t("turns.fate")):
        with tag("p", ""):
            chip(t(f"turns.fate.{fate.fate}"), _FATES[fate.fate])
        if fate.trained_version is not None:
            with tag("p", t("turn.trained_in") + " "):
                link(t("turns.trained_version", number=fate.trained_version), path("versions", fate.trained_version))
        why = tag("p", texts.inert(fate.reason, 1000), "d-wrap")
        if sample is not None:
            facts([(t("turn.advantage"), f"{sample.advantage:+.3f}" if sample.HasField("advantage") else ""),
                   (t("turn.accepted"), clock(sample.accepted_at.seconds) if sample.HasField("accepted_at") else "")])
    return why


def _trace(falls: Waterfall) -> None:
    with section(t("turn.trace")):
        for problem in falls.problems:
            tag("p", texts.inert(problem, 1000), "d-muted d-wrap")
        if not falls.bars:
            return
        with tag("div", "", "p-chips"):
            tag("span", t("turn.spans", count=len(falls.bars), time=duration(falls.took)), "d-muted")
            if falls.left_out:
                tag("span", t("turn.left_out", count=falls.left_out), "d-muted")
            if falls.jaeger:
                tag("a", t("turn.jaeger"), href=falls.jaeger, target="_blank", rel="noreferrer")
        box = tag("div", "", "w-box")
        bars = [{**asdict(bar), "time": bar.time, "at": duration(bar.begins)} for bar in falls.bars]
        script("waterfall", f"c{box.id}", bars, {"label": t("turn.trace"), "details": t("turn.span_details"),
                                                 "error": t("turn.error")})


def _turn_link(turn: TurnRow | None) -> str | Callable[[], object]:
    return "" if turn is None else lambda: _turn_link_in(turn)


def _turn_link_in(turn: TurnRow) -> Tag:
    return link(texts.line(turn.summary.request_text, 80) or turn.id, path("turns", turn.id))


def _id_link(turn_id: str) -> Callable[[], object]:
    return lambda: link(texts.line(turn_id, 60), path("turns", turn_id), "d-mono")


PAGES = [Page("/turns/{turn_id:path}", "turns", build, nav=False, words=True)]
