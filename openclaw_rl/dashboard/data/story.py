"""The whole story of a turn, and of a session, as far as the components keep it."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...mesh.errors import not_found
from ...v1 import component_pb2
from . import environments
from .parts import WAIT, part
from .turns import TurnRow, join

if TYPE_CHECKING:
    from ...v1.environment_pb2 import Episode, Session
    from ...v1.turn_pb2 import Feedback
    from ..mesh import MeshData

#: Lines of the journal, from its end, in which a turn's full texts are looked for.
_JOURNAL = 5000
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


@dataclass
class SessionStory:
    """A session with its newest turns, oldest first."""

    session: Session
    rows: list[TurnRow] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    down: list[str] = field(default_factory=list)


async def turn(mesh: MeshData, turn_id: str) -> Story:
    """The story of a turn.

    Raises:
        MeshError, ConfigError: there is no such turn, or the environment server doesn't answer.
    """
    found = (await mesh.environment().list_turns(turn_ids=[turn_id], timeout=WAIT)).turns if turn_id else []
    if not found:
        raise not_found("turn", turn_id[:200], "it may have been forgotten, or be older than those that are kept")
    summary = found[0]
    rows, down = await join(mesh, [summary])
    story = Story(rows[0], down=down)
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
    story.response, story.next_state = told(journal or [], summary.response_text)
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
            text = str(json.loads(text))
        except ValueError:  # a line that was cut
            text = text[1:]
    return match[2], Entry(match[1], match[5], text)


def told(entries: list[Entry], response: str) -> tuple[str, list[str]]:
    """The whole response that begins so, and what came next, in the journal's entries of one session.

    Args:
        response: the response, cut.
    """
    for place in range(len(entries) - 1, -1, -1):
        if response and entries[place].kind == "Action" and entries[place].text.startswith(response):
            following: list[str] = []
            for one in entries[place + 1:]:
                if one.kind == "Action":
                    break
                if one.kind == "NextState":
                    following.append(one.text)
            return entries[place].text, following
    return "", []


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
