"""The full history of a turn or a session, as far as the components keep it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from openclaw_rl.dashboard.data import environments
from openclaw_rl.dashboard.data.parts import WAIT, part
from openclaw_rl.dashboard.data.turns import TurnRow, join
from openclaw_rl.rpc.errors import not_found
from openclaw_rl.runtime.json import parse_json
from openclaw_rl.v1 import component_pb2

if TYPE_CHECKING:
    from openclaw_rl.monitoring.mesh import MeshData
    from openclaw_rl.v1.environment_pb2 import Episode, Session, TurnSummary
    from openclaw_rl.v1.turn_pb2 import Feedback

#: Lines of the journal, from its end, in which a turn's full texts are looked for.
_JOURNAL = 5000
#: Characters to which the environment server cuts a turn's texts.
CUT = 200
#: Seconds until session, episode and journal are asked again: while something is to come, and once all is final.
_AGAIN, FINAL = 12.0, 60.0
#: Turns of a session that are shown: the newest.
SESSION_TURNS = 500
_ENTRY = re.compile(r"\[([^\]]*)\] \[SESSION: ([^\]]*)\] \[VERSION: ([^\]]*)\] (?:\[(\w+)\] )?(\w+): (.*)", re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """A line of the journal."""

    at: str  #: local time of the host that wrote it
    kind: str  #: "Action", "NextState", "Score" or "Hint"
    text: str


@dataclass
class Story:
    """A turn with all that is known of it. What a component didn't tell is empty; `down` has its name."""

    row: TurnRow
    session: Session | None = None
    before: TurnRow | None = None  #: the turn that it continues
    after: list[TurnRow] = field(default_factory=list)  #: turns that continue it
    feedback: list[Feedback] = field(default_factory=list)
    episode: Episode | None = None
    response: str = ""  #: all of it, when the journal still has it
    next_state: list[str] = field(default_factory=list)  #: what came next, as the journal has it
    down: list[str] = field(default_factory=list)
    looked: float = 0.0  #: when session, episode and journal were asked, seconds of the monotonic clock

    @property
    def final(self) -> bool:
        """Nothing is to come but feedback and turns that continue it, too."""
        return self.row.fate.fate in ("trained", "dropped", "not_trainable") and not self.down and (
            self.episode is None or self.episode.done)


@dataclass
class SessionStory:
    """A session with its newest turns, oldest first."""

    session: Session
    rows: list[TurnRow] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    down: list[str] = field(default_factory=list)


async def turn(mesh: MeshData, turn_id: str, known: Story | None = None) -> Story:
    """The story of a turn.

    Args:
        known: what was told before: session, episode and journal, which take long, are only asked again when the turn
            has changed or some time has passed.

    Raises:
        MeshError, ConfigError: there is no such turn, or the environment server doesn't answer.
    """
    found = (await mesh.environment().list_turns(turn_ids=[turn_id], timeout=WAIT)).turns if turn_id else []
    if not found:
        raise not_found("turn", turn_id[:200], "it may have been forgotten, or be older than those that are kept")
    summary = found[0]
    rows, down = await join(mesh, [summary])
    now = time.monotonic()
    if known is not None and known.row.summary == summary and now - known.looked < (FINAL if known.final else _AGAIN):
        return replace(known, row=rows[0], down=down)
    story = Story(rows[0], down=down, looked=now)
    of_episode = summary.episode.episode_id

    async def episode() -> Episode | None:
        return await environments.episode(mesh, of_episode) if of_episode else None

    (session, _), (story.episode, _), (journal, _) = await asyncio.gather(
        part(lambda: mesh.environment().get_session(session_id=summary.session_id, timeout=WAIT)), part(episode),
        part(lambda: _journal(mesh, summary.session_id)))
    if session is not None:
        story.session = session.session
        story.feedback = [given for given in session.feedback if given.turn_id == turn_id]
        near = [one for one in session.turns if turn_id == one.parent_turn_id or one.turn_id == summary.parent_turn_id]
        for row in (await join(mesh, near[:50]))[0]:
            if row.id == summary.parent_turn_id:
                story.before = row
            else:
                story.after.append(row)
    story.response, story.next_state = told(
        journal or [], summary, list(session.turns) if session is not None else [summary])
    return story


async def session(mesh: MeshData, session_id: str) -> SessionStory:
    """A session and its newest turns.

    Raises:
        MeshError, ConfigError: there is no such session, or the environment server doesn't answer.
    """
    found = await mesh.environment().get_session(session_id=session_id, timeout=WAIT)
    rows, down = await join(mesh, found.turns[-SESSION_TURNS:])
    return SessionStory(found.session, rows, list(found.feedback), down)


def entry(line: str) -> tuple[str, Entry] | None:
    """A line of the journal as (session, entry); None when it is none."""
    match = _ENTRY.fullmatch(line)
    if match is None:
        return None
    text = match[6]
    if text.startswith('"'):
        try:
            text = str(parse_json(text))
        except ValueError:  # a line that was cut
            text = text[1:]
    return match[2], Entry(match[1], match[5], text)


def told(entries: list[Entry], turn: TurnSummary, turns: Sequence[TurnSummary]) -> tuple[str, list[str]]:
    """A turn's whole response and what came next, in the journal's entries of its session. What may be another
    turn's is left out.

    Args:
        turns: all of the session.
    """
    place = _place(entries, turn, turns)
    if place is None:
        return "", []
    heirs = [one for one in turns if one.parent_turn_id == turn.turn_id]
    for heir in sorted(heirs, key=_finished):
        # The journal has a next state right before the answer to it; others' turns may stand in between.
        end = _place(entries, heir, turns)
        if end is not None and place < end:
            return entries[place].text, _states_before(entries[place + 1:end])
    if heirs or any(entry.kind == "Action" for entry in entries[place + 1:]):
        return entries[place].text, []
    return entries[place].text, [one.text for one in entries[place + 1:] if one.kind == "NextState"]


def _states_before(entries: list[Entry]) -> list[str]:
    found: list[str] = []
    for one in reversed(entries):
        if one.kind == "Action":
            break
        if one.kind == "NextState":
            found.insert(0, one.text)
    return found


def _place(entries: list[Entry], turn: TurnSummary, turns: Sequence[TurnSummary]) -> int | None:
    """Where a turn's response is. Of equal ones as many are later in the journal as there are later turns."""
    response = turn.response_text
    if not response:
        return None
    fitting = [place for place, one in enumerate(entries) if one.kind == "Action" and (
        one.text.startswith(response) if len(response) >= CUT else one.text == response)]
    later = sum(one.response_text == response and _finished(one) > _finished(turn) for one in turns)
    return fitting[-1 - later] if later < len(fitting) else None


def _finished(turn: TurnSummary) -> int:
    return turn.finished_at.ToNanoseconds()


async def _journal(mesh: MeshData, session_id: str) -> list[Entry]:
    """The journal's newest entries of a session."""
    shown = json.dumps(session_id, ensure_ascii=False)[1:-1].replace("]", "\\u005d")
    found: list[Entry] = []
    async for lines in mesh.component("env_server").read_logs(lines=_JOURNAL, source=component_pb2.LOG_SOURCE_JOURNAL,
                                                              timeout=WAIT):
        for line in lines.lines:
            if f"[SESSION: {shown}]" in line[:600] and (read := entry(line)) is not None and read[0] == shown:
                found.append(read[1])
    return found
